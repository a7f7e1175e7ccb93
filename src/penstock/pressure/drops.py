"""Items that were discarded: counted each, told each, logged together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.bus.failures import guarded
from penstock.pressure.monitor import utc
from penstock.system import Clock

logger = logging.getLogger("penstock.pressure")

LOG_EVERY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Dropped:
    """An item that was discarded."""

    subsystem: str
    item: Any
    dropped: int
    """How many were discarded so far, this one included."""
    time: datetime
    """UTC."""


class DropLog:
    """Counts what is discarded. The log gets one line a second at most, with the number."""

    def __init__(self, subsystem: str, clock: Clock) -> None:
        self.dropped = 0
        self._subsystem = subsystem
        self._clock = clock
        self._callbacks: list[Callable[[Dropped], None]] = []
        self._logged = 0
        self._logged_at = float("-inf")

    def on_drop(self, callback: Callable[[Dropped], None]) -> None:
        """Call back with every item that is discarded."""
        self._callbacks.append(guarded(callback))

    def note(self, item: Any) -> None:
        """An item was discarded."""
        self.dropped += 1
        if self._callbacks:
            told = Dropped(self._subsystem, item, self.dropped, utc(self._clock.time_ms()))
            for callback in self._callbacks:
                callback(told)
        now = self._clock.monotonic()
        if now - self._logged_at >= LOG_EVERY_SECONDS:
            logger.warning(
                "%s discarded %d items, %d in all",
                self._subsystem,
                self.dropped - self._logged,
                self.dropped,
            )
            self._logged, self._logged_at = self.dropped, now
