"""The five strategies, what degrading means, and how ADAPTIVE chooses."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from penstock.errors import InvalidOption
from penstock.pressure.states import (
    CRITICAL,
    NORMAL,
    SHEDDING,
    WARNING,
    BackpressureState,
    BackpressureThresholds,
)

ALPHA = 0.3


class BackpressureStrategy(enum.Enum):
    """What is done to producers when a subsystem fills up."""

    DROP_OLDEST = "drop oldest"
    """The oldest makes room for the newest. It is lost, counted and logged."""
    BLOCK_PRODUCER = "block producer"
    """The producer waits until the depth is below the critical threshold."""
    SHED_LOAD = "shed load"
    """The message is refused with LoadShed, which says when to try again."""
    DEGRADE_QUALITY = "degrade quality"
    """The message is taken, and the producer gets a DegradationDirective."""
    ADAPTIVE = "adaptive"
    """One of the others, by a moving average of the depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradationDirective:
    """What a pipeline may leave out to catch up. All flags are off again when the pressure ends."""

    skip_enrichment: bool = False
    """From the critical threshold on (85 %)."""
    batch_more: bool = False
    """From the warning threshold on (70 %)."""
    reduce_acknowledgements: bool = False
    """From the shedding threshold on (95 %)."""
    utilisation: float = 0.0
    """The share of the capacity that is in use."""

    @property
    def degraded(self) -> bool:
        """Whether anything is to be left out."""
        return self.batch_more


NOTHING_LEFT_OUT = DegradationDirective()


def directive_for(level: BackpressureState, utilisation: float) -> DegradationDirective:
    """What may be left out at a level."""
    return DegradationDirective(
        skip_enrichment=level >= CRITICAL,
        batch_more=level >= WARNING,
        reduce_acknowledgements=level >= SHEDDING,
        utilisation=utilisation,
    )


ADAPTIVE_TABLE: Mapping[BackpressureState, BackpressureStrategy] = MappingProxyType(
    {
        NORMAL: BackpressureStrategy.DEGRADE_QUALITY,
        WARNING: BackpressureStrategy.DEGRADE_QUALITY,
        CRITICAL: BackpressureStrategy.BLOCK_PRODUCER,
        SHEDDING: BackpressureStrategy.SHED_LOAD,
    }
)
"""Degrade, then slow, then refuse. Nothing is lost; who accepts loss puts DROP_OLDEST in."""


class MovingAverage:
    """Exponential: ``value = alpha * sample + (1 - alpha) * value``, from 0."""

    __slots__ = ("_alpha", "value")

    def __init__(self, alpha: float = ALPHA) -> None:
        if not 0 < alpha <= 1:
            raise InvalidOption(f"alpha is {alpha}, and has to be 0 < alpha <= 1", option="alpha")
        self._alpha = alpha
        self.value = 0.0

    def add(self, sample: float) -> float:
        """Take a sample; returns the new average."""
        self.value = self._alpha * sample + (1 - self._alpha) * self.value
        return self.value


class AdaptiveChoice:
    """Chooses a strategy by the moving average of the share in use.

    The average has a level as the depth itself has, with the same thresholds and gap, so that the
    choice does not swing with every burst. A table has a strategy for each level.
    """

    def __init__(
        self,
        *,
        alpha: float = ALPHA,
        table: Mapping[BackpressureState, BackpressureStrategy] = ADAPTIVE_TABLE,
    ) -> None:
        check_table(table)
        self._average = MovingAverage(alpha)
        self._table = dict(table)
        self.level = NORMAL
        self.switches = 0
        """How often another strategy was chosen."""

    @property
    def average(self) -> float:
        """The moving average of the share in use."""
        return self._average.value

    @property
    def strategy(self) -> BackpressureStrategy:
        """What is chosen now."""
        return self._table[self.level]

    def add(self, utilisation: float, thresholds: BackpressureThresholds) -> BackpressureStrategy:
        """Take a sample; returns the strategy for it."""
        before = self.strategy
        self.level = thresholds.level(self._average.add(utilisation), self.level)
        self.switches += self.strategy is not before
        return self.strategy


def check_table(table: Mapping[BackpressureState, BackpressureStrategy]) -> None:
    """Refuse a table that leaves a level out, or that chooses ADAPTIVE again."""
    if set(table) != set(BackpressureState) or BackpressureStrategy.ADAPTIVE in table.values():
        raise InvalidOption(
            "the table needs one strategy other than ADAPTIVE for each level", option="table"
        )
