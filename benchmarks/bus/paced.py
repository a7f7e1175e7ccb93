"""Latency at a steady rate, and a steady rate for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bus import stamped
from benchmarks.bus.stamped import Delays, Opened, Publish, now, pace, percentiles
from benchmarks.model import Case, Sample, Scale, Workload
from penstock import MessageBus, ResilientMessageBus

Measure = Callable[[Opened, float], Coroutine[Any, Any, Sample]]

RATE = 10_000
SUSTAINED_RATE = 11_000
"""A little more than is asked for: the figure must not fail for a rounding."""

CONTENDERS: tuple[tuple[str, str, Opened], ...] = (
    ("queue", "`await put`, maxsize 1,024", stamped.queue),
    ("resilient", "`await bus.publish(…)`", stamped.awaited(ResilientMessageBus)),
    ("plain", "`await bus.publish(…)`", stamped.awaited(MessageBus)),
    ("hand-rolled", "`create_task`", stamped.hand_rolled),
)


def paced_cases(scale: Scale) -> list[Case]:
    """From the call of ``publish`` to the handler."""
    return [
        Case(
            "paced", 0, "10000", name, what,
            partial(_run, measure=_latency, opened=opened, seconds=scale.long.paced_seconds),
            unit="µs", bound=name == "queue",
        )
        for name, what, opened in CONTENDERS
    ]  # fmt: skip


def sustained_cases(scale: Scale) -> list[Case]:
    """Awaited and unawaited."""
    uses = (
        ("resilient", "`await bus.publish(…)`", stamped.awaited),
        ("resilient-unawaited", "`bus.publish_nowait(…)`", stamped.unawaited),
    )
    return [
        Case(
            "sustained", 0, "11000", name, what,
            partial(_run, measure=_sustained, opened=use(ResilientMessageBus),
                    seconds=scale.long.sustained_seconds),
            unit="events/s", once=True,
        )
        for name, what, use in uses
    ]  # fmt: skip


def _run(_: Path, measure: Measure, opened: Opened, seconds: float) -> Sample:
    return asyncio.run(measure(opened, seconds))


async def _latency(opened: Opened, seconds: float) -> Sample:
    """The 99th percentile, after some events that are not counted."""
    delays, calls = Delays(), list[int]()
    async with opened(delays) as publish:
        await pace(RATE, seconds / 10, publish)
        await asyncio.sleep(stamped.TICK_SECONDS)
        delays.taken.clear()
        events = await pace(RATE, seconds, partial(_timed, publish, calls))
    if len(delays.taken) != events:
        raise AssertionError(f"published {events}, handled {len(delays.taken)}")
    found = percentiles(delays.taken)
    notes = {**found, "publish p99 µs": percentiles(calls)["p99 µs"], "events/s": events / seconds}
    return Sample(found["p99 µs"], notes)


async def _timed(publish: Publish, calls: list[int]) -> None:
    start = now()
    await publish()
    calls.append(now() - start)


async def _sustained(opened: Opened, seconds: float) -> Sample:
    delays = Delays()
    start, used = time.perf_counter(), time.process_time()
    async with opened(delays) as publish:
        events = await pace(SUSTAINED_RATE, seconds, publish)
    elapsed, used = time.perf_counter() - start, time.process_time() - used
    if len(delays.taken) != events:
        raise AssertionError(f"published {events}, handled {len(delays.taken)}")
    notes = {
        **percentiles(delays.taken),
        "seconds": elapsed,
        "% of a processor": used / elapsed * 100,
    }
    return Sample(events / elapsed, notes)


PACED = Workload(
    "paced",
    "Latency at a steady rate",
    "A publisher that wakes up every millisecond and publishes what is due. From the call of "
    "`publish` to the handler: the 99th percentile, with the others in the notes. “publish” is how "
    "long the call itself took.",
    paced_cases,
)
SUSTAINED = Workload(
    "sustained",
    "A steady rate for long",
    "The same publisher, for longer. All events are handled before the clock stops.",
    sustained_cases,
)
