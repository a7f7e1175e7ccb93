"""A lone event on an idle bus."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from benchmarks.bus import stamped
from benchmarks.bus.stamped import Delays, Opened, percentiles
from benchmarks.model import Case, Sample, Scale, Workload
from penstock import MessageBus, ResilientMessageBus

PAUSE_SECONDS = 0.002
WARM = 5

CONTENDERS: tuple[tuple[str, str, Opened], ...] = (
    ("queue", "`await put`", stamped.queue),
    ("resilient", "`await bus.publish(…)`", stamped.awaited(ResilientMessageBus)),
    ("plain", "`await bus.publish(…)`", stamped.awaited(MessageBus)),
    ("hand-rolled", "`create_task`", stamped.hand_rolled),
    ("bubus", "`await bus.dispatch(…)`", stamped.bubus),
    ("queue-thread", "`put_nowait` by `call_soon_threadsafe`", stamped.queue_from_thread),
    ("resilient-thread", "`bus.publish_nowait(…)` in another thread",
     stamped.from_thread(ResilientMessageBus)),
)  # fmt: skip


def cases(scale: Scale) -> list[Case]:
    """Each contender."""
    return [
        Case(
            "wake_up", 0, "idle", name, what,
            partial(_run, opened=opened, count=scale.latency_messages),
            unit="µs", bound=name == "queue",
        )
        for name, what, opened in CONTENDERS
    ]  # fmt: skip


def _run(_: Path, opened: Opened, count: int) -> Sample:
    return asyncio.run(_measure(opened, count))


async def _measure(opened: Opened, count: int) -> Sample:
    delays = Delays()
    async with opened(delays) as publish:
        for _ in range(WARM + count):
            await publish()
            await asyncio.sleep(PAUSE_SECONDS)
    found = percentiles(delays.taken[WARM:])
    return Sample(found["p50 µs"], found)


WORKLOAD = Workload(
    "wake_up",
    "Waking up",
    f"One event every {PAUSE_SECONDS * 1000:.0f} ms on a bus that has nothing else to do: from the "
    "call of `publish` to the handler, the median.",
    cases,
)
