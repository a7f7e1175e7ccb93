"""Error tracking: who fails, with what, how often, and the last few errors as text.

Nothing here keeps an error, a frame or a message alive, and nothing grows without a bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.resilience.describe import text_of, traceback_of, type_name
from penstock.resilience.options import check_range
from penstock.resilience.rate import SlidingRate
from penstock.system import Clock

OTHER = "other"
"""Counts what comes when there are labels enough."""
TRACEBACK_SECONDS = 1.0
"""How often the traceback of the same trouble is written down; it costs more than the failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingOptions:
    """How much is remembered."""

    recent_max: int = 100
    """Errors that are kept as text."""
    labels_max: int = 200
    """Handlers, and types of errors, that are told apart; the others count as ``other``."""
    window: float = 60.0
    """Seconds over which rates are measured."""

    def __post_init__(self) -> None:
        check_range("recent_max", self.recent_max, 1, 100_000)
        check_range("labels_max", self.labels_max, 1, 100_000)
        check_range("window", self.window, 1)


@dataclass(frozen=True, slots=True)
class RecentError:
    """One failure, as text."""

    time_ms: int
    handler: str
    topic: str
    error_type: str
    error: str
    traceback: str
    """Empty when one of the same handler and the same type was written down within a second."""


@dataclass(frozen=True, slots=True)
class TrackedFailures:
    """The failures of one handler, or of one type."""

    failures: int
    """Since the tracker was made."""
    failures_per_second: float
    """Within the window."""
    ratio: float | None
    """Share of a handler's calls that failed, 0.0 to 1.0; None when the calls are not known."""
    last: RecentError | None


@dataclass(frozen=True, slots=True)
class ErrorStatistics:
    """What failed so far."""

    failures: int
    failures_per_second: float
    by_handler: Mapping[str, TrackedFailures]
    by_type: Mapping[str, TrackedFailures]
    """By the dotted name of the error's class."""
    recent: tuple[RecentError, ...]
    """Newest last."""


class _Tally:
    """Counts the failures with one label."""

    __slots__ = ("failures", "last", "rate", "traced")

    def __init__(self, window: float, now: float) -> None:
        self.failures = 0
        self.rate = SlidingRate(window, now)
        self.last: RecentError | None = None
        self.traced = float("-inf")
        """When a traceback was written down last."""

    def count(self, now: float) -> None:
        self.failures += 1
        self.rate.failed(now, self.failures, self.failures)

    def per_second(self, now: float, window: float) -> float:
        return max(0.0, self.rate.counts(now, self.failures, self.failures)[1] / window)


class ErrorTracker:
    """Takes note of failures. Used by one event loop; not thread-safe."""

    def __init__(self, clock: Clock, options: TrackingOptions | None = None) -> None:
        self.options = options or TrackingOptions()
        self._clock = clock
        self._all = self._tally()
        self._handlers: dict[str, _Tally] = {}
        self._types: dict[str, _Tally] = {}
        self._recent: deque[RecentError] = deque(maxlen=self.options.recent_max)

    def failed(self, handler: str, topic: str, error: BaseException) -> None:
        """A call of a handler raised. The error is not kept."""
        now = self._clock.monotonic()
        kind = type_name(error)
        tallies = self._labelled(self._handlers, handler), self._labelled(self._types, kind)
        note = RecentError(
            time_ms=self._clock.time_ms(),
            handler=handler,
            topic=topic,
            error_type=kind,
            error=text_of(error),
            traceback=self._traceback(error, tallies, now),
        )
        self._recent.append(note)
        for tally in (self._all, *tallies):
            tally.count(now)
            tally.last = note

    def recent(self) -> tuple[RecentError, ...]:
        """The last errors, newest last."""
        return tuple(self._recent)

    def statistics(self, calls: Mapping[str, int] | None = None) -> ErrorStatistics:
        """The figures of now. ``calls`` has how often each handler was called, for the ratios."""
        now = self._clock.monotonic()
        known = calls or {}
        return ErrorStatistics(
            failures=self._all.failures,
            failures_per_second=self._all.per_second(now, self.options.window),
            by_handler={
                name: self._figures(tally, now, known.get(name))
                for name, tally in self._handlers.items()
            },
            by_type={name: self._figures(tally, now) for name, tally in self._types.items()},
            recent=self.recent(),
        )

    def _tally(self) -> _Tally:
        return _Tally(self.options.window, self._clock.monotonic())

    def _labelled(self, tallies: dict[str, _Tally], label: str) -> _Tally:
        if label not in tallies and len(tallies) >= self.options.labels_max:
            label = OTHER
        tally = tallies.get(label)
        if tally is None:
            tally = tallies[label] = self._tally()
        return tally

    def _traceback(self, error: BaseException, tallies: tuple[_Tally, _Tally], now: float) -> str:
        if all(now - tally.traced < TRACEBACK_SECONDS for tally in tallies):
            return ""
        for tally in tallies:
            tally.traced = now
        return traceback_of(error)

    def _figures(self, tally: _Tally, now: float, calls: int | None = None) -> TrackedFailures:
        return TrackedFailures(
            failures=tally.failures,
            failures_per_second=tally.per_second(now, self.options.window),
            ratio=min(1.0, tally.failures / calls) if calls else None,
            last=tally.last,
        )
