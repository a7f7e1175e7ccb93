"""Transforms from topic to topics: once, shared by several, through failures and takeovers."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from penstock import TopicConfig
from penstock.errors import Fenced, LimitReached
from penstock.streaming import Outgoing, Transform
from penstock.transports import producers
from penstock.transports.embedded import EmbeddedTransport

FOUR = TopicConfig(partitions=4)


@pytest.fixture
async def transport(tmp_path):
    async with EmbeddedTransport(tmp_path / "log", defaults=FOUR) as made:
        yield made


def copied(batch):
    return [Outgoing("copies", one.value, one.key) for one in batch.records]


@asynccontextmanager
async def running(*transforms):
    tasks = [asyncio.create_task(one.run()) for one in transforms]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def fill(transport, count):
    values = [b"%d" % one for one in range(count)]
    await transport.produce("orders", values, keys=[b"%d" % (one % 7) for one in range(count)])


async def read(transport, count, topic="copies"):
    """The first so many values of a topic, by a reader of its own."""
    await transport.create_topic(topic)
    found: list[bytes] = []
    async with transport.subscribe(topic, "reader") as reader:
        while len(found) < count:
            batch = await reader.next_batch(30)
            found += [one.value for one in batch.records]
            await reader.commit(batch)
    return found


@pytest.mark.acceptance(84)
async def test_every_record_is_transformed_once_and_in_the_order_of_its_key(transport):
    await fill(transport, 500)
    made = Transform(transport, "orders", "billing", copied, records_max=30)
    async with running(made):
        found = await read(transport, 500)
    assert Counter(found) == Counter(b"%d" % one for one in range(500))
    for key in range(7):
        mine = [int(one) for one in found if int(one) % 7 == key]
        assert mine == sorted(mine)
    assert all(one.records == 0 for one in await transport.lag("orders", "billing"))
    counts = made.statistics()
    assert (counts.consumed, counts.produced, counts.fenced) == (500, 500, 0)


async def test_an_async_function_may_give_headers_and_times_and_nothing(transport):
    async def function(batch):
        await asyncio.sleep(0)
        kept = [one for one in batch.records if int(one.value) % 2]
        return [
            Outgoing("copies", one.value, one.key, {"was": one.value}, int(one.value) or None)
            for one in kept
        ]

    await fill(transport, 20)
    async with running(Transform(transport, "orders", "billing", function)):
        await read(transport, 10)
    async for record in transport.queue.replay("copies"):
        assert record.headers == {"was": record.value}
        assert record.timestamp == int(record.value)


async def test_several_share_the_work(tmp_path, transport):
    await fill(transport, 400)
    async with EmbeddedTransport(tmp_path / "log") as elsewhere:
        made = [
            Transform(one, "orders", "billing", copied, records_max=5)
            for one in (transport, elsewhere)
        ]
        async with running(*made):
            found = await read(transport, 400)
            await fill(transport, 400)
            found += await read(transport, 400)
    assert Counter(found) == Counter({b"%d" % one: 2 for one in range(400)})
    names = {key.split("/")[1] for key in transport.queue.store.list("producers/")}
    assert names == {"billing.orders.0", "billing.orders.1"}


async def test_a_function_that_raises_ends_the_run_and_nothing_happened(transport):
    calls = []

    def function(batch):
        calls.append(batch)
        if len(calls) == 1:
            raise ZeroDivisionError
        return copied(batch)

    await fill(transport, 10)
    made = Transform(transport, "orders", "billing", function)
    with pytest.raises(ZeroDivisionError):
        await made.run()
    assert sum(one.records for one in await transport.lag("orders", "billing")) == 10
    async with running(made):
        assert len(await read(transport, 10)) == 10


async def test_a_second_run_of_a_named_producer_takes_over(transport):
    await fill(transport, 10)
    made = [Transform(transport, "orders", "billing", copied, producer="one") for _ in range(2)]
    async with running(made[0]) as (first,):
        await read(transport, 10)
        async with transport.queue.producer("one"):
            await fill(transport, 10)
            with pytest.raises(Fenced) as refused:
                await first
    assert refused.value.reason == "epoch"
    async with running(made[1]):
        found = await read(transport, 10)
    assert Counter(found) == Counter(b"%d" % one for one in range(10))


async def test_slots_are_bounded_and_free_again(transport, monkeypatch):
    monkeypatch.setattr(producers, "SLOTS_MAX", 1)
    await fill(transport, 10)
    made = Transform(transport, "orders", "billing", copied)
    async with running(made):
        await read(transport, 10)
        with pytest.raises(LimitReached):
            await Transform(transport, "orders", "billing", copied).run()
    await fill(transport, 10)
    async with running(made):
        await read(transport, 10)
