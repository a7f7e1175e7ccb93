"""Auto-scaling: from measurements to decisions. It decides and does nothing; who asked it acts."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from penstock.errors import InvalidOption
from penstock.streaming.checkpoint import utc_of
from penstock.streaming.scalability import (
    Measurement,
    ScalabilityConfig,
    ScalingAction,
    ScalingDecision,
)
from penstock.system import System

_Kept = TypeVar("_Kept")

HISTORY_MAX = 1_000
TOPICS_MAX = 10_000
GROWTH_MAX = 2
"""Consumers at most double at once: a lag says that they are too few, not how many are missing."""
MEMORY_COOLDOWNS = 12
"""For so many cool-downs it is remembered which load per consumer was too much."""


class TooMuch(NamedTuple):
    """A load per consumer with which the lag grew."""

    rate_per_consumer: float
    until: float


class Change(NamedTuple):
    """Something to do, before it is a decision."""

    action: ScalingAction
    metric: str
    value: float
    threshold: float
    before: int
    after: int
    reason: str


class Autoscaler:
    """Decides how many partitions and consumers each topic should have.

    **Partitions** follow the rate. They are added when it is above ``scale_up_threshold`` x target x
    partitions and taken away when it is below ``scale_down_threshold`` of that, in both cases to
    the number that brings the load to the middle between the two. So a rate that stays has one
    answer, and no rate makes it swing.

    **Consumers** follow the lag. They are added, at most doubled, when it is above ``max_lag_ms``, and one
    is taken away when it is below ``scale_down_threshold`` of that, unless the others would then have
    a load with which the lag grew not long ago. There are never more than partitions.

    After a decision on a topic there is none on it for ``cooldown_seconds``; one look may decide on both.
    The last 1,000 decisions are kept. Beyond 10,000 topics it forgets what it knew of the one for which
    that changed longest ago.
    """

    def __init__(
        self,
        config: ScalabilityConfig | None = None,
        *,
        history_max: int = HISTORY_MAX,
        system: System | None = None,
    ) -> None:
        if history_max < 1:
            raise InvalidOption(
                f"history_max is {history_max}: use 1 or more", option="history_max"
            )
        self._config = config or ScalabilityConfig()
        self._clock = (system or System()).clock
        self._history: deque[ScalingDecision] = deque(maxlen=history_max)
        self._cool_until: dict[str, float] = {}
        self._last_lag_ms: dict[str, float] = {}
        self._too_much: dict[str, TooMuch] = {}

    @property
    def config(self) -> ScalabilityConfig:
        """What is in force."""
        return self._config

    def reconfigure(self, config: ScalabilityConfig) -> None:
        """Put another configuration in force, from the next look on. What cools down goes on to."""
        self._config = config

    def decide(self, measured: Measurement) -> tuple[ScalingDecision, ...]:
        """What is to be done about a topic now: nothing, or one thing about either, or about both."""
        self._learn(measured)
        now = self._clock.monotonic()
        if now < self._cool_until.get(measured.topic, now):
            return ()
        decisions = tuple(self._decision(measured, one) for one in self._changes(measured))
        if decisions:
            self._history.extend(decisions)
            self._remember(self._cool_until, measured.topic, now + self._config.cooldown_seconds)
        return decisions

    def decisions(self, topic: str | None = None) -> tuple[ScalingDecision, ...]:
        """The decisions so far, of one topic or of all, the oldest first."""
        return tuple(one for one in self._history if topic in (None, one.topic))

    def cooldown_left(self, topic: str) -> float:
        """Seconds until there may be another decision on a topic."""
        now = self._clock.monotonic()
        return max(0.0, self._cool_until.get(topic, now) - now)

    def _changes(self, measured: Measurement) -> Iterator[Change]:
        partitions = self._partitions(measured)
        if partitions is not None:
            yield partitions
        consumers = self._consumers(
            measured, measured.partitions if partitions is None else partitions.after
        )
        if consumers is not None:
            yield consumers

    # Partitions

    def _partitions(self, measured: Measurement) -> Change | None:
        config, rate, now = self._config, measured.rate, measured.partitions
        carried = config.target_throughput_per_partition * now
        high, low = config.scale_up_threshold * carried, config.scale_down_threshold * carried
        if now > config.max_partitions:
            return self._too_many_partitions(now, config.max_partitions)
        if rate > high:
            return self._more_partitions(measured, high)
        if rate < low and self._wanted_partitions(rate) < now:
            return self._fewer_partitions(measured, self._wanted_partitions(rate), low)
        return None

    def _wanted_partitions(self, rate: float) -> int:
        """So many that the load is in the middle between the two marks."""
        config = self._config
        middle = (config.scale_up_threshold + config.scale_down_threshold) / 2
        wanted = math.ceil(rate / (middle * config.target_throughput_per_partition))
        return max(1, min(wanted, config.max_partitions))

    def _more_partitions(self, measured: Measurement, high: float) -> Change | None:
        wanted = self._wanted_partitions(measured.rate)
        if wanted <= measured.partitions:
            return None
        return Change(
            ScalingAction.ADD_PARTITIONS,
            "rate",
            measured.rate,
            high,
            measured.partitions,
            wanted,
            f"{measured.rate:,.0f} records/s are more than the {high:,.0f} that "
            f"{measured.partitions} partitions should carry",
        )

    def _fewer_partitions(self, measured: Measurement, wanted: int, low: float) -> Change:
        return Change(
            ScalingAction.REMOVE_PARTITIONS,
            "rate",
            measured.rate,
            low,
            measured.partitions,
            wanted,
            f"{measured.rate:,.0f} records/s are less than the {low:,.0f} that "
            f"{measured.partitions} partitions are worth",
        )

    def _too_many_partitions(self, now: int, most: int) -> Change:
        return Change(
            ScalingAction.REMOVE_PARTITIONS,
            "partitions",
            now,
            most,
            now,
            most,
            f"{now} partitions are more than the {most} that are allowed",
        )

    # Consumers

    def _consumers(self, measured: Measurement, partitions: int) -> Change | None:
        config, now = self._config, measured.consumers
        most = min(config.max_consumers, partitions)
        if now > most:
            return self._too_many_consumers(now, most)
        if measured.lag_ms > config.max_lag_ms:
            return self._more_consumers(measured, most)
        low = config.scale_down_threshold * config.max_lag_ms
        if measured.lag_ms < low and now > 1 and not self._would_be_too_much(measured):
            return self._one_consumer_less(measured, low)
        return None

    def _more_consumers(self, measured: Measurement, most: int) -> Change | None:
        config, now = self._config, measured.consumers
        factor = min(GROWTH_MAX, measured.lag_ms / config.max_lag_ms)
        wanted = min(most, math.ceil(now * factor))
        if wanted <= now:
            return None
        return Change(
            ScalingAction.ADD_CONSUMERS,
            "lag_ms",
            measured.lag_ms,
            config.max_lag_ms,
            now,
            wanted,
            f"the oldest record waits for {measured.lag_ms:,.0f} ms, longer than "
            f"{config.max_lag_ms:,} ms, with {now} consumers",
        )

    def _one_consumer_less(self, measured: Measurement, low: float) -> Change:
        now = measured.consumers
        return Change(
            ScalingAction.REMOVE_CONSUMERS,
            "lag_ms",
            measured.lag_ms,
            low,
            now,
            now - 1,
            f"the oldest record waits for {measured.lag_ms:,.0f} ms, less than {low:,.0f} ms, "
            f"with {now} consumers",
        )

    def _too_many_consumers(self, now: int, most: int) -> Change:
        return Change(
            ScalingAction.REMOVE_CONSUMERS,
            "consumers",
            now,
            most,
            now,
            most,
            f"{now} consumers are more than the {most} that are allowed or have a partition",
        )

    def _learn(self, measured: Measurement) -> None:
        """Note the load when the lag is too long and grows: it is more than they can do."""
        before = self._last_lag_ms.get(measured.topic, 0.0)
        self._remember(self._last_lag_ms, measured.topic, measured.lag_ms)
        if measured.lag_ms > self._config.max_lag_ms and measured.lag_ms > before:
            until = self._clock.monotonic() + MEMORY_COOLDOWNS * self._config.cooldown_seconds
            load = TooMuch(measured.rate / measured.consumers, until)
            self._remember(self._too_much, measured.topic, load)

    def _would_be_too_much(self, measured: Measurement) -> bool:
        known = self._too_much.get(measured.topic)
        if known is None or self._clock.monotonic() >= known.until:
            return False
        load = measured.rate / (measured.consumers - 1)
        return load > self._config.scale_up_threshold * known.rate_per_consumer

    # Records

    def _decision(self, measured: Measurement, change: Change) -> ScalingDecision:
        return ScalingDecision(
            topic=measured.topic,
            decided_at=utc_of(self._clock.time_ms()),
            **change._asdict(),
        )

    def _remember(self, memory: dict[str, _Kept], topic: str, value: _Kept) -> None:
        """Keep what is known of a topic; beyond the bound the oldest entry goes."""
        memory.pop(topic, None)
        memory[topic] = value
        if len(memory) > TOPICS_MAX:
            del memory[next(iter(memory))]
