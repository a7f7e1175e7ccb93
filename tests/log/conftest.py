"""Real servers for queues, started once a run; subscriptions that are held up; groups on every store."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest

from penstock import Subscription, WalMessageQueue
from penstock.log.group_coordinator import GroupCoordinator
from penstock.log.membership import Membership
from penstock.stores import DirectoryStore, MemoryStore, SqliteStore
from penstock.system import System
from penstock.testing import VirtualClock
from tests.log.group_world import LEASE
from tests.servers import postgres_server, s3_server

# Before the suite is imported: its assertions then explain themselves as those of tests do.
pytest.register_assert_rewrite(
    "penstock.testing.queue_fixtures",
    "penstock.testing.queue_life",
    "penstock.testing.queue_publishing",
    "penstock.testing.queue_reading",
    "penstock.testing.queue_seeking",
    "penstock.testing.queue_subscribing",
    "penstock.testing.queue_topics",
)

_numbers = itertools.count()


@pytest.fixture
def held_up_opening(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Subscribers stop when they have claimed their name: the first event; and go on at the second."""
    inside, go_on = threading.Event(), threading.Event()
    check = Membership._check_members

    def held_up(self: Membership) -> None:
        inside.set()
        assert go_on.wait(30)
        check(self)

    monkeypatch.setattr(Membership, "_check_members", held_up)
    return inside, go_on


class HalfOpen(NamedTuple):
    """A subscription of "billing" to "orders" that has claimed its name, and does not get on."""

    queue: WalMessageQueue
    subscription: Subscription
    opening: asyncio.Task[None]
    go_on: threading.Event


@pytest.fixture
async def half_open(
    held_up_opening: tuple[threading.Event, threading.Event],
) -> AsyncIterator[HalfOpen]:
    from penstock.testing.worker import simulated_system  # not before what is rewritten above

    inside, go_on = held_up_opening
    async with WalMessageQueue("/data/log", system=simulated_system()) as queue:
        await queue.publish("orders", b"x")
        subscription = queue.subscribe("orders", "billing")
        opening = asyncio.create_task(subscription.open())
        assert await asyncio.to_thread(inside.wait, 30)
        yield HalfOpen(queue, subscription, opening, go_on)


@pytest.fixture(scope="session")
def postgres_dsn() -> Iterator[str]:
    with postgres_server() as server:
        yield server.dsn


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def unique() -> str:
    """A name that no other test of this run has."""
    return f"q{next(_numbers)}"


@pytest.fixture(params=["memory", "directory", "sqlite"])
def store(request, tmp_path):
    make = {
        "memory": MemoryStore,
        "directory": lambda: DirectoryStore(tmp_path / "data"),
        "sqlite": lambda: SqliteStore(tmp_path / "data.db"),
    }
    with make[request.param]() as made:
        yield made


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def coordinator(store, clock):
    return GroupCoordinator(store, "billing", system=System(clock=clock), lease_seconds=LEASE)
