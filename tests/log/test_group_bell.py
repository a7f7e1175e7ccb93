"""Members hear at once that partitions have moved, by whatever process, on every store."""

import asyncio

import pytest

from penstock.errors import StoreFailed
from penstock.log.group_bell import GroupBells
from penstock.log.group_coordinator import GroupCoordinator
from penstock.log.group_file import rings
from penstock.log.names import group_bell_key
from penstock.stores import DirectoryStore, MemoryStore, SqliteStore
from penstock.testing.queue_fixtures import settle

WAIT = 120.0
TOPICS = {"orders": 4}


@pytest.fixture(params=["memory", "directory", "sqlite", "no more watches"])
def stores(request, tmp_path, monkeypatch):
    """Two views of one place, as two processes have them."""
    if request.param == "memory":
        with MemoryStore() as store:
            yield store, store
        return
    make = SqliteStore if request.param == "sqlite" else DirectoryStore
    if request.param == "no more watches":
        monkeypatch.setattr(DirectoryStore, "watch_key", full)
    with make(tmp_path / "data") as first, make(tmp_path / "data") as second:
        yield first, second


def full(*_):
    raise StoreFailed("there are no more watches")


async def heard(event):
    async with asyncio.timeout(WAIT):
        await event.wait()
    event.clear()


async def test_members_hear_who_joins_releases_and_leaves(stores):
    here, there = (GroupCoordinator(store, "billing") for store in stores)
    bells, bell = GroupBells(stores[0]), asyncio.Event()
    first = await here.join(TOPICS)
    bells.follow("billing", bell.set)
    await asyncio.sleep(0.01)  # a poller has seen what is there
    bell.clear()
    second = await there.join(TOPICS)
    await heard(bell)
    assert await first.look() is not None
    await first.release()
    await heard(bell)
    assert len(second.assignment) == 0
    assert await second.look() is not None
    await second.leave()
    await heard(bell)
    bells.close()


async def test_a_heartbeat_and_a_commit_ring_no_bell():
    with MemoryStore() as store:
        coordinator = GroupCoordinator(store, "billing")
        member = await coordinator.join(TOPICS)
        before = rings(store, "billing")
        for number in range(3):
            await member.heartbeat()
            await member.commit({("orders", 0): number})
        assert rings(store, "billing") == before
        await member.leave()
        assert rings(store, "billing") == before + 1


async def test_nobody_is_called_after_the_end():
    with MemoryStore() as store:
        calls: list[int] = []
        bells = GroupBells(store)
        listener = lambda: calls.append(1)  # noqa: E731
        bells.follow("billing", listener)
        bells.ring("billing")
        bells.ring("shipping")
        await settle()
        assert calls == [1]
        bells.forget("billing", listener)
        bells.forget("billing", listener)
        bells.ring("billing")
        await settle()
        assert calls == [1]
        bells.close()
        bells.close()


def test_a_bell_that_was_lost_begins_anew():
    with MemoryStore() as store:
        assert rings(store, "billing") == 0
        store.write(group_bell_key("billing"), b"xy")
        assert rings(store, "billing") == 0
        store.write(group_bell_key("billing"), b"\xff" * 8)
        assert rings(store, "billing") < 1 << 63
