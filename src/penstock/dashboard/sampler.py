"""One look a second for all browsers, and a bounded memory of what was seen."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.dashboard import figures
from penstock.dashboard.figures import LagPoint, Rates
from penstock.dashboard.sources import NOBODY
from penstock.observe import GroupSnapshot, Observer, Snapshot

logger = logging.getLogger("penstock.dashboard")

SAMPLE_SECONDS = 1.0
POINTS_MAX = 600
RATE_SAMPLES = 10
"""A rate is that of so many samples: logs are not looked at every second."""
GROUPS_MAX = 1_000

GroupKey = tuple[str, str, str]
"""Source, topic and group."""


@dataclass(frozen=True, slots=True)
class Point:
    """All in all at one moment."""

    time_ms: int
    rates: Rates
    lag_records: int
    lag_seconds: float
    utilisation: float


def key_of(group: GroupSnapshot) -> GroupKey:
    """What a group's history is kept by."""
    return group.source, group.topic, group.group


def without_own(snapshot: Snapshot) -> Snapshot:
    """Leave out the groups that the dashboard itself reads a broker with."""
    return replace(
        snapshot,
        groups=tuple(one for one in snapshot.groups if not one.group.startswith(NOBODY)),
        stalls=tuple(one for one in snapshot.stalls if not one.group.startswith(NOBODY)),
    )


class Sampler:
    """Reads the observer in a thread, so that a program that hangs does not hang the dashboard."""

    def __init__(self, observer: Observer, interval: float = SAMPLE_SECONDS) -> None:
        self._observer = observer
        self._interval = interval
        self._recent: deque[Snapshot] = deque(maxlen=RATE_SAMPLES)
        self._points: deque[Point] = deque(maxlen=POINTS_MAX)
        self._lags: dict[GroupKey, deque[LagPoint]] = {}
        self.samples = 0
        """How many there were: a page that saw as many has nothing to draw."""

    @property
    def latest(self) -> Snapshot:
        """The newest snapshot; an empty one before the first."""
        return self._recent[-1] if self._recent else Snapshot(time_ms=0, looked_ms=None)

    @property
    def points(self) -> Sequence[Point]:
        """The history of all in all, the oldest first."""
        return self._points

    @property
    def rates(self) -> Rates:
        """Those of now."""
        return self._points[-1].rates if self._points else Rates()

    def lags(self, key: GroupKey) -> Sequence[LagPoint]:
        """The history of a group, the oldest first."""
        return self._lags.get(key, ())

    async def run(self) -> None:
        """Sample for ever."""
        while True:
            try:
                self.add(await asyncio.to_thread(self._observer.snapshot))
            except Exception:
                logger.exception("cannot read the observer")
            await asyncio.sleep(self._interval)

    def add(self, snapshot: Snapshot) -> None:
        """Remember a snapshot."""
        snapshot = without_own(snapshot)
        self._recent.append(snapshot)
        pressure = figures.pressure(snapshot)
        self._points.append(
            Point(
                time_ms=snapshot.time_ms,
                rates=figures.rates(self._recent[0], snapshot),
                lag_records=figures.lag_records(snapshot),
                lag_seconds=figures.lag_seconds(snapshot),
                utilisation=0.0 if pressure is None else pressure.utilisation,
            )
        )
        self._remember_groups(snapshot)
        self.samples += 1

    def _remember_groups(self, snapshot: Snapshot) -> None:
        before, self._lags = self._lags, {}
        for group in snapshot.groups[:GROUPS_MAX]:
            key = key_of(group)
            history = before.get(key) or deque(maxlen=POINTS_MAX)
            history.append(figures.lag_point(snapshot.time_ms, group))
            self._lags[key] = history
