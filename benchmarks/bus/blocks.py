"""What the contenders for rates have in common: a block of events at a time, counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from benchmarks.model import Sample
from penstock import Command, Event

BURST = 9_000
"""As many as fit into a queue of 10,000, with its pressure mark passed."""
STREAM = 30_000
"""More than a queue holds: a publisher that awaits has to wait for room, too."""

Step = Callable[[int], Awaitable[None]]
"""Publishes so many events and returns when they are handled."""


class Ping(Event):
    """The event that all contenders but bubus publish."""

    number: int


class Ask(Command[int]):
    """The command."""

    number: int


@dataclass
class Tally:
    """Counts in the handler, and compares."""

    handled: int = 0
    published: int = 0

    async def handle(self, event: object) -> None:
        """The handler."""
        self.handled += 1

    def handle_at_once(self, event: object) -> None:
        """The handler, for who calls no coroutines."""
        self.handled += 1

    async def answer(self, command: Ask) -> int:
        """The handler of the command."""
        self.handled += 1
        return command.number

    def check(self, published: int) -> None:
        """Raise when not each event was handled once."""
        self.published += published
        if self.handled != self.published:
            raise AssertionError(f"published {self.published}, handled {self.handled}")


Contender = Callable[[Tally], AbstractAsyncContextManager[Step]]


def rate(contender: Contender, block: int, seconds: float) -> Sample:
    """Events per second; the first block is not counted."""
    return asyncio.run(_rate(contender, block, seconds))


async def _rate(contender: Contender, block: int, seconds: float) -> Sample:
    tally = Tally()
    async with contender(tally) as step:
        await _counted(step, block, tally)
        events = 0
        start, used = time.perf_counter(), time.process_time()
        while not events or time.perf_counter() - start < seconds:
            await _counted(step, block, tally)
            events += block
        elapsed, used = time.perf_counter() - start, time.process_time() - used
    return Sample(events / elapsed, {"µs of processor": used / events * 1e6})


async def _counted(step: Step, block: int, tally: Tally) -> None:
    await step(block)
    tally.check(block)
