"""The queue suite: what is read is what was published; replay, ranges, Arrow, other queues."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Codec, Record, TopicConfig, WalMessageQueue
from penstock.errors import UnknownPartition
from penstock.testing.clock import START_MS
from penstock.testing.queue_fixtures import (
    EXAMPLES,
    WAIT_SECONDS,
    MakeQueue,
    QueueFixtures,
    everything,
    inline,
    numbered,
    records_of,
    values_of,
)

SMALL_SEGMENTS = TopicConfig(segment_bytes_max=512)


class Message(NamedTuple):
    """What a publisher hands over."""

    value: bytes | None
    key: bytes | None = None
    headers: Mapping[str, bytes] | None = None
    timestamp: int | None = None


MESSAGES = st.builds(
    Message,
    value=st.none() | st.binary(max_size=50),
    key=st.none() | st.binary(max_size=20),
    headers=st.none() | st.dictionaries(st.text(max_size=5), st.binary(max_size=5)),
    timestamp=st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
)
CALLS = st.sampled_from(["publish", "publish_nowait", "publish_many"])
ODD_MESSAGES = [
    Message(None),
    Message(b""),
    Message(b"", b""),
    Message(None, b"key"),
    Message(b"value", b""),
    Message(b"value", b"key", {}, 0),
    Message(b"value", None, {"": b""}),
    Message(b"value", None, {"a": b"1", "b": b"", "ü": bytes(range(256))}, 1),
    Message(b"value", None, None, 0),
    Message(b"value", None, None, -1),
    Message(b"value", None, None, START_MS * 2),
    Message(bytes(range(256)) * 1_000, bytes(1_000)),
]


async def publish(queue: WalMessageQueue, call: str, topic: str, message: Message) -> None:
    """Publish a record by one of the three calls and wait for it."""
    value, key, headers, timestamp = message
    if call == "publish":
        await queue.publish(topic, value, key=key, headers=headers, timestamp=timestamp)
    elif call == "publish_nowait":
        await queue.publish_nowait(topic, value, key, headers, timestamp).wait()
    else:
        times = None if timestamp is None else [timestamp]
        await queue.publish_many(topic, [value], keys=[key], headers=[headers], timestamps=times)


def as_read(topic: str, offset: int, message: Message, now_ms: int) -> Record:
    """The record that a message becomes."""
    value, key, headers, timestamp = message
    time = now_ms if timestamp is None else timestamp
    return Record(topic, 0, offset, time, key, value, dict(headers or {}))


def plain(record: Record) -> Record:
    """The record with its headers as a plain dictionary, to be compared."""
    return Record(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        dict(record.headers),
    )


async def read_all_ways(queue: WalMessageQueue, topic: str) -> None:
    """A subscriber, a replay and Arrow must agree; from memory and from the disk."""
    read = [plain(record) for record in await everything(queue, topic)]
    async with queue.subscribe(topic, "reader") as subscription:
        assert [plain(one) for one in await records_of(subscription, len(read))] == read
    table = await queue.read_arrow(topic)
    assert table.column("offset").to_pylist() == [record.offset for record in read]
    assert table.column("key").to_pylist() == [record.key for record in read]
    assert table.column("value").to_pylist() == [record.value for record in read]
    assert set(table.column("topic").to_pylist()) <= {topic}
    times = table.column("timestamp").cast("int64").to_pylist()
    assert times == [record.timestamp for record in read]
    headers = [
        {one["key"]: one["value"] for one in pairs or ()}
        for pairs in table.column("headers").to_pylist()
    ]
    assert headers == [record.headers for record in read]


class ReadingConformance(QueueFixtures):
    """What a reader can rely on."""

    @pytest.mark.parametrize("call", ["publish", "publish_nowait", "publish_many"])
    async def test_every_kind_of_record_is_read_back(
        self, make_queue: MakeQueue, call: str
    ) -> None:
        held = inline()
        async with make_queue(system=held.system) as queue:
            await queue.create_topic("orders")
            for message in ODD_MESSAGES:
                await publish(queue, call, "orders", message)
            expected = [
                as_read("orders", offset, message, START_MS)
                for offset, message in enumerate(ODD_MESSAGES)
            ]
            assert [plain(one) for one in await everything(queue, "orders")] == expected
            await read_all_ways(queue, "orders")
        async with make_queue() as queue:
            assert [plain(one) for one in await everything(queue, "orders")] == expected
            await queue.unsubscribe("orders", "reader")
            await read_all_ways(queue, "orders")

    @settings(EXAMPLES, max_examples=15)
    @given(
        messages=st.lists(st.tuples(CALLS, MESSAGES), max_size=12),
        codec=st.sampled_from([Codec.NONE, Codec.ZLIB]),
    )
    async def test_any_records_are_read_back(
        self, make_queue: MakeQueue, messages: list[tuple[str, Message]], codec: Codec
    ) -> None:
        held = inline()
        async with make_queue(system=held.system) as queue:
            topic = f"topic-{len(await queue.topics())}"
            await queue.create_topic(topic, TopicConfig(codec=codec))
            for call, message in messages:
                await publish(queue, call, topic, message)
            expected = [
                as_read(topic, offset, message, START_MS)
                for offset, (_, message) in enumerate(messages)
            ]
            assert [plain(one) for one in await everything(queue, topic)] == expected
            await read_all_ways(queue, topic)

    async def test_records_published_together_are_read_back(self, make_queue: MakeQueue) -> None:
        values, keys, headers, times = map(list, zip(*ODD_MESSAGES, strict=True))
        stamps = [0 if time is None else time for time in times]
        async with make_queue() as queue:
            await queue.publish_many(
                "orders",
                values,
                keys=keys,
                headers=headers,
                timestamps=stamps,
            )
            read = await everything(queue, "orders")
            assert [record.value for record in read] == values
            assert [record.key for record in read] == keys
            assert [dict(record.headers) for record in read] == [dict(one or {}) for one in headers]
            assert [record.timestamp for record in read] == stamps
            await read_all_ways(queue, "orders")

    async def test_segments_are_read_one_after_the_other(self, make_queue: MakeQueue) -> None:
        async with make_queue(defaults=SMALL_SEGMENTS) as queue:
            for start in range(0, 100, 10):
                await queue.publish_many("orders", numbered(10, start))
            assert queue.statistics().topics["orders"].rolls > 2
            assert [one.value for one in await everything(queue, "orders")] == numbered(100)
            await read_all_ways(queue, "orders")
        async with make_queue(tail_cache_bytes=0) as queue:
            assert [one.value for one in await everything(queue, "orders")] == numbered(100)
            await queue.unsubscribe("orders", "reader")
            await read_all_ways(queue, "orders")

    async def test_replay_reads_a_range(self, make_queue: MakeQueue) -> None:
        held = inline()
        begin = datetime.fromtimestamp(held.clock.time_ms() / 1000, UTC)
        async with make_queue(defaults=SMALL_SEGMENTS, system=held.system) as queue:
            for number in range(10):
                await queue.publish_many("orders", numbered(5, 5 * number))
                held.clock.advance(60)

            async def offsets(**where: object) -> list[int]:
                found = [one.offset async for one in queue.replay("orders", **where)]  # type: ignore[arg-type]
                table = await queue.read_arrow("orders", **where)  # type: ignore[arg-type]
                assert table.column("offset").to_pylist() == found
                batches = [one async for one in queue.replay_arrow("orders", **where)]  # type: ignore[arg-type]
                assert [place for one in batches for place in one["offset"].to_pylist()] == found
                return found

            assert await offsets() == list(range(50))
            assert await offsets(start=7, end=23) == list(range(7, 23))
            assert await offsets(start=7, end=8) == [7]
            assert await offsets(start=7, end=7) == []
            assert await offsets(start=8, end=7) == []
            assert await offsets(start=48, end=1_000) == [48, 49]
            assert await offsets(start=50) == []
            assert await offsets(start=1_000) == []
            assert await offsets(start="latest") == []
            assert await offsets(end="earliest") == []
            assert await offsets(
                start=begin + timedelta(minutes=2), end=begin + timedelta(minutes=4)
            ) == list(range(10, 20))
            assert await offsets(start=begin + timedelta(minutes=30)) == []

    async def test_replay_reads_one_partition_or_all(self, make_queue: MakeQueue) -> None:
        async with make_queue(defaults=TopicConfig(partitions=3)) as queue:
            await queue.publish_many("orders", numbered(30))
            records = await everything(queue, "orders")
            assert [record.partition for record in records] == [0] * 10 + [1] * 10 + [2] * 10
            for partition in range(3):
                found = [one async for one in queue.replay("orders", partition=partition)]
                assert found == records[10 * partition : 10 * partition + 10]
                table = await queue.read_arrow("orders", partition=partition)
                assert table.column("value").to_pylist() == [one.value for one in found]
            with pytest.raises(UnknownPartition):
                await anext(queue.replay("orders", partition=3))
            with pytest.raises(UnknownPartition):
                await queue.read_arrow("orders", partition=-1)

    async def test_replay_commits_nothing(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.publish_many("orders", numbered(5))
            async with queue.subscribe("orders", "billing") as subscription:
                assert len(await everything(queue, "orders")) == 5
                assert subscription.positions() == {0: 0}

    async def test_an_empty_topic_is_read(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.create_topic("orders")
            assert await everything(queue, "orders") == []
            assert (await queue.read_arrow("orders")).num_rows == 0

    # Two queues on one place

    async def test_a_waiting_subscriber_sees_what_another_queue_publishes(
        self, make_queue: MakeQueue
    ) -> None:
        async with make_queue() as queue, make_queue() as other:
            await queue.create_topic("orders")
            async with queue.subscribe("orders", "billing") as subscription:
                for number in range(5):
                    waiting = asyncio.create_task(values_of(subscription, 1))
                    await other.publish("orders", b"%d" % number)
                    assert await waiting == [b"%d" % number]

    async def test_a_late_subscriber_sees_what_another_queue_has_published(
        self, make_queue: MakeQueue
    ) -> None:
        """Also when that happened after this queue had opened the topic."""
        async with make_queue() as queue, make_queue() as other:
            await queue.create_topic("orders")
            await other.publish_many("orders", numbered(5))
            async with queue.subscribe("orders", "billing") as subscription:
                assert await values_of(subscription, 5) == numbered(5)
            await other.publish_many("orders", numbered(5, 5))
            async with queue.subscribe("orders", "shipping") as subscription:
                assert await values_of(subscription, 10) == numbered(10)

    async def test_two_queues_append_to_one_topic(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue, make_queue() as other:
            await asyncio.gather(queue.create_topic("orders"), other.create_topic("orders"))
            async with (
                queue.subscribe("orders", "billing") as billing,
                other.subscribe("orders", "shipping") as shipping,
            ):
                reading = [asyncio.create_task(records_of(one, 200)) for one in (billing, shipping)]
                done = await asyncio.gather(
                    *(
                        (queue, other)[number % 2].publish("orders", b"%d" % number)
                        for number in range(200)
                    )
                )
                first, second = await asyncio.gather(*reading)
        assert sorted(one.offset for one in done) == list(range(200))
        assert first == second
        by_offset = {record.offset: record.value for record in first}
        assert [by_offset[one.offset] for one in done] == numbered(200)

    async def test_what_another_queue_made_durable_can_be_waited_for(
        self, make_queue: MakeQueue
    ) -> None:
        async with make_queue() as queue, make_queue() as other:
            await queue.create_topic("orders")
            waiting = asyncio.create_task(queue.wait_durable("orders", 1))
            await other.publish_many("orders", numbered(2))
            async with asyncio.timeout(WAIT_SECONDS):
                await waiting
            await other.publish_many("orders", numbered(2))
            await queue.wait_durable("orders", 3)
            assert queue.durable_offset("orders") == 4
