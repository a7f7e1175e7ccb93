"""A session keeps its member in the group, however long its reader takes and whatever goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.errors import StoreFailed
from penstock.log.group_bell import GroupBells
from penstock.log.group_coordinator import GroupCoordinator
from penstock.log.group_session import GroupSession
from penstock.log.group_state import Partitions
from penstock.stores.memory import MemoryStore
from penstock.system import System
from penstock.testing.clock import VirtualClock

LEASE = 9.0


class SlowReader:
    """Takes as long as it is told to, and notes what it hears."""

    def __init__(self, taking: Callable[[], None]) -> None:
        self.taking = taking
        self._turns: asyncio.Queue[Exception | None] = asyncio.Queue()

    async def take(self) -> None:
        self.taking()

    async def revoke(self, partitions: Partitions) -> None:
        pass

    def released(self, partitions: Partitions) -> None:
        pass

    def removed(self) -> None:
        pass

    def failed(self, error: Exception | None) -> None:
        self._turns.put_nowait(error)

    async def turn(self) -> Exception | None:
        """The end of the next turn of the session: what went wrong in it."""
        return await asyncio.wait_for(self._turns.get(), 60)

    def revoke_failed(self, error: Exception) -> None:
        raise error


class World:
    """A group with one session, on a clock of its own."""

    def __init__(self) -> None:
        self.clock, store = VirtualClock(), MemoryStore()
        self.coordinator = GroupCoordinator(
            store, "billing", system=System(clock=self.clock), lease_seconds=LEASE
        )
        self.reader = SlowReader(lambda: None)
        self.session = GroupSession(
            self.coordinator, GroupBells(store), self.reader, release_seconds=1.0
        )

    async def lease_seconds_left(self) -> float:
        state = await self.coordinator.describe()
        ends = state.members[self.session.member.id].lease_expires_ms
        return (ends - self.clock.time_ms()) / 1_000


@pytest.fixture
async def world() -> World:
    return World()


async def test_a_reader_that_takes_long_to_begin_does_not_cost_the_lease(world):
    world.reader.taking = lambda: world.clock.advance(LEASE - 1)
    await world.session.start({"orders": 1})
    world.reader.taking = lambda: None
    assert await world.reader.turn() is None
    assert await world.lease_seconds_left() == LEASE
    await world.session.stop()


async def test_a_reader_that_cannot_begin_leaves_the_group(world):
    def fail() -> None:
        raise StoreFailed("no such disk")

    world.reader.taking = fail
    with pytest.raises(StoreFailed):
        await world.session.start({"orders": 1})
    assert (await world.coordinator.describe()).members == {}


async def test_a_member_goes_on_after_an_error_of_any_kind(world):
    def fail() -> None:
        raise RuntimeError("something that nobody thought of")

    await world.session.start({"orders": 1})
    assert await world.reader.turn() is None
    world.reader.taking = fail
    world.clock.advance(LEASE / 3)
    assert isinstance(await world.reader.turn(), RuntimeError)
    world.reader.taking = lambda: None
    world.clock.advance(LEASE / 3)
    while (error := await world.reader.turn()) is not None:
        assert isinstance(error, RuntimeError)
    assert await world.lease_seconds_left() == LEASE
    await world.session.stop()
