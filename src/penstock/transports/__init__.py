"""Transports: where streams go and come from. :func:`open_transport` makes one from a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.log.lag import PartitionLag
from penstock.transports.assignment import Handled, MemberAssignment, OnRevoke
from penstock.transports.base import Consumer, Transport
from penstock.transports.capabilities import Capabilities
from penstock.transports.options import check_options
from penstock.transports.records import Produced, StartPosition, StreamBatch, StreamRecord
from penstock.transports.registry import TransportRegistry, open_transport, shared_registry

if TYPE_CHECKING:
    from penstock.transports.embedded import EmbeddedTransport

__all__ = [
    "Capabilities",
    "Consumer",
    "EmbeddedTransport",
    "Handled",
    "MemberAssignment",
    "OnRevoke",
    "PartitionLag",
    "Produced",
    "StartPosition",
    "StreamBatch",
    "StreamRecord",
    "Transport",
    "TransportRegistry",
    "check_options",
    "open_transport",
    "shared_registry",
]


def __getattr__(name: str) -> object:
    if name == "EmbeddedTransport":
        # Loaded when it is used, as every transport is.
        from penstock.transports.embedded import EmbeddedTransport

        return EmbeddedTransport
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
