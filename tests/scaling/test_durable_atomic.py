"""Atomic groups of durable events: in the log whole, or not at all."""

import asyncio
from typing import cast

import pytest

from penstock.errors import InvalidMessage, NotSupported
from penstock.log.transaction import Transaction
from tests.scaling.durable_events import Base, Derived, Ordered, make, numbers


@pytest.mark.acceptance(152)
async def test_an_atomic_group_is_in_the_log_whole(queue):
    async with make(queue) as bus:
        seen: list[object] = []
        bus.subscribe("*", seen.append)
        async with bus.atomic() as group:
            group.publish(Base(1))
            group.publish(Ordered("ada", 2))
            group.publish(Derived(3))
            await bus.settle()
            assert seen == []
        await bus.settle()
        assert sorted(seen, key=repr) == [Base(1), Derived(3), Ordered("ada", 2)]
        for name in ("durable.orders", "durable.derived"):
            assert len([record async for record in queue.replay(name)]) == 1


@pytest.mark.acceptance(152)
async def test_an_atomic_group_that_fails_publishes_nothing_anywhere(queue, monkeypatch):
    async with make(queue) as bus:
        seen: list[int] = []
        bus.subscribe(Base, numbers(seen))
        bus.subscribe("durable.*", numbers(seen))

        async def publish(*events):
            async with bus.atomic() as group:
                for event in events:
                    group.publish(event)

        with pytest.raises(InvalidMessage):
            await publish(Base(1), Derived(1), Ordered(cast("str", object()), 1))
        monkeypatch.setattr(Transaction, "commit", fail_to_commit)
        with pytest.raises(OSError, match="no space"):
            await publish(Base(1), Derived(1))
        monkeypatch.undo()
        await publish(Base(2), Derived(3))
        await bus.settle()
        assert sorted(seen) == [2, 3]
        assert bus.statistics().events_unsettled == 0


async def fail_to_commit(transaction):
    raise OSError("no space left")


async def test_a_durable_group_refuses_what_is_in_no_log(queue):
    async with make(queue) as bus:

        async def publish_both():
            async with bus.atomic(durable=True) as group:
                group.publish(Base(1))
                group.publish(Ordered("ada", 1))

        with pytest.raises(NotSupported, match="Base"):
            await publish_both()
        assert bus.statistics().events_published == 0


@pytest.mark.acceptance(152)
async def test_who_leaves_an_atomic_group_that_is_written_leaves_it_whole(queue, monkeypatch):
    async with make(queue) as bus:
        seen: list[int] = []
        bus.subscribe(Base, numbers(seen))
        bus.subscribe(Derived, numbers(seen))
        began, gate = asyncio.Event(), asyncio.Event()
        commit = Transaction.commit

        async def commit_late(transaction):
            began.set()
            await gate.wait()
            return await commit(transaction)

        monkeypatch.setattr(Transaction, "commit", commit_late)

        async def publish_both():
            async with bus.atomic() as group:
                group.publish(Base(1))
                group.publish(Derived(2))

        task = asyncio.ensure_future(publish_both())
        await began.wait()
        task.cancel()
        await asyncio.wait([task])
        gate.set()
        await bus.settle()
        assert sorted(seen) == [1, 2]
