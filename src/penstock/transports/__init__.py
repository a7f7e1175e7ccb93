"""Transports: where streams go and come from. :func:`open_transport` makes one from a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.log.lag import PartitionLag
from penstock.transports.assignment import Handled, MemberAssignment, OnRevoke
from penstock.transports.base import Consumer, Transport
from penstock.transports.capabilities import Capabilities
from penstock.transports.options import check_options
from penstock.transports.records import Produced, StartPosition, StreamBatch, StreamRecord
from penstock.transports.registry import (
    BROKERS,
    TransportRegistry,
    open_transport,
    shared_registry,
)
from penstock.transports.statistics import ConnectionStatistics

if TYPE_CHECKING:
    from penstock.transports.embedded import EmbeddedTransport
    from penstock.transports.kafka import KafkaTransport
    from penstock.transports.nats import NatsTransport
    from penstock.transports.pulsar import PulsarTransport
    from penstock.transports.rabbitmq import RabbitTransport
    from penstock.transports.redis import RedisTransport

__all__ = [
    "Capabilities",
    "ConnectionStatistics",
    "Consumer",
    "EmbeddedTransport",
    "Handled",
    "KafkaTransport",
    "MemberAssignment",
    "NatsTransport",
    "OnRevoke",
    "PartitionLag",
    "Produced",
    "PulsarTransport",
    "RabbitTransport",
    "RedisTransport",
    "StartPosition",
    "StreamBatch",
    "StreamRecord",
    "Transport",
    "TransportRegistry",
    "check_options",
    "open_transport",
    "shared_registry",
]


# Backwards, so that of several schemes the first one stands: the error of a missing package names it.
_SCHEMES = {kind.partition(":")[2]: scheme for scheme, (kind, _) in reversed(BROKERS.items())}
_SCHEMES["EmbeddedTransport"] = "log"


def __getattr__(name: str) -> object:
    if name in _SCHEMES:
        # Loaded when it is used; MissingExtra says what to install.
        return TransportRegistry().find(f"{_SCHEMES[name]}:")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
