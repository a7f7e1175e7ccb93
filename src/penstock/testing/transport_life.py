"""The transport suite: opening, closing, and closing while something is going on."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import Closed, PenstockError, UsageError
from penstock.testing.transport_fixtures import (
    WAIT_SECONDS,
    MakeTransport,
    TransportFixtures,
    numbered,
    take,
    values_of,
)


class TransportLifeConformance(TransportFixtures):
    """What an end leaves behind."""

    async def test_opening_and_closing_twice_is_once(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        transport = make_transport()
        await transport.open()
        await transport.open()
        await transport.create_topic(topic, partitions=1)
        consumer = transport.subscribe(topic, "billing")
        await consumer.open()
        await consumer.open()
        await consumer.close()
        await consumer.close()
        await transport.close()
        await transport.close()

    async def test_nothing_works_before_it_is_open_or_after_it_is_closed(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        transport = make_transport()
        with pytest.raises(UsageError):
            await transport.produce(topic, [b"x"])
        async with transport:
            await transport.create_topic(topic, partitions=1)
            consumer = transport.subscribe(topic, "billing")
            with pytest.raises(UsageError):
                consumer.positions()
            with pytest.raises(UsageError):
                await consumer.commit()
        for closed in (
            transport.produce(topic, [b"x"]),
            transport.topics(),
            transport.partitions(topic),
            consumer.next_batch(),
        ):
            with pytest.raises(Closed):
                await closed
        with pytest.raises(Closed):
            transport.subscribe(topic, "billing")

    async def test_a_member_that_waits_is_told_of_the_end(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=1)
            async with transport.subscribe(topic, "billing") as first:
                waiting = asyncio.ensure_future(first.next_batch())
                await asyncio.sleep(0)
                await first.close()
                with pytest.raises(Closed):
                    await waiting
            second = transport.subscribe(topic, "billing")
            await second.open()
            waiting = asyncio.ensure_future(second.next_batch())
            await asyncio.sleep(0)
        with pytest.raises(Closed):
            await waiting

    async def test_closing_finishes_what_was_accepted(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        """What was acknowledged is there; what was not has told its producer so."""
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=1)
            batches = [numbered(100, start) for start in range(0, 2_000, 100)]
            producing = [
                asyncio.ensure_future(transport.produce(topic, batch)) for batch in batches
            ]
            await asyncio.sleep(0)
            await transport.close(WAIT_SECONDS)
        outcomes = await asyncio.gather(*producing, return_exceptions=True)
        wrong = [one for one in outcomes if isinstance(one, BaseException)]
        assert all(isinstance(one, PenstockError) for one in wrong)
        expected = {
            value
            for batch, outcome in zip(batches, outcomes, strict=True)
            for value in batch
            if not isinstance(outcome, BaseException)
        }
        async with make_transport() as transport:
            count = len(expected)
            if is_counted := transport.capabilities.lag:
                (lag,) = await transport.lag(topic, "billing")
                count = lag.end
            async with transport.subscribe(topic, "billing") as consumer:
                got = values_of(await take(consumer, count))
                while not is_counted and not expected <= set(got):
                    # Some came before that were not acknowledged, or were sent again.
                    got += values_of(await take(consumer, 1))
        assert expected <= set(got)
        assert len(got) == len(set(got)) or not is_counted

    async def test_a_commit_in_flight_is_done_or_not_done(
        self, make_transport: MakeTransport, topic: str
    ) -> None:
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=1)
            await transport.produce(topic, numbered(5))
            consumer = transport.subscribe(topic, "billing")
            await consumer.open()
            await take(consumer, 5)
            committing = asyncio.ensure_future(consumer.commit())
            await asyncio.sleep(0)
            committing.cancel()
        await asyncio.gather(committing, return_exceptions=True)
        async with (
            make_transport() as transport,
            transport.subscribe(topic, "billing") as consumer,
        ):
            assert consumer.positions()[0] in (0, 5)
