"""Others who pass events on inside a process, beside a hot topic: a burst of them, the same handlers.

``pyee`` and ``blinker`` call plain functions in place; coroutine functions become tasks, or are awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from blinker import Signal
from pyee.asyncio import AsyncIOEventEmitter
from pyee.base import EventEmitter

from benchmarks.bus.peers import SIGNAL, HandRolled
from benchmarks.scale.books import BURST, Counting, Step, Tick, Totals

Handle = Callable[[Tick], Any]
Send = Callable[[Handle], Callable[[range], Awaitable[None]]]


def in_bursts(send: Send) -> Callable[[Counting], Any]:
    """A contender of one of the ways below."""

    @asynccontextmanager
    async def opened(make: Counting) -> AsyncIterator[Step]:
        handle, totals = make()
        burst = send(handle)

        async def step(first: int) -> Totals:
            await burst(range(first, first + BURST))
            return totals()

        yield step

    return opened


def pyee(handle: Handle) -> Callable[[range], Awaitable[None]]:
    """``emit`` of each: the function is called in place, of a coroutine function a task is made."""
    coroutines = asyncio.iscoroutinefunction(handle)
    emitter = AsyncIOEventEmitter() if coroutines else EventEmitter()
    emitter.add_listener(SIGNAL, handle)

    async def burst(numbers: range) -> None:
        for number in numbers:
            emitter.emit(SIGNAL, Tick(number))
        if isinstance(emitter, AsyncIOEventEmitter):
            await emitter.wait_for_complete()

    return burst


def blinker(handle: Handle) -> Callable[[range], Awaitable[None]]:
    """``send`` of each, or ``await send_async``."""
    signal = Signal(SIGNAL)
    signal.connect(handle)

    async def burst(numbers: range) -> None:
        for number in numbers:
            signal.send(Tick(number))

    async def burst_async(numbers: range) -> None:
        for number in numbers:
            await signal.send_async(Tick(number))

    return burst_async if asyncio.iscoroutinefunction(handle) else burst


def hand_rolled(handle: Handle) -> Callable[[range], Awaitable[None]]:
    """A dictionary of handlers, and a task for each call; a plain function is wrapped, as such buses do."""
    bus = HandRolled()

    async def wrapped(event: Tick) -> None:
        handle(event)

    bus.on(Tick, handle if asyncio.iscoroutinefunction(handle) else wrapped)

    async def burst(numbers: range) -> None:
        for number in numbers:
            bus.publish(Tick(number))
        await asyncio.wait(bus.tasks)

    return burst


CONTENDERS: tuple[tuple[str, str, Callable[[Counting], Any]], ...] = (
    ("pyee", "`emit` of each, a function in place or a task for a coroutine", in_bursts(pyee)),
    ("blinker", "`send` of each in place, or `await send_async`", in_bursts(blinker)),
    ("hand-rolled", "a dictionary of handlers, `create_task` for each event", in_bursts(hand_rolled)),
)  # fmt: skip
