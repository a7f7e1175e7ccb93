"""A topic's partition count changes while everybody publishes and reads."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import Record, Retention, TopicConfig, WalMessageQueue, repair, verify
from penstock.errors import (
    DeadlineExceeded,
    InvalidOption,
    LimitReached,
    UnknownPartition,
    UnknownTopic,
    UsageError,
)
from penstock.log import epoch_change
from penstock.log.head import HeadFile
from penstock.log.names import PartitionKeys
from penstock.log.topic import TopicFile
from penstock.stores.directory import DirectoryStore
from penstock.stores.memory import MemoryStore
from penstock.system import System
from penstock.testing.clock import VirtualClock
from tests.log.epoch_world import check_order

TOPIC = "orders"
KEYS = [b"a", b"b", b"c", b"d", b"e"]
TWO = TopicConfig(partitions=2)


async def publish(queue, first, end):
    """Numbered records, each with the key that its number belongs to."""
    numbers = range(first, end)
    values = [b"%d" % number for number in numbers]
    return await queue.publish_many(
        TOPIC, values, keys=[KEYS[number % len(KEYS)] for number in numbers]
    )


async def take(subscription, count, records_max=10_000):
    """The next records of a subscription."""
    records: list[Record] = []
    while len(records) < count:
        records += await subscription.next_batch(20, min(records_max, count - len(records)))
    return records


async def nothing_more(subscription):
    with pytest.raises(DeadlineExceeded):
        await subscription.next_batch(0.05)


async def with_epochs(queue, counts=(4, 1, 3)):
    """A topic with ten records in each of its epochs."""
    await queue.create_topic(TOPIC, TWO)
    await publish(queue, 0, 10)
    for place, count in enumerate(counts, 1):
        await queue.repartition(TOPIC, count)
        await publish(queue, 10 * place, 10 * place + 10)
    return 10 + 10 * len(counts)


@pytest.mark.acceptance(20)
async def test_records_go_to_the_new_partitions_and_come_in_the_order_of_their_keys():
    async with WalMessageQueue(MemoryStore()) as queue:
        total = await with_epochs(queue)
        state = await queue.create_topic(TOPIC)
        assert (state.partitions, state.partitions_all, state.epoch) == (3, 4, 3)
        assert [one.partitions for one in state.epochs] == [2, 4, 1, 3]
        records = [record async for record in queue.replay(TOPIC)]
        assert check_order(records) == list(range(total))
        async with queue.subscribe(TOPIC, "billing") as subscription:
            assert check_order(await take(subscription, total)) == list(range(total))
            assert subscription.lag() == 0


async def test_the_same_count_changes_nothing():
    async with WalMessageQueue(MemoryStore()) as queue:
        before = await queue.create_topic(TOPIC, TWO)
        assert await queue.repartition(TOPIC, 2) == before


async def test_what_cannot_be_is_refused():
    async with WalMessageQueue(MemoryStore()) as queue:
        await queue.create_topic(TOPIC, TWO)
        for count in (0, -1, 5_000):
            with pytest.raises(InvalidOption, match="partitions"):
                await queue.repartition(TOPIC, count)
        with pytest.raises(UnknownTopic):
            await queue.repartition("no-such-topic", 3)
        with pytest.raises(InvalidOption, match="repartition"):
            await queue.change_topic(TOPIC, partitions=3)


async def test_a_read_only_queue_does_not_repartition_but_follows(tmp_path):
    async with WalMessageQueue(tmp_path) as queue, WalMessageQueue(tmp_path, read_only=True) as eye:
        await queue.create_topic(TOPIC, TWO)
        assert [record async for record in eye.replay(TOPIC)] == []
        with pytest.raises(UsageError):
            await eye.repartition(TOPIC, 3)
        await queue.repartition(TOPIC, 5)
        await publish(queue, 0, 20)
        assert check_order([record async for record in eye.replay(TOPIC)]) == list(range(20))
        assert len(await eye.read_arrow(TOPIC, partition=4)) > 0


async def test_every_way_to_publish_goes_on():
    async with WalMessageQueue(MemoryStore()) as queue:
        await queue.create_topic(TOPIC, TWO)
        await queue.repartition(TOPIC, 4)
        one = await queue.publish(TOPIC, b"x", key=b"a")
        many = await queue.publish_many(TOPIC, [b"x"] * 400)
        receipt = queue.publish_nowait(TOPIC, b"x", b"a")
        waited = await receipt.wait()
        assert many.count == 400
        assert [end - first for first, end in many.ranges.values()] == [100] * 4
        assert waited.ranges.keys() == {one.partition}
        statistics = queue.statistics().topics[TOPIC]
        assert len(statistics.partitions) == 4
        assert sum(part.next_offset for part in statistics.partitions) == 402
        assert statistics.records_committed == 402
        assert statistics.records_failed == 0


async def test_a_queue_that_has_the_topic_open_publishes_by_the_new_epoch(tmp_path):
    async with WalMessageQueue(tmp_path) as one, WalMessageQueue(tmp_path) as other:
        await one.create_topic(TOPIC, TWO)
        await publish(other, 0, 10)
        await one.repartition(TOPIC, 7)
        acknowledged = await publish(other, 10, 200)
        assert acknowledged.count == 190
        moved = {number: end for number, (_, end) in acknowledged.ranges.items() if number > 1}
        assert moved
        assert other.statistics().topics[TOPIC].records_committed == 200
        for number, end in moved.items():
            assert other.durable_offset(TOPIC, number) == end
        assert check_order([record async for record in one.replay(TOPIC)]) == list(range(200))


async def test_each_publisher_is_told_where_its_record_went(tmp_path):
    async with WalMessageQueue(tmp_path) as one, WalMessageQueue(tmp_path) as other:
        await one.create_topic(TOPIC, TWO)
        await other.create_topic(TOPIC)
        await one.repartition(TOPIC, 5)
        publishing = [
            other.publish(TOPIC, b"%d" % number, key=b"%d" % number) for number in range(50)
        ]
        placed = await asyncio.gather(*publishing)
        for number, at in enumerate(placed):
            table = await one.read_arrow(TOPIC, partition=at.partition, start=at.offset)
            assert table["value"][0].as_py() == b"%d" % number
        assert Counter(at.partition for at in placed).keys() == set(range(5))


async def test_a_subscriber_that_waits_notices_the_new_partitions_of_another_process(tmp_path):
    async with WalMessageQueue(tmp_path) as one, WalMessageQueue(tmp_path) as other:
        await one.create_topic(TOPIC, TopicConfig())
        async with other.subscribe(TOPIC, "billing") as subscription:
            for count in (3, 1, 4):
                waiting = asyncio.create_task(take(subscription, 20))
                await one.repartition(TOPIC, count)
                first = 20 * count
                await publish(one, first, first + 20)
                assert check_order(await waiting) == list(range(first, first + 20))
            await subscription.commit()
            assert subscription.positions().keys() == {0, 1, 2, 3}
        assert (await one.retention(TOPIC))[3].blocked_by is None


@pytest.mark.parametrize("records_max", [1, 7, 1_000])
async def test_a_subscriber_that_is_far_behind_reads_epoch_after_epoch(tmp_path, records_max):
    async with WalMessageQueue(tmp_path) as queue:
        total = await with_epochs(queue, (4, 1, 3, 5, 2))
        async with queue.subscribe(TOPIC, "billing") as subscription:
            records = await take(subscription, total, records_max)
            assert check_order(records) == list(range(total))
            assert [int(record.value) // 10 for record in records] == sorted(
                int(record.value) // 10 for record in records
            )


async def test_a_restart_goes_on_in_the_middle_of_an_epoch(tmp_path):
    seen: list[Record] = []
    async with WalMessageQueue(tmp_path) as queue:
        total = await with_epochs(queue)
    while len(seen) < total:
        async with WalMessageQueue(tmp_path) as queue:
            async with queue.subscribe(TOPIC, "billing") as subscription:
                seen += await take(subscription, min(7, total - len(seen)))
                await subscription.commit()
    assert check_order(seen) == list(range(total))


async def test_a_partition_that_is_paused_keeps_the_next_epoch_shut():
    async with WalMessageQueue(MemoryStore()) as queue:
        await queue.create_topic(TOPIC, TWO)
        at = await queue.publish(TOPIC, b"0", key=b"a")
        await queue.repartition(TOPIC, 4)
        await publish(queue, 1, 20)
        async with queue.subscribe(TOPIC, "billing") as subscription:
            await subscription.pause([at.partition])
            await nothing_more(subscription)
            await subscription.resume([at.partition])
            assert len(await take(subscription, 20)) == 20


async def test_seeking_by_offset_and_by_time_goes_through_the_epochs_again():
    clock = VirtualClock()
    async with WalMessageQueue(MemoryStore(), system=System(clock=clock)) as queue:
        await queue.create_topic(TOPIC, TWO)
        times = []
        for epoch, count in enumerate((3, 1, 4)):
            await publish(queue, 10 * epoch, 10 * epoch + 10)
            clock.advance(60)
            times.append(clock.time_ms())
            await queue.repartition(TOPIC, count)
        async with queue.subscribe(TOPIC, "billing") as subscription:
            assert check_order(await take(subscription, 30)) == list(range(30))
            await subscription.seek("earliest")
            assert check_order(await take(subscription, 30)) == list(range(30))
            await subscription.seek(datetime.fromtimestamp(times[0] / 1_000, UTC))
            assert check_order(await take(subscription, 20)) == list(range(10, 30))
            positions = subscription.positions()
            await subscription.seek(0, partition=0)
            again = await take(subscription, positions[0])
            assert {record.partition for record in again} == {0}
            await nothing_more(subscription)
            await subscription.seek("latest")
            await nothing_more(subscription)


async def test_a_subscriber_that_starts_at_the_end_gets_only_what_comes(tmp_path):
    async with WalMessageQueue(tmp_path) as one, WalMessageQueue(tmp_path) as other:
        await other.create_topic(TOPIC, TWO)
        await publish(one, 0, 10)
        await one.repartition(TOPIC, 4)
        await publish(one, 10, 20)
        async with other.subscribe(TOPIC, "late", start="latest") as subscription:
            await nothing_more(subscription)
            await one.repartition(TOPIC, 1)
            await publish(one, 20, 30)
            assert check_order(await take(subscription, 10)) == list(range(20, 30))


async def test_partitions_that_are_not_there_are_refused_until_they_are():
    async with WalMessageQueue(MemoryStore()) as queue:
        await queue.create_topic(TOPIC, TWO)
        with pytest.raises(UnknownPartition):
            await queue.read_arrow(TOPIC, partition=2)
        await queue.repartition(TOPIC, 3)
        assert len(await queue.read_arrow(TOPIC, partition=2)) == 0


async def test_retention_removes_old_epochs_to_the_last_record_and_they_are_forgotten(tmp_path):
    clock = VirtualClock()
    config = TopicConfig(partitions=4, retention=Retention(age_ms_max=1_000))
    system = System(clock=clock)
    async with WalMessageQueue(tmp_path, system=system, maintenance_interval=None) as queue:
        await queue.create_topic(TOPIC, config)
        await publish(queue, 0, 20)
        await queue.repartition(TOPIC, 2)
        await publish(queue, 20, 40)
        clock.advance(10)
        await queue.repartition(TOPIC, 3)
        await publish(queue, 40, 60)
        assert [one.epoch for one in (await queue.create_topic(TOPIC)).epochs] == [0, 1, 2]
        await queue.maintain()
        assert check_order([record async for record in queue.replay(TOPIC)]) == list(range(40, 60))
        state = await queue.repartition(TOPIC, 1)
        assert [one.epoch for one in state.epochs] == [2, 3]
        assert state.partitions_all == 4
    async with WalMessageQueue(tmp_path, system=system, maintenance_interval=None) as queue:
        assert check_order([record async for record in queue.replay(TOPIC)]) == list(range(40, 60))
        await queue.repartition(TOPIC, 4)
        await publish(queue, 60, 80)
        async with queue.subscribe(TOPIC, "billing") as subscription:
            assert check_order(await take(subscription, 40)) == list(range(40, 80))
    assert verify(tmp_path).problems == []


async def test_the_number_of_epochs_is_bounded(monkeypatch):
    monkeypatch.setattr(epoch_change, "EPOCHS_MAX", 3)
    async with WalMessageQueue(MemoryStore()) as queue:
        await with_epochs(queue, (1, 2))
        with pytest.raises(LimitReached, match="3 epochs"):
            await queue.repartition(TOPIC, 3)
        assert len((await publish(queue, 30, 60)).ranges) == 2


async def test_changes_without_records_between_them_are_one():
    async with WalMessageQueue(MemoryStore()) as queue:
        await queue.create_topic(TOPIC, TWO)
        await publish(queue, 0, 10)
        for count in (3, 1, 5):
            await queue.repartition(TOPIC, count)
        state = await queue.repartition(TOPIC, 2)
        assert [one.partitions for one in state.epochs] == [2, 2]
        assert state.epoch == 4


async def test_compaction_at_the_end_of_an_epoch_does_not_keep_the_next_one_shut(tmp_path):
    clock = VirtualClock()
    system = System(clock=clock)
    config = TopicConfig(partitions=2, compact_keys=True)
    options: dict[str, Any] = {"maintenance_interval": None, "tail_cache_bytes": 0}
    async with WalMessageQueue(tmp_path, system=system, **options) as queue:
        await queue.create_topic(TOPIC, config)
        await publish(queue, 0, 20)
        await queue.repartition(TOPIC, 1)
        await publish(queue, 20, 25)
        await queue.repartition(TOPIC, 2)
        await publish(queue, 25, 30)
        clock.advance(3_600)
        await queue.maintain()
        left = check_order([record async for record in queue.replay(TOPIC)])
        assert len(left) < 30
        async with queue.subscribe(TOPIC, "billing") as subscription:
            assert check_order(await take(subscription, len(left))) == left
            await nothing_more(subscription)


# Damage


async def test_a_lost_head_does_not_let_an_old_routing_through(tmp_path):
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(WalMessageQueue(tmp_path))
        other = await stack.enter_async_context(WalMessageQueue(tmp_path))
        await one.create_topic(TOPIC, TWO)
        await publish(other, 0, 10)
        await one.repartition(TOPIC, 5)
        for number in range(5):
            (tmp_path / PartitionKeys(TOPIC, number).head).write_bytes(b"")
        acknowledged = await publish(other, 10, 40)
        assert len(acknowledged.ranges) > 2
        assert check_order([record async for record in other.replay(TOPIC)]) == list(range(40))
    head = HeadFile(DirectoryStore(tmp_path), PartitionKeys(TOPIC, 0).head).read()
    assert head is not None
    assert head.epoch == 1


async def test_an_epoch_that_begins_behind_the_end_is_damage_and_repair_leaves_a_gap(tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        await with_epochs(queue, (1, 3))
    folder = tmp_path / "topics" / TOPIC / "1"
    for file in folder.iterdir():
        file.unlink()
    found = [problem for problem in verify(tmp_path).problems if problem.kind == "epoch"]
    assert len(found) == 1
    assert "partition 1" in found[0].message
    report = repair(tmp_path, TOPIC)
    assert report.remaining == []
    async with WalMessageQueue(tmp_path) as queue:
        await publish(queue, 30, 40)
        async with queue.subscribe(TOPIC, "billing", start="earliest") as subscription:
            assert check_order(await take(subscription, 10))[0] >= 0


async def test_repair_with_an_older_description_reads_all_and_goes_on(tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        await with_epochs(queue, (4,))
    file = tmp_path / "topics" / TOPIC / "topic.json"
    text = file.read_bytes()
    place = text.index(b'"checksum":') + len(b'"checksum":')
    file.write_bytes(text[:place] + b"1" + text[place:])
    report = repair(tmp_path, TOPIC)
    assert report.remaining == []
    assert TopicFile(DirectoryStore(tmp_path), TOPIC).read().partitions == 4
    async with WalMessageQueue(tmp_path) as queue:
        await publish(queue, 20, 40)
        values = {record.value async for record in queue.replay(TOPIC)}
        assert values == {b"%d" % number for number in range(40)}
