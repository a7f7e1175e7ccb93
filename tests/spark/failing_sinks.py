"""Sinks that fail on purpose, once, while a file of the right name is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.sink import PenstockStreamWriter
from penstock.spark.sink_options import read_sink_options
from penstock.spark.source import PenstockDataSource
from penstock.spark.table_options import read_table_options
from penstock.spark.table_sink import TableDataSource, TableStreamWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

AFTER_COMMIT = "after-commit"
BEFORE_COMMIT = "before-commit"
AFTER_ROWS = "after-rows"


class _Failing:
    """Stands before a writer."""

    _options: Any

    def write(self, iterator: Iterator[Any]) -> Any:
        return super().write(self._cut_short(iterator))  # type: ignore[misc]

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        self._fail(BEFORE_COMMIT)
        super().commit(messages, batchId)  # type: ignore[misc]
        self._fail(AFTER_COMMIT)

    def _cut_short(self, batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        self._fail(AFTER_ROWS)

    def _fail(self, where: str) -> None:
        flag = Path(self._options.path).parent / where
        if flag.exists():
            flag.unlink()
            raise RuntimeError(f"failed on purpose {where}")


class _FailingStreamWriter(_Failing, PenstockStreamWriter):
    pass


class _FailingTableWriter(_Failing, TableStreamWriter):
    pass


class FailingTopic(PenstockDataSource):
    @classmethod
    def name(cls) -> str:
        return "failing_topic"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        return _FailingStreamWriter(read_sink_options(self.options), schema)


class FailingTable(TableDataSource):
    @classmethod
    def name(cls) -> str:
        return "failing_table"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        return _FailingTableWriter(read_table_options(self.options), schema, overwrite=overwrite)
