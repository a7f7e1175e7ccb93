"""What it costs to be observed: the same messages with and without an observer that measures."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from benchmarks.model import Case, Sample, Scale, Workload
from penstock import (
    Command,
    Event,
    MessageBus,
    ResilientMessageBus,
    ScalableMessageBus,
    hot_path,
)
from penstock.observe import Observer, prometheus_text

ROUNDS = 9
BLOCK = 5_000
MESSAGES_PER_SECOND = 100_000
"""How many messages are counted for each second that a sample is to take."""
Bus = MessageBus | ScalableMessageBus
Step = Callable[[Bus, int], Awaitable[None]]


class Tick(Event):
    number: int


@hot_path
class HotTick(Event):
    number: int


class Ask(Command[int]):
    number: int


async def queued(bus: Bus, first: int) -> None:
    for number in range(first, first + BLOCK):
        await bus.publish(Tick(number))
    await bus.settle()


async def burst(bus: Bus, first: int) -> None:
    for number in range(first, first + BLOCK):
        bus.publish_nowait(Tick(number))
    await bus.settle()


async def hot(bus: Bus, first: int) -> None:
    for number in range(first, first + BLOCK):
        bus.publish_nowait(HotTick(number))
    await bus.settle()


async def waited(bus: Bus, first: int) -> None:
    for number in range(first, first + BLOCK):
        await bus.publish_and_wait(Tick(number))


async def executed(bus: Bus, first: int) -> None:
    for number in range(first, first + BLOCK):
        await bus.execute(Ask(number))


def scalable() -> ScalableMessageBus:
    return ScalableMessageBus(ResilientMessageBus())


def cases(scale: Scale) -> list[Case]:
    """Each way to a handler, on the resilient bus, and the hot path of the scalable one."""
    blocks = max(1, round(scale.seconds * MESSAGES_PER_SECOND / BLOCK))
    few = max(1, blocks // 4)
    run = partial(_sample, make=ResilientMessageBus)
    return [
        Case("metrics", 0, "watched", "queued", "`await publish`",
             partial(run, step=queued, blocks=blocks), unit="%"),
        Case("metrics", 0, "watched", "burst", "`publish_nowait`, in bursts",
             partial(run, step=burst, blocks=blocks), unit="%"),
        Case("metrics", 0, "watched", "waited", "`await publish_and_wait`",
             partial(run, step=waited, blocks=few), unit="%"),
        Case("metrics", 0, "watched", "commands", "`await execute`",
             partial(run, step=executed, blocks=few), unit="%"),
        Case("metrics", 0, "watched", "hot", "a hot topic of `ScalableMessageBus`",
             partial(_sample, make=scalable, step=hot, blocks=2 * blocks), unit="%"),
    ]  # fmt: skip


def _sample(_: Path, make: Callable[[], Bus], step: Step, blocks: int) -> Sample:
    off, on = asyncio.run(_both(make, step, blocks))
    messages = blocks * BLOCK
    return Sample((on / off - 1) * 100, {"ns a message": (on - off) / messages * 1e9})


async def _both(make: Callable[[], Bus], step: Step, blocks: int) -> tuple[float, float]:
    off = on = float("inf")
    for _ in range(ROUNDS):
        off = min(off, await seconds(make, step, blocks, observed=False))
        on = min(on, await seconds(make, step, blocks, observed=True))
    return off, on


async def seconds(make: Callable[[], Bus], step: Step, blocks: int, *, observed: bool) -> float:
    """Processor time of so many blocks. An observed bus can be scraped afterwards."""
    handled = 0

    async def handle(_: object) -> int:
        nonlocal handled
        handled += 1
        return handled

    async with make() as bus:
        observer = Observer()
        if observed:
            observer.watch(bus)
        bus.subscribe(Tick, handle)
        bus.subscribe(HotTick, handle)
        bus.handle(Ask, handle)
        await step(bus, 0)
        gc.collect()
        start = time.process_time()
        for block in range(blocks):
            await step(bus, block * BLOCK)
        took = time.process_time() - start
        assert (b"_duration_seconds_count" in prometheus_text(observer)) is observed
    assert handled == (blocks + 1) * BLOCK
    return took


WORKLOAD = Workload(
    "metrics",
    "The cost of metrics",
    f"Messages published and handled, in turn with and without an observer that measures "
    f"durations; the best of {ROUNDS} times each, in processor time. What it adds, as a share of "
    "the time without it: below zero is noise.",
    cases,
)
