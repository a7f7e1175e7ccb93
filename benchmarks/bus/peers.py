"""Others who pass events on inside a process, each used as its documentation says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from blinker import Signal
from bubus import BaseEvent, EventBus
from pyee.asyncio import AsyncIOEventEmitter
from pyee.base import EventEmitter

from benchmarks.bus.blocks import Ask, Ping, Step, Tally

BUBUS_BURST = 40
"""Its queue holds 50 events, and ``dispatch`` does not wait for room."""
QUEUE_MAX = 1_024
SIGNAL = "ping"

# It logs each event; nobody would leave that on where speed matters.
logging.getLogger("bubus").setLevel(logging.CRITICAL)


# ------------------------------------------------------------------------------- asyncio.Queue


async def _take(queue: asyncio.Queue[Ping], count: int, tally: Tally) -> None:
    for _ in range(count):
        await queue.get()
        tally.handled += 1


@asynccontextmanager
async def queue_burst(tally: Tally) -> AsyncIterator[Step]:
    """``put_nowait`` of all, then a task takes them."""

    async def step(count: int) -> None:
        queue: asyncio.Queue[Ping] = asyncio.Queue()
        consumer = asyncio.create_task(_take(queue, count, tally))
        for number in range(count):
            queue.put_nowait(Ping(number))
        await consumer

    yield step


def queue_stream(size: int) -> Callable[[Tally], Any]:
    """``await put`` into a queue of that size; of size 1 each event costs a switch of tasks."""

    @asynccontextmanager
    async def opened(tally: Tally) -> AsyncIterator[Step]:
        async def step(count: int) -> None:
            queue: asyncio.Queue[Ping] = asyncio.Queue(size)
            consumer = asyncio.create_task(_take(queue, count, tally))
            for number in range(count):
                await queue.put(Ping(number))
            await consumer

        yield step

    return opened


@asynccontextmanager
async def queue_joined(tally: Tally) -> AsyncIterator[Step]:
    """``put`` and ``join`` for each: it is taken when the publisher goes on."""
    queue: asyncio.Queue[Ping] = asyncio.Queue()

    async def consume() -> None:
        while True:
            await queue.get()
            tally.handled += 1
            queue.task_done()

    async def step(count: int) -> None:
        for number in range(count):
            await queue.put(Ping(number))
            await queue.join()

    consumer = asyncio.create_task(consume())
    try:
        yield step
    finally:
        consumer.cancel()


# -------------------------------------------------------------------------------- hand-rolled


class HandRolled:
    """A dictionary of handlers, and a task for each call."""

    def __init__(self) -> None:
        self.handlers: dict[type, list[Callable[[Any], Awaitable[None]]]] = {}
        self.tasks: set[asyncio.Future[None]] = set()

    def on(self, kind: type, handler: Callable[[Any], Awaitable[None]]) -> None:
        """Register a handler."""
        self.handlers.setdefault(kind, []).append(handler)

    def publish(self, event: object) -> list[asyncio.Future[None]]:
        """Start the handlers."""
        started: list[asyncio.Future[None]] = [
            asyncio.ensure_future(one(event)) for one in self.handlers.get(type(event), ())
        ]
        for task in started:
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        return started

    async def publish_and_wait(self, event: object) -> None:
        """Start the handlers and wait for them."""
        await asyncio.gather(*self.publish(event))


@asynccontextmanager
async def hand_rolled_burst(tally: Tally) -> AsyncIterator[Step]:
    """All at once, then wait for the tasks."""
    bus = HandRolled()
    bus.on(Ping, tally.handle)

    async def step(count: int) -> None:
        for number in range(count):
            bus.publish(Ping(number))
        await asyncio.wait(bus.tasks)

    yield step


@asynccontextmanager
async def hand_rolled_each(tally: Tally) -> AsyncIterator[Step]:
    """Wait for the tasks of each event."""
    bus = HandRolled()
    bus.on(Ping, tally.handle)

    async def step(count: int) -> None:
        for number in range(count):
            await bus.publish_and_wait(Ping(number))

    yield step


@asynccontextmanager
async def direct(tally: Tally) -> AsyncIterator[Step]:
    """``await handler(command)``: no bus at all."""

    async def step(count: int) -> None:
        for number in range(count):
            await tally.answer(Ask(number))

    yield step


# --------------------------------------------------------------------------------------- bubus


class BubusPing(BaseEvent[int]):  # type: ignore[misc]  # bubus has no types
    """Its events are pydantic models."""

    number: int


def bubus() -> EventBus:
    """A bus of theirs."""
    # It looks through its history for each event: the shortest one is the fastest by far.
    return EventBus(max_history_size=1)


@asynccontextmanager
async def bubus_each(tally: Tally) -> AsyncIterator[Step]:
    """``await bus.dispatch(event)`` for each."""
    bus = bubus()
    bus.on(BubusPing, tally.handle)

    async def step(count: int) -> None:
        for number in range(count):
            await bus.dispatch(BubusPing(number=number))

    yield step
    await bus.stop(clear=True)


@asynccontextmanager
async def bubus_burst(tally: Tally) -> AsyncIterator[Step]:
    """As many as it takes at once, then wait for the last one."""
    bus = bubus()
    bus.on(BubusPing, tally.handle)

    async def step(count: int) -> None:
        for _ in range(count // BUBUS_BURST):
            await [bus.dispatch(BubusPing(number=n)) for n in range(BUBUS_BURST)][-1]

    yield step
    await bus.stop(clear=True)


@asynccontextmanager
async def bubus_results(tally: Tally) -> AsyncIterator[Step]:
    """The result of one handler, which is its way of commands."""
    bus = bubus()
    bus.on(BubusPing, tally.answer)

    async def step(count: int) -> None:
        for number in range(count):
            assert await bus.dispatch(BubusPing(number=number)).event_result() == number

    yield step
    await bus.stop(clear=True)


# ---------------------------------------------------------------------------- pyee and blinker


@asynccontextmanager
async def pyee_sync(tally: Tally) -> AsyncIterator[Step]:
    """``emit`` calls a plain function in place."""
    emitter = EventEmitter()
    emitter.add_listener(SIGNAL, tally.handle_at_once)

    async def step(count: int) -> None:
        for number in range(count):
            emitter.emit(SIGNAL, Ping(number))

    yield step


@asynccontextmanager
async def pyee_burst(tally: Tally) -> AsyncIterator[Step]:
    """``emit`` starts a task for a coroutine function."""
    emitter = AsyncIOEventEmitter()
    emitter.add_listener(SIGNAL, tally.handle)

    async def step(count: int) -> None:
        for number in range(count):
            emitter.emit(SIGNAL, Ping(number))
        await emitter.wait_for_complete()

    yield step


@asynccontextmanager
async def pyee_each(tally: Tally) -> AsyncIterator[Step]:
    """The same, waiting for each."""
    emitter = AsyncIOEventEmitter()
    emitter.add_listener(SIGNAL, tally.handle)

    async def step(count: int) -> None:
        for number in range(count):
            emitter.emit(SIGNAL, Ping(number))
            await emitter.wait_for_complete()

    yield step


@asynccontextmanager
async def blinker_sync(tally: Tally) -> AsyncIterator[Step]:
    """``send`` calls a plain function in place."""
    signal = Signal(SIGNAL)
    signal.connect(tally.handle_at_once)

    async def step(count: int) -> None:
        for number in range(count):
            signal.send(Ping(number))

    yield step


@asynccontextmanager
async def blinker_each(tally: Tally) -> AsyncIterator[Step]:
    """``send_async`` awaits a coroutine function."""
    signal = Signal(SIGNAL)
    signal.connect(tally.handle)

    async def step(count: int) -> None:
        for number in range(count):
            await signal.send_async(Ping(number))

    yield step
