"""Reading in a task: from the columns of the log to Arrow to Spark, no Python object for a row."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import InvalidOption, OffsetOutOfRange, PenstockError
from penstock.log.arrow import between, numbers, repeated, to_batch
from penstock.log.columns import TIMES
from penstock.log.frame import Entry
from penstock.spark.open_log import OpenLog, open_log
from penstock.spark.planning import Range

if TYPE_CHECKING:
    from numpy.typing import NDArray

FETCH_BYTES = 4 * 1024 * 1024
ROWS_MIN = 5_000
"""Smaller batches are put together: each costs Spark as much as some hundred rows."""
ROWS_MAX = 50_000
BYTES_MAX = 16 * 1024 * 1024
"""Bytes of a batch after decompression, unless a single entry has more."""
CREATE_TIME, APPEND_TIME = 0, 1
"""What ``timestampType`` says: the publisher gave the time, or the log did."""

_log = logging.getLogger("penstock.spark")
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}


def row_schema(*, headers: bool) -> StructType:
    """The columns of a row, as Spark's Kafka source has them."""
    names = [name for name in COLUMNS if headers or name != "headers"]
    return StructType([StructField(name, COLUMNS[name]) for name in names])


def check_schema(schema: StructType) -> StructType:
    """The schema, if it has some of the columns of a row and nothing else."""
    for field in schema.fields:
        expected = COLUMNS.get(field.name)
        if expected is None or field.dataType.simpleString() != expected.simpleString():
            columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in COLUMNS.items())
            raise InvalidOption(
                f"the schema asks for {field.name} {field.dataType.simpleString()}; rows have "
                f"{columns}. Decode the value with Spark's functions, as from_json(value, ...)",
                option="schema",
            )
    return schema


class Task(InputPartition):
    """What one task reads."""

    def __init__(
        self, path: str, tier: str | None, ranges: Sequence[Range], *, fail_on_loss: bool
    ) -> None:
        super().__init__(tuple((one.topic, one.partition, one.start, one.end) for one in ranges))
        self.path = path
        self.tier = tier
        self.ranges = tuple(ranges)
        self.fail_on_loss = fail_on_loss


def read_task(task: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in batches of some thousand; each range in the order of its offsets."""
    if not isinstance(task, Task):
        return  # Spark asks once when nothing was planned.
    log = open_log(task.path, task.tier)
    shape = to_arrow_schema(schema, timezone="UTC")
    found = (batch for one in task.ranges for batch in _read(log, one, shape, task.fail_on_loss))
    yield from _gathered(found)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, small batches put together."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= ROWS_MIN:
            yield _joined(waiting)
            waiting, rows = [], 0
    if rows:
        yield _joined(waiting)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _read(
    log: OpenLog, wanted: Range, shape: pa.Schema, fail_on_loss: bool
) -> Iterator[pa.RecordBatch]:
    start = wanted.start
    while start < wanted.end:
        try:
            for end, batch in _batches(log, wanted, start, shape):
                yield batch
                start = end
            return
        except OffsetOutOfRange as gone:
            if fail_on_loss or (earliest := int(str(gone.earliest))) <= start:
                raise _lost(wanted, start, gone) from gone
            _log.warning("%s; the query goes on there", gone)
            start = earliest
        except PenstockError:
            log.forget(wanted.topic, wanted.partition)
            raise


def _batches(
    log: OpenLog, wanted: Range, start: int, shape: pa.Schema
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches, each with the offset behind it."""
    cursor = log.reader(wanted.topic, wanted.partition).cursor(start)
    while cursor.offset < wanted.end and (entries := cursor.fetch(FETCH_BYTES)):
        for some in _portions(entries):
            end = min(some[-1].header.next_offset, wanted.end)
            batch = between(to_batch(wanted.topic, wanted.partition, some), start, wanted.end)
            if batch.num_rows:
                yield end, _shaped(batch, some, wanted.topic, shape)


def _portions(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    portion: list[Entry] = []
    size = rows = 0
    for entry in entries:
        header = entry.header
        if portion and (
            size + header.body_length > BYTES_MAX or rows + header.record_count > ROWS_MAX
        ):
            yield portion
            portion, size, rows = [], 0, 0
        portion.append(entry)
        size += header.body_length
        rows += header.record_count
    if portion:
        yield portion


def _shaped(
    batch: pa.RecordBatch, entries: Sequence[Entry], topic: str, shape: pa.Schema
) -> pa.RecordBatch:
    """The batch with exactly the columns and types that Spark asked for."""
    columns = []
    for field in shape:
        if field.name == "topic":
            columns.append(repeated(topic, batch.num_rows))
        elif field.name == "timestampType":
            columns.append(numbers(pa.int32(), _time_types(batch, entries)))
        elif field.name in {"timestamp", "headers"}:
            columns.append(batch.column(field.name).cast(field.type))
        else:
            columns.append(batch.column(field.name))
    return pa.RecordBatch.from_arrays(columns, schema=shape)


def _time_types(batch: pa.RecordBatch, entries: Sequence[Entry]) -> NDArray[Any]:
    """Who gave each record its time, an entry at a time."""
    types = [CREATE_TIME if one.header.flags & TIMES else APPEND_TIME for one in entries]
    if len(set(types)) == 1:
        return np.full(batch.num_rows, types[0], np.int32)
    offsets = batch.column("offset")
    here = np.frombuffer(offsets.buffers()[1], np.int64)[offsets.offset :][: batch.num_rows]
    ends = np.array([one.header.next_offset for one in entries], np.int64)
    return np.array(types, np.int32)[np.searchsorted(ends, here, side="right")]


def _lost(wanted: Range, start: int, gone: OffsetOutOfRange) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"records {start} to {wanted.end - 1} of {wanted.topic}/{wanted.partition} were to be read, "
        f"but {gone}. Retention was quicker than the query; option failOnDataLoss=false goes on "
        "with what is left, option groupId lets retention wait for the query",
        **gone.fields,
    )
