"""A bus as an observer sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.bus.bus import MessageBus
from penstock.bus.durations import Meters
from penstock.bus.histogram import Durations
from penstock.observe.values import BusSnapshot
from penstock.observe.watched import Position, Sight, Watched
from penstock.resilience.bus import ResilientMessageBus
from penstock.scaling.bus import ScalableMessageBus
from penstock.system import System


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
        if durations:
            self._measure()

    def _measure(self) -> None:
        """Let the bus measure how long its handlers take, from now on."""
        clock = self._inner._system.clock
        dispatch, commands = self._inner._dispatch, self._inner._commands
        dispatch.meters = dispatch.meters or Meters(clock)
        commands.meters = commands.meters or Meters(clock)

    def others(self) -> Iterable[Any]:
        durable = None if self._scalable is None else self._scalable._durable
        return () if durable is None else (durable._log,)

    def read(self, sight: Sight) -> None:
        sight.buses.append(self._snapshot())

    def positions(self) -> Iterable[Position]:
        return ()

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
