"""How much memory grows with the events that pass: in a process of its own."""

from __future__ import annotations

import asyncio
import gc
import os
import tracemalloc
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from statistics import linear_regression

from benchmarks.bus import contenders, peers
from benchmarks.bus.blocks import BURST, Ping, Step, Tally
from benchmarks.child import Child, gate
from benchmarks.model import Case, Sample, Scale, Workload
from penstock import MessageBus, ResilientMessageBus, Retry

POINTS = 20
TRACED_SHARE = 10
"""Tracing makes it slow, so a tenth of the events are traced."""
FAIL_EVERY = 5
WARM_TRACED = 10_000
"""Enough to replace every dead letter by one that is traced."""

Look = Callable[[], int]


def cases(scale: Scale) -> list[Case]:
    """As it comes, with failures, and a bare queue."""
    contenders_of = (
        ("queue", "`put_nowait` of 9,000, then a task takes them"),
        ("resilient", "`publish` and `publish_nowait` by turns, up to 9,000 at once"),
        ("resilient-failing", "the same; every fifth event becomes a dead letter"),
    )
    return [
        Case("growth", 0, "slope", name, what,
             partial(_run, name=name, events=scale.long.growth_events),
             unit="B/event", once=True)
        for name, what in contenders_of
    ]  # fmt: skip


def _run(_: Path, name: str, events: int) -> Sample:
    child = Child(job, name=name, events=events)
    child.wait_ready()
    child.go()
    resident, traced, first = child.result()
    return Sample(
        resident, {"traced B/event": traced, "events": events, "resident MiB": first / (1 << 20)}
    )


def job(name: str, events: int) -> tuple[float, float, int]:
    """In the child: slopes of resident and of traced memory, and the first of the former."""
    gate()
    with contenders.quiet():
        return asyncio.run(JOBS[name](events))


async def _bus(events: int) -> tuple[float, float, int]:
    async with contenders.with_handler(ResilientMessageBus, Tally()) as bus:
        return await _slopes(partial(_mixed, bus), events)


async def _failing(events: int) -> tuple[float, float, int]:
    async def handle(event: Ping) -> None:
        if event.number % FAIL_EVERY == 0:
            raise ValueError("as it was asked to")

    async with ResilientMessageBus(retry=Retry(attempts=1), breaker=None) as bus:
        bus.on_error(lambda *_: None)
        bus.subscribe(Ping, handle)
        return await _slopes(partial(_mixed, bus), events)


async def _mixed(bus: MessageBus, count: int) -> None:
    """Half awaited, half not."""
    await contenders.publish_each(bus, count // 2)
    await contenders.burst(bus, count - count // 2)


async def _queue(events: int) -> tuple[float, float, int]:
    opened: AbstractAsyncContextManager[Step] = peers.queue_burst(Tally())
    async with opened as step:
        return await _slopes(step, events)


async def _slopes(step: Step, events: int) -> tuple[float, float, int]:
    await _pass(step, events // 10)
    gc.freeze()  # what is there already need not be looked at again and again
    resident, first = await _slope(step, events, resident_bytes)
    tracemalloc.start()
    await _pass(step, min(WARM_TRACED, events))
    traced, _ = await _slope(
        step, events // TRACED_SHARE, lambda: tracemalloc.get_traced_memory()[0]
    )
    tracemalloc.stop()
    gc.unfreeze()
    return resident, traced, first


async def _slope(step: Step, events: int, look: Look) -> tuple[float, int]:
    """Bytes for each event, by the line through some points; and the first point."""
    counts, sizes = [0], [_settled(look)]
    for number in range(1, POINTS + 1):
        await _pass(step, events // POINTS)
        counts.append(number * (events // POINTS))
        sizes.append(_settled(look))
    return linear_regression(counts, sizes).slope, sizes[0]


async def _pass(step: Step, events: int) -> None:
    while events > 0:
        await step(min(events, BURST))
        events -= BURST


def _settled(look: Look) -> int:
    gc.collect()
    return look()


def resident_bytes() -> int:
    """The resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


JOBS: dict[str, Callable[[int], Coroutine[None, None, tuple[float, float, int]]]] = {
    "queue": _queue,
    "resilient": _bus,
    "resilient-failing": _failing,
}

WORKLOAD = Workload(
    "growth",
    "Memory",
    "Resident memory of a process that does nothing else, looked at 20 times after warm-up, when "
    "all is handled: the slope of the line through these points. “traced” is the same for what "
    "Python's allocator was asked for, with a tenth of the events.",
    cases,
)
