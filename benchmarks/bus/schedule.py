"""How late scheduled events come while very many others are pending."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from benchmarks.bus.stamped import Delays, Stamped, now, percentiles
from benchmarks.model import Case, Sample, Scale, Workload
from penstock import Event, ResilientMessageBus

FAR_SECONDS = 3600.0
SOON_SECONDS = 0.05

Later = Callable[[Event, float], Awaitable[object]]
Run = Callable[[float, int, int], Awaitable[Sample]]


class Someday(Event):
    """What is pending all the time."""

    number: int


def cases(scale: Scale) -> list[Case]:
    """The schedule of the bus, and the timers of asyncio."""
    runs = (
        ("loop", "`loop.call_later`", _timers),
        ("resilient", "`await bus.schedule.after(…)`", _schedule),
    )
    return [
        Case("schedule", 0, "pending", name, what,
             partial(_run, run=run, seconds=scale.long.paced_seconds, pending=scale.long.scheduled,
                     count=scale.latency_messages),
             unit="µs", bound=name == "loop")
        for name, what, run in runs
    ]  # fmt: skip


def _run(_: Path, run: Run, seconds: float, pending: int, count: int) -> Sample:
    async def measure() -> Sample:
        return await run(seconds, pending, count)

    return asyncio.run(measure())


async def _schedule(seconds: float, pending: int, count: int) -> Sample:
    delays = Delays()
    async with ResilientMessageBus() as bus:
        bus.subscribe(Stamped, delays.handle)
        return await _measure(bus.schedule.after, delays, seconds, pending, count)


async def _timers(seconds: float, pending: int, count: int) -> Sample:
    delays, tasks = Delays(), set[asyncio.Task[None]]()

    def fire(event: Event) -> None:
        if isinstance(event, Stamped):
            tasks.add(asyncio.ensure_future(delays.handle(event)))

    async def later(event: Event, seconds: float) -> object:
        return asyncio.get_running_loop().call_later(seconds, fire, event)

    return await _measure(later, delays, seconds, pending, count)


async def _measure(
    later: Later, delays: Delays, seconds: float, pending: int, count: int
) -> Sample:
    """Fill the schedule; see that nothing happens; then time events that come one by one."""
    start = time.perf_counter()
    for number in range(pending):
        await later(Someday(number), FAR_SECONDS + number % 1000)
    filled = time.perf_counter() - start
    used, start = time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds / 2)
    idle = (time.process_time() - used) / (time.perf_counter() - start) * 100
    for number in range(count):
        soon = SOON_SECONDS + number / count * seconds
        await later(Stamped(now() + round(soon * 1e9)), soon)
    await asyncio.sleep(SOON_SECONDS * 4 + seconds)
    if len(delays.taken) != count:
        raise AssertionError(f"{len(delays.taken)} of {count} events came")
    found = percentiles(delays.taken)
    notes = {**found, "pending": pending, "µs to schedule": filled / pending * 1e6, "idle %": idle}
    return Sample(found["p99 µs"], notes)


WORKLOAD = Workload(
    "schedule",
    "Scheduled events",
    "Events that are due within seconds, while very many are pending for in an hour: how late "
    "their handlers are, the 99th percentile. “idle” is the processor time while nothing is due.",
    cases,
)
