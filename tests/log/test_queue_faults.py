"""A failing disk, seen through the queue: who hears of it, what goes on, what reopening finds."""

import asyncio
import errno
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import FsyncPolicy, TopicConfig, WalMessageQueue
from penstock.errors import PenstockError, Poisoned, StoreFailed
from penstock.testing.queue_fixtures import everything, numbered, settle, values_of
from penstock.testing.worker import simulated_system

TIMED = TopicConfig(fsync=FsyncPolicy.TIMED)
LOG = "*/orders/0/*.log"


def make(system, **options):
    return WalMessageQueue("/data/log", system=system, maintenance_interval=None, **options)


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_nothing_is_acknowledged_after_a_failure(operation):
    system = simulated_system()
    async with make(system) as queue:
        await queue.publish_many("orders", numbered(5))
        await queue.publish("other", b"x")
        async with queue.subscribe("orders", "billing") as subscription:
            system.files.fail(operation, path=LOG)
            with pytest.raises(StoreFailed):
                await queue.publish("orders", b"5")
            # The disk is well again, but nobody knows what it lost.
            for _ in range(2):
                with pytest.raises(Poisoned, match="open the queue again"):
                    await queue.publish("orders", b"6")
                with pytest.raises(Poisoned):
                    await queue.publish_many("orders", [b"6"])
                with pytest.raises(Poisoned):
                    await queue.publish_nowait("orders", b"6").wait()
            with pytest.raises(Poisoned):
                await queue.flush()
            with pytest.raises(Poisoned):
                await queue.wait_durable("orders", 5)
            assert queue.durable_offset("orders") == 5
            # Readers go on up to the durable offset, other topics go on altogether.
            assert await values_of(subscription, 5) == numbered(5)
            await subscription.commit()
            assert [one.value for one in await everything(queue, "orders")] == numbered(5)
            assert (await queue.publish("other", b"y")).offset == 1
            (partition,) = queue.statistics().topics["orders"].partitions
            assert operation in partition.poisoned
    async with make(simulated_system(disk=system.files.kill())) as queue:
        values = [one.value for one in await everything(queue, "orders")]
        assert values[:5] == numbered(5)
        assert values[5:] in ([], [b"5"])
        assert (await queue.publish("orders", b"next")).offset == len(values)
        async with queue.subscribe("orders", "billing") as subscription:
            assert subscription.positions() == {0: 5}


@settings(max_examples=60, deadline=None)
@given(
    operation=st.sampled_from(["write", "sync", "truncate", "open", "sync_directory"]),
    at=st.integers(1, 25),
    forever=st.booleans(),
    policy=st.sampled_from(list(FsyncPolicy)),
    short=st.integers(0, 200),
)
def test_a_failure_anywhere_is_heard_and_loses_nothing_acknowledged(
    operation, at, forever, policy, short
):
    """Every publish is acknowledged or raises; after a power cut what was durable is there."""
    system = simulated_system()
    config = TopicConfig(fsync=policy, fsync_messages=4, segment_bytes_max=600)
    durable, published = [], []

    async def run():
        queue = make(system, defaults=config)
        await queue.open()
        system.files.fail(operation, at=at, forever=forever, short=short, path="*/topics/*")
        for number in range(12):
            value = b"%d" % number
            published.append(value)
            try:
                async with asyncio.timeout(20):
                    acknowledgement = await queue.publish("orders", value, durable=number % 3 == 0)
            except PenstockError:
                continue
            if acknowledgement.durable:
                durable.append((acknowledgement.offset, value))
        with suppress(PenstockError):
            await queue.close()

    async def check(disk):
        async with make(simulated_system(disk=disk)) as queue:
            await queue.create_topic("orders")
            found = {one.offset: one.value for one in await everything(queue, "orders")}
            assert list(found) == list(range(len(found)))
            for offset, value in durable:
                assert found[offset] == value
            order = [published.index(value or b"") for value in found.values()]
            assert order == sorted(set(order))
            await queue.publish("orders", b"next")

    asyncio.run(run())
    system.files.heal()
    for disk in system.files.crash_states(4):
        asyncio.run(check(disk))
    asyncio.run(check(system.files.kill()))


async def test_a_failed_timed_sync_is_heard():
    """The records were acknowledged as not durable; they never become so."""
    system = simulated_system()
    queue = make(system, defaults=TIMED)
    await queue.open()
    assert not (await queue.publish("orders", b"x")).durable
    waiting = asyncio.create_task(queue.wait_durable("orders", 0))
    await settle()
    system.files.fail("sync", path=LOG)
    async with asyncio.timeout(20):
        while not system.files._faults[0].fired:
            system.clock.advance(1)
            await asyncio.sleep(0)
        with pytest.raises(Poisoned):
            await waiting
    with pytest.raises(Poisoned):
        await queue.publish("orders", b"y")
    assert await everything(queue, "orders") == []
    with pytest.raises(StoreFailed):
        await queue.close()


async def test_closing_tells_when_records_could_not_be_synced():
    system = simulated_system()
    queue = make(system, defaults=TIMED)
    await queue.open()
    await queue.publish("other", b"x")
    await queue.publish("orders", b"x")
    system.files.fail("sync", path=LOG)
    with pytest.raises(StoreFailed):
        await queue.close()
    # The other topic was closed in good order all the same.
    disk = next(iter(system.files.crash_states(1)))
    async with make(simulated_system(disk=disk)) as queue:
        assert [one.value for one in await everything(queue, "other")] == [b"x"]


async def test_closing_after_a_failure_that_was_heard_is_quiet():
    system = simulated_system()
    async with make(system) as queue:
        await queue.publish("orders", b"x")
        system.files.fail("write", path=LOG)
        with pytest.raises(StoreFailed):
            await queue.publish("orders", b"y")


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_failed_commit_of_a_subscriber_is_heard_and_can_be_tried_again(operation):
    system = simulated_system()
    async with make(system) as queue:
        await queue.publish_many("orders", numbered(5))
        async with queue.subscribe("orders", "billing") as subscription:
            await values_of(subscription, 2)
            await subscription.commit()
            await values_of(subscription, 2)
            system.files.fail(operation, path="*billing*")
            with pytest.raises(StoreFailed):
                await subscription.commit()
            assert subscription.positions() == {0: 4}
            await subscription.commit()
    for disk in system.files.crash_states(8):
        async with make(simulated_system(disk=disk)) as queue:
            await queue.create_topic("orders")
            async with queue.subscribe("orders", "billing") as subscription:
                assert subscription.positions() == {0: 4}


async def test_a_topic_that_cannot_be_opened_can_be_opened_later():
    system = simulated_system()
    async with make(system) as queue:
        await queue.publish("orders", b"x")
    async with make(system) as queue:
        system.files.fail("open", errno.EMFILE, path="*orders*", forever=True)
        for _ in range(2):
            with pytest.raises(StoreFailed, match="Too many open files"):
                await queue.publish("orders", b"y")
        system.files.heal()
        assert (await queue.publish("orders", b"y")).offset == 1


async def test_a_read_that_fails_ends_the_iteration_and_loses_nothing():
    system = simulated_system()
    async with make(system, tail_cache_bytes=0) as queue:
        values = [b"%d" % number * 500_000 for number in range(5)]
        await queue.publish_many("orders", values)
        async with queue.subscribe("orders", "billing") as subscription:
            read = await values_of(subscription, 1)
            fault = system.files.fail("read", path=LOG)

            async def read_on():
                async for record in subscription:
                    read.append(record.value)

            with pytest.raises(StoreFailed):
                await read_on()
            assert fault.fired
            assert 1 <= len(read) < 5
            assert read + await values_of(subscription, 5 - len(read)) == values


async def test_losing_sight_of_the_heads_is_heard_by_those_who_wait():
    system = simulated_system()
    async with make(system) as queue:
        await queue.create_topic("orders")
        async with queue.subscribe("orders", "billing") as subscription:
            waiting = asyncio.create_task(values_of(subscription, 1))
            await settle()
            system.files.fail("read", path="*/head", forever=True)
            with pytest.raises(StoreFailed):
                await waiting
            system.files.heal()
            await queue.publish("orders", b"x")
            assert await values_of(subscription, 1) == [b"x"]
