"""Penstock: an event bus and a durable log for Python.

This module is the public door. ``penstock.bus``, ``penstock.resilience``, ``penstock.pressure`` and
``penstock.scaling`` have more of the bus, ``penstock.stores`` the places a log can live in,
``penstock.transports`` and ``penstock.streaming`` streams over the log and brokers,
``penstock.spark`` the same for Spark, ``penstock.observe``, ``penstock.dashboard``,
``penstock.config`` and ``penstock.integrations`` what running it takes, ``penstock.testing`` what
tests need, ``penstock.errors`` every error. Everything else is the inside of the house;
ARCHITECTURE.md shows its rooms.

Names are loaded when they are used first: a process that needs a part of it starts with that part.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock import config as config
    from penstock import errors
    from penstock import observe as observe
    from penstock import transports as transports
    from penstock.bus import (
        BatchFailed,
        Batching,
        BoundedEventQueue,
        MessageBus,
        MessageCodec,
        Outcome,
        Overflow,
        QueueOptions,
        current_envelope,
    )
    from penstock.errors import PenstockError
    from penstock.log.codec import Codec
    from penstock.log.inspection import LostRange, Problem, VerifyReport
    from penstock.log.maintenance import MaintenanceReport
    from penstock.log.queue import WalMessageQueue
    from penstock.log.receipts import Acknowledgement, BatchAcknowledgement, Receipt
    from penstock.log.records import Record
    from penstock.log.recovery import RecoveryReport
    from penstock.log.repair import RepairReport, repair
    from penstock.log.retention import RetentionInfo
    from penstock.log.statistics import PartitionStatistics, QueueStatistics, TopicStatistics
    from penstock.log.subscription import RecordBatch, Subscription
    from penstock.log.topic import FsyncPolicy, Retention, TopicConfig, WhenFull
    from penstock.log.verify import scrub, verify
    from penstock.messages import (
        Code,
        Command,
        CommandResult,
        Envelope,
        Event,
        Priority,
        critical,
        hot_path,
        topic,
    )
    from penstock.opening import open_bus as open  # noqa: A004 - penstock.open is its name
    from penstock.pressure import (
        BackpressureState,
        BackpressureStateChanged,
        BackpressureStrategy,
        BackpressureThresholds,
        DegradationDirective,
        MessageBusBackpressure,
        PublishDecision,
        StreamingBackpressureHandler,
    )
    from penstock.resilience import BreakerOptions, CircuitBreaker, ResilientMessageBus, Retry
    from penstock.scaling import BoundedCache, BusLimits, ScalableMessageBus, ScalingLimits
    from penstock.stores import open_store
    from penstock.streaming import (
        ScalabilityConfig,
        StreamCheckpoint,
        StreamEvent,
        StreamingScalingManager,
    )
    from penstock.system import System

_HOMES = {
    "Acknowledgement": "log.receipts",
    "BackpressureState": "pressure",
    "BackpressureStateChanged": "pressure",
    "BackpressureStrategy": "pressure",
    "BackpressureThresholds": "pressure",
    "BatchAcknowledgement": "log.receipts",
    "BatchFailed": "bus",
    "Batching": "bus",
    "BoundedCache": "scaling",
    "BoundedEventQueue": "bus",
    "BreakerOptions": "resilience",
    "BusLimits": "scaling",
    "CircuitBreaker": "resilience",
    "Code": "messages",
    "Codec": "log.codec",
    "Command": "messages",
    "CommandResult": "messages",
    "DegradationDirective": "pressure",
    "Envelope": "messages",
    "Event": "messages",
    "FsyncPolicy": "log.topic",
    "LostRange": "log.inspection",
    "MaintenanceReport": "log.maintenance",
    "MessageBus": "bus",
    "MessageBusBackpressure": "pressure",
    "MessageCodec": "bus",
    "Outcome": "bus",
    "Overflow": "bus",
    "PartitionStatistics": "log.statistics",
    "PenstockError": "errors",
    "Priority": "messages",
    "Problem": "log.inspection",
    "PublishDecision": "pressure",
    "QueueOptions": "bus",
    "QueueStatistics": "log.statistics",
    "Receipt": "log.receipts",
    "Record": "log.records",
    "RecordBatch": "log.subscription",
    "RecoveryReport": "log.recovery",
    "RepairReport": "log.repair",
    "ResilientMessageBus": "resilience",
    "Retention": "log.topic",
    "RetentionInfo": "log.retention",
    "Retry": "resilience",
    "ScalabilityConfig": "streaming",
    "ScalableMessageBus": "scaling",
    "ScalingLimits": "scaling",
    "StreamCheckpoint": "streaming",
    "StreamEvent": "streaming",
    "StreamingBackpressureHandler": "pressure",
    "StreamingScalingManager": "streaming",
    "Subscription": "log.subscription",
    "System": "system",
    "TopicConfig": "log.topic",
    "TopicStatistics": "log.statistics",
    "VerifyReport": "log.inspection",
    "WalMessageQueue": "log.queue",
    "WhenFull": "log.topic",
    "critical": "messages",
    "current_envelope": "bus",
    "hot_path": "messages",
    "open_store": "stores",
    "repair": "log.repair",
    "scrub": "log.verify",
    "topic": "messages",
    "verify": "log.verify",
}
# Doors of their own that are there as soon as penstock is imported. The dashboard wants an import of
# its own: it loads packages of an extra.
_DOORS = (
    "bus",
    "config",
    "errors",
    "integrations",
    "observe",
    "pressure",
    "resilience",
    "scaling",
    "spark",
    "stores",
    "streaming",
    "testing",
    "transports",
)

__all__ = [
    "Acknowledgement",
    "BackpressureState",
    "BackpressureStateChanged",
    "BackpressureStrategy",
    "BackpressureThresholds",
    "BatchAcknowledgement",
    "BatchFailed",
    "Batching",
    "BoundedCache",
    "BoundedEventQueue",
    "BreakerOptions",
    "BusLimits",
    "CircuitBreaker",
    "Code",
    "Codec",
    "Command",
    "CommandResult",
    "DegradationDirective",
    "Envelope",
    "Event",
    "FsyncPolicy",
    "LostRange",
    "MaintenanceReport",
    "MessageBus",
    "MessageBusBackpressure",
    "MessageCodec",
    "Outcome",
    "Overflow",
    "PartitionStatistics",
    "PenstockError",
    "Priority",
    "Problem",
    "PublishDecision",
    "QueueOptions",
    "QueueStatistics",
    "Receipt",
    "Record",
    "RecordBatch",
    "RecoveryReport",
    "RepairReport",
    "ResilientMessageBus",
    "Retention",
    "RetentionInfo",
    "Retry",
    "ScalabilityConfig",
    "ScalableMessageBus",
    "ScalingLimits",
    "StreamCheckpoint",
    "StreamEvent",
    "StreamingBackpressureHandler",
    "StreamingScalingManager",
    "Subscription",
    "System",
    "TopicConfig",
    "TopicStatistics",
    "VerifyReport",
    "WalMessageQueue",
    "WhenFull",
    "critical",
    "current_envelope",
    "errors",
    "hot_path",
    "open",
    "open_store",
    "repair",
    "scrub",
    "topic",
    "verify",
]

if not TYPE_CHECKING:
    # Type checkers read the imports above, and know a misspelled name.

    def __getattr__(name: str) -> object:
        found: object
        if name in _DOORS:
            found = import_module(f"penstock.{name}")
        elif name == "open":
            found = import_module("penstock.opening").open_bus
        elif name in _HOMES:
            found = getattr(import_module(f"penstock.{_HOMES[name]}"), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
