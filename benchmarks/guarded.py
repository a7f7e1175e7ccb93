"""What is guarded: the main path of each part, small, and the same each time.

A workload gets a clock, which may be one of steps, and how much of its usual work to do. It prepares and warms up before it
looks at the clock.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.model import Load
from benchmarks.publishers import EVERY_MESSAGE, NO_SYNC, TOPIC, fill, opened
from penstock import (
    Event,
    MessageBus,
    ResilientMessageBus,
    ScalableMessageBus,
    WalMessageQueue,
    hot_path,
    topic,
)
from penstock.scaling import Ring, SharedRing
from penstock.system import System
from penstock.testing import VirtualClock
from penstock.transports import EmbeddedTransport

PAYLOAD_BYTES = 100
BLOCK = 1_000
PUBLISHERS = 64
SHARED_BYTES = 1 << 20
DRAIN = 1_024
WAIT_SECONDS = 30.0

Clock = Callable[[], float]
Guarded = Callable[[Clock, float], Coroutine[Any, Any, float]]
"""Does so much of its work; what it took by the clock."""


class Ping(Event, frozen=True):
    """What the bus carries here."""

    number: int


@hot_path
@topic("guard.hot")
class Tick(Event):
    """What the hot topic carries here."""

    number: int


def _load() -> Load:
    return Load(PAYLOAD_BYTES, 0, 0, BLOCK)


@asynccontextmanager
async def _warm_log() -> AsyncIterator[tuple[WalMessageQueue, list[bytes]]]:
    values = _load().values()
    with tempfile.TemporaryDirectory() as folder:
        async with opened(Path(folder), NO_SYNC) as queue:
            await queue.publish_many(TOPIC, values)
            yield queue, values


@asynccontextmanager
async def _filled(blocks: float) -> AsyncIterator[tuple[Path, int]]:
    """A folder with a log, and how many records it holds."""
    count = math.ceil(blocks) * BLOCK
    with tempfile.TemporaryDirectory() as folder:
        await asyncio.to_thread(fill, Path(folder), _load(), count)
        yield Path(folder), count


async def publish_many(clock: Clock, times: float) -> float:
    """Blocks of 1,000 records to the log."""
    async with _warm_log() as (queue, values):
        start = clock()
        for _ in range(round(100 * times)):
            await queue.publish_many(TOPIC, values)
        return clock() - start


async def publish_nowait(clock: Clock, times: float) -> float:
    """Single records to the log."""
    async with _warm_log() as (queue, values):
        start = clock()
        for _ in range(round(20 * times)):
            receipt = [queue.publish_nowait(TOPIC, value) for value in values][-1]
            await receipt.wait()
        return clock() - start


async def awaited(clock: Clock, times: float) -> float:
    """Single records by 64 tasks, each of which waits until its record is durable."""
    value = _load().values()[0]
    with tempfile.TemporaryDirectory() as folder:
        async with opened(Path(folder), EVERY_MESSAGE) as queue:

            async def publisher() -> None:
                for _ in range(round(20 * times)):
                    await queue.publish(TOPIC, value)

            await queue.publish(TOPIC, value)
            start = clock()
            await asyncio.gather(*(publisher() for _ in range(PUBLISHERS)))
            return clock() - start


async def read(clock: Clock, times: float) -> float:
    """Records of the log as objects, in batches."""
    async with (
        _filled(60 * times) as (folder, count),
        opened(folder, NO_SYNC) as queue,
        queue.subscribe(TOPIC, "guard") as one,
    ):
        start, seen = clock(), 0
        while seen < count:
            batch = await one.next_batch(records_max=BLOCK)
            assert all(len(record.value or b"") == PAYLOAD_BYTES for record in batch.records)
            seen += len(batch)
        return clock() - start


async def arrow(clock: Clock, times: float) -> float:
    """The log as a table of Arrow."""
    async with _filled(200 * times) as (folder, count), opened(folder, NO_SYNC) as queue:
        await queue.read_arrow(TOPIC, end=1)
        start = clock()
        assert (await queue.read_arrow(TOPIC)).num_rows == count
        return clock() - start


async def recovery(clock: Clock, times: float) -> float:
    """Opening a log whose head is lost: every entry is read and checked."""
    async with _filled(200 * times) as (folder, _):
        for head in folder.rglob("head"):
            head.unlink()
        async with WalMessageQueue(folder) as queue:
            start = clock()
            (report,) = await queue.recovery(TOPIC)
            took = clock() - start
        assert report.head_lost
        return took


async def bus(clock: Clock, times: float) -> float:
    """Events through the resilient bus, in bursts."""
    async with ResilientMessageBus() as one:
        return await _through(one, clock, Ping, round(6_000 * times), 1_000)


async def hot(clock: Clock, times: float) -> float:
    """Events through a hot topic, in bursts. Its clock stands still: how many it handles in a turn is up to the clock."""
    still = System(clock=VirtualClock())
    async with ScalableMessageBus(ResilientMessageBus(system=still)) as one:
        return await _through(one, clock, Tick, round(60_000 * times), 10_000)


async def _through(
    one: MessageBus, clock: Clock, kind: Callable[[int], Any], count: int, burst: int
) -> float:
    seen: list[int] = []
    one.subscribe(kind, lambda event: seen.append(event.number))  # type: ignore[arg-type]
    start = clock()
    for first in range(0, count, burst):
        for number in range(first, min(count, first + burst)):
            one.publish_nowait(kind(number))
        await one.settle()
    assert len(seen) == count
    return clock() - start


async def ring(clock: Clock, times: float) -> float:
    """Entries through the ring of objects, in one thread."""
    entries: Ring[int] = Ring()
    consumer = entries.consumer()
    count, seen = round(200_000 * times), 0
    start = clock()
    for first in range(0, count, 10_000):
        for number in range(first, min(count, first + 10_000)):
            entries.publish(number)
        while batch := consumer.drain(DRAIN):
            seen += len(batch)
    assert seen == count
    return clock() - start


async def shared(clock: Clock, times: float) -> float:
    """Batches of records through the ring in shared memory, both ends in this process."""
    values = _load().values()
    with SharedRing.create(capacity_bytes=SHARED_BYTES) as entries:
        consumer = entries.consumer()
        start = clock()
        for _ in range(round(200 * times)):
            entries.put_many(values)
            assert len(consumer.get_many(BLOCK, WAIT_SECONDS)) == BLOCK
        return clock() - start


async def streaming(clock: Clock, times: float) -> float:
    """Records through a group: published, taken as a batch, committed, block by block."""
    values = _load().values()
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedTransport(Path(folder)) as transport:
            await transport.create_topic(TOPIC, partitions=1)
            await transport.produce(TOPIC, values)
            async with transport.subscribe(TOPIC, "guard") as consumer:
                await consumer.commit(await consumer.next_batch())
                start = clock()
                for _ in range(round(40 * times)):
                    await transport.produce(TOPIC, values)
                    batch = await consumer.next_batch()
                    assert len(batch.records) == BLOCK
                    await consumer.commit(batch)
                return clock() - start


GUARDED: dict[str, Guarded] = {
    one.__name__: one
    for one in (
        publish_many,
        publish_nowait,
        awaited,
        read,
        arrow,
        recovery,
        bus,
        hot,
        ring,
        shared,
        streaming,
    )
}
