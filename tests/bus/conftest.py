"""What tests of buses share."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import WalMessageQueue
from penstock.bus.bus import MessageBus
from penstock.resilience.bus import ResilientMessageBus
from penstock.system import System
from penstock.testing import MemoryJournals, VirtualClock

# Before the suite is imported: its assertions then explain themselves as those of tests do.
pytest.register_assert_rewrite(
    "penstock.testing.bus_batches",
    "penstock.testing.bus_cancelling",
    "penstock.testing.bus_commands",
    "penstock.testing.bus_events",
    "penstock.testing.bus_fixtures",
    "penstock.testing.bus_handlers",
    "penstock.testing.bus_life",
    "penstock.testing.bus_middleware",
    "penstock.testing.bus_nesting",
    "penstock.testing.bus_queues",
    "penstock.testing.bus_sessions",
    "penstock.testing.bus_threads",
)


@pytest.fixture
async def queue(tmp_path):
    async with WalMessageQueue(tmp_path, maintenance_interval=None) as opened:
        yield opened


@pytest.fixture(params=[MessageBus, ResilientMessageBus])
def make(request, queue):
    """Makes buses on the queue, one after the other."""

    def make(**options: Any) -> MessageBus:
        bus: MessageBus = request.param(log=queue, event_log=True, **options)
        bus.on_error(lambda *_: None)
        return bus

    return make


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
async def bus(clock):
    async with MessageBus(system=System(clock=clock)) as made:
        made.on_error(lambda *_: None)
        yield made


@pytest.fixture
def journals():
    return MemoryJournals()


@pytest.fixture
def refunded():
    """What the handler was called with."""
    return []
