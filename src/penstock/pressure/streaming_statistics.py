"""The figures of a stream under pressure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.pressure.readings import PressureStatistics
from penstock.pressure.states import BackpressureState
from penstock.pressure.strategies import BackpressureStrategy


@dataclass(frozen=True, slots=True)
class StreamingStatistics:
    """A stream and its pressure: ``published = taken + dropped + depth``."""

    pressure: PressureStatistics
    strategy: BackpressureStrategy
    acting: BackpressureStrategy
    """What is done now; with ADAPTIVE what it chose."""
    average: float
    """The moving average of the share in use that ADAPTIVE goes by."""
    switches: int
    """How often ADAPTIVE chose another strategy."""
    depth: int
    capacity: int
    published: int
    taken: int
    dropped: int
    """Items that made room for others."""
    blocked: int
    """Items whose producer had to wait."""
    shed: int
    """Items that were refused. They do not count as published."""
    degraded: int
    """Items whose producer was told to leave something out."""
    waiting: int
    """Producers that wait at the moment."""

    @property
    def level(self) -> BackpressureState:
        """The level of the stream."""
        return self.pressure.level

    def explain(self) -> str:
        """All of it in two sentences."""
        return (
            f"{self.pressure.explain()}. So far {self.blocked:,} were delayed, {self.degraded:,} "
            f"degraded, {self.shed:,} shed, {self.dropped:,} dropped ({self.acting.name})."
        )
