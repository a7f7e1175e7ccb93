"""A pipeline that runs: its queries, how they are doing, and what it leaves out under pressure."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import DamagedFile, DeadlineExceeded, HandlerFailed
from penstock.pressure import DegradationDirective
from penstock.spark.checkpoint import ready_checkpoint
from penstock.spark.degrading import LagLevels
from penstock.spark.kafka_topics import write_topics
from penstock.spark.listener import Followed, follow_as, is_followed, watermark_lag_of
from penstock.spark.pipeline import Output, Pipeline
from penstock.spark.reader import Reader, reader_of
from penstock.spark.session import make_active
from penstock.spark.sink_number import sink_number
from penstock.spark.updating import check_update, update_writer
from penstock.streaming.lag_pressure import GroupLag
from penstock.system import System

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

STOP_SECONDS = 60.0
LOOK_SECONDS = 0.2
ADJUST_SECONDS = 1.0
HEAR_SECONDS = 10.0
START_SECONDS = 60.0
STARTS_MAX = 10
TOO_SLOW = "Python worker failed to connect back"


@dataclass(frozen=True, kw_only=True)
class OutputStatus:
    """How one output is doing."""

    name: str
    group: str
    running: bool
    micro_batch: int
    """The number of the last one, -1 before the first."""
    rows: int
    """Read in the last micro-batch."""
    rows_in_all: int
    """Read since the query was started."""
    input_rows_per_second: float
    processed_rows_per_second: float
    seconds: float
    """That the last micro-batch took."""
    write_seconds: float
    """Of these: from the first row that was read to the commit of the sink."""
    state_rows: int
    state_bytes: int
    rows_too_late: int
    """Dropped since the query was started, because they were behind the watermark."""
    watermark: str | None
    watermark_lag_seconds: float
    """How far the watermark was behind the clock; 0 without one, or before it moved."""
    error: str | None


class RunningPipeline:
    """The queries of a pipeline. It belongs to one thread.

    *When a query fails*, the others go on; :meth:`wait` raises its error when they are done, or when
    the time is up. *After a crash* everything goes on where the checkpoints say, and no output has
    anything twice.
    """

    def __init__(
        self, pipeline: Pipeline, spark: SparkSession, *, every: str | None, once: bool
    ) -> None:
        self._pipeline = pipeline
        self._spark = spark
        self._every = every
        self._once = once
        self._clock = System().clock
        self._queries: dict[str, StreamingQuery] = {}
        self._followed: dict[str, Followed] = {}
        self._outputs = {output.name: output for output in pipeline.all_outputs()}
        limit = pipeline.lag_records_max
        self._levels = None if limit is None or once else LagLevels(limit, self._clock)
        self._adjusted = self._clock.monotonic()

    @property
    def queries(self) -> Mapping[str, StreamingQuery]:
        """Spark's own handles, by the name of the output."""
        return dict(self._queries)

    def start(self, tell: Callable[[str], None] | None = None) -> None:
        """Start what does not run; when one cannot be started, those that were are stopped.

        Each takes seconds; ``tell`` gets a line for each that runs.
        """
        make_active(self._spark)
        self._ready_checkpoints()
        try:
            for output in self._outputs.values():
                if output.name not in self._queries:
                    self._queries[output.name] = self._start_surely(output)
                    if tell is not None:
                        count = f"{len(self._queries)} of {len(self._outputs)}"
                        tell(f"{output.name} runs, {count}")
        except BaseException:
            self.stop()
            raise

    def wait(self, timeout: float) -> None:
        """Return when every query has ended; those that run for ever are waited for until the time is up.

        Raises HandlerFailed with the error of a query that failed, and DeadlineExceeded.
        """
        end = self._clock.monotonic() + timeout
        while any(query.isActive for query in self._queries.values()):
            if self._clock.monotonic() > end:
                names = ", ".join(name for name, one in self._queries.items() if one.isActive)
                raise DeadlineExceeded(
                    f"after {timeout:g} s still at work: {names}", seconds=timeout
                )
            self._rest()
        self._hear_all()
        self._raise_failure()

    def serve(
        self, is_over: Callable[[], bool], on_look: Callable[[], object] | None = None
    ) -> None:
        """Run until it is told to end, or no query runs any more; then stop.

        ``on_look`` is called a few times a second, to show how it goes. A query that failed does not
        end the others; in the end its error is raised, as HandlerFailed.
        """
        try:
            while not is_over() and any(query.isActive for query in self._queries.values()):
                if on_look is not None:
                    on_look()
                self._rest()
        finally:
            self.stop()
        self._raise_failure()

    def adjust(self) -> DegradationDirective:
        """Look at the lag of the slowest output, and leave out what it asks for; what that is.

        Nothing with no ``lag_records_max``. Up and down go at different marks, and not more often than
        every 15 seconds. :meth:`wait` and :meth:`serve` call it once a second.
        """
        if self._levels is None:
            return self._pipeline.directive
        directive = self._levels.directive(max((lag.records for lag in self.lags()), default=0))
        self.degrade(directive)
        return directive

    def lags(self) -> list[GroupLag]:
        """How far each output is behind, over all topics that it reads."""
        return [self._pipeline.lag_of(output) for output in self._outputs.values()]

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Stop all queries, between two micro-batches where possible; nothing is lost by it."""
        end = self._clock.monotonic() + timeout
        while any(map(_is_busy, self._queries.values())) and self._clock.monotonic() < end:
            self._clock.sleep(LOOK_SECONDS)
        for query in self._queries.values():
            query.stop()
        self._hear_all()

    def status(self) -> list[OutputStatus]:
        """How every output is doing, as values."""
        return [self._status(name, query) for name, query in self._queries.items()]

    def degrade(self, directive: DegradationDirective) -> None:
        """Leave out what the directive says, and take it up again when that says nothing.

        Larger micro-batches and skipped enrichment need another plan, so the queries are stopped and
        started again where they were. A directive that changes nothing does nothing.
        """
        before = self._pipeline.directive
        self._pipeline.directive = directive
        if _plan_of(before) == _plan_of(directive):
            return
        self.stop()
        self._queries.clear()
        self.start()

    # Inside

    def _rest(self) -> None:
        self._clock.sleep(LOOK_SECONDS)
        if self._clock.monotonic() - self._adjusted >= ADJUST_SECONDS:
            self.adjust()
            self._adjusted = self._clock.monotonic()

    def _hear_all(self) -> None:
        """Wait for what Spark has to tell of queries that ended: the ledger and the offsets follow it."""
        end = self._clock.monotonic() + HEAR_SECONDS
        while any(map(is_followed, self._queries.values())) and self._clock.monotonic() < end:
            self._clock.sleep(LOOK_SECONDS / 10)

    def _ready_checkpoints(self) -> None:
        """Mend what can be mended. What cannot is told at once, for all outputs."""
        pipeline = self._pipeline
        lost: list[DamagedFile] = []
        for output in self._outputs.values():
            if output.name in self._queries:
                continue
            try:
                ready_checkpoint(
                    pipeline.checkpoint_of(output), pipeline.ledger_of(output),
                    committed=partial(sink_number, pipeline, output), way_out=_reset_by(output),
                )  # fmt: skip
            except DamagedFile as damage:
                lost.append(damage)
        if lost:
            raise lost[0] if len(lost) == 1 else DamagedFile("\n".join(map(str, lost)))

    def _start_surely(self, output: Output) -> StreamingQuery:
        """Start a query and wait until its sources are there.

        Each has a process, which Spark gives ten seconds to start: on a busy machine many at a time
        would be too slow. One that was too slow all the same is started again.
        """
        for _ in range(STARTS_MAX - 1):
            query = self._start(output)
            end = self._clock.monotonic() + START_SECONDS
            while _is_starting(query) and self._clock.monotonic() < end:
                self._clock.sleep(LOOK_SECONDS / 4)
            if TOO_SLOW not in str(query.exception() or ""):
                return query
        return self._start(output)

    def _start(self, output: Output) -> StreamingQuery:
        pipeline = self._pipeline
        checkpoint = pipeline.checkpoint_of(output)
        frame = pipeline.build(output, self._spark)
        writer = (
            self._target(frame, output)
            .option("checkpointLocation", checkpoint)
            .outputMode(output.mode)
            .queryName(pipeline.group_of(output))
        )
        if self._once:
            writer = writer.trigger(availableNow=True)
        elif self._every:
            writer = writer.trigger(processingTime=self._every)
        reader = self._reader(output)
        try:
            query = writer.start()
        except BaseException:
            reader.close()
            raise
        self._followed[output.name] = follow_as(query, reader, pipeline.ledger_of(output))
        return query

    def _reader(self, output: Output) -> Reader:
        """The group of an output, claimed."""
        pipeline = self._pipeline
        reader = reader_of(pipeline.log, pipeline.group_of(output))
        reader.claim(pipeline.open_state(), pipeline.topics_of(output))
        return reader

    def _target(self, frame: DataFrame, output: Output) -> DataStreamWriter:
        if output.format == "kafka":
            options = {name: text for name, text in output.options.items() if name != "path"}
            written: DataStreamWriter = write_topics(frame, self._pipeline.log, **options)
            return written
        if output.mode != "update":
            return frame.writeStream.format(output.format).options(**output.options)
        check_update(frame, output.keys)
        group = self._pipeline.group_of(output)
        return frame.writeStream.foreachBatch(update_writer(output, group))

    def _status(self, name: str, query: StreamingQuery) -> OutputStatus:
        progress: Any = query.lastProgress
        state = progress.stateOperators if progress else []
        failure = query.exception()
        return OutputStatus(
            name=name,
            group=self._pipeline.group_of(self._outputs[name]),
            running=query.isActive,
            micro_batch=progress.batchId if progress else -1,
            rows=progress.numInputRows if progress else 0,
            rows_in_all=self._followed[name].rows,
            input_rows_per_second=progress.inputRowsPerSecond if progress else 0.0,
            processed_rows_per_second=progress.processedRowsPerSecond if progress else 0.0,
            seconds=progress.batchDuration / 1_000 if progress else 0.0,
            write_seconds=progress.durationMs.get("addBatch", 0) / 1_000 if progress else 0.0,
            state_rows=sum(one.numRowsTotal for one in state),
            state_bytes=sum(one.memoryUsedBytes for one in state),
            rows_too_late=self._followed[name].rows_too_late,
            watermark=(progress.eventTime or {}).get("watermark") if progress else None,
            watermark_lag_seconds=watermark_lag_of(progress) if progress else 0.0,
            error=_first_line(failure),
        )

    def _raise_failure(self) -> None:
        for name, query in self._queries.items():
            failure = query.exception()
            if failure is not None:
                raise HandlerFailed(
                    f"output {name!r} of pipeline {self._pipeline.name!r} failed: {_first_line(failure)}",
                    output=name,
                ) from failure


def _reset_by(output: Output) -> str:
    """The commands that let an output start anew."""
    file = getattr(inspect.unwrap(output.build), "__code__", None)
    name = shlex.quote(file.co_filename if file else "pipeline.py")
    return (
        f"`penstock pipeline reset {name} {output.name} --yes` removes its rows, its checkpoint and its "
        f"ledger, and `penstock pipeline run {name}` reads them"
    )


def _is_starting(query: StreamingQuery) -> bool:
    return query.isActive and query.status["message"].startswith("Initializing")


def _is_busy(query: StreamingQuery) -> bool:
    return (
        query.isActive
        and bool(query.status["isTriggerActive"])
        and bool(query.status["isDataAvailable"])
    )


def _plan_of(directive: DegradationDirective) -> tuple[bool, bool]:
    return directive.batch_more, directive.skip_enrichment


def _first_line(failure: Any) -> str | None:
    return None if failure is None else str(failure).strip().splitlines()[0]
