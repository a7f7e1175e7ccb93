"""What the workloads of brokers share: a load that keeps a producer busy, and a run of one broker alone."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.model import SCALES, Case, Load, Meter, Sample, Scale, Workload
from benchmarks.targets import Target
from penstock.transports import open_transport

PAYLOAD_BYTES = 100
BLOCK = 1_000
IN_FLIGHT = 4
"""Calls that produce at the same time."""
GOAL = 0.8
"""Of the throughput of the bare client."""
TOPIC, GROUP = "bench", "readers"
PREPARED_BLOCKS = 200
"""Records that are there before they are consumed."""

Work = Callable[[str, Load], Coroutine[Any, Any, Sample]]
"""Does something with the server at a URL."""
Run = Callable[[Path, Load, Work], Sample]
"""Starts a server in a folder, and lets it be worked with."""


def some_keys(count: int) -> list[bytes]:
    """Keys of records, the same in each run."""
    return [random.Random(number).randbytes(4).hex().encode() for number in range(count)]


async def pump(load: Load, send: Callable[[], Awaitable[object]]) -> Sample:
    """Some calls at the same time, until the meter is full."""
    await send()
    meter = Meter(load)
    waiting: deque[asyncio.Future[object]] = deque()
    while meter.more():
        if len(waiting) == IN_FLIGHT:
            await waiting.popleft()
            meter.records += load.batch
        waiting.append(asyncio.ensure_future(send()))
    for one in waiting:
        await one
        meter.records += load.batch
    return meter.sample()


async def produce_penstock(url: str, load: Load) -> Sample:
    """Through Penstock: blocks of records, each call acknowledged."""
    values, keys = load.values(), some_keys(load.batch)
    async with open_transport(url) as transport:
        await transport.create_topic(TOPIC, partitions=1)
        return await pump(load, lambda: transport.produce(TOPIC, values, keys=keys))


async def fill(url: str, load: Load) -> None:
    """Records to be consumed."""
    values, keys = load.values(), some_keys(load.batch)
    async with open_transport(url) as transport:
        await transport.create_topic(TOPIC, partitions=1)
        for _ in range(PREPARED_BLOCKS):
            await transport.produce(TOPIC, values, keys=keys)


async def consume_penstock(url: str, load: Load) -> Sample:
    """Through Penstock: blocks of records, each committed before the next."""
    await fill(url, load)
    async with (
        open_transport(url) as transport,
        transport.subscribe(TOPIC, GROUP) as consumer,
    ):

        async def take() -> int:
            batch = await consumer.next_batch(records_max=BLOCK)
            await consumer.commit(batch)
            return len(batch)

        return await drain(load, take)


async def drain(load: Load, take: Callable[[], Awaitable[int]]) -> Sample:
    """Take blocks until the meter is full, or what was prepared is nearly gone."""
    await take()
    meter = Meter(load)
    while meter.more() and meter.records < (PREPARED_BLOCKS - 10) * BLOCK:
        meter.records += await take()
    return meter.sample()


def _run_in(run: Run, load: Load, work: Work, folder: Path) -> Sample:
    return run(folder, load, work)


def cases_of(
    broker: str,
    scale: Scale,
    run: Run,
    bare: Mapping[str, tuple[str, Work]],
) -> list[Case]:
    """Producing and consuming, each through Penstock and through the bare client."""
    load = Load.of(scale, PAYLOAD_BYTES, BLOCK)
    contenders = {
        ("produce", "penstock"): ("1,000 records a call, acknowledged", produce_penstock),
        ("produce", "bare"): bare["produce"],
        ("consume", "penstock"): ("batches, each committed", consume_penstock),
        ("consume", "bare"): bare["consume"],
    }
    return [
        Case(broker, PAYLOAD_BYTES, point, name, what, partial(_run_in, run, load, work))
        for (point, name), (what, work) in contenders.items()
    ]


def targets_of(broker: str, title: str) -> tuple[Target, ...]:
    """Producing and consuming through Penstock beside the bare client."""
    return tuple(
        Target(
            f"{title}, {what}: times the bare client",
            f"{broker}/{PAYLOAD_BYTES}/{what}/penstock",
            GOAL,
            f"{broker}/{PAYLOAD_BYTES}/{what}/bare",
        )
        for what in ("produce", "consume")
    )


def measure(workload: Workload, targets: Sequence[Target], scale_name: str = "default") -> None:
    """Print the medians of one broker, and how they compare."""
    scale = SCALES[scale_name]
    found: dict[str, list[float]] = {}
    for _ in range(scale.rounds):
        for case in workload.cases(scale):
            with tempfile.TemporaryDirectory() as folder:
                found.setdefault(case.name, []).append(case.run(Path(folder)).value)
    rates = {name: median(values) for name, values in found.items()}
    for name, rate in rates.items():
        print(f"{name:32} {rate:12,.0f} records/s")
    for target in targets:
        assert target.to is not None
        print(f"{target.title:48} {rates[target.of] / rates[target.to]:.2f} (goal {target.goal:g})")
