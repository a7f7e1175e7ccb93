"""From Arrow to the columns of the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidMessage
from penstock.log.columns import Columns

if TYPE_CHECKING:
    import pyarrow as pa


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
    """Rows as the log takes them."""
    return Columns(
        values=_binary(batch["value"]),
        keys=_binary(batch["key"]) if "key" in batch.schema.names else None,
        timestamps=_milliseconds(batch["timestamp"]) if "timestamp" in batch.schema.names else None,
        headers=_headers(batch["headers"]) if "headers" in batch.schema.names else None,
    )


def _binary(column: pa.Array) -> list[bytes | None]:
    import pyarrow as pa

    found: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return found


def _milliseconds(column: pa.Array) -> list[int]:
    import pyarrow as pa

    if column.null_count:
        raise InvalidMessage("a row has no time: the column 'timestamp' is null")
    found: list[int] = (
        column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64()).to_pylist()
    )
    return found


def _headers(column: pa.Array) -> list[Mapping[str, bytes] | None]:
    rows: list[list[dict[str, Any]] | None] = column.to_pylist()
    return [{one["key"]: one["value"] or b"" for one in row} if row else None for row in rows]
