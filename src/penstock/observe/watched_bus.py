"""A bus as an observer sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.bus.bus import MessageBus
from penstock.bus.durations import Meters
from penstock.bus.histogram import Durations
from penstock.bus.lane import Lane
from penstock.messages import Envelope, marks_of
from penstock.observe.bus_causes import Handlers, Running, first_open, why_parked, why_running
from penstock.observe.values import BusSnapshot, Cause, GroupKind
from penstock.observe.watched import Position, Sight, Watched, Why
from penstock.resilience.bus import ResilientMessageBus
from penstock.scaling.bus import ScalableMessageBus
from penstock.scaling.durable import DurableTopics
from penstock.system import SECOND_MS, System


class WatchedBus(Watched):
    """A bus, plain, resilient or scalable."""

    def __init__(
        self,
        bus: MessageBus | ScalableMessageBus,
        name: str,
        *,
        durations: bool,
        system: System,
    ) -> None:
        super().__init__(bus, name)
        self._bus = bus
        self._scalable = bus if isinstance(bus, ScalableMessageBus) else None
        self._inner: MessageBus = bus._inner if isinstance(bus, ScalableMessageBus) else bus
        self._system = system
        self._handlers = Handlers(self._inner)
        self._running: list[Running] = []
        """As of the last time that somebody asked where the groups stand."""
        if durations:
            self._measure()

    def _measure(self) -> None:
        """Let the bus measure how long its handlers take, from now on."""
        clock = self._inner._system.clock
        dispatch, commands = self._inner._dispatch, self._inner._commands
        dispatch.meters = dispatch.meters or Meters(clock)
        commands.meters = commands.meters or Meters(clock)
        self._inner._registry.touch()

    def others(self) -> Iterable[Any]:
        return () if self._durable is None else (self._durable._log,)

    @property
    def _durable(self) -> DurableTopics | None:
        return None if self._scalable is None else self._scalable._durable

    def read(self, sight: Sight) -> None:
        sight.buses.append(self._snapshot())

    # Groups

    def positions(self) -> Iterable[Position]:
        """The lanes of topics that are in memory. Those in a log are groups of the log."""
        now = self._system.clock.monotonic()
        self._running = self._handlers.running(now)
        running: dict[str, list[Running]] = {}
        for one in self._running:
            running.setdefault(one.topic, []).append(one)
        lanes: dict[str, list[Lane]] = {}
        for lane in self._inner._intake.all_lanes():
            if self._durable is None or not self._durable.covers(lane.kind):
                lanes.setdefault(marks_of(lane.kind).topic, []).append(lane)
        for topic, several in sorted(lanes.items()):
            yield self._position(topic, several, running.get(topic, []), now)

    def _position(
        self, topic: str, lanes: list[Lane], running: list[Running], now: float
    ) -> Position:
        waiting = sum(len(lane.queue) + lane.queue.held for lane in lanes)
        handled = self._handled({lane.kind for lane in lanes})
        age = self._system.clock.time_ms() - running[0].envelope.time_ms if running else 0
        return Position(
            kind=GroupKind.LANE,
            source=self.name,
            group=self.name,
            topic=topic,
            partition=None,
            records=waiting + len(running),
            done=(handled, frozenset(id(one.envelope) for one in running)),
            count=handled,
            at=now,
            age_seconds=max(0, age) / SECOND_MS,
            held_since=running[0].since if running else None,
        )

    def _handled(self, kinds: set[type]) -> int:
        handlers = {one for kind in kinds for one in self._inner._registry.all_of(kind)}
        return sum(one.handled + one.failed + one.filtered for one in handlers)

    def explain(self, position: Position) -> Why | None:
        if position.kind is GroupKind.LANE:
            return self._explain_lane(position) if position.source == self.name else None
        return None if self._durable is None else self._explain_group(position, self._durable)

    def _explain_lane(self, position: Position) -> Why | None:
        if not self._inner._running:
            return Why(cause=Cause.PAUSED, detail="the bus does not run: start it")
        return self._why_running(position.topic) or why_parked(
            self._inner, lambda envelope: envelope.topic == position.topic
        )

    def _explain_group(self, position: Position, durable: DurableTopics) -> Why | None:
        work = first_open(durable, position.topic, position.group, position.partition)
        if work is None:
            return None
        envelope = work.envelope
        why = None if envelope is None else self._why_held(envelope)
        why = why or self._why_running(position.topic, position.group)
        return why or Why(
            cause=Cause.NO_PROGRESS,
            detail="it was read and no handler has got it",
            offset=work.record.offset,
        )

    def _why_held(self, envelope: Envelope) -> Why | None:
        now = self._system.clock.monotonic()
        for one in self._running:
            if one.envelope is envelope:
                return why_running(one, now)
        return why_parked(self._inner, lambda other: other is envelope)

    def _why_running(self, topic: str, group: str | None = None) -> Why | None:
        """The handler of a topic that runs longest; others may wait behind it."""
        now = self._system.clock.monotonic()
        for one in self._running:
            if one.topic == topic and group in (None, one.envelope.group):
                return why_running(one, now)
        return None

    # Figures

    def _snapshot(self) -> BusSnapshot:
        scalable = self._scalable
        resilient = self._inner if isinstance(self._inner, ResilientMessageBus) else None
        breakers = {} if resilient is None else resilient.breakers()
        return BusSnapshot(
            name=self.name,
            figures=self._bus.statistics(),
            event_durations=_durations(self._inner._dispatch.meters),
            command_durations=_durations(self._inner._commands.meters),
            pressure=None if scalable is None else scalable.backpressure.statistics(),
            dead_letters=None if resilient is None else resilient.dead_letters.statistics(),
            breakers={label: one.statistics() for label, one in breakers.items()},
            errors=None if resilient is None else resilient.errors(),
            scaling=None if scalable is None else scalable.get_scaling_metrics(),
        )


def _durations(meters: Meters | None) -> Mapping[str, Durations]:
    return {} if meters is None else meters.durations()
