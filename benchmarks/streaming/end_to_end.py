"""Published, consumed and committed: the whole way of a record through a group."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from benchmarks.child import Child, gate
from benchmarks.model import Case, Load, Meter, Sample, Scale, Workload
from penstock import errors
from penstock.streaming import AutoCommit, Position
from penstock.transports import Consumer, EmbeddedTransport

TOPIC, GROUP = "bench", "readers"
PAYLOAD_BYTES = 100
IN_FLIGHT = 8
"""Calls of ``produce`` at the same time, in each process."""
AHEAD_MAX = 100_000
"""Records that may be published and not consumed, so that the rate is that of the whole way."""
BLOCK = 1_000
AUTO_SECONDS = 0.1


def cases(scale: Scale) -> list[Case]:
    """Partitions, ways to commit and processes."""
    load = Load.of(scale, PAYLOAD_BYTES, BLOCK)
    return [
        _case(load, commit, partitions, processes)
        for commit in ("manual", "auto")
        for partitions in (1, 4)
        for processes in (1, 2)
        if processes <= partitions
    ]


def _case(load: Load, commit: str, partitions: int, processes: int) -> Case:
    name = f"partitions-{partitions}-processes-{processes}"
    what = f"{partitions} partition{'s'[: partitions - 1]}, {processes} process{'es'[: 2 * processes - 2]}"
    run = partial(_run, load=load, commit=commit, partitions=partitions, processes=processes)
    return Case("end_to_end", PAYLOAD_BYTES, f"{commit}-commit", name, what, run)


def _run(folder: Path, load: Load, commit: str, partitions: int, processes: int) -> Sample:
    asyncio.run(_create(folder, partitions))
    arguments = {"folder": str(folder), "commit": commit, "share": partitions // processes}
    sizes = {"seconds": load.seconds, "bytes_max": load.bytes_max // processes}
    children = [Child(job, **arguments, **sizes) for _ in range(processes)]
    for child in children:
        child.wait_ready()
    for child in children:
        child.go()
    rates = [float(child.result()) for child in children]
    return Sample(sum(rates), {"slower process": min(rates)} if processes > 1 else {})


async def _create(folder: Path, partitions: int) -> None:
    async with EmbeddedTransport(folder) as transport:
        await transport.create_topic(TOPIC, partitions=partitions)


def job(folder: str, commit: str, share: int, seconds: float, bytes_max: int) -> float:
    """In the child: publish and consume for a while; records per second that were committed."""
    load = dataclasses.replace(Load(PAYLOAD_BYTES, seconds, bytes_max, BLOCK), gate=gate)
    return asyncio.run(_through(Path(folder), load, commit, share)).value


class Ahead:
    """How many records this process has published more than it has consumed."""

    def __init__(self) -> None:
        self.records = 0
        self._room = asyncio.Event()
        self._room.set()

    async def publish(self, records: int) -> None:
        """Wait until the consumer is near enough."""
        await self._room.wait()
        self.records += records
        if self.records >= AHEAD_MAX:
            self._room.clear()

    def consume(self, records: int) -> None:
        """Let the producer go on."""
        self.records -= records
        if self.records < AHEAD_MAX:
            self._room.set()


async def _through(folder: Path, load: Load, commit: str, share: int) -> Sample:
    async with (
        EmbeddedTransport(folder) as transport,
        transport.subscribe(TOPIC, GROUP) as consumer,
    ):
        await _until_shared(consumer, share)
        ahead = Ahead()
        producing = asyncio.create_task(_produce(transport, load, ahead))
        try:
            way = _commit_each if commit == "manual" else _commit_now_and_then
            return await way(consumer, load, ahead)
        finally:
            producing.cancel()


async def _until_shared(consumer: Consumer, share: int) -> None:
    """Every member of the group is there and has its part."""
    while len(consumer.assignment().partitions) != share:
        try:
            await consumer.next_batch(0.05)
        except errors.DeadlineExceeded:
            continue


async def _produce(transport: EmbeddedTransport, load: Load, ahead: Ahead) -> None:
    values = load.values()
    keys = [random.Random(n).randbytes(8) for n in range(len(values))]
    waiting: deque[asyncio.Future[object]] = deque()
    while True:
        if len(waiting) == IN_FLIGHT:
            await waiting.popleft()
        await ahead.publish(len(values))
        waiting.append(asyncio.ensure_future(transport.produce(TOPIC, values, keys=keys)))


async def _commit_each(consumer: Consumer, load: Load, ahead: Ahead) -> Sample:
    """Every batch is committed, durably, before the next one."""
    await consumer.commit(await consumer.next_batch())
    meter = Meter(load)
    while meter.more():
        batch = await consumer.next_batch()
        await consumer.commit(batch)
        ahead.consume(len(batch))
        meter.records += len(batch)
    return meter.sample()


async def _commit_now_and_then(consumer: Consumer, load: Load, ahead: Ahead) -> Sample:
    """What was consumed is committed ten times a second."""
    await consumer.next_batch()
    async with _auto_commit(consumer):
        meter = Meter(load)
        while meter.more():
            batch = await consumer.next_batch()
            ahead.consume(len(batch))
            meter.records += len(batch)
    return meter.sample()


@asynccontextmanager
async def _auto_commit(consumer: Consumer) -> AsyncIterator[None]:
    async def commit(partition: int, position: Position) -> None:
        await consumer.commit({partition: position.offset})

    def positions() -> dict[int, Position]:
        return {number: Position(at) for number, at in consumer.positions().items()}

    async with AutoCommit(positions, commit, interval_seconds=AUTO_SECONDS):
        yield


WORKLOAD = Workload(
    "end_to_end",
    "Published, consumed, committed",
    "Each process publishes 1,000 records a call, eight calls at the same time, every one durable "
    "when its call returns, and is a member of one group that consumes them in batches. Counted "
    "is what was consumed and committed. “manual”: each batch is committed, durably, before the "
    "next. “auto”: ten times a second.",
    cases,
)
