"""What was sent and what has come, counted and summed on both sides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from penstock import Event, hot_path, topic

CHECKED_EVERY = 100
"""Of records that come in batches, every hundredth is in the checksum: to sum up is not measured."""
BURST = 40_000
"""At once in the ring of 65,536: far enough from the mark where pressure begins."""


@hot_path
@topic("benchmark.hot")
class Tick(Event):
    """The event of the hot topic."""

    number: int


Totals = tuple[int, int]
"""How many, and the sum of their numbers."""
Counting = Callable[[], tuple[Callable[[Tick], Any], Callable[[], Totals]]]
"""Makes a handler, and what tells what has come to it."""
Step = Callable[[int], Awaitable[Totals]]
"""Sends a burst of the numbers from the given one on; returns all that has come so far."""


def sent(first: int, count: int) -> Totals:
    """What came when the numbers from ``first`` on were sent."""
    return count, count * (2 * first + count - 1) // 2


def check(expected: Totals, found: Totals) -> None:
    """Raise when something is lost, or came twice."""
    if expected != found:
        raise AssertionError(
            f"sent {expected[0]} (sum {expected[1]}), came {found[0]} ({found[1]})"
        )


def counting() -> tuple[Callable[[Tick], None], Callable[[], Totals]]:
    """A handler that counts and sums up, and what tells both."""
    count = total = 0

    def handle(event: Tick) -> None:
        nonlocal count, total
        count += 1
        total += event.number

    return handle, lambda: (count, total)


def counting_async() -> tuple[Callable[[Tick], Any], Callable[[], Totals]]:
    """The same as a coroutine function."""
    count = total = 0

    async def handle(event: Tick) -> None:
        nonlocal count, total
        count += 1
        total += event.number

    return handle, lambda: (count, total)


@dataclass
class Records:
    """Counts records that come or go in batches; the order is in the checksum."""

    count: int = 0
    checksum: int = 0

    def take(self, batch: list[bytes]) -> None:
        """Note the next records."""
        for record in batch[-self.count % CHECKED_EVERY :: CHECKED_EVERY]:
            self.checksum = crc32(record, self.checksum)
        self.count += len(batch)

    def totals(self) -> Totals:
        """What to compare."""
        return self.count, self.checksum
