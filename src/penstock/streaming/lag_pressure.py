"""Who lags presses back: the lag of a group is the pressure of the topic that it lags on.

The lag is read from what the groups committed, so it does not matter whose they are: of this
process, of another one, or of a pipeline elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.bus.timers import Timers
from penstock.errors import InvalidOption
from penstock.log.lag import PartitionLag
from penstock.pressure.decisions import PublishDecision, PublishRules
from penstock.pressure.message_bus import MessageBusBackpressure
from penstock.pressure.monitor import PressureMonitor
from penstock.pressure.readings import PressureStatistics, Reading
from penstock.pressure.states import BackpressureThresholds
from penstock.pressure.strategies import BackpressureStrategy
from penstock.system import SECOND_MS, Clock

EVERY_TOPIC = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class LagLimit:
    """How far a group may be behind: there the topic counts as full. None is no limit."""

    records_max: int | None = None
    """Records that are not committed, over all partitions."""
    seconds_max: float | None = None
    """Age of the oldest record that is not committed."""

    def __post_init__(self) -> None:
        for option in ("records_max", "seconds_max"):
            value = getattr(self, option)
            if value is not None and not 0 < value < float("inf"):
                raise InvalidOption(f"{option} is {value}: use more than 0", option=option)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """What a group has not committed of a topic."""

    group: str
    records: int
    milliseconds: int
    """Age of the oldest of them; 0 when there are none."""

    @classmethod
    def of(cls, group: str, lags: Sequence[PartitionLag]) -> GroupLag:
        """All partitions together."""
        return cls(
            group,
            sum(one.records for one in lags),
            max((one.milliseconds for one in lags), default=0),
        )


class LagPressure:
    """What producers of a topic feel of the groups that lag on it.

    ``limits`` go by ``topic/group``, by ``topic``, or ``*`` for all others; the first that is there
    counts. The worst group makes the level of its topic. Topics without a limit feel nothing.
    """

    def __init__(
        self,
        limits: Mapping[str, LagLimit],
        clock: Clock,
        *,
        rules: PublishRules | None = None,
        thresholds: BackpressureThresholds | None = None,
    ) -> None:
        self._limits = dict(limits)
        self._clock = clock
        self._thresholds = thresholds
        self._bus = MessageBusBackpressure(
            PressureMonitor(clock, subsystem="lag"), Timers(clock), rules=rules
        )
        self._topics: dict[str, _TopicLag] = {}

    @property
    def limits(self) -> Mapping[str, LagLimit]:
        """What is in force."""
        return dict(self._limits)

    @limits.setter
    def limits(self, limits: Mapping[str, LagLimit]) -> None:
        self._limits = dict(limits)
        for topic in self._topics.values():
            topic.resize()

    @property
    def strategy(self) -> BackpressureStrategy:
        """What is done to producers: as on a bus."""
        return self._bus.strategy

    @strategy.setter
    def strategy(self, strategy: BackpressureStrategy) -> None:
        self._bus.strategy = strategy

    def limit_of(self, topic: str, group: str) -> LagLimit | None:
        """The limit that counts for a group."""
        for name in (f"{topic}/{group}", topic, EVERY_TOPIC):
            if name in self._limits:
                return self._limits[name]
        return None

    def is_limited(self, topic: str) -> bool:
        """Whether any group of the topic has a limit."""
        names = {EVERY_TOPIC, topic}
        return any(name in names or name.startswith(f"{topic}/") for name in self._limits)

    def note(self, topic: str, lags: Sequence[GroupLag]) -> None:
        """This is how far the groups of a topic are behind now."""
        watched = self._topics.get(topic)
        if watched is None:
            monitor = PressureMonitor(self._clock, subsystem=topic, thresholds=self._thresholds)
            watched = self._topics[topic] = _TopicLag(monitor, partial(self.limit_of, topic))
            self._bus.watch_topic(topic, monitor)
        watched.note(lags)

    def statistics(self, topic: str) -> PressureStatistics | None:
        """The pressure of a topic; None when nobody has looked at it yet."""
        watched = self._topics.get(topic)
        return watched.monitor.statistics() if watched else None

    def decide(self, topic: str, *, critical: bool = False) -> PublishDecision:
        """What would happen to a record of this topic now."""
        return self._bus.decide(topic, critical=critical)

    async def before_publish(
        self, topic: str, *, critical: bool, timeout: float
    ) -> Mapping[str, str]:
        """Wait, or raise LoadShed, as the lag says; returns the headers to add."""
        if topic not in self._topics:
            return {}
        return await self._bus.before_publish(topic, critical=critical, timeout=timeout)

    def close(self) -> None:
        """Look no more."""
        self._bus.close()


class _TopicLag:
    """The groups of one topic, each a stage of its own: one that is quick helps no other."""

    def __init__(
        self, monitor: PressureMonitor, limit_of: Callable[[str], LagLimit | None]
    ) -> None:
        self.monitor = monitor
        self._limit_of = limit_of
        self._lags: dict[str, GroupLag] = {}
        self._stages: dict[str, list[Callable[[], None]]] = {}

    def note(self, lags: Sequence[GroupLag]) -> None:
        self._lags = {one.group: one for one in lags}
        for group in self._stages.keys() - self._lags.keys():
            for remove in self._stages.pop(group):
                remove()
        for group in self._lags.keys() - self._stages.keys():
            self._stages[group] = [
                self.monitor.add(partial(self._records, group), stage=f"records behind: {group}"),
                self.monitor.add(partial(self._age, group), stage=f"time behind: {group}"),
            ]
        self.monitor.evaluate()

    def resize(self) -> None:
        self.monitor.evaluate()

    def _records(self, group: str) -> list[Reading]:
        limit = self._limit_of(group)
        if limit is None or limit.records_max is None:
            return []
        return [Reading(group, self._lags[group].records, limit.records_max)]

    def _age(self, group: str) -> list[Reading]:
        limit = self._limit_of(group)
        if limit is None or limit.seconds_max is None:
            return []
        most = max(1, round(limit.seconds_max * SECOND_MS))
        return [Reading(f"{group} (ms)", self._lags[group].milliseconds, most)]
