"""How many calls of the last minute failed, without looking at the clock for each of them."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

POINTS = 60
"""How many points in time a window remembers, at most twice."""


class Point(NamedTuple):
    """How many calls had ended, and had failed, at a time."""

    time: float
    calls: int
    failures: int


class SlidingRate:
    """Calls and failures of a sliding window, from totals that are looked at now and then.

    Who counts tells the totals when a call fails, and every few calls that do not. Between two
    looks calls are taken to have come evenly. So the counts are exact when the window begins at a
    look, and otherwise off by less than what was counted between two of them. The memory is
    bounded: looks that are close together become one.
    """

    __slots__ = ("_apart", "_latest", "_points", "_window")

    def __init__(self, window: float, now: float, calls: int = 0, failures: int = 0) -> None:
        self._window = window
        self._apart = window / POINTS
        self._latest = Point(now, calls, failures)
        self._points = deque([self._latest])

    def look(self, now: float, calls: int, failures: int) -> None:
        """Remember the totals, and forget what lies before the window."""
        if now - self._points[-1].time >= self._apart:
            if self._latest != self._points[-1]:
                self._points.append(self._latest)
            self._points.append(Point(now, calls, failures))
        self._latest = Point(now, calls, failures)
        self._forget(now - self._window)

    def failed(self, now: float, calls: int, failures: int) -> None:
        """Remember the totals after a failure that happened now."""
        self.look(now, calls - 1, failures - 1)
        self._latest = Point(now, calls, failures)

    def counts(self, now: float, calls: int, failures: int) -> tuple[float, float]:
        """Calls and failures within the window, given the totals now."""
        start = now - self._window
        self._forget(start)
        first = self._points[0]
        following = self._points[1] if len(self._points) > 1 else self._latest
        if following.time <= start:
            following = Point(now, calls, failures)
        share = (start - first.time) / (following.time - first.time) if start > first.time else 0.0
        return (
            calls - first.calls - share * (following.calls - first.calls),
            failures - first.failures - share * (following.failures - first.failures),
        )

    def _forget(self, start: float) -> None:
        points = self._points
        while len(points) > 1 and points[1].time <= start:
            points.popleft()
        if len(points) == 1 and self._latest.time <= start:
            points[0] = self._latest
