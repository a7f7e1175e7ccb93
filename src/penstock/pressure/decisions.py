"""What happens to one message under pressure, as a value, and the rules that make it."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from penstock.errors import InvalidOption, LoadShed
from penstock.messages import NO_HEADERS
from penstock.pressure.states import (
    CRITICAL,
    NORMAL,
    SHEDDING,
    WARNING,
    BackpressureState,
    BackpressureThresholds,
)
from penstock.pressure.strategies import (
    NOTHING_LEFT_OUT,
    BackpressureStrategy,
    DegradationDirective,
)

HEADER = "X-Backpressure"
SHED_LOAD = "SHED_LOAD"
"""The code of the error for a message that is refused."""

ON_A_BUS = (
    BackpressureStrategy.ADAPTIVE,
    BackpressureStrategy.BLOCK_PRODUCER,
    BackpressureStrategy.SHED_LOAD,
)
"""The strategies that :func:`decide` knows; the others are for streams."""

BASE_DELAY_SECONDS = 0.050
DELAY_MIN_SECONDS = 0.010
DELAY_MAX_SECONDS = 1.0
RETRY_AFTER_SECONDS = 1.0


class PublishVerdict(enum.StrEnum):
    """What happens to a message."""

    PROCEED = "proceed"
    DELAY = "delay"
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishDecision:
    """What happens to a message, and why. ``PROCEED``, ``WARN`` and ``REJECT`` are ready made."""

    PROCEED: ClassVar[PublishDecision]
    WARN: ClassVar[PublishDecision]
    REJECT: ClassVar[PublishDecision]

    verdict: PublishVerdict
    why: str
    level: BackpressureState
    delay: float | None = 0.0
    """Seconds that the publisher waits; None: until the depth is below the threshold."""
    header: str | None = None
    """The value of the header ``X-Backpressure``."""
    retry_after: float | None = None
    """Seconds after which it makes sense to try again, when it is refused."""
    directive: DegradationDirective = NOTHING_LEFT_OUT
    """What to leave out, when the quality is degraded."""

    @property
    def delayed(self) -> bool:
        """Whether the publisher has to wait."""
        return self.verdict is PublishVerdict.DELAY

    @property
    def rejected(self) -> bool:
        """Whether the message is refused."""
        return self.verdict is PublishVerdict.REJECT

    @property
    def headers(self) -> Mapping[str, str]:
        """What to add to the message's headers."""
        return NO_HEADERS if self.header is None else {HEADER: self.header}


PublishDecision.PROCEED = PublishDecision(
    verdict=PublishVerdict.PROCEED, why="there is room", level=NORMAL
)
PublishDecision.WARN = PublishDecision(
    verdict=PublishVerdict.PROCEED,
    why="it fills up: the consumer is told",
    level=WARNING,
    header="warning",
)
PublishDecision.REJECT = PublishDecision(
    verdict=PublishVerdict.REJECT,
    why="it is nearly full: what is not critical is refused",
    level=SHEDDING,
    retry_after=RETRY_AFTER_SECONDS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRules:
    """How hard publishers are pressed."""

    base_delay: float = BASE_DELAY_SECONDS
    """Seconds that a publisher waits where CRITICAL begins; taken as 0.010 to 1."""
    retry_after: float = RETRY_AFTER_SECONDS
    """What a refused publisher is told, in seconds."""
    critical_topics: tuple[str, ...] = ()
    """Topics, or globs over them, that are critical although their classes are not marked so."""

    def __post_init__(self) -> None:
        for option in ("base_delay", "retry_after"):
            value = getattr(self, option)
            if not 0 <= value < math.inf:
                raise InvalidOption(f"{option} is {value}: use seconds, 0 or more", option=option)


def delay_at(utilisation: float, base: float, thresholds: BackpressureThresholds) -> float:
    """Seconds that a publisher waits: the base where CRITICAL begins, 1 s where SHEDDING does.

    In between it grows by the same factor for each percent.
    """
    base = min(max(base, DELAY_MIN_SECONDS), DELAY_MAX_SECONDS)
    width = thresholds.shedding - thresholds.critical
    way = min(max((utilisation - thresholds.critical) / width, 0.0), 1.0)
    return min(base * math.pow(DELAY_MAX_SECONDS / base, way), DELAY_MAX_SECONDS)


def decide(
    level: BackpressureState,
    utilisation: float,
    *,
    critical: bool = False,
    strategy: BackpressureStrategy = BackpressureStrategy.ADAPTIVE,
    rules: PublishRules = PublishRules(),  # noqa: B008  # a frozen value
    thresholds: BackpressureThresholds = BackpressureThresholds(),  # noqa: B008
) -> PublishDecision:
    """What happens to a message on a bus at this level.

    ADAPTIVE warns, delays, and at last refuses. BLOCK_PRODUCER delays where that refuses,
    SHED_LOAD refuses where it delays. What is critical is never refused.
    """
    if level is NORMAL:
        return PublishDecision.PROCEED
    if level is WARNING:
        return PublishDecision.WARN
    if _refuses(level, strategy) and not critical:
        return replace(PublishDecision.REJECT, level=level, retry_after=rules.retry_after)
    if level is CRITICAL:
        delay = delay_at(utilisation, rules.base_delay, thresholds)
        return _delayed(level, delay, f"it is {utilisation:.0%} full: producers are slowed")
    return _delayed(level, DELAY_MAX_SECONDS, "it is nearly full: who is not refused waits longest")


def shed(decision: PublishDecision, what: str, **fields: object) -> LoadShed:
    """The error for a message that is refused."""
    return LoadShed(
        f"{what} was refused: {decision.why}. Try again in {decision.retry_after:g} s",
        code=SHED_LOAD,
        retry_after=decision.retry_after,
        level=decision.level,
        **fields,
    )


def _refuses(level: BackpressureState, strategy: BackpressureStrategy) -> bool:
    if strategy is BackpressureStrategy.BLOCK_PRODUCER:
        return False
    return level is SHEDDING or strategy is BackpressureStrategy.SHED_LOAD


def _delayed(level: BackpressureState, delay: float, why: str) -> PublishDecision:
    return PublishDecision(verdict=PublishVerdict.DELAY, why=why, level=level, delay=delay)
