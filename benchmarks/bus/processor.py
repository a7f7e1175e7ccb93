"""How much of a processor it takes, by the rate of events: in a process of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from statistics import correlation

from benchmarks.bus import stamped
from benchmarks.bus.stamped import Delays, Opened, pace
from benchmarks.child import Child, gate
from benchmarks.model import Case, Sample, Scale, Workload
from benchmarks.results import FIT
from penstock import ResilientMessageBus

TICK_SECONDS = 0.01
"""Long: waking up costs the publisher more than some events, and is not linear in anything."""
RATES = (0, 50_000, 100_000, 200_000)
"""With fewer events waking up is most of it: then it is the memory that has gone cold which is measured."""
CONTENDERS: dict[str, tuple[str, Opened]] = {
    "queue": ("`await put`, maxsize 1,024", stamped.queue),
    "resilient": ("`await bus.publish(…)`", stamped.awaited(ResilientMessageBus)),
}


def cases(scale: Scale) -> list[Case]:
    """The bus and a bare queue."""
    seconds = scale.long.processor_seconds
    return [
        Case("processor", 0, "rates", name, what,
             partial(_run, name=name, seconds=seconds), unit=FIT)
        for name, (what, _) in CONTENDERS.items()
    ]  # fmt: skip


def _run(_: Path, name: str, seconds: float) -> Sample:
    child = Child(job, name=name, seconds=seconds)
    child.wait_ready()
    child.go()
    idle, shares = child.result()
    notes = {f"at {rate:,}/s %": share for rate, share in zip(RATES, shares, strict=True)}
    return Sample(fit(RATES, shares), {"idle %": idle, **notes})


def fit(rates: tuple[int, ...], shares: list[float]) -> float:
    """How well a line describes the shares: the square of the correlation."""
    return float(correlation(rates, shares) ** 2)


def job(name: str, seconds: float) -> tuple[float, list[float]]:
    """In the child: percent of a processor, with nobody awake and at each rate."""
    gate()
    return asyncio.run(_shares(CONTENDERS[name][1], seconds))


async def _shares(opened: Opened, seconds: float) -> tuple[float, list[float]]:
    delays = Delays()
    async with opened(delays) as publish:
        await pace(RATES[-1], seconds / 10, publish)
        await asyncio.sleep(stamped.TICK_SECONDS)
        idle = await _share(asyncio.sleep(seconds))
        shares = []
        for rate in RATES:
            shares.append(await _share(pace(rate, seconds, publish, TICK_SECONDS)))
            delays.taken.clear()
        return idle, shares


async def _share(meanwhile: Awaitable[object]) -> float:
    """Percent of a processor until that is done."""
    start, used = time.perf_counter(), time.process_time()
    await meanwhile
    return (time.process_time() - used) / (time.perf_counter() - start) * 100


WORKLOAD = Workload(
    "processor",
    "Processor time by rate",
    "Processor time of the process divided by the time that passed, at each rate, the publisher's "
    "part included, who wakes up every 10 ms, also where there is nothing to publish; R² says how well "
    "a line describes the four. Idle is without a publisher.",
    cases,
)
