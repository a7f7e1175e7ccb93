"""The conformance suite of buses: what every bus must do, however it is made.

A bus of your own passes when a subclass in your tests does::

    class TestMyBus(BusConformance):
        @pytest.fixture
        def make_bus(self):
            return MyBus

``make_bus`` gives a callable that takes the keyword arguments of ``MessageBus``. All tests run on
virtual time. After each one the books of its buses are checked: every event that was published is
in exactly one place.

A bus may call a handler again that failed, and may stop calling one that fails often; the suite
says nothing about how often a failing handler is called.

The suite needs pytest and pytest-asyncio.
"""

from __future__ import annotations

from penstock.testing.bus_batches import BatchConformance
from penstock.testing.bus_cancelling import CancellingConformance
from penstock.testing.bus_commands import CommandConformance
from penstock.testing.bus_events import EventConformance
from penstock.testing.bus_handlers import HandlerConformance
from penstock.testing.bus_life import BusLifeConformance
from penstock.testing.bus_middleware import MiddlewareConformance
from penstock.testing.bus_nesting import NestingConformance
from penstock.testing.bus_queues import EventQueueConformance
from penstock.testing.bus_sessions import SessionConformance
from penstock.testing.bus_threads import ThreadConformance


class BusConformance(
    EventConformance,
    HandlerConformance,
    CommandConformance,
    SessionConformance,
    MiddlewareConformance,
    BatchConformance,
    BusLifeConformance,
    NestingConformance,
    EventQueueConformance,
    CancellingConformance,
    ThreadConformance,
):
    """All tests of buses. Subclass it and say how to make one: see the module's text."""
