"""From lag to what a pipeline leaves out, slowly enough that it does not swing.

A change of the plan stops the queries and starts them again, which takes seconds. So the levels are far
apart, and a new one has to wait until the last one had time to work.
"""

from __future__ import annotations

from penstock.errors import InvalidOption
from penstock.pressure import BackpressureThresholds, DegradationDirective
from penstock.pressure.states import NORMAL
from penstock.pressure.strategies import directive_for
from penstock.system import Clock

THRESHOLDS = BackpressureThresholds(gap=0.35)
"""Larger micro-batches from 70 % to below 35 % of the lag that is allowed."""
SETTLE_SECONDS = 15.0


class LagLevels:
    """The level of a pipeline's lag. ``records_max`` is the lag that counts as full."""

    def __init__(
        self,
        records_max: int,
        clock: Clock,
        *,
        thresholds: BackpressureThresholds = THRESHOLDS,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        self._records_max = check_lag(records_max)
        self._clock = clock
        self._thresholds = thresholds
        self._settle_seconds = settle_seconds
        self._level = NORMAL
        self._changed: float | None = None

    def directive(self, records: int) -> DegradationDirective:
        """What to leave out when the slowest output is so many records behind."""
        share = records / self._records_max
        level = self._thresholds.level(share, self._level)
        now = self._clock.monotonic()
        settled = self._changed is None or now - self._changed >= self._settle_seconds
        if level is not self._level and settled:
            self._level, self._changed = level, now
        return directive_for(self._level, share)


def check_lag(records_max: int) -> int:
    """The number itself, or InvalidOption."""
    if records_max < 1:
        raise InvalidOption(
            f"lag_records_max is {records_max}: use 1 or more", option="lag_records_max"
        )
    return records_max
