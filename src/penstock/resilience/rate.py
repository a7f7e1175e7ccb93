"""How many calls of the last minute failed, without looking at the clock for each of them."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

POINTS = 60
"""How many points in time a window remembers."""


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

    __slots__ = ("_apart", "_points", "_window")

    def __init__(self, window: float, now: float, calls: int = 0, failures: int = 0) -> None:
        self._window = window
        self._apart = window / POINTS
        self._points = deque([Point(now, calls, failures)])

    def look(self, now: float, calls: int, failures: int) -> None:
        """Remember the totals, and forget what lies before the window."""
        if now - self._points[-1].time >= self._apart:
            self._points.append(Point(now, calls, failures))
        self._forget(now)

    def counts(self, now: float, calls: int, failures: int) -> tuple[float, float]:
        """Calls and failures within the window, given the totals now."""
        self._forget(now)
        first = self._points[0]
        following = self._points[1] if len(self._points) > 1 else Point(now, calls, failures)
        passed = now - self._window - first.time
        share = min(passed / (following.time - first.time), 1.0) if passed > 0 else 0.0
        return (
            calls - first.calls - share * (following.calls - first.calls),
            failures - first.failures - share * (following.failures - first.failures),
        )

    def _forget(self, now: float) -> None:
        points = self._points
        while len(points) > 1 and points[1].time <= now - self._window:
            points.popleft()
