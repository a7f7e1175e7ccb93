"""A clock that stands still until a test moves it."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

NANOSECONDS = 1_000_000_000
START_MS = 1_767_225_600_000
"""1 January 2026, UTC."""


class VirtualTimer:
    """A call that is due when the clock gets there. Implements :class:`penstock.system.Timer`."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    """Implements :class:`penstock.system.Clock`. Only :meth:`advance` and sleeping move it."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self._passed = 0
        self._wall = start_ms * 1_000_000
        self._timers: list[tuple[int, int, VirtualTimer]] = []
        self._tickets = itertools.count()
        self._listeners: list[Callable[[], None]] = []

    def time_ms(self) -> int:
        return (self._wall + self._passed) // 1_000_000

    def monotonic(self) -> float:
        return self._passed / NANOSECONDS

    def sleep(self, seconds: float) -> None:
        self.advance(max(0.0, seconds))

    def advance(self, seconds: float) -> None:
        """Let time pass. It halts at each timer that falls due, in order, and runs it."""
        if seconds < 0:
            raise ValueError("time does not go back; jump() moves the wall clock")
        target = self._passed + round(seconds * NANOSECONDS)
        while self._timers and self._timers[0][0] <= target:
            due, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                self._move(due)
                timer.callback()
        self._move(target)

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock forward, or back; the monotonic clock does not notice."""
        self._wall += milliseconds * 1_000_000

    def call_after(self, seconds: float, callback: Callable[[], None]) -> VirtualTimer:
        """Run the callback when the clock gets there."""
        due = self._passed + round(max(0.0, seconds) * NANOSECONDS)
        timer = VirtualTimer(callback)
        heapq.heappush(self._timers, (due, next(self._tickets), timer))
        return timer

    def on_advance(self, callback: Callable[[], None]) -> None:
        """Run the callback every time the clock has moved."""
        self._listeners.append(callback)

    def _move(self, moment: int) -> None:
        if moment > self._passed:  # a timer may itself have slept past this moment
            self._passed = moment
            for listener in self._listeners:
                listener()
