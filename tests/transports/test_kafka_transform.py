"""Kafka's transactions: whole or not at all; consume, transform, produce on them, once, through kills of the process."""

import asyncio
import random
import signal
import sys
from collections import Counter
from contextlib import asynccontextmanager, suppress

import pytest

pytest.importorskip("confluent_kafka")
from penstock.errors import DeadlineExceeded, Fenced, NotSupported
from penstock.streaming import Outgoing, Transform
from penstock.testing.transport_fixtures import WAIT_SECONDS, numbered, take, values_of
from penstock.transports import open_transport
from penstock.transports.kafka import KafkaTransport
from penstock.transports.kafka_transaction import KafkaTransaction
from tests.transports.servers.kafka import kafka_server

KILLS = 4
PORTION = 800
RECORDS = (KILLS + 1) * PORTION
WORKER = "tests.transports.kafka_transform_worker"


@pytest.fixture(scope="module")
def server():
    with kafka_server() as running:
        yield running


@pytest.fixture
async def transport(server):
    async with KafkaTransport(server.url) as opened:
        yield opened


async def read(transport, topic, count, group):
    """So many values, by a reader of its own, and what comes in the moment after them.

    A record that was delivered twice, because the reader was away for longer than its lease, is one.
    """
    found: dict[tuple[int, int], bytes | None] = {}

    def note(records):
        found.update({(one.partition, one.offset): one.value for one in records})

    async with transport.subscribe(topic, group) as reader:
        with suppress(TimeoutError):
            async with asyncio.timeout(90):
                while len(found) < count:
                    note((await reader.next_batch()).records)
        more = await asyncio.gather(reader.next_batch(timeout=1.0), return_exceptions=True)
        note(getattr(more[0], "records", []))
    return [found[where] for where in sorted(found)]


async def test_a_function_over_batches_gives_everything_once(transport):
    await transport.create_topic("amounts", partitions=2)
    await transport.create_topic("doubled", partitions=2)
    await transport.produce("amounts", numbered(100), keys=numbered(100))

    def doubled(batch):
        return [Outgoing("doubled", b"%d" % (int(one.value) * 2), one.key) for one in batch.records]

    made = Transform(transport, "amounts", "doubling", doubled)
    running = asyncio.create_task(made.run())
    found = await read(transport, "doubled", 100, "checking")
    async with asyncio.timeout(90):
        # A transaction is seen before the one who made it has counted it.
        while made.statistics().consumed < 100:
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert sorted(map(int, found)) == [2 * number for number in range(100)]
    assert (made.statistics().consumed, made.statistics().produced) == (100, 100)
    assert not sum(one.records for one in await transport.lag("amounts", "doubling"))


async def test_a_batch_that_was_given_up_comes_again(transport, monkeypatch):
    await transport.create_topic("retried", partitions=1)
    await transport.create_topic("done", partitions=1)
    await transport.produce("retried", numbered(3))
    refusals = iter([True])
    commit = KafkaTransaction._commit

    async def refused_once(self):
        if next(refusals, False):
            raise Fenced("the group went on", reason="generation")
        await commit(self)

    monkeypatch.setattr(KafkaTransaction, "_commit", refused_once)
    made = Transform(
        transport,
        "retried",
        "doing",
        lambda batch: [Outgoing("done", one.value) for one in batch.records],
    )
    running = asyncio.create_task(made.run())
    assert await read(transport, "done", 3, "checking") == numbered(3)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert made.statistics().fenced == 1


async def test_a_worker_that_is_killed_again_and_again_copies_everything_once(server, transport):
    await transport.create_topic("orders", partitions=2)
    await transport.create_topic("copies", partitions=2)
    chance = random.Random(7)
    for number in range(KILLS):
        await add_orders(transport, number)  # a quick worker may have copied all that were there
        worker = await asyncio.create_subprocess_exec(sys.executable, "-m", WORKER, server.url)
        try:
            before = await copied(transport)
            async with asyncio.timeout(60):
                while await copied(transport) == before and worker.returncode is None:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(chance.random() * 0.2)
        finally:
            with suppress(ProcessLookupError):
                worker.send_signal(signal.SIGKILL)
            await worker.wait()
    await add_orders(transport, KILLS)
    worker = await asyncio.create_subprocess_exec(sys.executable, "-m", WORKER, server.url)
    try:
        found = await read(transport, "copies", RECORDS, "checking-kills")
    finally:
        worker.send_signal(signal.SIGKILL)
        await worker.wait()
    assert Counter(found) == Counter(numbered(RECORDS))


async def add_orders(transport, number):
    values = numbered(PORTION, number * PORTION)
    await transport.produce("orders", values, keys=values)


async def copied(transport):
    """How far the copies have come, by the offsets that everybody may read."""
    return sum(one.end for one in await transport.lag("copies", "nobody"))


async def test_transports_without_transactions_say_so():
    with pytest.raises(NotSupported, match="transactions"):
        Transform(open_transport("nats://127.0.0.1:1"), "orders", "billing", lambda _: [])


@asynccontextmanager
async def reading(transport, topic):
    async with transport.subscribe(topic, f"{topic}-readers") as consumer:
        yield consumer


async def test_a_transaction_is_seen_whole_or_not_at_all(transport, topic):
    await transport.create_topic(topic, partitions=2)
    async with transport.producer(topic) as producer:
        with suppress(ZeroDivisionError):
            async with producer.transaction() as transaction:
                await transaction.publish_many(topic, numbered(10))
                1 / 0  # noqa: B018
        async with producer.transaction() as transaction:
            await transaction.publish(topic, b"10", key=b"k", headers={"a": b"b"}, timestamp=7)
            await transaction.publish_many(topic, numbered(4, 11))
            async with reading(transport, topic) as early:
                with pytest.raises(DeadlineExceeded):
                    await early.next_batch(0.5)
    async with reading(transport, topic) as consumer:
        records = await take(consumer, 5)
    assert set(values_of(records)) == set(numbered(5, 10))
    (first,) = [one for one in records if one.value == b"10"]
    assert (first.key, dict(first.headers), first.timestamp) == (b"k", {"a": b"b"}, 7)


async def test_records_and_offsets_are_one_transaction(transport, topic):
    target = f"{topic}-out"
    for name in (topic, target):
        await transport.create_topic(name, partitions=1)
    await transport.produce(topic, numbered(10))
    async with (
        transport.producer(topic) as producer,
        transport.subscribe(topic, "billing") as consumer,
    ):
        batch = await consumer.next_batch(WAIT_SECONDS, 4)
        with suppress(ZeroDivisionError):
            async with producer.transaction() as transaction:
                await transaction.publish_many(target, values_of(batch.records))
                transaction.commit_offsets(consumer, batch)
                1 / 0  # noqa: B018
        assert [one.committed for one in await transport.lag(topic, "billing")] == [0]
        async with producer.transaction() as transaction:
            await transaction.publish_many(target, values_of(batch.records))
            transaction.commit_offsets(consumer, batch)
            # Nothing is decided yet: that is how it was before.
            assert [one.committed for one in await transport.lag(topic, "billing")] == [0]
        assert [one.committed for one in await transport.lag(topic, "billing")] == [4]
    async with reading(transport, target) as reader:
        assert values_of(await take(reader, 4)) == numbered(4)


async def test_a_producer_that_was_opened_elsewhere_is_fenced(transport, topic):
    await transport.create_topic(topic, partitions=1)
    async with transport.producer(topic) as old:
        async with old.transaction() as transaction:
            await transaction.publish(topic, b"0")
        async with transport.producer(topic) as new:
            with pytest.raises(Fenced) as refused:
                async with old.transaction() as transaction:
                    await transaction.publish(topic, b"1")
            assert refused.value.reason == "epoch"
            async with new.transaction() as transaction:
                await transaction.publish(topic, b"2")
    async with reading(transport, topic) as reader:
        assert values_of(await take(reader, 2)) == [b"0", b"2"]


async def test_offsets_of_a_member_that_lost_its_partition_abort_the_transaction(transport, topic):
    target = f"{topic}-out"
    for name in (topic, target):
        await transport.create_topic(name, partitions=1)
    await transport.produce(topic, numbered(3))
    async with transport.producer(topic) as producer:
        zombie = transport.subscribe(topic, "billing")
        async with zombie:
            batch = await zombie.next_batch(WAIT_SECONDS)
            zombie._gone([0])
            with pytest.raises(Fenced) as refused:  # noqa: PT012
                async with producer.transaction() as transaction:
                    await transaction.publish(target, b"never")
                    transaction.commit_offsets(zombie, batch)
            assert refused.value.reason == "partition"
            # It is back, and the transaction is of the time before.
            zombie._gain({0: 0})
            with pytest.raises(Fenced) as refused:  # noqa: PT012
                async with producer.transaction() as transaction:
                    await transaction.publish(target, b"never")
                    transaction.commit_offsets(zombie, {0: 3})
                    zombie._gone([0])
                    zombie._gain({0: 3})
                    transaction.commit_offsets(zombie, {0: 3})
            assert refused.value.reason == "partition"
        async with producer.transaction() as transaction:
            await transaction.publish(target, b"seen")
    async with reading(transport, target) as reader:
        assert values_of(await take(reader, 1)) == [b"seen"]
