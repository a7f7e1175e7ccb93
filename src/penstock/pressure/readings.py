"""Depths that were read, summed by stage, and the figures that explain a pressure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from penstock.pressure.states import BackpressureState, BackpressureThresholds

QUEUES = "queues"
"""The stage of what waits inside the process: queues of partitions, rings and what is behind them."""


def share_in_use(depth: int, capacity: int) -> float:
    """The share of a capacity; 0 for what has no bound."""
    return depth / capacity if capacity > 0 else 0.0


class Reading(NamedTuple):
    """How full one queue, ring or lag is at this moment."""

    source: str
    depth: int
    capacity: int

    @property
    def utilisation(self) -> float:
        """The share in use; 0 for what has no bound."""
        return share_in_use(self.depth, self.capacity)


@dataclass(frozen=True, slots=True)
class StageStatistics:
    """All sources of one stage together."""

    stage: str
    depth: int
    capacity: int
    sources: int
    fullest: Reading
    """The fullest source of the stage."""

    @property
    def utilisation(self) -> float:
        """The share of the stage's capacity in use."""
        return share_in_use(self.depth, self.capacity)


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Where it is fullest."""

    stage: str
    source: Reading
    """The fullest source of that stage."""
    since: datetime
    """When this stage became the fullest, UTC."""

    def __str__(self) -> str:
        source = self.source
        return f"{self.stage}: {source.source} holds {source.depth:,} of {source.capacity:,}"


@dataclass(frozen=True, slots=True)
class PressureStatistics:
    """The pressure of a subsystem, and what explains it."""

    subsystem: str
    level: BackpressureState
    since: datetime
    """When this level began, UTC."""
    lasted: float
    """Seconds that this level has lasted."""
    utilisation: float
    """The share of the capacity in use, of the fullest stage."""
    bottleneck: Bottleneck | None
    """None when everything is empty."""
    stages: tuple[StageStatistics, ...]
    seconds: Mapping[BackpressureState, float]
    """How long each level lasted, all in all."""
    transitions: int
    thresholds: BackpressureThresholds

    @property
    def depth(self) -> int:
        """What waits, over all stages."""
        return sum(stage.depth for stage in self.stages)

    @property
    def capacity(self) -> int:
        """What could wait, over all stages."""
        return sum(stage.capacity for stage in self.stages)

    def explain(self) -> str:
        """The pressure in one sentence."""
        where = f"; {self.bottleneck}" if self.bottleneck is not None else ""
        return (
            f"{self.subsystem} is {self.level.name} for {self.lasted:.1f} s "
            f"({self.utilisation:.0%} full){where}"
        )


class Stage(NamedTuple):
    """The depths of one stage as they were read, and their sums."""

    name: str
    depth: int
    capacity: int
    readings: list[Reading]

    @property
    def utilisation(self) -> float:
        """The share of the stage's capacity in use."""
        return share_in_use(self.depth, self.capacity)

    @property
    def fullest(self) -> Reading:
        """The fullest source of the stage."""
        return max(self.readings, key=lambda reading: reading.utilisation)

    def statistics(self) -> StageStatistics:
        """The stage as a value for people."""
        return StageStatistics(
            stage=self.name,
            depth=self.depth,
            capacity=self.capacity,
            sources=len(self.readings),
            fullest=self.fullest,
        )


def summed(name: str, readings: list[Reading]) -> Stage:
    """Add up what was read; what has no bound does not count."""
    depth = capacity = 0
    for _, one_depth, one_capacity in readings:
        if one_capacity > 0:
            depth += one_depth
            capacity += one_capacity
    return Stage(name, depth, capacity, readings)
