"""A streaming manager as an observer sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.observe.run_causes import why_of_run
from penstock.observe.values import GroupKind, StreamsSnapshot
from penstock.observe.watched import Position, Sight, Watched, Why
from penstock.pressure.readings import PressureStatistics
from penstock.streaming.manager import StreamingScalingManager
from penstock.streaming.stream_run import StreamRun
from penstock.streaming.topic_watch import TopicWatch
from penstock.system import SECOND_MS, System
from penstock.transports.embedded import EmbeddedTransport

DECISIONS_MAX = 100
"""So many of the newest decisions are in a snapshot."""


class WatchedStreams(Watched):
    """A manager, with its transports and runs.

    The manager looks at its topics itself; here is what it saw last.
    """

    def __init__(self, manager: StreamingScalingManager, name: str, *, system: System) -> None:
        super().__init__(manager, name)
        self._manager = manager
        self._clock = system.clock

    def others(self) -> Iterable[Any]:
        """The logs of embedded transports, and connections to brokers, once they are open."""
        for slot in self._manager._transports._slots.values():
            if slot.opened:
                at = slot.transport
                yield at.queue if isinstance(at, EmbeddedTransport) else at

    def read(self, sight: Sight) -> None:
        manager = self._manager
        sight.streams.append(
            StreamsSnapshot(
                name=self.name,
                publishers=manager.handler.statistics(),
                lag_pressure=self._lag_pressure(),
                transports=manager.statistics(),
                runs=tuple(run.statistics() for run in self._runs()),
                decisions=tuple(manager.decisions()[-DECISIONS_MAX:]),
                scaling=manager.get_scaling_metrics(),
            )
        )

    def _lag_pressure(self) -> dict[str, PressureStatistics]:
        pressure = self._manager.lag_pressure
        topics = {watch.topic for watch in self._manager._watches}
        found = {topic: pressure.statistics(topic) for topic in sorted(topics)}
        return {topic: one for topic, one in found.items() if one is not None}

    def _runs(self) -> list[StreamRun]:
        return list(self._manager._runs._runs)

    # Groups

    def positions(self) -> Iterable[Position]:
        """Groups on brokers. Those of an embedded transport are in its log, which is looked at."""
        for watch in self._manager._watches:
            if not isinstance(watch.slot.transport, EmbeddedTransport):
                yield from self._positions(watch)

    def _positions(self, watch: TopicWatch) -> Iterable[Position]:
        streams = {id(one) for one in self._manager._streams.values()}
        for group, lags in watch.lags.items():
            runs = [run for run in self._manager._runs.of(watch) if run.group == group]
            for lag in lags:
                yield Position(
                    kind=GroupKind.BROKER,
                    source=watch.slot.transport.name,
                    group=group,
                    topic=watch.topic,
                    partition=lag.partition,
                    records=lag.records,
                    done=lag.committed,
                    count=lag.committed,
                    at=self._clock.monotonic(),
                    committed=lag.committed,
                    end=lag.end,
                    age_seconds=lag.milliseconds / SECOND_MS if lag.records else 0.0,
                    since_ms=lag.committed_ms,
                    local=bool(runs) or (group in watch.groups and id(watch) in streams),
                )

    def explain(self, position: Position) -> Why | None:
        wanted = (position.topic, position.group)
        mine = (run for run in self._runs() if (run.topic, run.group) == wanted)
        return next((why for run in mine if (why := why_of_run(run, position)) is not None), None)
