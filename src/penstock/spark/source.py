"""``format("penstock")``: topics as Spark's tables and streams.

::

    df = (
        spark.readStream.format("penstock")
        .option("path", "./data")
        .option("subscribe", "orders")
        .load()
    )

Spark finds it by itself, through the module ``pyspark_penstock``. Its rows and options are those of
Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from penstock.errors import InvalidOption
from penstock.spark.admission import checked_ranges
from penstock.spark.frontier import Frontier
from penstock.spark.open_log import open_log
from penstock.spark.options import SourceOptions, read_options, with_headers
from penstock.spark.planning import plan_tasks
from penstock.spark.reading import Task, check_schema, read_task, row_schema
from penstock.spark.sink import PenstockStreamWriter, PenstockWriter
from penstock.spark.sink_options import read_sink_options
from penstock.spark.starting import ending_offsets, starting_offsets
from penstock.spark.stream import PenstockStreamReader


class PenstockDataSource(DataSource):
    """Topics of a log. A schema of some of the columns reads only those."""

    @classmethod
    def name(cls) -> str:
        """What stands in ``format(...)``."""
        return "penstock"

    def schema(self) -> StructType:
        """The columns of Spark's Kafka source."""
        return row_schema(headers=with_headers(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        return PenstockReader(read_options(self.options, stream=False), check_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """For ``spark.readStream``."""
        return PenstockStreamReader(read_options(self.options, stream=True), check_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For ``df.write``; a topic is only ever appended to."""
        if overwrite:
            raise InvalidOption(
                'a topic is appended to, not overwritten: use .mode("append")', option="mode"
            )
        return PenstockWriter(read_sink_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """For ``df.writeStream``; the complete mode appends the whole result each time."""
        return PenstockStreamWriter(read_sink_options(self.options), schema)


class PenstockReader(DataSourceReader):
    """A range of each partition, once. What is appended after the query was planned is not read."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """The tasks of the query; UnknownTopic when a topic is not there."""
        options = self._options
        frontier = Frontier(open_log(options.path, options.tier), options)
        frontier.check_all_there()
        start, end = starting_offsets(frontier, options), ending_offsets(frontier, options)
        ranges = checked_ranges(frontier, start, end, options.fail_on_loss)
        tasks = plan_tasks(ranges, options.tasks_min, options.task_records_max)
        return [
            Task(options.path, options.tier, task, fail_on_loss=options.fail_on_loss)
            for task in tasks
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task, as Arrow."""
        return read_task(partition, self._schema)
