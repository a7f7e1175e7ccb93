"""What the workloads of brokers share: a load that keeps a producer busy, and a run of one broker alone."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.model import SCALES, Load, Meter, Sample, Workload
from benchmarks.targets import Target

PAYLOAD_BYTES = 100
BLOCK = 1_000
IN_FLIGHT = 4
"""Calls that produce at the same time."""
GOAL = 0.8
"""Of the throughput of the bare client."""


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
