"""The streaming side of the source: what each micro-batch reads, and waiting for more."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.spark.admission import admit, advance, checked_ranges
from penstock.spark.frontier import Frontier
from penstock.spark.group import Group, group_of_use
from penstock.spark.ledger import Ledger
from penstock.spark.offsets import Offsets, as_json, parse_offsets
from penstock.spark.open_log import open_log
from penstock.spark.options import SourceOptions
from penstock.spark.planning import plan_tasks
from penstock.spark.reading import Task, read_task
from penstock.spark.starting import starting_offsets

COMMIT_EVERY_SECONDS = 1.0
"""How old the group's offsets may get while one micro-batch follows the other."""

_log = logging.getLogger("penstock.spark")


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in a process of its own for as long as its query runs; tasks get a copy of it.

    So nothing is opened before the first call, and :meth:`stop` is not relied on: Spark kills the
    process.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._target: Offsets | None = None
        self._busy = True
        self._triggered: float | None = None
        self._committed: float | None = None

    @cached_property
    def _frontier(self) -> Frontier:
        return Frontier(open_log(self._options.path, self._options.tier), self._options)

    @cached_property
    def _group(self) -> Group | None:
        group = self._options.group
        if group is None:
            return None
        return Group(open_log(self._options.path), group_of_use(group, self._options.use))

    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802 - Spark's name
        """Where a query without a checkpoint starts."""
        offsets = starting_offsets(self._frontier, self._options)
        if self._group is not None:
            self._group.begin(offsets, register=self._reads_all)
        return as_json(offsets, self._options.use)

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, dict[str, int]]:
        """The end of the next micro-batch; ``start`` itself when there is nothing to read yet.

        It waits a while for records when the query is idle. ``start`` is what the micro-batches so
        far have read and Spark has committed.
        """
        begin = parse_offsets(start)
        self._claim(begin)
        end = self._next(begin, limit)
        if end == begin:
            self._tell_group(begin)
            end = self._wait_for_next(begin, limit)
        elif self._since(self._committed) >= COMMIT_EVERY_SECONDS:
            self._tell_group(begin)
        if end != begin:
            self._triggered = self._now()
        self._busy = False
        return as_json(end, self._options.use)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What the options allow a micro-batch to read; Spark knows one limit at a time."""
        if self._options.records_max is not None:
            return ReadMaxRows(self._options.records_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        if self._options.records_min is not None:
            return ReadMinRows(self._options.records_min)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802
        """The ends of all partitions, for the progress reports of the query."""
        return as_json(self._frontier.ends(), self._options.use)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what is there now and no more."""
        self._target = self._frontier.ends(anew=True)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a micro-batch; the same offsets give the same records, after a crash too."""
        self._busy = True
        options = self._options
        begin, stop = parse_offsets(start), parse_offsets(end)
        if options.group is not None:
            ledger = Ledger(open_log(options.path).store, options.group)
            ledger.plan(begin, stop, options.use)
        ranges = checked_ranges(self._frontier, begin, stop, options.fail_on_loss)
        tasks = plan_tasks(ranges, options.tasks_min, options.task_records_max)
        return [
            Task(options.path, options.tier, task, fail_on_loss=options.fail_on_loss)
            for task in tasks
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task, as Arrow."""
        return read_task(partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the offsets of the group are committed as soon as they are known."""

    # Deciding

    def _next(self, begin: Offsets, limit: ReadLimit) -> Offsets:
        """The end of the next micro-batch as things are now."""
        ends: Offsets = self._frontier.ends() if self._target is None else self._target
        options = self._options
        ends = self._frontier.within_epoch(begin, ends)
        everything = advance(begin, ends, options.fail_on_loss)
        wants_all = isinstance(limit, ReadAllAvailable)
        if self._target is None and not wants_all and self._waits_for_more(begin, everything):
            return begin
        return everything if wants_all else admit(begin, everything, self._frontier, options)

    def _waits_for_more(self, begin: Offsets, end: Offsets) -> bool:
        minimum = self._options.records_min
        if minimum is None or self._since(self._triggered) * 1_000 >= self._options.delay_ms_max:
            return False
        new = sum(sum(of.values()) for of in end.values())
        return new - sum(sum(of.values()) for of in begin.values()) < minimum

    def _wait_for_next(self, begin: Offsets, limit: ReadLimit) -> Offsets:
        """The same, after a while if need be. A query with other, busy sources is not held up."""
        end = begin
        deadline = self._now() + self._options.long_poll_ms / 1_000
        while self._target is None and not self._busy and end == begin:
            left = deadline - self._now()
            if left <= 0:
                break
            self._frontier.wait(left)
            end = self._next(begin, limit)
        return end

    # The group

    @property
    def _reads_all(self) -> bool:
        """Retention waits for a group that reads all partitions, not for one that skips some."""
        return self._options.partitions is None

    def _claim(self, begin: Offsets) -> None:
        if self._group is not None:
            for topic in begin:
                self._group.claim(topic)

    def _tell_group(self, offsets: Offsets) -> None:
        if self._group is not None:
            self._group.commit(offsets, register=self._reads_all)
            self._committed = self._now()

    def _now(self) -> float:
        return open_log(self._options.path, self._options.tier).system.clock.monotonic()

    def _since(self, then: float | None) -> float:
        return float("inf") if then is None else self._now() - then
