"""The transport suite: producing, routing, order, headers, timestamps."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from penstock.hashing import fnv1a
from penstock.testing.transport_fixtures import (
    MakeTransport,
    TransportFixtures,
    by_partition,
    need,
    numbered,
    take,
    values_of,
)

KEY_OF_INT_MIN = b"074cpxe"
"""Its hash is 0x80000000: as a signed integer it has no positive counterpart."""


class ProducingConformance(TransportFixtures):
    """What a producer can rely on."""

    @pytest.mark.acceptance(68)
    async def test_what_is_produced_is_consumed(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=1)
            done = await transport.produce(topic, [b"a", b"", None], keys=[b"k", None, b"k"])
            assert (done.topic, done.count) == (topic, 3)
            # Without offsets that last, nobody is told any.
            assert dict(done.ranges) == ({0: (0, 3)} if transport.capabilities.replay else {})
            assert done.durable or not transport.capabilities.durable
            async with transport.subscribe(topic, "billing") as consumer:
                records = await take(consumer, 3)
        assert [(one.topic, one.partition, one.offset) for one in records] == [
            (topic, 0, number) for number in range(3)
        ]
        assert [(one.key, one.value) for one in records] == [
            (b"k", b"a"),
            (None, b""),
            (b"k", None),
        ]

    @pytest.mark.acceptance(77)
    async def test_offsets_are_dense_and_in_order_of_producing(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=1)
            for start in range(0, 50, 5):
                await transport.produce(topic, numbered(5, start))
            async with transport.subscribe(topic, "billing") as consumer:
                records = await take(consumer, 50, records_max=7)
        assert [one.offset for one in records] == list(range(50))
        assert values_of(records) == numbered(50)

    async def test_a_key_stays_in_one_partition_and_in_order(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        keys = [b"key-%d" % (number % 7) for number in range(210)]
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=4)
            await asyncio.gather(
                transport.produce(topic, numbered(105), keys=keys[:105]),
                transport.produce(topic, numbered(105, 105), keys=keys[105:]),
            )
            async with transport.subscribe(topic, "billing") as consumer:
                records = await take(consumer, 210)
        for key in set(keys):
            mine = [one for one in records if one.key == key]
            assert len({one.partition for one in mine}) == 1
            # The two batches may stand in either order; each is in its own.
            for low, high in ((0, 105), (105, 210)):
                numbers = [int(one.value or b"") for one in mine]
                part = [number for number in numbers if low <= number < high]
                assert part == sorted(part)

    @pytest.mark.acceptance(70)
    async def test_the_hash_of_the_key_chooses_the_partition(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        """After a restart too, and for a key whose hash is the least of the signed integers."""
        assert fnv1a(KEY_OF_INT_MIN) == 0x80000000
        keys = [*numbered(20), KEY_OF_INT_MIN]
        for start in (0, 21):
            async with make_transport() as transport:
                need(transport, "keyed_routing")
                await transport.create_topic(topic, partitions=3)
                await transport.produce(topic, numbered(21, start), keys=keys)
        async with (
            make_transport() as transport,
            transport.subscribe(topic, "billing") as consumer,
        ):
            for record in await take(consumer, 42):
                assert record.partition == fnv1a(record.key or b"") % 3

    @pytest.mark.acceptance(71)
    async def test_records_without_a_key_are_spread_evenly(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            need(transport, "keyed_routing")
            await transport.create_topic(topic, partitions=4)
            for start in range(0, 100, 10):
                await transport.produce(topic, numbered(10, start))
            async with transport.subscribe(topic, "billing") as consumer:
                records = await take(consumer, 100)
        assert Counter(one.partition for one in records) == dict.fromkeys(range(4), 25)

    async def test_headers_arrive_as_they_were(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        headers = [{"trace": b"\x00\xff", "empty": b""}, None, {}]
        async with make_transport() as transport:
            need(transport, "headers")
            await transport.create_topic(topic, partitions=1)
            await transport.produce(topic, numbered(3), headers=headers)
            async with transport.subscribe(topic, "billing") as consumer:
                records = await take(consumer, 3)
        assert [dict(one.headers) for one in records] == [headers[0], {}, {}]

    async def test_timestamps_are_the_producers(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        times = [1_700_000_000_000, 1_700_000_000_500, 1_699_999_999_999]
        async with make_transport() as transport:
            need(transport, "timestamps")
            await transport.create_topic(topic, partitions=1)
            await transport.produce(topic, numbered(3), timestamps=times)
            async with transport.subscribe(topic, "billing") as consumer:
                assert [one.timestamp for one in await take(consumer, 3)] == times

    async def test_large_batches_and_large_values_arrive_whole(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        values = numbered(50_000)
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=2)
            assert (await transport.produce(topic, values)).count == 50_000
            large = bytes(500_000)
            await transport.produce(topic, [large], keys=[b"k"])
            async with transport.subscribe(topic, "billing") as consumer:
                records = await take(consumer, 50_001)
        for mine in by_partition(records).values():
            assert [one.offset for one in mine] == list(range(len(mine)))
        assert {one.value for one in records} == {*values, large}

    async def test_an_empty_batch_is_nothing(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=1)
            assert (await transport.produce(topic, [])).count == 0
            done = await transport.produce(topic, [b"x"])
            assert done.count == 1
            assert not transport.capabilities.replay or dict(done.ranges) == {0: (0, 1)}
