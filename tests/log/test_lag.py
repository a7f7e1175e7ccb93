"""How far a subscriber is behind, asked by anyone."""

import msgspec
import pytest

from penstock import Retention, TopicConfig, WalMessageQueue
from penstock.errors import InvalidName, UnknownTopic
from penstock.log.lag import PartitionLag, lag_of, topic_state
from penstock.stores import MemoryStore
from penstock.testing.queue_fixtures import inline, numbered

SMALL = TopicConfig(segment_bytes_max=512)


async def test_a_topic_is_asked_for_and_not_made():
    async with WalMessageQueue("memory:") as queue:
        with pytest.raises(UnknownTopic):
            await topic_state(queue, "orders")
        with pytest.raises(UnknownTopic):
            await lag_of(queue, "orders", "billing")
        await queue.create_topic("orders", TopicConfig(partitions=3))
        assert (await topic_state(queue, "orders")).partitions == 3
        with pytest.raises(InvalidName):
            await lag_of(queue, "orders", "")


async def test_the_lag_is_that_of_the_committed_offset():
    held = inline()
    with MemoryStore() as store:
        async with WalMessageQueue(store, system=held.system) as queue:
            await queue.publish_many("orders", numbered(3))
            held.clock.advance(2)
            await queue.publish_many("orders", numbered(3))
            held.clock.advance(5)
            assert await lag_of(queue, "orders", "new") == [PartitionLag(0, 0, 6, 7_000)]
            async with queue.subscribe("orders", "billing") as subscription:
                await subscription.commit({0: 3})
                assert await lag_of(queue, "orders", "billing") == [PartitionLag(0, 3, 6, 5_000)]
                await subscription.commit({0: 6})
                assert await lag_of(queue, "orders", "billing") == [PartitionLag(0, 6, 6, 0)]


async def test_a_time_in_the_future_is_no_lag():
    held = inline()
    async with WalMessageQueue("memory:", system=held.system) as queue:
        await queue.publish("orders", b"x", timestamp=held.clock.time_ms() + 10_000)
        assert await lag_of(queue, "orders", "new") == [PartitionLag(0, 0, 1, 0)]


async def test_what_retention_took_does_not_count_as_time():
    held = inline()
    settings = msgspec.structs.replace(
        SMALL, retention=Retention(age_ms_max=60_000, protect_subscribers=False)
    )
    async with WalMessageQueue("memory:", defaults=settings, system=held.system) as queue:
        await queue.create_topic("orders")
        async with queue.subscribe("orders", "billing") as subscription:
            await subscription.commit()
        for _ in range(20):
            await queue.publish("orders", bytes(200))
            held.clock.advance(10)
        await queue.maintain()
        (lag,) = await lag_of(queue, "orders", "billing")
        assert (lag.committed, lag.end) == (0, 20)
        assert 0 < lag.milliseconds <= 100_000


async def test_records_that_compaction_took_are_passed_over():
    held = inline()
    settings = msgspec.structs.replace(SMALL, compact_keys=True)
    async with WalMessageQueue("memory:", defaults=settings, system=held.system) as queue:
        for _ in range(20):
            await queue.publish("orders", bytes(200), key=b"k")
            held.clock.advance(10)
        await queue.maintain()
        (lag,) = await lag_of(queue, "orders", "new")
        assert lag.end == 20
        assert 0 < lag.milliseconds < 200_000


async def test_an_entry_of_which_compaction_took_the_rest_is_passed_over():
    held = inline()
    settings = msgspec.structs.replace(SMALL, compact_keys=True)
    async with WalMessageQueue("memory:", defaults=settings, system=held.system) as queue:
        await queue.publish_many("orders", [bytes(200), bytes(200)], keys=[b"stays", b"goes"])
        for _ in range(5):
            held.clock.advance(10)
            await queue.publish("orders", bytes(200), key=b"goes")
        await queue.maintain()
        async with queue.subscribe("orders", "billing") as subscription:
            await subscription.commit({0: 1})
        (first,) = await lag_of(queue, "orders", "new")
        (second,) = await lag_of(queue, "orders", "billing")
        assert (first.records, first.milliseconds) == (7, 50_000)
        assert (second.records, second.committed) == (6, 1)
        assert second.milliseconds < 50_000
