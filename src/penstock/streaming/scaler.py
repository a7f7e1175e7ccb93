"""Acts on what the autoscaler decides, and remembers what came of it."""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from penstock.errors import NotSupported, PenstockError
from penstock.streaming.autoscaling import HISTORY_MAX, Autoscaler
from penstock.streaming.scalability import (
    Measurement,
    ScalabilityConfig,
    ScalingAction,
    ScalingDecision,
)
from penstock.streaming.stream_run import StreamRun
from penstock.streaming.topic_watch import TopicWatch
from penstock.system import System

logger = logging.getLogger("penstock.streaming")

OF_PARTITIONS = (ScalingAction.ADD_PARTITIONS, ScalingAction.REMOVE_PARTITIONS)


class ScalingOutcome(enum.StrEnum):
    """What came of a decision."""

    DONE = "done"
    NOT_SUPPORTED = "not supported"
    """The transport cannot do it."""
    FAILED = "failed"
    """It raised; the next look decides anew, after the cool-down."""


@dataclass(frozen=True, slots=True)
class ScalingRecord:
    """A decision, and what came of it."""

    decision: ScalingDecision
    group: str | None
    """Whose consumers; None for partitions."""
    outcome: ScalingOutcome
    error: str | None = None

    def explain(self) -> str:
        """All of it in one sentence."""
        decision = self.decision
        told = f": {self.error}" if self.error else ""
        return (
            f"{decision.topic}: {decision.reason}; {decision.action.replace('_', ' ')} from "
            f"{decision.before} to {decision.after} ({self.outcome}{told})"
        )


class StreamScaler:
    """Looks at the topics that have runs here, and at those that it was told to scale.

    Partitions go by the rate of the topic, consumers by the lag of a group that runs here. Of
    several groups the one that lags most is looked at, and when none lags too much, the one with
    the most consumers. Nothing is taken away before a topic was looked at for one cool-down. One
    program should scale a topic: two would not know of each other.
    """

    def __init__(self, config: ScalabilityConfig, system: System) -> None:
        self._clock = system.clock
        self._autoscaler = Autoscaler(config, system=system)
        self._records: deque[ScalingRecord] = deque(maxlen=HISTORY_MAX)
        self._met: WeakKeyDictionary[TopicWatch, float] = WeakKeyDictionary()
        """When each topic was looked at first."""

    def reconfigure(self, config: ScalabilityConfig) -> None:
        """Put another configuration in force, from the next look on."""
        self._autoscaler.reconfigure(config)

    def records(self, topic: str | None = None) -> tuple[ScalingRecord, ...]:
        """The decisions so far and what came of them, the oldest first."""
        return tuple(one for one in self._records if topic in (None, one.decision.topic))

    def cooldown_left(self, topic: str) -> float:
        """Seconds until there may be another decision on a topic."""
        return self._autoscaler.cooldown_left(topic)

    async def act(self, watch: TopicWatch, runs: list[StreamRun]) -> None:
        """Decide on a topic, and do it. What fails is recorded."""
        if not watch.partitions:
            return
        run = self._most_pressing(watch, runs)
        for decision in self._autoscaler.decide(self._measured(watch, run)):
            group = None if decision.action in OF_PARTITIONS or run is None else run.group
            record = await self._do(decision, watch, run, group)
            self._records.append(record)
            logger.info("%s", record.explain())

    def _measured(self, watch: TopicWatch, run: StreamRun | None) -> Measurement:
        config = self._autoscaler.config
        rate, lag_ms = watch.rate, self.lag_ms(watch, run) if run else 0.0
        now = self._clock.monotonic()
        if now < self._met.setdefault(watch, now) + config.cooldown_seconds:
            # Too early to say that there is little to do: as if it were just enough.
            low = config.scale_down_threshold * config.target_throughput_per_partition
            rate = max(rate, low * watch.partitions)
            lag_ms = max(lag_ms, config.scale_down_threshold * config.max_lag_ms)
        return Measurement(
            topic=watch.topic,
            rate=rate,
            lag_ms=lag_ms,
            partitions=watch.partitions,
            consumers=run.consumers if run else 1,
        )

    def lag_ms(self, watch: TopicWatch, run: StreamRun) -> float:
        """Age of the oldest record that is not handled, by its timestamp.

        What the consumers here have handled counts, also when it is not committed yet.
        """
        now, work = self._clock.time_ms(), run.work()
        ages = [0]
        for one in watch.lags.get(run.group, ()):
            if one.partition not in work:
                ages.append(one.milliseconds)
            else:
                handled, oldest = work[one.partition]
                ages.append(now - oldest if oldest is not None and handled < one.end else 0)
        return max(ages)

    def _most_pressing(self, watch: TopicWatch, runs: Iterable[StreamRun]) -> StreamRun | None:
        known = list(runs)
        if not known:
            return None
        worst = max(known, key=lambda run: self.lag_ms(watch, run))
        if self.lag_ms(watch, worst) > self._autoscaler.config.max_lag_ms:
            return worst
        return max(known, key=lambda run: run.consumers)

    async def _do(
        self,
        decision: ScalingDecision,
        watch: TopicWatch,
        run: StreamRun | None,
        group: str | None,
    ) -> ScalingRecord:
        try:
            if decision.action in OF_PARTITIONS:
                await watch.slot.transport.repartition(watch.topic, decision.after)
                watch.partitions = decision.after
            elif run is not None:
                await run.scale_to(decision.after)
        except NotSupported as error:
            return ScalingRecord(decision, group, ScalingOutcome.NOT_SUPPORTED, str(error))
        except PenstockError as error:
            return ScalingRecord(decision, group, ScalingOutcome.FAILED, str(error))
        return ScalingRecord(decision, group, ScalingOutcome.DONE)
