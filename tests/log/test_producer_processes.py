"""Zombies: processes that were stopped, replaced, and wake up in the middle of what they did."""

import asyncio
import os
import signal

import pytest

from penstock import TopicConfig, WalMessageQueue
from penstock.transports.embedded import EmbeddedTransport
from tests.log.test_queue_processes import WAIT_SECONDS, started
from tests.stopping import stop_between_calls

# Consumes one batch, is stopped before it commits, and says what came of the commit.
CONSUME = """
from penstock.errors import Fenced
from penstock.transports.embedded import EmbeddedTransport

async def main():
    async with EmbeddedTransport(path) as transport:
        async with transport.subscribe("orders", "billing", lease_seconds=1.0) as consumer:
            batch = await consumer.next_batch()
            tx = transport.queue.transaction(sys.argv[2])
            await tx.publish("invoices", b"zombie")
            tx.commit_offsets(consumer, batch)
            say(os.getpid())
            await hear()
            try:
                await tx.commit()
                say("committed")
            except Fenced as refused:
                say(refused.reason)
"""

PUBLISH = """
from penstock.errors import Fenced

async def main():
    async with WalMessageQueue(path) as queue, queue.producer("outbox") as producer:
        await producer.publish("rows", b"0", sequence=0)
        say(os.getpid())
        await hear()
        try:
            await producer.publish("rows", b"zombie", sequence=1)
            say("published")
        except Fenced as refused:
            say([refused.epoch, refused.current])
"""


async def values(queue, topic):
    return [record.value async for record in queue.replay(topic)]


@pytest.mark.parametrize("name", ["theirs", "ours"])
async def test_a_zombie_of_a_group_changes_nothing(tmp_path, name):
    """Its records and its offsets are refused, with a producer of its own as well as with a shared one."""
    path = tmp_path / "log"
    async with EmbeddedTransport(path, defaults=TopicConfig(partitions=1)) as transport:
        await transport.produce("orders", [b"1", b"2"])
        async with started(CONSUME, path, name) as zombie:
            pid = await zombie.hear()
            await asyncio.to_thread(stop_between_calls, pid)
            async with transport.subscribe("orders", "billing") as consumer:
                batch = await consumer.next_batch(WAIT_SECONDS)
                async with transport.queue.transaction("ours") as tx:
                    await tx.publish_many("invoices", [one.value for one in batch.records])
                    tx.commit_offsets(consumer, batch)
                os.kill(pid, signal.SIGCONT)
                await zombie.tell("go on")
                assert await zombie.hear() in ("removed", "partition", "epoch")
        assert await values(transport.queue, "invoices") == [b"1", b"2"]
        assert [one.records for one in await transport.lag("orders", "billing")] == [0]


async def test_a_zombie_of_an_outbox_is_fenced(tmp_path):
    path = tmp_path / "log"
    async with started(PUBLISH, path) as zombie, WalMessageQueue(path) as queue:
        pid = await zombie.hear()
        await asyncio.to_thread(stop_between_calls, pid)
        async with queue.producer("outbox") as producer:
            assert (await producer.publish("rows", b"0", sequence=0)).repeated
            await producer.publish("rows", b"1", sequence=1)
        os.kill(pid, signal.SIGCONT)
        await zombie.tell("go on")
        assert await zombie.hear() == [1, 2]
        assert await values(queue, "rows") == [b"0", b"1"]
