"""From Arrow to the columns of the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import InvalidMessage
from penstock.log.arrow_columns import ArrowColumns
from penstock.log.columns import Columns

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

ROWS_MIN = 64
"""For fewer rows, lists are as quick."""


def split_topics(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in their order: of the given one, or of those in the column."""
    if topic is not None:
        yield topic, batch
        return
    import pyarrow.compute as pc

    for name in pc.unique(batch["topic"]).to_pylist():
        if name is None:
            raise InvalidMessage("a row has no topic: the column 'topic' is null")
        yield name, batch.filter(pc.equal(batch["topic"], name))


def columns_of(batch: pa.RecordBatch) -> Columns:
    """Rows as the log takes them; without an object for each, unless they have headers or are few."""
    names = batch.schema.names
    values = _binary(batch["value"])
    keys = _binary(batch["key"]) if "key" in names else None
    times = _milliseconds(batch["timestamp"]) if "timestamp" in names else None
    if "headers" not in names and batch.num_rows >= ROWS_MIN:
        return ArrowColumns(values, keys, times)
    return Columns(
        values=values.to_pylist(),
        keys=None if keys is None else keys.to_pylist(),
        timestamps=None if times is None else times.tolist(),
        headers=_headers(batch["headers"]) if "headers" in names else None,
    )


def _binary(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    return column.cast(pa.binary())


def _milliseconds(column: pa.Array) -> NDArray[np.int64]:
    import pyarrow as pa

    if column.null_count:
        raise InvalidMessage("a row has no time: the column 'timestamp' is null")
    whole = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    return np.frombuffer(whole.buffers()[1], np.int64)[whole.offset :][: len(whole)]


def _headers(column: pa.Array) -> list[Mapping[str, bytes] | None]:
    rows: list[list[dict[str, Any]] | None] = column.to_pylist()
    return [{one["key"]: one["value"] or b"" for one in row} if row else None for row in rows]
