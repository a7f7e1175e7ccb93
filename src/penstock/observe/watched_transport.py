"""A transport as an observer sees it: its connection, and the groups of its broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.log.lag import PartitionLag
from penstock.observe.values import Cause, GroupKind, TransportSnapshot
from penstock.observe.watched import Position, Sight, Watched, Why
from penstock.system import SECOND_MS, System
from penstock.transports.base import Transport
from penstock.transports.embedded import EmbeddedTransport
from penstock.transports.statistics import ConnectionStatistics

TOPICS_MAX = 1_000
"""More topics of a broker are not looked at."""


class WatchedTransport(Watched):
    """A transport. With ``groups`` all topics and groups of the broker are looked at."""

    def __init__(self, transport: Transport, name: str, *, groups: bool, system: System) -> None:
        super().__init__(transport, name)
        self._transport = transport
        self._groups = groups and not isinstance(transport, EmbeddedTransport)
        self._clock = system.clock
        self._lags: dict[tuple[str, str], tuple[PartitionLag, ...]] = {}
        self._at = self._clock.monotonic()

    def others(self) -> Iterable[Any]:
        at = self._transport
        return (at.queue,) if isinstance(at, EmbeddedTransport) else ()

    async def look(self) -> None:
        can = self._transport.capabilities
        if not (self._groups and can.lag and can.list_groups):
            return
        lags = {}
        for topic in list(await self._transport.topics())[:TOPICS_MAX]:
            for group in await self._transport.groups(topic):
                lags[topic, group] = tuple(await self._transport.lag(topic, group))
        self._lags = lags
        self._at = self._clock.monotonic()

    def read(self, sight: Sight) -> None:
        if isinstance(self._transport, EmbeddedTransport):
            return  # its log tells more
        sight.transports.append(
            TransportSnapshot(name=self.name, connection=self._connection(), error=self.error)
        )

    def _connection(self) -> ConnectionStatistics:
        read = getattr(self._transport, "statistics", None)
        figures: Any = None if read is None else read()
        if isinstance(figures, ConnectionStatistics):
            return figures
        return ConnectionStatistics(
            transport=self._transport.name,
            connected=bool(getattr(figures, "is_connected", self.error is None)),
            reconnects=getattr(figures, "reconnects", 0),
            errors=getattr(figures, "errors", 0),
            last_error=self.error,
            records_produced=getattr(figures, "produced", 0),
            records_consumed=getattr(figures, "delivered", 0),
        )

    # Groups

    def positions(self) -> Iterable[Position]:
        # While nobody can look, time passes for the groups all the same.
        at = self._at if self.error is None else self._clock.monotonic()
        for (topic, group), lags in self._lags.items():
            for lag in lags:
                yield Position(
                    kind=GroupKind.BROKER,
                    source=self._transport.name,
                    group=group,
                    topic=topic,
                    partition=lag.partition,
                    records=lag.records,
                    done=lag.committed,
                    count=lag.committed,
                    at=at,
                    committed=lag.committed,
                    end=lag.end,
                    age_seconds=lag.milliseconds / SECOND_MS if lag.records else 0.0,
                    since_ms=lag.committed_ms,
                    local=False,
                )

    def explain(self, position: Position) -> Why | None:
        if position.kind is not GroupKind.BROKER or position.source != self._transport.name:
            return None
        connection = self._connection()
        if connection.connected and self.error is None:
            return None
        told = self.error or connection.last_error or "the connection is lost"
        return Why(
            cause=Cause.BROKER_SILENT,
            detail=f"{self.name} does not answer: {told}",
            offset=position.committed,
        )

    def troubles(self) -> Iterable[str]:
        if isinstance(self._transport, EmbeddedTransport):
            return
        if self.error is not None:
            yield f"{self.name} cannot be looked at: {self.error}"
        elif not self._connection().connected:
            yield f"{self.name} is not connected"
