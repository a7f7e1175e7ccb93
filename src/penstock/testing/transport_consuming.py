"""The transport suite: groups of one member, commits, seeking, pausing, cancelling."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from penstock.errors import DeadlineExceeded, OffsetOutOfRange, UnknownPartition, UsageError
from penstock.testing.transport_fixtures import (
    MakeTransport,
    TransportFixtures,
    by_partition,
    need,
    numbered,
    take,
    values_of,
)
from penstock.transports import StreamBatch


class ConsumingConformance(TransportFixtures):
    """What a member of a group can rely on."""

    async def test_a_group_goes_on_behind_what_it_committed(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=1)
            await transport.produce(topic, numbered(10))
            async with transport.subscribe(topic, "billing") as consumer:
                batch = await consumer.next_batch(records_max=4)
                await consumer.commit(batch)
                await take(consumer, 10 - len(batch))
        async with make_transport() as transport:
            done = len(batch)
            async with transport.subscribe(topic, "billing") as consumer:
                if transport.capabilities.replay:
                    assert consumer.positions() == {0: done}
                assert values_of(await take(consumer, 10 - done)) == numbered(10 - done, done)

    async def test_what_was_not_committed_comes_again(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=2)
            await transport.produce(topic, numbered(20))
        for _ in range(3):
            async with make_transport() as transport:
                # Closing the transport under the consumer is all the end that it gets.
                consumer = transport.subscribe(topic, "billing")
                await consumer.open()
                assert sorted(values_of(await take(consumer, 20))) == sorted(numbered(20))  # type: ignore[type-var]

    async def test_commits_take_a_batch_a_mapping_or_all(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            need(transport, "replay")
            await transport.create_topic(topic, partitions=2)
            await transport.produce(topic, numbered(20))
            async with transport.subscribe(topic, "billing") as consumer:
                await take(consumer, 20)
                await consumer.commit({0: 3})
                await consumer.commit({0: 5, 1: 2})
                await consumer.commit(StreamBatch(topic, 1, [], 4))
                await consumer.commit({0: 1})  # never backwards
            async with transport.subscribe(topic, "billing") as consumer:
                assert consumer.positions() == {0: 5, 1: 4}
                await take(consumer, 11)
                await consumer.commit()
            async with transport.subscribe(topic, "billing") as consumer:
                assert consumer.positions() == {0: 10, 1: 10}

    async def test_a_commit_must_be_of_what_is_there(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=1)
            await transport.produce(topic, numbered(3))
            async with transport.subscribe(topic, "billing") as consumer:
                for wrong in ({0: 4}, {0: -1}):
                    with pytest.raises(OffsetOutOfRange):
                        await consumer.commit(wrong)
                with pytest.raises(UnknownPartition):
                    await consumer.commit({1: 0})
                with pytest.raises(UsageError):
                    await consumer.commit(StreamBatch("other", 0, [], 1))
            async with transport.subscribe(topic, "billing") as consumer:
                assert consumer.positions() == {0: 0}

    async def test_groups_get_everything_each(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=2)
            await transport.produce(topic, numbered(20))
            async with (
                transport.subscribe(topic, "billing") as billing,
                transport.subscribe(topic, "shipping") as shipping,
            ):
                for consumer in (billing, shipping):
                    got = values_of(await take(consumer, 20))
                    assert set(got) == set(numbered(20))
                await billing.commit()
            async with transport.subscribe(topic, "shipping") as shipping:
                assert shipping.positions() == {0: 0, 1: 0}

    async def test_a_member_waits_for_what_is_produced_later(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=1)
            async with transport.subscribe(topic, "billing") as consumer:
                with pytest.raises(DeadlineExceeded):
                    await consumer.next_batch(timeout=0)
                waiting = asyncio.ensure_future(take(consumer, 3))
                await transport.produce(topic, numbered(3))
                assert values_of(await waiting) == numbered(3)

    @pytest.mark.parametrize("start", ["earliest", "latest"])
    async def test_a_new_group_starts_where_it_says(
        self, make_transport: MakeTransport, topic: str, start: str
    ) -> None:
        first = {"earliest": 0, "latest": 5}[start]
        async with make_transport() as transport:
            need(transport, "replay")
            await transport.create_topic(topic, partitions=1)
            await transport.produce(topic, numbered(5))
            async with transport.subscribe(topic, "billing", start=start) as consumer:  # type: ignore[arg-type]
                await transport.produce(topic, numbered(5, 5))
                assert (await take(consumer, 1))[0].offset == first

    @pytest.mark.acceptance(74)
    async def test_cancelling_loses_nothing(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=1)
            got: list[bytes | None] = []
            async with transport.subscribe(topic, "billing") as consumer:
                for number in range(60):
                    waiting = asyncio.ensure_future(anext(aiter(consumer.batches(2))))
                    if number % 2:
                        await transport.produce(topic, [b"%d" % (number // 2)])
                    for _ in range(number % 7):
                        await asyncio.sleep(0)
                    waiting.cancel()
                    (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
                    if isinstance(outcome, StreamBatch):
                        got += values_of(outcome.records)
                got += values_of(await take(consumer, 30 - len(got)))
        assert got == numbered(30)

    @pytest.mark.acceptance(74, 77)
    async def test_a_loop_over_the_batches_may_be_left_and_taken_up(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=2)
            await transport.produce(topic, numbered(40))
            seen: dict[int, int] = {0: 0, 1: 0}
            async with transport.subscribe(topic, "billing") as consumer:
                while sum(seen.values()) < 40:
                    async for batch in consumer.batches(3):
                        assert 1 <= len(batch) <= 3
                        for record in batch:
                            assert record.offset == seen[record.partition]
                            seen[record.partition] += 1
                        assert batch.next_offset == seen[batch.partition]
                        assert consumer.positions() == seen
                        break

    async def test_a_seek_goes_both_ways_and_is_kept(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            need(transport, "seek")
            await transport.create_topic(topic, partitions=2)
            await transport.produce(topic, numbered(20))
            async with transport.subscribe(topic, "billing") as consumer:
                await take(consumer, 20)
                await consumer.commit()
                await consumer.seek(7, partition=1)
                assert consumer.positions() == {0: 10, 1: 7}
                records = await take(consumer, 3)
                assert [(one.partition, one.offset) for one in records] == [(1, 7), (1, 8), (1, 9)]
                await consumer.seek("earliest")
            async with transport.subscribe(topic, "billing") as consumer:
                assert consumer.positions() == {0: 0, 1: 0}
                await consumer.seek("latest")
                assert consumer.positions() == {0: 10, 1: 10}
                for wrong in (11, 1_000):
                    with pytest.raises(OffsetOutOfRange):
                        await consumer.seek(wrong, partition=0)
                with pytest.raises(UnknownPartition):
                    await consumer.seek(0, partition=2)

    async def test_a_seek_by_time_finds_the_ends(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        past, future = datetime(2001, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)
        async with make_transport() as transport:
            need(transport, "seek_time")
            await transport.create_topic(topic, partitions=1)
            await transport.produce(topic, numbered(10))
            async with transport.subscribe(topic, "billing", start=future) as consumer:
                assert consumer.positions() == {0: 10}
                await consumer.seek(past)
                assert values_of(await take(consumer, 10)) == numbered(10)
                await consumer.seek(future)
                assert consumer.positions() == {0: 10}

    async def test_a_paused_partition_delivers_nothing_until_it_is_resumed(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            need(transport, "pause")
            await transport.create_topic(topic, partitions=2)
            await transport.produce(topic, numbered(20))
            async with transport.subscribe(topic, "billing") as consumer:
                (first,) = await take(consumer, 1)
                paused, other = first.partition, 1 - first.partition
                await consumer.pause(paused)
                assert set(by_partition(await take(consumer, 10))) == {other}
                waiting = asyncio.ensure_future(take(consumer, 9))
                await consumer.resume(paused)
                assert [(one.partition, one.offset) for one in await waiting] == [
                    (paused, number) for number in range(1, 10)
                ]
                with pytest.raises(UnknownPartition):
                    await consumer.pause(2)
