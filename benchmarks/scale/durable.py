"""Durable topics: published into the log, and handled from there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from benchmarks.model import Case, Sample, Scale, Workload
from benchmarks.publishers import EVERY_100, EVERY_MESSAGE
from benchmarks.scale.books import check, sent
from penstock import (
    Event,
    MessageBus,
    ResilientMessageBus,
    ScalableMessageBus,
    TopicConfig,
    WalMessageQueue,
    topic,
)

TOPIC = "benchmark.durable"
BURST = 2_000
PUBLISHERS = 64
HANDLED_SECONDS_MAX = 20.0


@topic(TOPIC)
class Kept(Event):
    """An event that lives in the log."""

    number: int


Use = Callable[[ScalableMessageBus, int], Awaitable[None]]


async def together(bus: ScalableMessageBus, first: int) -> None:
    """64 tasks, each awaits its own events one by one."""

    async def publisher(start: int) -> None:
        for number in range(first + start, first + BURST, PUBLISHERS):
            await bus.publish(Kept(number))

    await asyncio.gather(*(publisher(start) for start in range(PUBLISHERS)))


async def unawaited(bus: ScalableMessageBus, first: int) -> None:
    """``publish_nowait``."""
    for number in range(first, first + BURST):
        bus.publish_nowait(Kept(number))


CASES: tuple[tuple[str, str, str, Use, type[MessageBus], TopicConfig], ...] = (
    ("sync-each", "resilient-64", "64 tasks that `await publish(…)`", together,
     ResilientMessageBus, EVERY_MESSAGE),
    ("sync-each", "plain-64", "the same", together, MessageBus, EVERY_MESSAGE),
    ("sync-100", "resilient-64", "64 tasks that `await publish(…)`", together,
     ResilientMessageBus, EVERY_100),
    ("sync-100", "resilient-unawaited", "`publish_nowait` of 2,000", unawaited,
     ResilientMessageBus, EVERY_100),
)  # fmt: skip


def cases(scale: Scale) -> list[Case]:
    """Durable when the call returns, and after every 100 records: only then they are delivered."""
    return [
        Case("durable", 0, point, name, what,
             partial(_run, use=use, inner=inner, config=config, seconds=scale.seconds),
             unit="events/s")
        for point, name, what, use, inner, config in CASES
    ]  # fmt: skip


def _run(
    folder: Path, use: Use, inner: type[MessageBus], config: TopicConfig, seconds: float
) -> Sample:
    return asyncio.run(_measure(folder, use, inner, config, seconds))


async def _measure(
    folder: Path, use: Use, inner: type[MessageBus], config: TopicConfig, seconds: float
) -> Sample:
    async with WalMessageQueue(folder) as log:
        await log.create_topic(TOPIC, config)
        async with ScalableMessageBus(inner(), log=log) as bus:
            handled = Handled()
            bus.subscribe(Kept, handled.handle)
            await _burst(bus, use, handled, 0)
            events, start = BURST, time.perf_counter()
            while events == BURST or time.perf_counter() - start < seconds:
                await _burst(bus, use, handled, events)
                events += BURST
            elapsed = time.perf_counter() - start
    return Sample((events - BURST) / elapsed)


class Handled:
    """Counts, and says when enough have come."""

    def __init__(self) -> None:
        self.count = self.total = self.goal = 0
        self.reached = asyncio.Event()

    def handle(self, event: Kept) -> None:
        """The handler."""
        self.count += 1
        self.total += event.number
        if self.count >= self.goal:
            self.reached.set()


async def _burst(bus: ScalableMessageBus, use: Use, handled: Handled, first: int) -> None:
    handled.goal = first + BURST
    handled.reached.clear()
    await use(bus, first)
    async with asyncio.timeout(HANDLED_SECONDS_MAX):
        await handled.reached.wait()
    check(sent(0, handled.goal), (handled.count, handled.total))


WORKLOAD = Workload(
    "durable",
    "Durable topics",
    "`ScalableMessageBus` over `WalMessageQueue`: published into the log, read from it by the group "
    "of the bus when it is durable, handled. The clock stops when all are handled.",
    cases,
)
