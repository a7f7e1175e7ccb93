"""The sink of ``format("penstock")``: each micro-batch becomes records of topics, exactly once.

Tasks stage records, durably and out of sight; the driver's commit makes all of them visible in one
transaction, under the query's id and the number of the micro-batch. A batch that Spark does again is
recognised by them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.taskcontext import TaskContext

from penstock.errors import PenstockError
from penstock.log.topic import TopicConfig, TopicFile
from penstock.log.transaction_staging import StagedRecords
from penstock.log.transactions import Transactions
from penstock.spark.open_log import open_log
from penstock.spark.sink_options import SinkOptions, check_columns
from penstock.spark.sink_rows import columns_of, split_topics
from penstock.system import System

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"
ONCE = "spark-write"


@dataclass
class Staged(WriterCommitMessage):
    """What a task staged, as bytes."""

    producer: str
    records: bytes


class _Writing:
    """What both writers do: tasks stage, the driver commits."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options

    def _stage(self, producer: str, batches: Iterator[pa.RecordBatch]) -> Staged:
        writer = self._transactions().writer(producer)
        try:
            for batch in batches:
                for topic, rows in split_topics(batch, self._options.topic):
                    self._make(topic)
                    writer.add(topic, columns_of(rows))
            return Staged(producer, writer.finish().encode())
        except BaseException:
            # Spark tells nobody of what a task that failed has staged.
            with suppress(PenstockError):
                writer.abandon()
            raise

    def _make(self, topic: str) -> None:
        """The topic, when it is not there."""
        file = TopicFile(open_log(self._options.path).store, topic)
        if not file.exists():
            file.create(TopicConfig(partitions=self._options.partitions), System().clock.time_ms())

    def _commit(self, producer: str, messages: Sequence[Any], number: int) -> None:
        transactions = self._transactions()
        try:
            transactions.commit(
                transactions.open(producer), number=number, staged=_staged(messages)
            )
        finally:
            transactions.close()

    def _undo(self, producer: str, messages: Sequence[Any], number: int) -> None:
        """Remove what was staged, unless it is committed: Spark also aborts what it forgot to note."""
        transactions = self._transactions()
        if transactions.last_number(producer) < number:
            transactions.discard(_staged(messages))

    def _transactions(self) -> Transactions:
        return Transactions(open_log(self._options.path).store)


class PenstockWriter(_Writing, DataSourceArrowWriter):
    """A frame to topics. With ``txnAppId`` and ``txnVersion`` to do it again changes nothing."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        # One of its own for each write, so that two at a time do not fence each other.
        self._producer = options.application or f"{ONCE}-{System().random.getrandbits(64):016x}"
        self._number = options.version or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task."""
        return self._stage(self._producer, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when all tasks are done."""
        self._commit(self._producer, messages, self._number)
        if self._options.application is None:
            self._transactions().forget(self._producer)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when a task failed, or the commit."""
        self._undo(self._producer, messages, self._number)


class PenstockStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """A stream to topics: each micro-batch once, however often Spark does it."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task."""
        context = TaskContext.get()
        assert context is not None, "Spark calls it in a task"
        return self._stage(f"spark-{context.getLocalProperty(QUERY_ID)}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """On the driver, when all tasks of the micro-batch are done."""
        producer = _producer_of(messages)
        if producer is not None:
            self._commit(producer, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """On the driver, when a task failed, or the commit, or Spark's note of it."""
        producer = _producer_of(messages)
        if producer is not None:
            self._undo(producer, messages, batchId)


def _staged(messages: Sequence[Any]) -> list[StagedRecords]:
    return [StagedRecords.decode(one.records) for one in messages if isinstance(one, Staged)]


def _producer_of(messages: Sequence[Any]) -> str | None:
    return next((one.producer for one in messages if isinstance(one, Staged)), None)
