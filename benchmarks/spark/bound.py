"""What Spark itself allows a source and a sink in Python: rows that cost nothing to make or to keep.

The source gives Spark the same Arrow batches again and again, from memory. The sink counts and forgets. Whatever
a real one does comes on top, so nothing that is written in Python can be faster.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int"
)
ROWS_OF_A_BATCH = 32_000
"""As many as the batches of a topic have that was written in calls of 10,000."""
KEY_BYTES, VALUE_BYTES = 12, 100
TASKS = 2


class Rows(InputPartition):
    """How many rows one task gives."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


class BoundSource(DataSource):
    """``format("bound")``, as a source of ``rows`` rows in ``batches`` micro-batches, and as a sink."""

    @classmethod
    def name(cls) -> str:
        return "bound"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return BoundReader(int(self.options["rows"]), int(self.options["batches"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return BoundWriter()


class BoundReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, rows: int, batches: int) -> None:
        self._rows = rows
        self._batch = rows // batches

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"rows": min(self._rows, start["rows"] + self._batch)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [Rows((end["rows"] - start["rows"]) // TASKS) for _ in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        whole = made_rows()
        for first in range(0, partition.rows, ROWS_OF_A_BATCH):
            yield whole.slice(0, min(ROWS_OF_A_BATCH, partition.rows - first))


@cache
def made_rows() -> pa.RecordBatch:
    """A batch as a topic gives it."""
    count = ROWS_OF_A_BATCH
    columns = [
        _bytes(count, KEY_BYTES),
        _bytes(count, VALUE_BYTES),
        pa.array(["rows"] * count, pa.string()),
        pa.array(np.zeros(count, np.int32)),
        pa.array(np.arange(count, dtype=np.int64)),
        pa.array(np.arange(count, dtype=np.int64), pa.timestamp("us", "UTC")),
        pa.array(np.ones(count, np.int32)),
    ]
    names = [field.split()[0] for field in SCHEMA.split(", ")]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _bytes(count: int, size: int) -> pa.Array:
    offsets = pa.py_buffer(np.arange(0, (count + 1) * size, size, dtype=np.int32))
    return pa.Array.from_buffers(
        pa.binary(), count, [None, offsets, pa.py_buffer(bytes(count * size))]
    )


class BoundWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass


def registered(spark: SparkSession) -> SparkSession:
    """The session, which knows ``format("bound")``. Workers do not have this module: it goes with the class."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(BoundSource)
    return spark


def bound_stream(spark: SparkSession, rows: int, batches: int) -> DataFrame:
    """As many rows as a topic would give, in as many micro-batches."""
    reader: Any = registered(spark).readStream.format("bound")
    frame: DataFrame = reader.option("rows", rows).option("batches", batches).load()
    return frame
