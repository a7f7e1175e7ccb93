"""From a running total to a rate: how much came in the last seconds."""

from __future__ import annotations

from penstock.errors import InvalidOption
from penstock.resilience.rate import SlidingRate
from penstock.system import System

WINDOW_SECONDS = 30.0


class RateMeasure:
    """Records per second over a sliding window, from totals that are looked at now and then.

    Nothing is done for a record: whoever counts them anyway tells the total. The memory is bounded,
    however often it is told. Until one window has passed, the rate is that of the time since the start.
    A total that goes back (its counter began anew) starts the measure anew.
    """

    def __init__(
        self,
        total: int = 0,
        *,
        window_seconds: float = WINDOW_SECONDS,
        system: System | None = None,
    ) -> None:
        if not 0 < window_seconds < float("inf"):
            raise InvalidOption(
                f"window_seconds is {window_seconds}, and has to be more than 0",
                option="window_seconds",
            )
        self._clock = (system or System()).clock
        self._window = window_seconds
        self._total = total
        self._since = self._clock.monotonic()
        self._sliding = SlidingRate(window_seconds, self._since, total)

    def observe(self, total: int) -> None:
        """The total has come this far by now."""
        if total < self._total:
            self._begin(total)
            return
        self._total = total
        self._sliding.look(self._clock.monotonic(), total, 0)

    def per_second(self) -> float:
        """The rate of the window that ends now; what came since the last look is not in it."""
        now = self._clock.monotonic()
        elapsed = min(self._window, now - self._since)
        if elapsed <= 0:
            return 0.0
        return max(0.0, self._sliding.counts(now, self._total, 0)[0] / elapsed)

    def _begin(self, total: int) -> None:
        self._total = total
        self._since = self._clock.monotonic()
        self._sliding = SlidingRate(self._window, self._since, total)
