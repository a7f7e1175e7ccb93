"""What it costs to watch the pressure: the same events with and without."""

from __future__ import annotations

import asyncio
import gc
import time
from functools import partial
from pathlib import Path

from benchmarks.model import Case, Sample, Scale, Workload
from benchmarks.pressure_tracking import BLOCK, TrackingCost, tracking_cost
from benchmarks.scale import hot
from benchmarks.scale.books import BURST, counting
from penstock import ResilientMessageBus

ROUNDS = 9
EVENTS_PER_SECOND = 300_000
"""How many events are tracked for each second that a sample is to take."""


def cases(scale: Scale) -> list[Case]:
    """A monitor beside the plain bus, and the pressure of the scalable bus on its hot path."""
    blocks = max(1, round(scale.seconds * EVENTS_PER_SECOND / BLOCK))
    bursts = max(1, blocks * BLOCK // BURST)
    return [
        Case("tracking", 0, "watched", "monitor",
             "`PressureMonitor` and `publish_nowait` of the plain bus",
             partial(_monitor, events=blocks * BLOCK), unit="%"),
        Case("tracking", 0, "watched", "hot",
             "a hot topic of `ScalableMessageBus`, `backpressure` on and off",
             partial(_hot, bursts=bursts), unit="%"),
    ]  # fmt: skip


def _monitor(_: Path, events: int) -> Sample:
    return _sample(tracking_cost(events, ROUNDS))


def _hot(_: Path, bursts: int) -> Sample:
    return _sample(asyncio.run(_hot_cost(bursts)))


def _sample(cost: TrackingCost) -> Sample:
    return Sample(cost.share * 100, {"ns an event": cost.nanoseconds_each, "events": cost.events})


async def _hot_cost(bursts: int) -> TrackingCost:
    plain = tracked = float("inf")
    for _ in range(ROUNDS):
        plain = min(plain, await _seconds(bursts, backpressure=False))
        tracked = min(tracked, await _seconds(bursts, backpressure=True))
    return TrackingCost(bursts * BURST, plain, tracked)


async def _seconds(bursts: int, *, backpressure: bool) -> float:
    opened = hot.scalable(ResilientMessageBus, hot.unawaited, backpressure=backpressure)
    async with opened(counting) as step:
        await step(0)
        gc.collect()
        start = time.process_time()
        for number in range(1, bursts + 1):
            await step(number * BURST)
        return time.process_time() - start


WORKLOAD = Workload(
    "tracking",
    "The cost of watching the pressure",
    f"Events published and handled, in turn with and without; the best of {ROUNDS} times each, in "
    "processor time. What "
    "watching adds, as a share of the time without it: below zero is noise.",
    cases,
)
