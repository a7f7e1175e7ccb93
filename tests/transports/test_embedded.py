"""What only the embedded transport does: time by its own clock, settings of the log, its names."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from penstock import TopicConfig
from penstock.errors import Closed, InvalidName, UsageError
from penstock.testing.queue_fixtures import inline
from penstock.testing.transport_fixtures import numbered, take, values_of
from penstock.transports import EmbeddedTransport

MINUTE_MS = 60_000


@pytest.fixture
async def transport():
    async with EmbeddedTransport("memory:") as transport:
        await transport.create_topic("orders", partitions=4)
        await transport.produce("orders", numbered(40))
        yield transport


async def test_opening_that_is_cancelled_leaves_the_group_free(transport):
    for steps in range(6):
        opening = asyncio.ensure_future(transport.subscribe("orders", "billing").open())
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        if opening.cancelled():
            async with transport.subscribe("orders", "billing") as consumer:
                assert consumer.assignment().partitions == {0, 1, 2, 3}
                assert await consumer.next_batch()


async def test_time_is_that_of_the_log(tmp_path):
    held = inline()
    begin = datetime.fromtimestamp(held.clock.time_ms() / 1000, UTC)
    async with EmbeddedTransport(tmp_path / "data", system=held.system) as transport:
        await transport.create_topic("orders", partitions=1)
        for number in range(5):
            await transport.produce("orders", numbered(2, 2 * number))
            held.clock.advance(60)
        start = begin + timedelta(minutes=2)
        async with transport.subscribe("orders", "billing", start=start) as consumer:
            assert values_of(await take(consumer, 6)) == numbered(6, 4)
            await consumer.seek(begin + timedelta(seconds=30))
            assert consumer.positions() == {0: 2}
            (lag,) = await transport.lag("orders", "billing")
            assert (lag.records, lag.milliseconds) == (8, 4 * MINUTE_MS)
            await consumer.seek("latest")
            (lag,) = await transport.lag("orders", "billing")
            assert (lag.records, lag.milliseconds) == (0, 0)


async def test_topics_take_the_settings_of_the_log(tmp_path):
    defaults = TopicConfig(partitions=3, batch_records_max=99)
    async with EmbeddedTransport(tmp_path / "data", defaults=defaults) as transport:
        await transport.create_topic("plain")
        assert await transport.partitions("plain") == 3
        await transport.create_topic("orders", partitions=2, linger_ms=5, fsync="timed")
        state = await transport.queue.create_topic("orders")
        assert (state.partitions, state.config.linger_ms) == (2, 5)
        assert (state.config.fsync.value, state.config.batch_records_max) == ("timed", 99)


async def test_names_are_checked_before_anything_is_touched(transport):
    with pytest.raises(InvalidName, match="topic"):
        transport.subscribe("a/b", "billing")
    consumer = transport.subscribe("orders", "billing")
    with pytest.raises(UsageError, match="open"):
        consumer.assignment()
    await consumer.close()
    with pytest.raises(Closed):
        await consumer.open()
