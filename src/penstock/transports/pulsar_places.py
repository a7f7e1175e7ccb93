"""The offsets of what a producer sent to Pulsar, from where the broker says that it is.

The broker acknowledges a message with its entry and its place there. Entries of one producer that follow each
other without a gap need one question for the offset of the first; the rest is counted. An entry may
hold messages of several calls, so it is counted as they are acknowledged, whoever still waits for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from penstock.transports.pulsar_index import Position

FirstOf = Callable[[Position], Awaitable[int]]
"""The offset of the first message of an entry."""


class Run(NamedTuple):
    """Messages of one call in one entry."""

    position: Position
    place: int
    """Of the first of them in the entry."""
    messages: int


class Stretch:
    """Entries that follow each other; what is in them is counted from the first message."""

    def __init__(self, position: Position, first_of: FirstOf) -> None:
        self._position = position
        self._first_of = first_of
        self._asking = asyncio.Lock()
        self._offset: int | None = None

    async def offset(self) -> int:
        """Of its first message; asked for once. Cancelling it leaves that to the next caller."""
        async with self._asking:
            if self._offset is None:
                self._offset = await self._first_of(self._position)
        return self._offset


class Span(NamedTuple):
    """Where the messages of a call are: stretches, and counts from their first messages."""

    begins: Stretch
    first: int
    ends: Stretch
    end: int

    async def offsets(self) -> tuple[int, int]:
        """The first offset, and the one behind the last."""
        return await self.begins.offset() + self.first, await self.ends.offset() + self.end


class Places:
    """Counts the messages of one producer, in the order in which they are acknowledged."""

    def __init__(self, first_of: FirstOf) -> None:
        self._first_of = first_of
        self._stretch: Stretch | None = None
        self._position = Position(-1, -1)
        """The entry of the last message."""
        self._entry = 0
        """The count before that entry."""
        self._end = 0
        """The count behind the last message."""

    def note(self, runs: Sequence[Run]) -> Span:
        """What one call sent, after all that was acknowledged before it."""
        begins, first = self._next(runs[0])
        ends = begins
        for run in runs[1:]:
            ends, _ = self._next(run)
        return Span(begins, first, ends, self._end)

    def forget(self) -> None:
        """What comes next is not counted from what was before."""
        self._stretch = None

    def _next(self, run: Run) -> tuple[Stretch, int]:
        """The stretch of a run, and the count before it."""
        stretch = self._stretch
        ledger, entry = self._position
        if stretch is not None and run.position == Position(ledger, entry + 1) and run.place == 0:
            self._entry = self._end
        elif stretch is None or run.position != self._position:
            stretch = self._stretch = Stretch(run.position, self._first_of)
            self._entry = 0
        self._position = run.position
        first = self._entry + run.place
        self._end = first + run.messages
        return stretch, first
