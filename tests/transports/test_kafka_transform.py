"""Consume, transform, produce on Kafka's transactions: once, through kills of the process."""

import asyncio
import random
import signal
import sys
from collections import Counter
from contextlib import suppress

import pytest

pytest.importorskip("confluent_kafka")
from penstock.errors import Fenced, NotSupported
from penstock.streaming import Outgoing, Transform
from penstock.testing.transport_fixtures import numbered
from penstock.transports import open_transport
from penstock.transports.kafka import KafkaTransport
from penstock.transports.kafka_transaction import KafkaTransaction
from tests.transports.servers.kafka import kafka_server

RECORDS = 2_000
KILLS = 4
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
    await transport.produce("orders", numbered(RECORDS), keys=numbered(RECORDS))
    chance = random.Random(7)
    for _ in range(KILLS):
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
    worker = await asyncio.create_subprocess_exec(sys.executable, "-m", WORKER, server.url)
    try:
        found = await read(transport, "copies", RECORDS, "checking-kills")
    finally:
        worker.send_signal(signal.SIGKILL)
        await worker.wait()
    assert Counter(found) == Counter(numbered(RECORDS))


async def copied(transport):
    """How far the copies have come, by the offsets that everybody may read."""
    return sum(one.end for one in await transport.lag("copies", "nobody"))


async def test_transports_without_transactions_say_so():
    with pytest.raises(NotSupported, match="transactions"):
        Transform(open_transport("nats://127.0.0.1:1"), "orders", "billing", lambda _: [])
