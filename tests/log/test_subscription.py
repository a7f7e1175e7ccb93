"""Subscribers: damaged offsets, names, memory, and what the iteration leaves behind."""

import asyncio
import gc

import pytest

from penstock import TopicConfig, WalMessageQueue
from penstock.errors import DamagedFile, OffsetOutOfRange, SubscriberBusy
from penstock.hashing import fnv1a
from penstock.log.slots import SLOT_BYTES
from penstock.testing.queue_fixtures import numbered, records_of, values_of
from penstock.testing.worker import simulated_system
from tests.log.small_log import remove_first_segment

OFFSETS = "/data/log/groups/billing/orders-0.offset"


def make(system, **options):
    return WalMessageQueue("/data/log", system=system, maintenance_interval=None, **options)


async def committed(system, *steps):
    """A subscriber that committed after so many records, one commit for each step."""
    async with make(system) as queue:
        await queue.publish_many("orders", numbered(20))
        async with queue.subscribe("orders", "billing") as subscription:
            for count in steps:
                await values_of(subscription, count)
                await subscription.commit()


@pytest.mark.acceptance(45)
async def test_each_subscriber_and_partition_has_its_offset_file():
    system = simulated_system()
    async with make(system, defaults=TopicConfig(partitions=2)) as queue:
        await queue.publish_many("orders", numbered(4))
        for name in ("billing", "shipping"):
            async with queue.subscribe("orders", name) as subscription:
                await values_of(subscription, 4)
                await subscription.commit()
    offsets = [path for path in system.files.files() if path.endswith(".offset")]
    assert offsets == [
        f"/data/log/groups/{name}/orders-{partition}.offset"
        for name in ("billing", "shipping")
        for partition in (0, 1)
    ]


@pytest.mark.parametrize("slot", [0, 1])
async def test_a_damaged_slot_is_reported_and_nothing_is_skipped(slot):
    """The newest commit is lost, or only the one before; never more, and never without a word."""
    system = simulated_system()
    await committed(system, 3, 3, 3)
    system.files.flip_bit(OFFSETS, 8 * (SLOT_BYTES * slot + 20))
    async with make(system) as queue:
        await queue.create_topic("orders")
        async with queue.subscribe("orders", "billing") as subscription:
            assert subscription.damaged_offsets == ["groups/billing/orders-0.offset"]
            position = subscription.positions()[0]
            assert position in {6, 9}
            assert await values_of(subscription, 2) == numbered(2, position)


@pytest.mark.parametrize("damage", ["flipped", "missing", "empty"])
async def test_damaged_offsets_are_not_used_and_there_is_a_way_out(damage):
    system = simulated_system()
    await committed(system, 3, 3)
    if damage == "flipped":
        for slot in range(2):
            system.files.flip_bit(OFFSETS, 8 * (SLOT_BYTES * slot + 20))
    elif damage == "missing":
        system.files.delete(OFFSETS)
    else:
        system.files.truncate_file(OFFSETS, 0)
    async with make(system) as queue:
        await queue.create_topic("orders")
        async with queue.subscribe("orders", "billing") as subscription:
            with pytest.raises(DamagedFile, match=r"(?i)seek|unsubscribe"):
                await values_of(subscription, 1)
            with pytest.raises(DamagedFile):
                subscription.positions()
            for everything in (None, {0: 5}):
                with pytest.raises(DamagedFile):
                    await subscription.commit(everything)
            await subscription.pause([0])
            await subscription.resume([0])
            with pytest.raises(DamagedFile):
                await subscription.rewind([0])
            with pytest.raises(DamagedFile):
                await values_of(subscription, 1)
            # One way out: say where to go on.
            await subscription.seek(4)
            assert await values_of(subscription, 2) == numbered(2, 4)
            await subscription.commit()
        async with queue.subscribe("orders", "billing") as subscription:
            assert subscription.positions() == {0: 6}


async def test_a_subscriber_with_damaged_offsets_can_be_forgotten():
    system = simulated_system()
    await committed(system, 3)
    system.files.delete(OFFSETS)
    async with make(system) as queue:
        await queue.unsubscribe("orders", "billing")
        async with queue.subscribe("orders", "billing", start=1) as subscription:
            assert subscription.positions() == {0: 1}


async def test_damage_in_one_partition_is_mended_there():
    system = simulated_system()
    async with make(system, defaults=TopicConfig(partitions=2)) as queue:
        await queue.publish_many("orders", numbered(20))
        async with queue.subscribe("orders", "billing") as subscription:
            await values_of(subscription, 20)
            await subscription.commit()
    system.files.delete(OFFSETS)
    async with make(system) as queue:
        await queue.create_topic("orders")
        async with queue.subscribe("orders", "billing") as subscription:
            with pytest.raises(DamagedFile, match="orders-0"):
                subscription.lag()
            await subscription.seek(7, partition=0)
            assert subscription.positions() == {0: 7, 1: 10}


async def test_an_offset_that_retention_removed_is_named():
    system = simulated_system()
    config = TopicConfig(segment_bytes_max=300)
    async with make(system, defaults=config, tail_cache_bytes=0) as queue:
        for start in range(0, 30, 3):
            await queue.publish_many("orders", numbered(3, start))
        async with queue.subscribe("orders", "billing") as subscription:
            remove_first_segment(queue.store)
            with pytest.raises(OffsetOutOfRange, match="Seek to"):
                await values_of(subscription, 1)
            await subscription.seek("earliest")
            (record,) = await records_of(subscription, 1)
            assert record.offset > 0


async def test_a_dropped_subscription_frees_its_name():
    system = simulated_system()
    async with make(system) as queue:
        await queue.publish("orders", b"x")
        subscription = queue.subscribe("orders", "billing")
        assert await values_of(subscription, 1) == [b"x"]
        with pytest.raises(SubscriberBusy):
            await queue.subscribe("orders", "billing").open()
        del subscription
        gc.collect()
        async with queue.subscribe("orders", "billing"):
            pass


async def test_opening_twice_is_opening_once():
    system = simulated_system()
    async with make(system) as queue:
        await queue.publish("orders", b"x")
        subscription = queue.subscribe("orders", "billing")
        await asyncio.gather(*(subscription.open() for _ in range(5)))
        assert await values_of(subscription, 1) == [b"x"]
        await asyncio.gather(*(subscription.close() for _ in range(5)))


async def test_an_open_that_failed_can_be_tried_again():
    system = simulated_system()
    async with make(system) as queue:
        await queue.publish("orders", b"x")
        later = queue.subscribe("orders", "billing")
        async with queue.subscribe("orders", "billing"):
            for _ in range(2):
                with pytest.raises(SubscriberBusy):
                    await later.open()
        assert await values_of(later, 1) == [b"x"]


async def test_partitions_take_turns():
    """A partition with much to read does not starve the others."""
    system = simulated_system()
    async with make(system, defaults=TopicConfig(partitions=2), tail_cache_bytes=0) as queue:
        await queue.publish_many("orders", [bytes(100_000)] * 60, keys=[b"a"] * 60)
        busy = fnv1a(b"a") % 2
        other = next(key for key in (b"b", b"c", b"d") if fnv1a(key) % 2 != busy)
        await queue.publish("orders", b"small", key=other)
        async with queue.subscribe("orders", "billing") as subscription:
            seen = [record.partition for record in await records_of(subscription, 30)]
            assert 1 - busy in seen


async def test_seeking_while_iterating_keeps_the_other_partitions():
    system = simulated_system()
    async with make(system, defaults=TopicConfig(partitions=2)) as queue:
        await queue.publish_many("orders", numbered(20))
        async with queue.subscribe("orders", "billing") as subscription:
            other = -1
            async for record in subscription:
                if record.offset == 4:
                    other = 1 - record.partition
                    await subscription.seek(8, partition=other)
                    assert subscription.positions() == {record.partition: 5, other: 8}
                    break
            rest = await records_of(subscription, 7)
        assert sorted((one.partition, one.offset) for one in rest) == sorted(
            [(1 - other, offset) for offset in range(5, 10)] + [(other, 8), (other, 9)]
        )


async def test_committing_an_older_record_after_a_seek_back_moves_forward_from_there():
    system = simulated_system()
    async with make(system) as queue:
        await queue.publish_many("orders", numbered(10))
        async with queue.subscribe("orders", "billing") as subscription:
            records = await records_of(subscription, 10)
            await subscription.commit()
            await subscription.seek(2)
            await subscription.commit(records[4])
            await subscription.commit(records[3])
        async with queue.subscribe("orders", "billing") as subscription:
            assert subscription.positions() == {0: 5}
