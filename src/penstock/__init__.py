"""Penstock: an event bus and a durable log for Python.

This module is the public door. ``penstock.bus`` and ``penstock.resilience`` have more of the bus,
``penstock.errors`` every error, ``penstock.stores`` the places a log can live in,
``penstock.testing`` what tests need. Everything else is the inside of the
house; ARCHITECTURE.md shows its rooms.
"""

from penstock import errors
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
