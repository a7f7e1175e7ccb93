"""More partitions for a handler that waits."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

from benchmarks.model import Case, Sample, Scale, Workload
from penstock import Event, ResilientMessageBus, ScalableMessageBus, topic

COUNTS = (1, 2, 4, 8)
TOPIC = "benchmark.slow"
WAIT_SECONDS = 0.001


@topic(TOPIC, key="number")
class Slow(Event):
    """An event whose handler waits; every one has a key of its own."""

    number: int


def cases(scale: Scale) -> list[Case]:
    """One, two, four and eight partitions."""
    return [
        Case("scale_partitions", 0, "slow-handler", f"partitions-{count}",
             f"`partitions={{topic: {count}}}`",
             partial(_run, partitions=count, events=scale.latency_messages),
             unit="events/s", bound=count == 1)
        for count in COUNTS
    ]  # fmt: skip


def _run(_: Path, partitions: int, events: int) -> Sample:
    return asyncio.run(_measure(partitions, events * partitions))


async def _measure(partitions: int, events: int) -> Sample:
    seen: list[int] = []

    async def handle(event: Slow) -> None:
        await asyncio.sleep(WAIT_SECONDS)
        seen.append(event.number)

    async with ScalableMessageBus(ResilientMessageBus(), partitions={TOPIC: partitions}) as bus:
        bus.subscribe(Slow, handle)
        start = time.perf_counter()
        for number in range(events):
            await bus.publish(Slow(number))
        await bus.settle()
        elapsed = time.perf_counter() - start
    if sorted(seen) != list(range(events)):
        raise AssertionError(f"published {events}, handled {len(seen)}")
    return Sample(events / elapsed)


WORKLOAD = Workload(
    "scale_partitions",
    "Partitions",
    "A handler that waits a millisecond for something. Events of one partition wait for each other, "
    "those of others do not. Keys are spread by their hash, so the fullest partition ends last.",
    cases,
)
