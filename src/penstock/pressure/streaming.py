"""A bounded stream that presses back on its producers by one of five strategies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Generic

from penstock.bus.timers import Timers
from penstock.pressure.buffer import (
    NO_LIMIT,
    TAKE_TIMEOUT_SECONDS,
    Buffer,
    Item,
    checked_capacity,
)
from penstock.pressure.contracts import BackpressureContext, OnBackpressureChanged
from penstock.pressure.decisions import (
    RETRY_AFTER_SECONDS,
    PublishDecision,
    PublishVerdict,
    shed,
)
from penstock.pressure.drops import DropLog, Dropped
from penstock.pressure.monitor import PressureMonitor
from penstock.pressure.readings import Reading
from penstock.pressure.states import (
    NORMAL,
    ROUNDED_DIGITS,
    SHEDDING,
    BackpressureState,
    BackpressureThresholds,
)
from penstock.pressure.strategies import (
    ADAPTIVE_TABLE,
    ALPHA,
    AdaptiveChoice,
    BackpressureStrategy,
    DegradationDirective,
    directive_for,
)
from penstock.pressure.streaming_statistics import StreamingStatistics
from penstock.system import System

SUBSYSTEM = "streaming"
STREAM_MAX = 1_000
PUBLISH_TIMEOUT_SECONDS = 30.0

DROP_OLDEST = BackpressureStrategy.DROP_OLDEST
BLOCK_PRODUCER = BackpressureStrategy.BLOCK_PRODUCER
SHED_LOAD = BackpressureStrategy.SHED_LOAD
DEGRADE_QUALITY = BackpressureStrategy.DEGRADE_QUALITY
ADAPTIVE = BackpressureStrategy.ADAPTIVE


class StreamingBackpressureHandler(Generic[Item]):
    """A bounded queue between producers and consumers. Implements :class:`BackpressureAware`.

    When it fills up it does what its ``strategy`` says. Nobody ever finds it above its capacity,
    unless the capacity was lowered. Belongs to one event loop; items are kept in memory and are
    lost in a crash.
    """

    def __init__(
        self,
        capacity: int = STREAM_MAX,
        *,
        strategy: BackpressureStrategy = ADAPTIVE,
        thresholds: BackpressureThresholds | None = None,
        subsystem: str = SUBSYSTEM,
        retry_after: float = RETRY_AFTER_SECONDS,
        alpha: float = ALPHA,
        table: Mapping[BackpressureState, BackpressureStrategy] = ADAPTIVE_TABLE,
        system: System | None = None,
    ) -> None:
        clock = (system or System()).clock
        self.subsystem = subsystem
        self.retry_after = retry_after
        self._timers = Timers(clock)
        self._buffer = Buffer[Item](subsystem, capacity, self._timers, self._limit)
        self._monitor = PressureMonitor(clock, subsystem=subsystem, thresholds=thresholds)
        self._monitor.add(lambda: [Reading(subsystem, len(self._buffer), self._buffer.capacity)])
        self._strategy = strategy
        self._adaptive = AdaptiveChoice(alpha=alpha, table=table)
        self._drops = DropLog(subsystem, clock)
        self._published = self._taken = self._blocked = self._shed = self._degraded = 0
        self._evaluate()

    # What it is

    def __len__(self) -> int:
        return len(self._buffer)

    @property
    def strategy(self) -> BackpressureStrategy:
        """What is done to producers. Those that wait when it is set feel the new one at once."""
        return self._strategy

    @strategy.setter
    def strategy(self, strategy: BackpressureStrategy) -> None:
        self._strategy = strategy
        self._settings_changed()

    @property
    def acting(self) -> BackpressureStrategy:
        """The strategy; with ADAPTIVE the one that it chose."""
        return self._adaptive.strategy if self._strategy is ADAPTIVE else self._strategy

    @property
    def current_state(self) -> BackpressureState:
        """The level of the depth at this moment."""
        return self._monitor.level

    @property
    def thresholds(self) -> BackpressureThresholds:
        """Where the levels begin. Those that are set count at once."""
        return self._monitor.thresholds

    @thresholds.setter
    def thresholds(self, thresholds: BackpressureThresholds) -> None:
        self._monitor.thresholds = thresholds
        self._settings_changed()

    @property
    def capacity(self) -> int:
        """How many items it holds. Lowered below the depth, nothing that is inside is lost."""
        return self._buffer.capacity

    @capacity.setter
    def capacity(self, capacity: int) -> None:
        self._buffer.capacity = checked_capacity(capacity)
        self._settings_changed()

    @property
    def directive(self) -> DegradationDirective:
        """What to leave out at this moment; nothing unless DEGRADE_QUALITY acts."""
        if self.acting is not DEGRADE_QUALITY:
            return DegradationDirective(utilisation=self._utilisation)
        return directive_for(self.current_state, self._utilisation)

    def on_backpressure_changed(self, callback: OnBackpressureChanged) -> Callable[[], None]:
        """Call back on every change of the level, once; returns what ends that."""
        return self._monitor.on_change(callback)

    def on_drop(self, callback: Callable[[Dropped], None]) -> None:
        """Call back with every item that DROP_OLDEST discards."""
        self._drops.on_drop(callback)

    # Producers

    async def publish(
        self, item: Item, *, critical: bool = False, timeout: float = PUBLISH_TIMEOUT_SECONDS
    ) -> PublishDecision:
        """Put an item in, as the strategy says; returns what was decided.

        BLOCK_PRODUCER waits, and so does DEGRADE_QUALITY when nothing fits in any more:
        DeadlineExceeded after ``timeout``. SHED_LOAD raises LoadShed, but lets what is critical
        wait. Cancelled, or after an error, the item is not in.
        """
        self._buffer.check_open()
        decision = self._decide_now(critical=critical, has_turn=False)
        if decision.delayed:
            decision = await self._wait(timeout, critical=critical)
        self._put(item)
        return decision

    async def apply_backpressure(self, context: BackpressureContext) -> PublishDecision:
        """Do to a producer what this situation asks for; a wait is for room in this stream."""
        self._sample(context.utilisation)
        decision = self._decide(context, has_turn=False)
        if decision.delayed and self._buffer.is_crowded(has_turn=False):
            await self._wait(PUBLISH_TIMEOUT_SECONDS, critical=context.critical)
            self._buffer.make_room()  # it puts nothing in: its turn is the next one's
        return decision

    async def _wait(self, timeout: float, *, critical: bool) -> PublishDecision:
        """Wait until this producer may go on; its decision then is no DELAY."""
        self._blocked += 1
        ticket = self._buffer.producers.ticket()
        async with self._timers.deadline(timeout, f"publish to {self.subsystem}"):
            while True:
                await self._buffer.producers.wait(ticket)
                self._buffer.check_open()
                decision = self._decide_now(critical=critical, has_turn=True)
                if not decision.delayed:
                    return decision

    def _put(self, item: Item) -> None:
        while self.acting is DROP_OLDEST and len(self._buffer) >= self._buffer.capacity:
            self._drops.note(self._buffer.drop_oldest())
        self._buffer.put(item)
        self._published += 1
        self._depth_changed()

    # Decisions

    def _decide_now(self, *, critical: bool, has_turn: bool) -> PublishDecision:
        depth, capacity = len(self._buffer), self._buffer.capacity
        self._sample(depth / capacity)
        if self._monitor.level is NORMAL and (has_turn or not self._buffer.producers):
            return PublishDecision.PROCEED
        context = BackpressureContext(depth=depth, capacity=capacity, critical=critical)
        return self._decide(context, has_turn=has_turn)

    def _decide(self, context: BackpressureContext, *, has_turn: bool) -> PublishDecision:
        share = context.utilisation
        level = self.thresholds.level(share, self.current_state)
        acting = self.acting
        if acting is SHED_LOAD and level is SHEDDING and not context.critical:
            self._shed += 1
            self._buffer.make_room()  # a turn that is not used is the next one's
            raise shed(self._refusal(level), "an item", subsystem=self.subsystem)
        if self._is_crowded(context, has_turn=has_turn):
            return _delay(level, f"{context.depth} of {context.capacity} are waiting")
        if acting is DEGRADE_QUALITY:
            return self._degrade(level, share)
        return PublishDecision(
            verdict=PublishVerdict.PROCEED, why=f"{acting.value}: passes", level=level
        )

    def _is_crowded(self, context: BackpressureContext, *, has_turn: bool) -> bool:
        return self._buffer.is_crowded(has_turn=has_turn) or context.depth >= self._limit()

    def _sample(self, share: float) -> None:
        """Let ADAPTIVE see how full it is, and choose."""
        if self._strategy is not ADAPTIVE:
            return
        before = self._limit()
        self._adaptive.add(share, self.thresholds)
        if self._limit() > before:
            self._buffer.make_room()

    def _limit(self) -> int:
        """The depth from which on producers wait."""
        capacity = self._buffer.capacity
        if self.acting is DROP_OLDEST:
            return NO_LIMIT
        if self.acting is not BLOCK_PRODUCER:
            return capacity
        return math.ceil(round(capacity * self.thresholds.critical, ROUNDED_DIGITS))

    def _refusal(self, level: BackpressureState) -> PublishDecision:
        return PublishDecision(
            verdict=PublishVerdict.REJECT,
            why=f"{self.subsystem} is {self._utilisation:.0%} full and sheds load",
            level=level,
            retry_after=self.retry_after,
        )

    def _degrade(self, level: BackpressureState, share: float) -> PublishDecision:
        directive = directive_for(level, share)
        self._degraded += directive.degraded
        why = f"it is {share:.0%} full: {'leave things out' if directive.degraded else 'all fits'}"
        return PublishDecision(
            verdict=PublishVerdict.PROCEED, why=why, level=level, directive=directive
        )

    # Consumers

    async def take(self, limit: int = 1, timeout: float = TAKE_TIMEOUT_SECONDS) -> list[Item]:
        """Take up to so many items, oldest first, and wait for the first of them.

        DeadlineExceeded when none came in time. Cancelled while it waits, nothing was taken.
        """
        return self._count_taken(await self._buffer.take(limit, timeout))

    def take_nowait(self, limit: int = 1) -> list[Item]:
        """Take up to so many items, oldest first; an empty list when there are none."""
        return self._count_taken(self._buffer.take_nowait(limit))

    def _count_taken(self, taken: list[Item]) -> list[Item]:
        self._taken += len(taken)
        self._depth_changed()
        return taken

    def close(self) -> None:
        """Refuse new items and end all waits with Closed; what is inside can still be taken."""
        self._buffer.close()
        self._monitor.close()

    # The level

    @property
    def _utilisation(self) -> float:
        return len(self._buffer) / self._buffer.capacity

    def _depth_changed(self) -> None:
        """Evaluate only where the level may change: for most items this is one comparison."""
        if not self._low <= len(self._buffer) / self._buffer.capacity < self._high:
            self._evaluate()

    def _settings_changed(self) -> None:
        self._evaluate()
        if self.acting is SHED_LOAD:
            self._buffer.producers.give_all()  # those who are refused now must hear it
        else:
            self._buffer.make_room()

    def _evaluate(self) -> None:
        self._low, self._high = self.thresholds.band(self._monitor.evaluate())

    def statistics(self) -> StreamingStatistics:
        """The figures of this moment."""
        return StreamingStatistics(
            pressure=self._monitor.statistics(),
            strategy=self._strategy,
            acting=self.acting,
            average=self._adaptive.average,
            switches=self._adaptive.switches,
            depth=len(self._buffer),
            capacity=self._buffer.capacity,
            published=self._published,
            taken=self._taken,
            dropped=self._drops.dropped,
            blocked=self._blocked,
            shed=self._shed,
            degraded=self._degraded,
            waiting=len(self._buffer.producers),
        )


def _delay(level: BackpressureState, why: str) -> PublishDecision:
    return PublishDecision(verdict=PublishVerdict.DELAY, why=why, level=level, delay=None)
