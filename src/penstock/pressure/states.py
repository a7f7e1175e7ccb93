"""The levels of pressure, where they begin, and the event that tells of a change."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime

from penstock.errors import InvalidOption
from penstock.messages import Event, critical, topic

EVERYTHING = float("inf")
ROUNDED_DIGITS = 9
"""A difference of two marks is rounded, so that 0.8 - 0.1 is the 0.7 that people mean."""


class BackpressureState(enum.IntEnum):
    """How full a subsystem is, lowest first."""

    NORMAL = 0
    """Nothing to do."""
    WARNING = 1
    """Messages go through and say so in a header."""
    CRITICAL = 2
    """Producers are slowed."""
    SHEDDING = 3
    """What is not critical is refused."""


NORMAL, WARNING, CRITICAL, SHEDDING = BackpressureState
DESCENDING = (SHEDDING, CRITICAL, WARNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackpressureThresholds:
    """The share of the capacity at which each level begins, and how far below it ends."""

    warning: float = 0.70
    critical: float = 0.85
    shedding: float = 0.95
    gap: float = 0.05
    """A level ends when the share is more than this below its threshold, so that it does not flap."""

    def __post_init__(self) -> None:
        if not 0 < self.warning < self.critical < self.shedding <= 1:
            raise InvalidOption(
                "thresholds must be 0 < warning < critical < shedding <= 1, not "
                f"{self.warning}, {self.critical} and {self.shedding}",
                option="thresholds",
            )
        if not 0 <= self.gap < self.warning:
            raise InvalidOption(
                f"a gap of {self.gap} is outside 0 <= gap < warning ({self.warning})", option="gap"
            )

    def threshold(self, level: BackpressureState) -> float:
        """The share at which a level begins."""
        return (0.0, self.warning, self.critical, self.shedding)[level]

    def ending(self, level: BackpressureState) -> float:
        """The share below which a level ends; NORMAL does not end downwards."""
        if level is NORMAL:
            return -EVERYTHING
        return round(self.threshold(level) - self.gap, ROUNDED_DIGITS)

    def level(
        self, utilisation: float, current: BackpressureState = BackpressureState.NORMAL
    ) -> BackpressureState:
        """The level at a share of the capacity, after ``current``.

        Up goes at the threshold. Down goes only below the threshold and the gap. Either may pass
        several levels at once.
        """
        for level in DESCENDING:
            begins = self.ending(level) if level <= current else self.threshold(level)
            if utilisation >= begins:
                return level
        return NORMAL

    def band(self, level: BackpressureState) -> tuple[float, float]:
        """The shares within which a level stays: from the first one up to below the second."""
        above = EVERYTHING if level is SHEDDING else self.threshold(BackpressureState(level + 1))
        return self.ending(level), above


@critical
@topic("penstock.pressure.state_changed")
class BackpressureStateChanged(Event, kw_only=True):
    """A subsystem went from one level of pressure to another. There is one for each change."""

    previous: BackpressureState
    current: BackpressureState
    subsystem: str
    time: datetime
    """When it was noticed, UTC."""
    utilisation: float = 0.0
    """The share of the capacity that was in use."""
    bottleneck: str = ""
    """The fullest source, with its stage."""
