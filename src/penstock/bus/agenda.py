"""What is due when: a heap for times of the wall clock, and one for time that passes."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import Any

from penstock.bus.recurrence import Every, Missed, Recurrence
from penstock.bus.timers import TICK_SECONDS
from penstock.messages import Envelope
from penstock.system import Clock

RECHECK_SECONDS = 10.0
"""The wall clock is looked at this often, as nobody tells when it is set."""
STALE_MIN = 64


@dataclass(slots=True, eq=False)
class Entry:
    """One scheduled event."""

    id: str
    due_ms: int
    """By the wall clock."""
    due_at: float | None
    """By the monotonic clock, for an event that waits for time to pass; None: the wall clock."""
    recurrence: Recurrence | None = None
    missed: Missed = Missed.FIRE_ONCE
    sealed: bytes | None = None
    """The encoded envelope, when the bus has a log."""
    envelope: Envelope | None = None
    """As it was when it was scheduled; decoded when it is needed."""
    fired: int = 0
    was_down: bool = False
    """It fell due while the bus was down."""
    ticket: int = 0
    """Its place in the agenda; 0 when it has none."""


class Agenda:
    """Entries in the order in which they fall due. Used on the loop of the bus."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall: list[tuple[float, int, Entry]] = []
        self._passing: list[tuple[float, int, Entry]] = []
        self._tickets = itertools.count(1)
        self._stale = 0

    def add(self, entry: Entry) -> None:
        """Put an entry where it belongs; it has one place at most."""
        self.remove(entry)
        entry.ticket = next(self._tickets)
        if entry.due_at is None:
            heapq.heappush(self._wall, (entry.due_ms, entry.ticket, entry))
        else:
            heapq.heappush(self._passing, (entry.due_at, entry.ticket, entry))

    def remove(self, entry: Entry) -> None:
        """Take an entry out. Does nothing when it is not in."""
        if entry.ticket:
            entry.ticket = 0
            self._stale += 1
            if self._stale > STALE_MIN and self._stale * 2 > len(self._wall) + len(self._passing):
                self._wall = _live(self._wall)
                self._passing = _live(self._passing)
                self._stale = 0

    def take_due(self) -> Entry | None:
        """The next entry that is due, taken out; None when none is."""
        now_ms, now = self._clock.time_ms(), self._clock.monotonic()
        for heap, limit in ((self._wall, now_ms), (self._passing, now + TICK_SECONDS)):
            self._drop_stale(heap)
            if heap and heap[0][0] <= limit:
                entry = heapq.heappop(heap)[2]
                entry.ticket = 0
                return entry
        return None

    def wait_seconds(self) -> float | None:
        """How long to wait before looking again; None when there is nothing to wait for."""
        self._drop_stale(self._wall)
        self._drop_stale(self._passing)
        waits = []
        if self._wall:
            waits.append((self._wall[0][0] - self._clock.time_ms()) / 1000)
            waits.append(RECHECK_SECONDS)
        if self._passing:
            waits.append(self._passing[0][0] - self._clock.monotonic())
        return min(waits, default=None)

    def _drop_stale(self, heap: list[tuple[float, int, Entry]]) -> None:
        while heap and heap[0][2].ticket != heap[0][1]:
            heapq.heappop(heap)
            self._stale -= 1

    # Times

    def late_ms(self, entry: Entry) -> int:
        """How long ago the entry was due."""
        if entry.due_at is None:
            return self._clock.time_ms() - entry.due_ms
        return round((self._clock.monotonic() - entry.due_at) * 1000)

    def move_on(self, entry: Entry) -> None:
        """Set a recurring entry to its next time."""
        recurrence: Any = entry.recurrence
        if entry.due_at is not None and isinstance(recurrence, Every):
            ahead_ms = recurrence.steps(self.late_ms(entry)) * recurrence.interval_ms
            entry.due_at += ahead_ms / 1000
            entry.due_ms += ahead_ms
        else:
            entry.due_ms = recurrence.next_ms(entry.due_ms, self._clock.time_ms())
        entry.was_down = False


def _live(heap: list[tuple[float, int, Entry]]) -> list[tuple[float, int, Entry]]:
    kept = [place for place in heap if place[2].ticket == place[1]]
    heapq.heapify(kept)
    return kept
