"""A warehouse table as a value: what is in it, and the verbs that keep it in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import KeyNotFound
from penstock.spark.table_commit import make_log_durable, open_table, rows_of
from penstock.spark.table_files import make_durable
from penstock.system import OsFiles

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

WEEK_HOURS = 168


@dataclass(frozen=True)
class WarehouseTable:
    """A Delta table in a folder. DuckDB, Polars, pandas and every Delta reader can read it too."""

    path: str

    @property
    def version(self) -> int:
        """How often it was changed."""
        return int(self._open().version())

    def count(self) -> int:
        """Its rows, counted from the files' own figures."""
        return int(self._open().count())

    def files(self) -> list[str]:
        """The Parquet files that it consists of now."""
        return list(self._open().file_uris())

    def arrow(self) -> pa.Table:
        """All of it in memory."""
        return rows_of(self._open(), self.path).to_table()

    def frame(self, spark: SparkSession) -> DataFrame:
        """The table as it is now, read by Spark itself."""
        from pyspark.sql.pandas.types import from_arrow_schema

        table = self._open()
        schema = from_arrow_schema(rows_of(table, self.path).schema)
        files = table.file_uris()
        if not files:
            return spark.createDataFrame([], schema)
        return spark.read.option("basePath", self.path).schema(schema).parquet(*files)

    def compact(self, *, target_bytes: int | None = None) -> dict[str, Any]:
        """Put small files together; readers of older versions are not disturbed.

        The old files stay until :meth:`vacuum` removes them. The new ones are on the disk when it returns.
        """
        table = self._open()
        before = set(table.file_uris())
        figures = dict(table.optimize.compact(target_size=target_bytes))
        table.update_incremental()
        new = [uri.removeprefix("file://") for uri in set(table.file_uris()) - before]
        make_durable(self.path, sorted(new), OsFiles())
        make_log_durable(self.path)
        return figures

    def vacuum(self, *, older_than_hours: int = WEEK_HOURS, dry_run: bool = True) -> list[str]:
        """Remove files that no version of the last hours has; only name them in a dry run.

        What a killed task left is among them. With fewer hours than the longest query or micro-batch
        takes, files that somebody needs may go.
        """
        return list(
            self._open().vacuum(
                older_than_hours, dry_run=dry_run, enforce_retention_duration=False, full=True
            )
        )

    def _open(self) -> DeltaTable:
        table = open_table(self.path)
        if table is None:
            raise KeyNotFound(
                f"{self.path} is no table: nothing was written there yet", key=self.path
            )
        return table
