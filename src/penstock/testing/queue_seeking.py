"""The queue suite: where subscribers start, and seeking by offset and by time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from penstock import TopicConfig
from penstock.errors import (
    InvalidOption,
    OffsetOutOfRange,
    UnknownPartition,
)
from penstock.testing.queue_fixtures import (
    WAIT_SECONDS,
    MakeQueue,
    QueueFixtures,
    inline,
    numbered,
    records_of,
    settle,
    take,
    values_of,
)

TWO = TopicConfig(partitions=2)


class SeekingConformance(QueueFixtures):
    """Where a subscriber goes on."""

    @pytest.mark.parametrize("start", ["earliest", "latest", 0, 3, 5])
    async def test_a_new_subscriber_starts_where_it_says(
        self, make_queue: MakeQueue, start: str | int
    ) -> None:
        first = {"earliest": 0, "latest": 5}.get(str(start), start)
        async with make_queue() as queue:
            await queue.publish_many("orders", numbered(5))
            async with queue.subscribe("orders", "billing", start=start) as subscription:  # type: ignore[arg-type]
                assert subscription.positions() == {0: first}
                assert subscription.lag() == max(0, 5 - int(first))
                await queue.publish_many("orders", numbered(10, 5))
                assert (await records_of(subscription, 1))[0].offset == first
        async with make_queue() as queue:
            # Where it started is known, though it committed nothing.
            await queue.create_topic("orders")
            async with queue.subscribe("orders", "billing", start=1) as subscription:
                assert subscription.positions() == {0: first}

    async def test_an_offset_must_be_there(self, make_queue: MakeQueue) -> None:
        """Whoever stood beyond the end would skip what is published next."""
        async with make_queue() as queue:
            await queue.publish_many("orders", numbered(5))
            with pytest.raises(OffsetOutOfRange, match="0 to 5"):
                await queue.subscribe("orders", "billing", start=6).open()
            async with queue.subscribe("orders", "billing", start=3) as subscription:
                with pytest.raises(OffsetOutOfRange):
                    await subscription.seek(6)
                assert await values_of(subscription, 2) == numbered(2, 3)
            await queue.create_topic("wide", TWO)
            with pytest.raises(InvalidOption, match="partition"):
                queue.subscribe("wide", "billing", start=0)

    async def test_a_subscriber_starts_and_seeks_by_time(self, make_queue: MakeQueue) -> None:
        held = inline()
        begin = datetime.fromtimestamp(held.clock.time_ms() / 1000, UTC)
        async with make_queue(system=held.system) as queue:
            for number in range(5):
                await queue.publish_many("orders", numbered(2, 2 * number))
                held.clock.advance(60)
            start = begin + timedelta(minutes=2)
            async with queue.subscribe("orders", "billing", start=start) as subscription:
                assert await values_of(subscription, 6) == numbered(6, 4)
                for minutes, offset in [(-5, 0), (0, 0), (0.5, 2), (1, 2), (4, 8), (4.1, 10)]:
                    await subscription.seek(begin + timedelta(minutes=minutes))
                    assert subscription.positions() == {0: offset}

    async def test_a_time_needs_its_zone(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.publish("orders", b"x")
            async with queue.subscribe("orders", "billing") as subscription:
                for wrong in (datetime(2026, 1, 1), "first", -1, 1.5, None):  # noqa: DTZ001 - the point
                    with pytest.raises(InvalidOption):
                        await subscription.seek(wrong)  # type: ignore[arg-type]
                assert await values_of(subscription, 1) == [b"x"]

    async def test_a_seek_moves_both_ways_and_is_durable(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.publish_many("orders", numbered(10))
            async with queue.subscribe("orders", "billing") as subscription:
                await take(subscription, 8)
                await subscription.commit()
                await subscription.seek(2)
                assert await values_of(subscription, 2) == numbered(2, 2)
        async with make_queue() as queue:
            await queue.create_topic("orders")
            async with queue.subscribe("orders", "billing") as subscription:
                assert subscription.positions() == {0: 2}
                await subscription.seek("latest")
                assert (subscription.positions(), subscription.lag()) == ({0: 10}, 0)
                await subscription.seek("earliest")
                assert await values_of(subscription, 10) == numbered(10)

    async def test_a_seek_takes_effect_with_the_next_record(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.publish_many("orders", numbered(50))
            async with queue.subscribe("orders", "billing") as subscription:
                seen: list[int] = []
                async with asyncio.timeout(WAIT_SECONDS):
                    async for record in subscription:
                        seen.append(record.offset)
                        if record.offset == 5:
                            await subscription.seek(40)
                        if record.offset == 42 and len(seen) < 20:
                            await subscription.seek(2)
                        if len(seen) == 14:
                            break
                assert seen == [0, 1, 2, 3, 4, 5, 40, 41, 42, 2, 3, 4, 5, 40]
                seen = []
                async with asyncio.timeout(WAIT_SECONDS):
                    async for batch in subscription.batches(10):
                        seen += [record.offset for record in batch]
                        if len(seen) > 20:
                            break
                        await subscription.seek(7)
                assert seen[-10:] == list(range(7, 17))

    async def test_a_seek_names_its_partition(self, make_queue: MakeQueue) -> None:
        async with make_queue(defaults=TWO) as queue:
            await queue.publish_many("orders", numbered(20))
            async with queue.subscribe("orders", "billing") as subscription:
                with pytest.raises(InvalidOption, match="partition"):
                    await subscription.seek(3)
                with pytest.raises(UnknownPartition):
                    await subscription.seek(3, partition=2)
                await subscription.seek(3, partition=1)
                assert subscription.positions() == {0: 0, 1: 3}
                await subscription.seek("latest", partition=0)
                assert subscription.positions() == {0: 10, 1: 3}
                assert await values_of(subscription, 7) == [
                    record.value async for record in queue.replay("orders", partition=1, start=3)
                ]

    async def test_a_waiting_subscriber_can_be_moved(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.publish_many("orders", numbered(10))
            async with queue.subscribe("orders", "billing", start="latest") as subscription:
                waiting = asyncio.create_task(values_of(subscription, 3))
                await settle()
                assert not waiting.done()
                await subscription.seek(4)
                assert await waiting == numbered(3, 4)

    async def test_a_paused_partition_delivers_nothing(self, make_queue: MakeQueue) -> None:
        async with make_queue(defaults=TWO) as queue:
            await queue.publish_many("orders", numbered(20))
            async with queue.subscribe("orders", "billing") as subscription:
                (first,) = await records_of(subscription, 1)
                paused, other = first.partition, 1 - first.partition
                await subscription.pause([paused])
                rest = await records_of(subscription, 10)
                assert {record.partition for record in rest} == {other}
                assert subscription.positions() == {paused: 1, other: 10}
                waiting = asyncio.ensure_future(records_of(subscription, 9))
                await settle()
                assert not waiting.done()
                await subscription.resume([paused])
                assert [record.offset for record in await waiting] == list(range(1, 10))
                with pytest.raises(UnknownPartition):
                    await subscription.pause([2])

    async def test_a_rewind_goes_back_to_what_is_committed(self, make_queue: MakeQueue) -> None:
        async with make_queue(defaults=TWO) as queue:
            await queue.publish_many("orders", numbered(20))
            async with queue.subscribe("orders", "billing") as subscription:
                await records_of(subscription, 20)
                await subscription.commit({0: 4, 1: 10})
                await subscription.rewind([0])
                assert subscription.positions() == {0: 4, 1: 10}
                assert [one.offset for one in await records_of(subscription, 6)] == [*range(4, 10)]
                with pytest.raises(UnknownPartition):
                    await subscription.commit({7: 1})
