"""The hot topic for long: does it hold its rate?"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

from benchmarks.model import Case, Sample, Scale, Workload
from benchmarks.scale import hot
from benchmarks.scale.books import BURST, Counting, check, sent
from benchmarks.scale.hot import Contender
from penstock import MessageBus, ResilientMessageBus

CONTENDERS: tuple[tuple[str, str, Contender], ...] = (
    ("resilient", "`publish_nowait`, bursts of 40,000",
     hot.scalable(ResilientMessageBus, hot.unawaited)),
    ("plain", "the same", hot.scalable(MessageBus, hot.unawaited)),
)  # fmt: skip


def cases(scale: Scale) -> list[Case]:
    """Both buses with both kinds of handler."""
    return [
        Case("hot_sustained", 0, f"{kind}-handler", name, what,
             partial(_run, contender=contender, make=make, seconds=scale.long.hot_seconds),
             unit="events/s", once=True)
        for kind, make in hot.HANDLERS.items()
        for name, what, contender in CONTENDERS
    ]  # fmt: skip


def _run(_: Path, contender: Contender, make: Counting, seconds: float) -> Sample:
    return asyncio.run(_sustain(contender, make, seconds))


async def _sustain(contender: Contender, make: Counting, seconds: float) -> Sample:
    """Without a pause from the first event on; nothing is left out."""
    bursts: list[float] = []
    async with contender(make) as step:
        start = before = time.perf_counter()
        while before - start < seconds:
            check(sent(0, BURST * (len(bursts) + 1)), await step(BURST * len(bursts)))
            now = time.perf_counter()
            bursts.append(now - before)
            before = now
    events, elapsed = BURST * len(bursts), before - start
    notes = {"events": events, "seconds": elapsed, "slowest second /s": slowest_second(bursts)}
    return Sample(events / elapsed, notes)


def slowest_second(bursts: list[float]) -> float:
    """The lowest rate over bursts that follow each other for a second, or over all of a short run."""
    lowest, first, seconds = float("inf"), 0, 0.0
    for last, taken in enumerate(bursts):
        seconds += taken
        while seconds - bursts[first] >= 1:
            seconds -= bursts[first]
            first += 1
        if seconds >= 1 or last == len(bursts) - 1:
            lowest = min(lowest, BURST * (last + 1 - first) / seconds)
    return lowest


WORKLOAD = Workload(
    "hot_sustained",
    "A hot topic for long",
    "The same without a pause, from the first event on. Count and sum are compared after every "
    "burst. “slowest second” is the lowest rate over any bursts that took a second together.",
    cases,
)
