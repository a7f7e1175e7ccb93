"""Finds the level of pressure by looking at depths that others keep anyway.

No message is counted here, and no lock is taken: the monitor reads the depths of queues, rings and
lags when it is asked, and that is every so many messages, by a timer while there is pressure, or
when somebody wants to know.
"""

from __future__ import annotations

import asyncio
import logging
import operator
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from penstock.bus.failures import guarded
from penstock.bus.timers import PendingCall, Timers
from penstock.errors import InvalidOption
from penstock.pressure.contracts import OnBackpressureChanged
from penstock.pressure.readings import (
    QUEUES,
    Bottleneck,
    PressureStatistics,
    Reading,
    Stage,
    summed,
)
from penstock.pressure.states import (
    CRITICAL,
    NORMAL,
    BackpressureState,
    BackpressureStateChanged,
    BackpressureThresholds,
)
from penstock.system import Clock

logger = logging.getLogger("penstock.pressure")

LOOKS_PER_CAPACITY = 128
"""Near a mark a monitor looks again before this part of a stage's capacity can have filled."""
LOOKS_TO_MARK = 2
"""Far from it, before this part of the way to the mark can be behind, each source getting every message."""
STEP_MAX = 8_192
"""Messages between two looks, at most."""
INTERVAL_SECONDS = 0.1
"""Between two looks of the timer, which runs only while there is pressure."""

_utilisation = operator.attrgetter("utilisation")

ReadDepths = Callable[[], Iterable[Reading]]
"""Tells the depths of a stage. It is called often and must not wait."""


class _Moment(NamedTuple):
    monotonic: float
    time_ms: int


class _Source(NamedTuple):
    stage: str
    read: ReadDepths
    counted: bool


class PressureMonitor:
    """The level of one subsystem, over all that was added to it.

    Sources belong to stages, such as the queues of a bus and the lag of its log. Within a stage
    depths and capacities are summed over all sources. The fullest stage makes the level, as one
    that is empty does not help one that is full.

    Belongs to one event loop. ``level`` and ``look_at`` may be read by any thread. Between two
    looks the level is that of the last one. Where something else than the messages that are counted
    here fills a stage, it looks again soon, however far the mark is.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        subsystem: str = "bus",
        thresholds: BackpressureThresholds | None = None,
        timers: Timers | None = None,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        if not interval > 0:
            raise InvalidOption(f"an interval of {interval} s: use more than 0", option="interval")
        self.subsystem = subsystem
        self.level = NORMAL
        self.utilisation = 0.0
        """The share of the capacity in use, of the fullest stage."""
        self.look_at = 0
        """The number of the message for which somebody has to look; 0 while there is pressure."""
        self.transitions = 0
        self._clock = clock
        self._thresholds = thresholds or BackpressureThresholds()
        self._timers = timers
        self._interval = interval
        self._alarm: PendingCall | None = None
        self._sources: list[_Source] = []
        self._uncounted: set[str] = set()
        """Stages that are filled by more than the messages that are counted here."""
        self._broken: set[ReadDepths] = set()
        self._stages: list[Stage] = []
        self._fullest: Stage | None = None
        self._fullest_since_ms = 0
        self._due = 0
        self._since = _Moment(clock.monotonic(), clock.time_ms())
        self._seconds = dict.fromkeys(BackpressureState, 0.0)
        self._callbacks: list[OnBackpressureChanged] = []
        self._to_hurry: list[Callable[[], object]] = []
        self._changes: deque[BackpressureStateChanged] = deque()
        self._telling = False

    # Sources and thresholds

    def add(
        self, read: ReadDepths, *, stage: str = QUEUES, counted: bool = False
    ) -> Callable[[], None]:
        """Look at these depths too; returns what ends that.

        What raises is logged once and counts as empty, until it does not raise any more. With ``counted``
        nothing fills them but the messages that :meth:`look` hears of, one by one: far from the mark they
        are looked at rarely.
        """
        entry = _Source(stage, read, counted)
        self._change_sources([*self._sources, entry])
        return lambda: self._remove(entry)

    def _remove(self, entry: _Source) -> None:
        if entry in self._sources:
            self._broken.discard(entry.read)
            self._change_sources([one for one in self._sources if one is not entry])

    def _change_sources(self, sources: list[_Source]) -> None:
        self._sources = sources
        self._uncounted = {one.stage for one in sources if not one.counted}
        self.look_soon()

    @property
    def thresholds(self) -> BackpressureThresholds:
        """Where the levels begin. Those that are set count at once."""
        return self._thresholds

    @thresholds.setter
    def thresholds(self, thresholds: BackpressureThresholds) -> None:
        self._thresholds = thresholds
        self.look_soon()
        self.evaluate()

    def look_soon(self) -> None:
        """Look at the next message, as sources or their capacities have changed."""
        self._due = self.look_at = 0
        for hurry in self._to_hurry:
            hurry()

    def on_look_soon(self, hurry: Callable[[], object]) -> None:
        """For who keeps a copy of ``look_at``: call it whenever that is put forward."""
        self._to_hurry.append(hurry)

    # Looking

    def look(self, sequence: int) -> BackpressureState:
        """Evaluate if it is the turn of this message; returns the level.

        ``sequence`` counts the messages, as the bus does anyway. Callers that are in a hurry
        compare ``sequence >= monitor.look_at`` first: that is the whole cost for most messages.
        """
        if sequence >= self._due or self.level >= CRITICAL:
            self.evaluate()
            self._due = sequence + self._step()
        self.look_at = self._due if self.level is NORMAL else 0
        return self.level

    def evaluate(self) -> BackpressureState:
        """Read all depths and find the level; a change is told before this returns."""
        self._stages = stages = self._read_all()
        top = max(stages, key=_utilisation) if stages else None
        self.utilisation = top.utilisation if top is not None else 0.0
        self._note_fullest(top if top is not None and top.depth else None)
        level = self._thresholds.level(self.utilisation, self.level)
        if level is not self.level:
            self._change(level)
        self._set_alarm()
        return self.level

    def _step(self) -> int:
        mark = self._thresholds.warning if self.level is NORMAL else 0.0
        steps = [self._messages_to(mark, one) for one in self._stages if one.capacity]
        return max(1, min(STEP_MAX, *steps)) if steps else 1

    def _messages_to(self, mark: float, stage: Stage) -> int:
        """After how many messages to look at a stage again, so that its mark is not missed by much."""
        soon = stage.capacity // LOOKS_PER_CAPACITY
        if stage.name in self._uncounted:
            return soon
        to_go = int(stage.capacity * mark) - stage.depth
        return max(soon, to_go // (LOOKS_TO_MARK * len(stage.readings)))

    def _read_all(self) -> list[Stage]:
        stages: dict[str, list[Reading]] = {}
        for stage, read, _ in self._sources:
            if readings := self._read(read):
                stages[stage] = stages[stage] + readings if stage in stages else readings
        return [summed(stage, readings) for stage, readings in stages.items()]

    def _read(self, read: ReadDepths) -> list[Reading]:
        try:
            readings = list(read())
        except Exception:
            if read not in self._broken:
                self._broken.add(read)
                logger.exception("the depths of %s cannot be read", self.subsystem)
            return []
        self._broken.discard(read)
        return readings

    def _note_fullest(self, top: Stage | None) -> None:
        before, self._fullest = self._fullest, top
        if top is not None and (before is None or before.name != top.name):
            self._fullest_since_ms = self._clock.time_ms()

    def _bottleneck(self) -> Bottleneck | None:
        top = self._fullest
        if top is None:
            return None
        return Bottleneck(top.name, top.fullest, since=utc(self._fullest_since_ms))

    def _set_alarm(self) -> None:
        """Come back while there is pressure: when nobody publishes, nobody else would look."""
        if self._timers is None or self.level is NORMAL or self._alarm is not None:
            return
        with suppress(RuntimeError):  # without a running loop the next message has to look
            asyncio.get_running_loop()
            self._alarm = self._timers.call_after(self._interval, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self.evaluate()

    def close(self) -> None:
        """Look no more by itself."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._timers = None

    # Changes

    def on_change(self, callback: OnBackpressureChanged) -> Callable[[], None]:
        """Call back on every change of the level, once; returns what ends that."""
        wrapped: OnBackpressureChanged = guarded(callback)
        self._callbacks.append(wrapped)
        return lambda: self._callbacks.remove(wrapped) if wrapped in self._callbacks else None

    def _change(self, level: BackpressureState) -> None:
        change = BackpressureStateChanged(
            previous=self.level,
            current=level,
            subsystem=self.subsystem,
            time=utc(self._clock.time_ms()),
            utilisation=self.utilisation,
            bottleneck=str(self._bottleneck() or ""),
        )
        self._seconds[self.level] += self._clock.monotonic() - self._since.monotonic
        self._since = _Moment(self._clock.monotonic(), self._clock.time_ms())
        self.level = level
        self.look_at = self._due if level is NORMAL else 0
        self.transitions += 1
        self._changes.append(change)
        self._tell()

    def _tell(self) -> None:
        """Tell in order: who is told may make us look again, and must not overtake the others."""
        if self._telling:
            return
        self._telling = True
        try:
            while self._changes:
                change = self._changes.popleft()
                logger.info("%s", describe(change))
                for callback in tuple(self._callbacks):
                    callback(change)
        finally:
            self._telling = False

    def statistics(self) -> PressureStatistics:
        """The figures of this moment; looks before."""
        self.evaluate()
        lasted = self._clock.monotonic() - self._since.monotonic
        seconds = dict(self._seconds)
        seconds[self.level] += lasted
        return PressureStatistics(
            subsystem=self.subsystem,
            level=self.level,
            since=utc(self._since.time_ms),
            lasted=lasted,
            utilisation=self.utilisation,
            bottleneck=self._bottleneck(),
            stages=tuple(stage.statistics() for stage in self._stages),
            seconds=seconds,
            transitions=self.transitions,
            thresholds=self._thresholds,
        )


def utc(time_ms: int) -> datetime:
    """A moment of the clock, as people read it."""
    return datetime.fromtimestamp(time_ms / 1_000, tz=UTC)


def describe(change: BackpressureStateChanged) -> str:
    """A change of the level, in words."""
    return (
        f"the pressure of {change.subsystem} went from {change.previous.name} to "
        f"{change.current.name} at {change.utilisation:.0%}; fullest: {change.bottleneck or 'none'}"
    )
