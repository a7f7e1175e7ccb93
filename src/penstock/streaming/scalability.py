"""What scaling is told and what it says: limits, measurements and decisions, as values."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from datetime import datetime

from penstock.errors import InvalidOption


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalabilityConfig:
    """When partitions and consumers are added and taken away, and how many there may be."""

    max_partitions: int = 128
    """Of one topic."""
    max_consumers: int = 10
    """Of one topic; there are never more than it has partitions."""
    target_throughput_per_partition: float = 10_000
    """Records per second that one partition is to carry."""
    max_lag_ms: int = 5_000
    """Age of the oldest record that is not handled, above which consumers are added."""
    cooldown_seconds: float = 300.0
    """Time between decisions on one topic: what was done has to show first."""
    scale_up_threshold: float = 0.8
    """Share of the target above which partitions are added."""
    scale_down_threshold: float = 0.2
    """Share of the target below which partitions, and of the lag below which consumers, go."""

    def __post_init__(self) -> None:
        for name in ("max_partitions", "max_consumers", "max_lag_ms"):
            _check(name, _is_whole(getattr(self, name)), "a whole number of 1 or more")
        target = self.target_throughput_per_partition
        _check("target_throughput_per_partition", 0 < target < math.inf, "more than 0")
        _check("cooldown_seconds", 0 <= self.cooldown_seconds < math.inf, "0 or more")
        up, down = self.scale_up_threshold, self.scale_down_threshold
        _check("scale_up_threshold", 0 < up <= 1, "more than 0, at most 1")
        _check("scale_down_threshold", 0 <= down < up, "at least 0 and below scale_up_threshold")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was measured of a topic at one moment."""

    topic: str
    rate: float
    """Records per second that are published: measured over the last seconds, not a total."""
    lag_ms: float
    """Age of the oldest record that is not handled, by its timestamp; 0 when there is none."""
    partitions: int
    consumers: int

    def __post_init__(self) -> None:
        _check("rate", 0 <= self.rate < math.inf, "0 or more")
        _check("lag_ms", 0 <= self.lag_ms < math.inf, "0 or more")
        _check("partitions", _is_whole(self.partitions), "a whole number of 1 or more")
        _check("consumers", _is_whole(self.consumers), "a whole number of 1 or more")


class ScalingAction(enum.StrEnum):
    """What is to be done."""

    ADD_PARTITIONS = "add_partitions"
    REMOVE_PARTITIONS = "remove_partitions"
    ADD_CONSUMERS = "add_consumers"
    REMOVE_CONSUMERS = "remove_consumers"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """One thing to do, and why."""

    topic: str
    action: ScalingAction
    metric: str
    """What was measured: ``rate``, ``lag_ms``, or a number that is above its limit."""
    value: float
    threshold: float
    """What the value was compared with."""
    before: int
    after: int
    reason: str
    """The same for people, in one sentence."""
    decided_at: datetime
    """UTC."""


def _check(option: str, is_right: bool, wanted: str) -> None:
    if not is_right:
        raise InvalidOption(f"{option} has to be {wanted}", option=option)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
