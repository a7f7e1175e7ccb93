"""``format("penstock_table")``: a stream or a frame of Spark into a Delta table, exactly once.

Tasks write Parquet files; the driver's commit makes them part of the table under the query's id and
the number of the micro-batch. No Delta connector for Spark is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.taskcontext import TaskContext

from penstock.spark.table_options import TableOptions, check_delta, read_table_options

# Spark imports this module whenever it looks for any source, also where tables cannot be written. So what
# writes them is loaded when it is used.
if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.spark.table_files import WrittenFile

QUERY_ID = "sql.streaming.queryId"


@dataclass
class Staged(WriterCommitMessage):
    """What a task wrote, and for which query."""

    query_id: str | None
    files: tuple[WrittenFile, ...]


class TableDataSource(DataSource):
    """A Delta table as a sink, of streams (append and complete mode) and of batches."""

    @classmethod
    def name(cls) -> str:
        """What stands in ``format(...)``."""
        return "penstock_table"

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        """For ``df.write``."""
        return TableWriter(read_table_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TableStreamWriter:  # noqa: N802 - Spark's name
        """For ``df.writeStream``; ``overwrite`` is the complete mode."""
        return TableStreamWriter(read_table_options(self.options), schema, overwrite=overwrite)


class _Writing:
    """What both writers do: the driver checks, tasks write, the driver commits."""

    def __init__(self, options: TableOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._overwrite = overwrite
        check_delta()
        from penstock.spark.table_commit import check_schema

        check_schema(options, self._schema)

    def _write(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        from penstock.spark.table_files import write_files

        options = self._options
        files = write_files(
            options.path, batches, self._schema, options.partition_by, options.file_rows_max
        )
        context = TaskContext.get()
        return Staged(context.getLocalProperty(QUERY_ID) if context else None, files)

    def _commit(self, messages: Sequence[Any], transaction: tuple[str, int] | None) -> None:
        from penstock.spark.table_commit import commit_files

        commit_files(
            self._options, self._schema, _files_of(messages),
            transaction=transaction, overwrite=self._overwrite,
        )  # fmt: skip

    def _undo(self, messages: Sequence[Any], transaction: tuple[str, int] | None) -> None:
        """Remove what was written, unless it is part of the table."""
        from penstock.spark.table_commit import is_committed
        from penstock.spark.table_files import remove_files

        if transaction is None or not is_committed(self._options.path, *transaction):
            remove_files(self._options.path, [one.path for one in _files_of(messages)])


class TableWriter(_Writing, DataSourceArrowWriter):
    """A frame into a table. With ``txnAppId`` and ``txnVersion`` to do it again changes nothing."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task."""
        return self._write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when all tasks are done."""
        self._commit(messages, self._transaction())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when a task failed, or the commit."""
        self._undo(messages, self._transaction())

    def _transaction(self) -> tuple[str, int] | None:
        application, version = self._options.application, self._options.version
        return None if application is None or version is None else (application, version)


class TableStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """A stream into a table: each micro-batch once, however often Spark does it."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task."""
        return self._write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """On the driver, when all tasks of the micro-batch are done."""
        query_id = _query_of(messages)
        if query_id is not None:
            self._commit(messages, (query_id, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """On the driver. Spark also calls it after a commit that it did not note: that one stays."""
        query_id = _query_of(messages)
        self._undo(messages, None if query_id is None else (query_id, batchId))


def _files_of(messages: Sequence[Any]) -> list[WrittenFile]:
    return [file for one in messages if isinstance(one, Staged) for file in one.files]


def _query_of(messages: Sequence[Any]) -> str | None:
    return next((one.query_id for one in messages if isinstance(one, Staged)), None)
