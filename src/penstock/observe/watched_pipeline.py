"""A pipeline on Spark as an observer sees it. Spark is not imported: whoever watches one has it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from penstock.observe.values import Cause, GroupKind, QuerySnapshot
from penstock.observe.watched import Position, Sight, Watched, Why
from penstock.streaming.lag_pressure import GroupLag
from penstock.system import SECOND_MS, System


class PipelineLike(Protocol):
    """What a running pipeline tells."""

    def status(self) -> Sequence[Any]:
        """How every output is doing."""
        ...

    def lags(self) -> Sequence[GroupLag]:
        """How far each output is behind."""
        ...


class WatchedPipeline(Watched):
    """The queries of a running pipeline. Spark is asked in a thread: its answers take a while."""

    def __init__(self, pipeline: PipelineLike, name: str, *, system: System) -> None:
        super().__init__(pipeline, name)
        self._pipeline = pipeline
        self._clock = system.clock
        self._queries: tuple[QuerySnapshot, ...] = ()
        self._at = self._clock.monotonic()

    async def look(self) -> None:
        self._queries = await asyncio.to_thread(self._ask)
        self._at = self._clock.monotonic()

    def _ask(self) -> tuple[QuerySnapshot, ...]:
        lags = {one.group: one for one in self._pipeline.lags()}
        return tuple(self._query(one, lags.get(one.group)) for one in self._pipeline.status())

    def _query(self, status: Any, lag: GroupLag | None) -> QuerySnapshot:
        return QuerySnapshot(
            pipeline=self.name,
            name=status.name,
            group=status.group,
            running=status.running,
            micro_batch=status.micro_batch,
            rows=status.rows,
            input_rows_per_second=status.input_rows_per_second,
            processed_rows_per_second=status.processed_rows_per_second,
            batch_seconds=status.seconds,
            write_seconds=status.write_seconds,
            state_rows=status.state_rows,
            state_bytes=status.state_bytes,
            rows_too_late=status.rows_too_late,
            watermark=status.watermark,
            watermark_lag_seconds=status.watermark_lag_seconds,
            lag_records=lag.records if lag else 0,
            lag_seconds=lag.milliseconds / SECOND_MS if lag else 0.0,
            error=status.error,
        )

    def read(self, sight: Sight) -> None:
        sight.queries.extend(self._queries)

    def positions(self) -> Iterable[Position]:
        for query in self._queries:
            yield Position(
                kind=GroupKind.SPARK,
                source=self.name,
                group=query.group,
                topic="(all)",
                partition=None,
                records=query.lag_records,
                done=query.micro_batch,
                count=max(0, query.micro_batch),
                at=self._at,
                age_seconds=query.lag_seconds,
            )

    def explain(self, position: Position) -> Why | None:
        for query in self._queries:
            if query.group == position.group and query.error is not None:
                return Why(cause=Cause.QUERY_FAILED, detail=f"the query failed: {query.error}")
        for query in self._queries:
            if query.group == position.group and not query.running:
                return Why(cause=Cause.NO_MEMBER, detail="the query does not run")
        return None

    def troubles(self) -> Iterable[str]:
        for query in self._queries:
            if query.error is not None:
                yield f"query {query.group!r} failed: {query.error}"
