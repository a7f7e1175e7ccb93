"""Events that carry the time of their publishing, and what is found out with them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from benchmarks.bus.peers import QUEUE_MAX, BubusPing, HandRolled
from benchmarks.bus.peers import bubus as bubus_bus
from penstock import Event, MessageBus

TICK_SECONDS = 0.001
"""How often a paced publisher wakes up to publish what is due."""

now = time.perf_counter_ns


class Stamped(Event):
    """An event that says when it was published, or should come."""

    at: int


@dataclass
class Delays:
    """Notes, in the handler, how long each event took."""

    taken: list[int] = field(default_factory=list)

    async def handle(self, event: Stamped) -> None:
        """The handler."""
        self.taken.append(now() - event.at)


Publish = Callable[[], Awaitable[None]]
Opened = Callable[[Delays], AbstractAsyncContextManager[Publish]]


def awaited(kind: type[MessageBus]) -> Opened:
    """``await bus.publish(event)``."""

    @asynccontextmanager
    async def opened(delays: Delays) -> AsyncIterator[Publish]:
        async with kind() as bus:
            bus.subscribe(Stamped, delays.handle)

            async def publish() -> None:
                await bus.publish(Stamped(now()))

            yield publish
            await bus.settle()

    return opened


def unawaited(kind: type[MessageBus]) -> Opened:
    """``bus.publish_nowait(event)``."""

    @asynccontextmanager
    async def opened(delays: Delays) -> AsyncIterator[Publish]:
        async with kind() as bus:
            bus.subscribe(Stamped, delays.handle)

            async def publish() -> None:
                bus.publish_nowait(Stamped(now()))

            yield publish
            await bus.settle()

    return opened


def from_thread(kind: type[MessageBus]) -> Opened:
    """``bus.publish_nowait(event)`` in another thread."""

    @asynccontextmanager
    async def opened(delays: Delays) -> AsyncIterator[Publish]:
        async with kind() as bus:
            bus.subscribe(Stamped, delays.handle)

            async def publish() -> None:
                await asyncio.to_thread(lambda: bus.publish_nowait(Stamped(now())))

            yield publish
            await bus.settle()

    return opened


@asynccontextmanager
async def queue(delays: Delays) -> AsyncIterator[Publish]:
    """A bare queue and a task that takes from it."""
    waiting: asyncio.Queue[Stamped] = asyncio.Queue(QUEUE_MAX)

    async def publish() -> None:
        await waiting.put(Stamped(now()))

    async with _consumed(waiting, delays):
        yield publish


@asynccontextmanager
async def queue_from_thread(delays: Delays) -> AsyncIterator[Publish]:
    """The same, from another thread."""
    waiting: asyncio.Queue[Stamped] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    async def publish() -> None:
        await asyncio.to_thread(
            lambda: loop.call_soon_threadsafe(waiting.put_nowait, Stamped(now()))
        )

    async with _consumed(waiting, delays):
        yield publish


@asynccontextmanager
async def _consumed(waiting: asyncio.Queue[Stamped], delays: Delays) -> AsyncIterator[None]:
    async def consume() -> None:
        while True:
            await delays.handle(await waiting.get())
            waiting.task_done()

    consumer = asyncio.create_task(consume())
    yield
    await waiting.join()
    consumer.cancel()


@asynccontextmanager
async def hand_rolled(delays: Delays) -> AsyncIterator[Publish]:
    """A task for each event."""
    bus = HandRolled()
    bus.on(Stamped, delays.handle)

    async def publish() -> None:
        bus.publish(Stamped(now()))

    yield publish
    while bus.tasks:
        await asyncio.wait(bus.tasks)


@asynccontextmanager
async def bubus(delays: Delays) -> AsyncIterator[Publish]:
    """A bus that is awaited, which is when its handler has run."""
    bus = bubus_bus()

    async def handle(event: BubusPing) -> None:
        delays.taken.append(now() - event.number)

    async def publish() -> None:
        await bus.dispatch(BubusPing(number=now()))

    bus.on(BubusPing, handle)
    yield publish
    await bus.stop(clear=True)


async def pace(rate: float, seconds: float, publish: Publish, tick: float = TICK_SECONDS) -> int:
    """Publish at a rate for a while, asleep in between; returns how many events it was."""
    start, count = time.perf_counter(), 0
    while True:
        passed = time.perf_counter() - start
        due = int(rate * min(passed, seconds))
        for _ in range(due - count):
            await publish()
        count = due
        if passed >= seconds:
            return count
        await asyncio.sleep(tick)


def percentiles(nanoseconds: Sequence[int]) -> dict[str, float]:
    """Median and tail, in microseconds."""
    ordered = sorted(nanoseconds)
    last = len(ordered) - 1
    return {f"p{p} µs": ordered[min(last, len(ordered) * p // 100)] / 1e3 for p in (50, 95, 99)}
