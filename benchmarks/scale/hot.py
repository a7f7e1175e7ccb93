"""A hot topic: published and handled one by one, in one process."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.model import Case, Sample, Scale, Workload
from benchmarks.scale import hot_peers
from benchmarks.scale.books import (
    BURST,
    Counting,
    Step,
    Tick,
    Totals,
    check,
    counting,
    counting_async,
    sent,
)
from penstock import MessageBus, ResilientMessageBus, ScalableMessageBus

Contender = Callable[[Counting], AbstractAsyncContextManager[Step]]
Use = Callable[[MessageBus, int], Awaitable[None]]

HANDLERS: dict[str, Counting] = {"sync": counting, "async": counting_async}


async def unawaited(bus: MessageBus, first: int) -> None:
    """``publish_nowait`` of a burst, then settle."""
    publish = bus.publish_nowait
    for number in range(first, first + BURST):
        publish(Tick(number))
    await bus.settle()


async def awaited(bus: MessageBus, first: int) -> None:
    """``await publish`` of each, then settle."""
    publish = bus.publish
    for number in range(first, first + BURST):
        await publish(Tick(number))
    await bus.settle()


def scalable(inner: type[MessageBus], use: Use, **options: Any) -> Contender:
    """The scalable bus around another one, used in one way."""

    @asynccontextmanager
    async def opened(make: Counting) -> AsyncIterator[Step]:
        handle, totals = make()
        async with ScalableMessageBus(inner(), **options) as bus:
            bus.subscribe(Tick, handle)

            async def step(first: int) -> Totals:
                await use(bus, first)
                return totals()

            yield step

    return opened


@asynccontextmanager
async def bare_deque(make: Counting) -> AsyncIterator[Step]:
    """The bound: append a burst, take it out again, call the handler."""
    handle, totals = make()
    waiting: deque[Tick] = deque()

    async def step(first: int) -> Totals:
        append, popleft = waiting.append, waiting.popleft
        for number in range(first, first + BURST):
            append(Tick(number))
        for _ in range(BURST):
            result = handle(popleft())
            if result is not None:
                await result
        return totals()

    yield step


@asynccontextmanager
async def queue(make: Counting) -> AsyncIterator[Step]:
    """``asyncio.Queue``: a task takes what was put."""
    handle, totals = make()
    waiting: asyncio.Queue[Tick] = asyncio.Queue()

    async def consume() -> None:
        for _ in range(BURST):
            result = handle(await waiting.get())
            if result is not None:
                await result

    async def step(first: int) -> Totals:
        consumer = asyncio.create_task(consume())
        for number in range(first, first + BURST):
            waiting.put_nowait(Tick(number))
        await consumer
        return totals()

    yield step


CONTENDERS: tuple[tuple[str, str, Contender], ...] = (
    ("deque", "`append`, `popleft`, the handler called: no bus", bare_deque),
    ("resilient", "`publish_nowait` of 40,000, then `settle`",
     scalable(ResilientMessageBus, unawaited)),
    ("plain", "the same", scalable(MessageBus, unawaited)),
    ("resilient-awaited", "`await publish(…)`, each", scalable(ResilientMessageBus, awaited)),
    ("plain-awaited", "the same", scalable(MessageBus, awaited)),
    ("queue", "`asyncio.Queue`: `put_nowait` of 40,000, a task takes them", queue),
    *hot_peers.CONTENDERS,
)  # fmt: skip


def cases(scale: Scale) -> list[Case]:
    """Every contender with both kinds of handler."""
    return [
        Case("hot", 0, f"{kind}-handler", name, what,
             partial(_run, contender=contender, make=make, seconds=scale.seconds),
             unit="events/s", bound=name == "deque")
        for kind, make in HANDLERS.items()
        for name, what, contender in CONTENDERS
    ]  # fmt: skip


def _run(_: Path, contender: Contender, make: Counting, seconds: float) -> Sample:
    return asyncio.run(rate(contender, make, seconds))


async def rate(contender: Contender, make: Counting, seconds: float) -> Sample:
    """Events per second; the first burst is not counted."""
    async with contender(make) as step:
        check(sent(0, BURST), await step(0))
        events = BURST
        start, used = time.perf_counter(), time.process_time()
        while events == BURST or time.perf_counter() - start < seconds:
            found = await step(events)
            events += BURST
            check(sent(0, events), found)
        elapsed, used = time.perf_counter() - start, time.process_time() - used
    events -= BURST
    return Sample(events / elapsed, {"µs of processor": used / events * 1e6})


WORKLOAD = Workload(
    "hot",
    "A hot topic, one by one",
    "`ScalableMessageBus` around the resilient and the plain bus, one publisher and one handler in "
    "one process. Every event is a new object with a number of its own. After each burst of 40,000 "
    "the count and the sum of the numbers at the handler must be those that were published. The others "
    "get the same bursts; pyee and blinker have no queue and call a plain function in place.",
    cases,
)
