"""The pressure of a bus, as its publishers and its batches feel it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from penstock.bus.intake import Intake
from penstock.bus.timers import Timers
from penstock.errors import NotSupported
from penstock.messages import marks_of
from penstock.pressure.contracts import BackpressureContext, OnBackpressureChanged
from penstock.pressure.decisions import ON_A_BUS, PublishDecision, PublishRules, decide
from penstock.pressure.ledger import PressureLedger, TopicPressure
from penstock.pressure.monitor import PressureMonitor
from penstock.pressure.readings import PressureStatistics, Reading
from penstock.pressure.states import (
    CRITICAL,
    BackpressureState,
    BackpressureStateChanged,
    BackpressureThresholds,
)
from penstock.pressure.strategies import BackpressureStrategy

OnBatching = Callable[[bool], None]
"""Is told whether handlers may take batches."""


@dataclass(frozen=True, slots=True)
class BackpressureStatistics:
    """The pressure of a bus: its level, its bottleneck, since when, and what it did."""

    pressure: PressureStatistics
    strategy: BackpressureStrategy
    total: TopicPressure
    topics: Mapping[str, TopicPressure]
    """Topics to whose messages something was done."""
    waiting: int
    """Publishers that wait at the moment."""
    batching: bool
    """Whether handlers get batches."""

    @property
    def level(self) -> BackpressureState:
        """The level of the bus."""
        return self.pressure.level

    def explain(self) -> str:
        """All of it in two sentences."""
        total = self.total
        return (
            f"{self.pressure.explain()}. So far {total.warned:,} messages were warned, "
            f"{total.delayed:,} delayed, {total.shed:,} shed, {total.dropped:,} dropped."
        )


class MessageBusBackpressure:
    """Presses back on the publishers of a bus. Implements :class:`BackpressureAware`.

    The bus calls :meth:`before_publish` for every message, or only for those with
    ``sequence >= backpressure.look_at``: for all others there is nothing to do. WARNING adds a
    header, CRITICAL lets the publisher wait, SHEDDING refuses what is not critical. Handlers get
    no batches in CRITICAL and SHEDDING; ``on_batching`` is told of each change.

    A topic may have a monitor of its own beside that of the bus, for a group that lags on it; the
    worse of the two counts. Belongs to one event loop.
    """

    def __init__(
        self,
        monitor: PressureMonitor,
        timers: Timers,
        *,
        rules: PublishRules | None = None,
        on_batching: OnBatching | None = None,
    ) -> None:
        self.monitor = monitor
        self.rules = rules or PublishRules()
        self.batching = True
        """Whether handlers may take batches."""
        self._timers = timers
        self._strategy = BackpressureStrategy.ADAPTIVE
        self._on_batching = on_batching
        self._ledger = PressureLedger()
        self._own_monitors: dict[str, PressureMonitor] = {}
        self._waiting = 0
        monitor.on_change(self._switch_batching)

    # What it is

    @property
    def look_at(self) -> int:
        """The number of the message from which on somebody has to look."""
        return 0 if self._own_monitors else self.monitor.look_at

    @property
    def strategy(self) -> BackpressureStrategy:
        """ADAPTIVE warns, delays, refuses; BLOCK_PRODUCER never refuses, SHED_LOAD never delays."""
        return self._strategy

    @strategy.setter
    def strategy(self, strategy: BackpressureStrategy) -> None:
        if strategy not in ON_A_BUS:
            raise NotSupported(
                f"a bus cannot {strategy.value}: use {', '.join(one.name for one in ON_A_BUS)}",
                strategy=strategy.name,
            )
        self._strategy = strategy

    @property
    def current_state(self) -> BackpressureState:
        """The level that was found last."""
        return self.monitor.level

    def on_backpressure_changed(self, callback: OnBackpressureChanged) -> Callable[[], None]:
        """Call back on every change of the level, once; returns what ends that."""
        return self.monitor.on_change(callback)

    def watch_topic(self, topic: str, monitor: PressureMonitor) -> Callable[[], None]:
        """Let publishers of one topic feel this monitor too; returns what ends that."""
        self._own_monitors[topic] = monitor
        self.monitor.look_soon()
        return lambda: self._forget(topic, monitor)

    def _forget(self, topic: str, monitor: PressureMonitor) -> None:
        if self._own_monitors.get(topic) is monitor:
            del self._own_monitors[topic]

    # Publishing

    def decide(self, topic: str, *, critical: bool = False) -> PublishDecision:
        """What would happen to a message of this topic now. Looks at nothing, counts nothing."""
        monitor = self._pressing(topic)
        return self._decide(
            topic, monitor.level, monitor.utilisation, monitor.thresholds, critical=critical
        )

    async def before_publish(
        self,
        topic: str,
        *,
        critical: bool = False,
        sequence: int | None = None,
        timeout: float | None = None,
    ) -> Mapping[str, str]:
        """Wait, or raise LoadShed, as the level says; returns the headers to add.

        Call it before the message is queued: cancelled, refused, or after DeadlineExceeded when
        ``timeout`` is shorter than the wait, nothing was queued. With ``sequence`` the depths are
        read only when it is the turn of that message. After a wait they are read again, and what
        is refused by then is refused. A bus that stops ends the wait with Closed.
        """
        self._look(topic, sequence)
        decision = self._ledger.count(topic, self.decide(topic, critical=critical))
        if decision.delay:
            await self._wait(decision.delay, timeout, topic)
            self._refuse_late(topic, critical=critical)
        return decision.headers

    def _refuse_late(self, topic: str, *, critical: bool) -> None:
        """Others may have filled the bus while this one waited: what is refused now is refused."""
        self._look(topic, None)
        decision = self.decide(topic, critical=critical)
        if decision.rejected:
            self._ledger.count(topic, decision)

    def before_publish_nowait(
        self, topic: str, *, critical: bool = False, sequence: int | None = None
    ) -> Mapping[str, str]:
        """As :meth:`before_publish` for who cannot wait: where that waits, this lets pass.

        A handler that publishes should use this one. It is the consumer, and to slow it would make
        the pressure worse.
        """
        self._look(topic, sequence)
        decision = self.decide(topic, critical=critical)
        return decision.headers if decision.delayed else self._ledger.count(topic, decision).headers

    async def apply_backpressure(self, context: BackpressureContext) -> PublishDecision:
        """Do to a publisher what this situation asks for; the depths of the bus are not read."""
        share, thresholds = context.utilisation, self.monitor.thresholds
        level = thresholds.level(share, self.monitor.level)
        decision = self._decide(context.topic, level, share, thresholds, critical=context.critical)
        self._ledger.count(context.topic, decision)
        if decision.delay:
            await self._wait(decision.delay, None, context.topic)
        return decision

    def note_dropped(self, topic: str, count: int = 1) -> None:
        """Messages of this topic were lost by a queue that is full."""
        self._ledger.note_dropped(topic, count)

    def _look(self, topic: str, sequence: int | None) -> None:
        self._look_with(self.monitor, sequence)
        if topic in self._own_monitors:
            self._look_with(self._own_monitors[topic], sequence)

    def _look_with(self, monitor: PressureMonitor, sequence: int | None) -> None:
        if sequence is None:
            monitor.evaluate()
        else:
            monitor.look(sequence)

    def _pressing(self, topic: str) -> PressureMonitor:
        """The monitor that counts for a topic."""
        own = self._own_monitors.get(topic)
        if own is None or (own.level, own.utilisation) < (
            self.monitor.level,
            self.monitor.utilisation,
        ):
            return self.monitor
        return own

    def _decide(
        self,
        topic: str,
        level: BackpressureState,
        utilisation: float,
        thresholds: BackpressureThresholds,
        *,
        critical: bool,
    ) -> PublishDecision:
        return decide(
            level,
            utilisation,
            critical=critical or (level >= CRITICAL and self._is_critical(topic)),
            strategy=self._strategy,
            rules=self.rules,
            thresholds=thresholds,
        )

    def _is_critical(self, topic: str) -> bool:
        return any(fnmatchcase(topic, pattern) for pattern in self.rules.critical_topics)

    async def _wait(self, delay: float, timeout: float | None, topic: str) -> None:
        self._waiting += 1
        try:
            async with self._timers.deadline(timeout, f"publish to {topic} under pressure"):
                await self._timers.sleep(delay)
        finally:
            self._waiting -= 1

    # Consumers

    def _switch_batching(self, change: BackpressureStateChanged) -> None:
        batching = change.current < CRITICAL
        if batching is not self.batching:
            self.batching = batching
            if self._on_batching is not None:
                self._on_batching(batching)

    def statistics(self) -> BackpressureStatistics:
        """The figures of this moment; the depths are read."""
        return BackpressureStatistics(
            pressure=self.monitor.statistics(),
            strategy=self._strategy,
            total=self._ledger.total(),
            topics=self._ledger.topics(),
            waiting=self._waiting,
            batching=self.batching,
        )

    def close(self) -> None:
        """Look no more by itself."""
        self.monitor.close()


def read_lanes(intake: Intake) -> list[Reading]:
    """How full every lane is at this moment."""
    return [
        Reading(
            marks_of(lane.kind).topic,
            len(lane.queue) + lane.queue.held,
            lane.queue.capacity_in_all,
        )
        for lane in intake.all_lanes()
    ]
