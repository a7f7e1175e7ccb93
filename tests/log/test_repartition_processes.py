"""Processes publish at full speed while another one repartitions their topic, and is killed at it."""

import asyncio
import random
from collections import Counter

import pytest

from penstock import FsyncPolicy, Record, TopicConfig, WalMessageQueue, verify
from penstock.log.topic import TopicFile
from penstock.stores.directory import DirectoryStore
from tests.log.test_queue_processes import started

TOPIC = "orders"
KEYS = 20

PUBLISH = """
async def main():
    name = sys.argv[2]
    async with WalMessageQueue(path) as queue:
        await queue.create_topic("orders")
        say("ready")
        stop = asyncio.create_task(hear())
        number = 0
        while not stop.done():
            numbers = range(number, number + 50)
            values = [b"%d" % one for one in numbers]
            keys = [f"{name}-{one % 20}".encode() for one in numbers]
            if number % 100:
                await queue.publish_many("orders", values, keys=keys)
            else:
                pairs = zip(values, keys)
                receipts = {queue.publish_nowait("orders", value, key) for value, key in pairs}
                for receipt in receipts:
                    await receipt.wait()
            number += 50
            await asyncio.sleep(float(sys.argv[3]))
        await queue.flush()
        say(number)
"""

REPARTITION = """
async def main():
    async with WalMessageQueue(path) as queue:
        await queue.create_topic("orders")
        say("ready")
        count = int(sys.argv[2])
        while True:
            count = count % 5 + 1
            await queue.repartition("orders", count)
            say(count)
"""


class Reader:
    """Reads to the end, and minds the order of each key."""

    def __init__(self) -> None:
        self.counts: Counter[bytes] = Counter()
        self._last: dict[bytes | None, int] = {}

    def take(self, records: list[Record]) -> None:
        for record in records:
            key, value = record.key or b"", int(record.value or b"")
            assert value > self._last.get(key, -1), f"{key!r}: {value} after {self._last[key]}"
            self._last[key] = value
            self.counts[key.partition(b"-")[0]] += 1

    async def more(self) -> None:
        """Return when there was something new to read."""
        before = sum(self.counts.values())
        async with asyncio.timeout(40):
            while sum(self.counts.values()) == before:
                await asyncio.sleep(0.001)

    async def read(self, queue: WalMessageQueue, name: str) -> None:
        """As a subscriber, until it is cancelled."""
        async with queue.subscribe(TOPIC, name) as subscription:
            async for batch in subscription.batches():
                self.take(batch.records)
                await subscription.commit(batch)


async def finished(reader: Reader, totals: dict[bytes, int]) -> None:
    """Return when it has as many records as were published."""
    async with asyncio.timeout(40):
        while sum(reader.counts.values()) < sum(totals.values()):
            await asyncio.sleep(0.01)
    assert reader.counts == totals


async def replayed(queue: WalMessageQueue) -> Counter[bytes]:
    reader = Reader()
    reader.take([record async for record in queue.replay(TOPIC)])
    return reader.counts


async def test_nothing_is_lost_or_doubled_while_processes_publish_at_full_speed(tmp_path):
    reader = Reader()
    async with WalMessageQueue(tmp_path) as queue:
        await queue.create_topic(TOPIC, TopicConfig(partitions=3, fsync=FsyncPolicy.TIMED))
        reading = asyncio.create_task(reader.read(queue, "live"))
        async with (
            started(PUBLISH, tmp_path, "a", "0") as a,
            started(PUBLISH, tmp_path, "b", "0") as b,
        ):
            assert [await a.hear(), await b.hear()] == ["ready", "ready"]
            for place in range(20):
                await queue.repartition(TOPIC, (5, 1, 4, 2, 3)[place % 5])
                await reader.more()
            totals = {}
            for name, child in ((b"a", a), (b"b", b)):
                await child.tell("stop")
                totals[name] = await child.hear()
        await finished(reader, totals)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert await replayed(queue) == totals
        late = Reader()
        reading = asyncio.create_task(late.read(queue, "late"))
        await finished(late, totals)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert (await queue.create_topic(TOPIC)).epoch == 20
    assert [one for one in verify(tmp_path).problems if not one.harmless] == []


async def killed_again_and_again(path, rounds):
    """Processes that repartition die at any moment; one that publishes notices nothing."""
    chance = random.Random(rounds)
    async with WalMessageQueue(path) as queue:
        await queue.create_topic(TOPIC, TopicConfig(partitions=3, fsync=FsyncPolicy.TIMED))
        async with started(PUBLISH, path, "a", "0.003") as publisher:
            assert await publisher.hear() == "ready"
            for number in range(rounds):
                async with started(REPARTITION, path, str(number)) as child:
                    for _ in range(chance.randint(2, 4)):
                        await child.hear()
                    # Somewhere in the next one.
                    await asyncio.sleep(chance.uniform(0, 0.03))
                    await child.kill()
            await publisher.tell("stop")
            total = await publisher.hear()
        assert await replayed(queue) == {b"a": total}
        keys = [b"new-%d" % one for one in range(10)]
        await queue.publish_many(TOPIC, [b"0"] * 10, keys=keys, durable=True)
        assert await replayed(queue) == {b"a": total, b"new": 10}
    state = TopicFile(DirectoryStore(path), TOPIC).read()
    assert state.epoch >= rounds
    assert [one for one in verify(path).problems if not one.harmless] == []


async def test_a_process_that_repartitions_may_be_killed_at_any_moment(tmp_path):
    await killed_again_and_again(tmp_path, 3)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
async def test_processes_that_repartition_are_killed_a_hundred_times(tmp_path):
    await killed_again_and_again(tmp_path, 100)
