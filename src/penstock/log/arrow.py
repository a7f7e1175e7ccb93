"""Records as Arrow: from the columns on disk to Arrow's, with no Python object per record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DamagedEntry, MissingExtra
from penstock.log.columns import NULL, ColumnView, Lengths
from penstock.log.frame import Entry
from penstock.log.reader import PartitionReader

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_CHUNK_BYTES = 4 * 1024 * 1024
"""Read at once. Smaller pieces cost more calls, larger ones leave the cache of the processor."""
TABLE_CHUNK_BYTES = 2 * 1024 * 1024
"""The same for a table."""
SAME_ROWS = 1 << 16
SAME_KEPT = 16
"""Columns that are the same in each row are kept for the next batches, so many of so many rows."""
BATCH_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of a batch after decompression, unless a single entry has more."""


@cache
def _arrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError as cause:
        message = "reading as Arrow needs: pip install 'penstock[arrow]'"
        raise MissingExtra(message, extra="arrow") from cause
    return pa


@cache
def schema() -> pa.Schema:
    """The columns of a batch: key, value, topic, partition, offset, timestamp, headers."""
    arrow = _arrow()
    header = arrow.struct([("key", arrow.string()), ("value", arrow.binary())])
    return arrow.schema(
        [
            arrow.field("key", arrow.binary()),
            arrow.field("value", arrow.binary()),
            arrow.field("topic", arrow.dictionary(arrow.int8(), arrow.string()), nullable=False),
            arrow.field("partition", arrow.int32(), nullable=False),
            arrow.field("offset", arrow.int64(), nullable=False),
            arrow.field("timestamp", arrow.timestamp("ms", tz="UTC"), nullable=False),
            arrow.field("headers", arrow.list_(header)),
        ]
    )


def read_arrow(
    reader: PartitionReader,
    start: int,
    end: int,
    chunk_bytes: int = ARROW_CHUNK_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The records from ``start`` to before ``end``, up to the durable offset, checks included."""
    cursor = reader.cursor(start)
    while cursor.offset < end and (entries := cursor.fetch(chunk_bytes)):
        for some in _portions(entries):
            batch = to_batch(reader.keys.topic, reader.keys.partition, some)
            yield between(batch, start, end)
        # What was read is not needed any more, and its memory is for what comes next.
        del entries, some


def _portions(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """The entries in portions that are not too large once they are decompressed."""
    portion: list[Entry] = []
    size = 0
    for entry in entries:
        size += entry.header.body_length
        if portion and size > BATCH_BYTES_MAX:
            yield portion
            portion, size = [], entry.header.body_length
        portion.append(entry)
    if portion:
        yield portion


def read_table(reader: PartitionReader, start: int, end: int) -> pa.Table:
    """The same range as one table."""
    batches = read_arrow(reader, start, end, TABLE_CHUNK_BYTES)
    return _arrow().Table.from_batches(list(batches), schema())


def between(batch: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """The rows with offsets in the range; a slice, nothing is copied."""
    offsets = np.frombuffer(batch.column("offset").buffers()[1], np.int64)
    first, last = np.searchsorted(offsets, [start, end]).tolist()
    return batch.slice(first, last - first)


def to_batch(topic: str, partition: int, entries: Sequence[Entry]) -> pa.RecordBatch:
    """Entries as one record batch."""
    arrow = _arrow()
    views = [entry.view(copy=False) for entry in entries]
    count = sum(view.count for view in views)
    keys = [_Part(view.key_lengths, view.count, view.key_bytes()) for view in views]
    values = [_Part(view.value_lengths, view.count, view.value_bytes()) for view in views]
    columns = [
        _binary(keys),
        _binary(values),
        arrow.DictionaryArray.from_arrays(same(arrow.int8(), 0, count), repeated(topic, 1)),
        same(arrow.int32(), partition, count),
        numbers(arrow.int64(), _offsets(views, count)),
        numbers(arrow.timestamp("ms", tz="UTC"), _times(views, count)),
        _headers(views, count),
    ]
    return arrow.RecordBatch.from_arrays(columns, schema=schema())


def _offsets(views: Sequence[ColumnView], count: int) -> NDArray[np.int64]:
    """The offsets; in one go where each entry goes on where the last one ended."""
    found = np.empty(count, np.int64)
    first = views[0].base_offset
    dense = all(view.deltas is None for view in views)
    if dense and views[-1].base_offset + views[-1].count == first + count:
        found[:] = np.arange(first, first + count, dtype=np.int64)
        return found
    return np.concatenate([view.offsets() for view in views], out=found)


def _times(views: Sequence[ColumnView], count: int) -> NDArray[np.int64]:
    """The timestamps: of each record, or one for all of an entry."""
    found = np.empty(count, np.int64)
    start = 0
    for view in views:
        times = view.timestamp if view.timestamps is None else view.timestamps
        found[start : start + view.count] = times
        start += view.count
    return found


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def numbers(kind: Any, values: NDArray[Any]) -> Any:
    """A column without nulls. ``pyarrow.array`` would import pandas first, which takes seconds."""
    arrow = _arrow()
    buffers = [None, arrow.py_buffer(np.ascontiguousarray(values))]
    return arrow.Array.from_buffers(kind, len(values), buffers)


@lru_cache(SAME_KEPT)
def _same(kind: Any, value: int | None) -> Any:
    if value is None:
        return _arrow().nulls(SAME_ROWS, kind)
    return numbers(kind, np.full(SAME_ROWS, value, kind.to_pandas_dtype()))


def same(kind: Any, value: int | None, count: int) -> Any:
    """A column that has the same in each row; None: nulls. The batches share one, or parts of it."""
    if count <= SAME_ROWS:
        return _same(kind, value).slice(0, count)
    if value is None:
        return _arrow().nulls(count, kind)
    return numbers(kind, np.full(count, value, kind.to_pandas_dtype()))


def repeated(text: str, count: int) -> Any:
    """A column of strings that are all the same."""
    arrow, data = _arrow(), text.encode()
    offsets = np.arange(0, (count + 1) * len(data), len(data) or 1, dtype=np.int32)[: count + 1]
    buffers = [None, arrow.py_buffer(offsets), arrow.py_buffer(data * count)]
    return arrow.Array.from_buffers(arrow.string(), count, buffers)


class _Part(NamedTuple):
    """A piece of a binary column; no lengths: nulls only."""

    lengths: Lengths | None
    size: int
    data: memoryview


def _binary(parts: Sequence[_Part], kind: Any = None) -> Any:
    """One binary column."""
    arrow = _arrow()
    kind = kind or arrow.binary()
    count = sum(part.size for part in parts)
    if all(part.lengths is None for part in parts):
        return same(kind, None, count)
    lengths = _joined([_full(part.lengths, part.size) for part in parts])
    validity = None
    if count and int(lengths.max()) == NULL:
        nulls = lengths == NULL
        lengths = np.where(nulls, 0, lengths).astype(np.uint32)
        validity = arrow.py_buffer(np.packbits(~nulls, bitorder="little"))
    buffers = [validity, arrow.py_buffer(_ends(lengths)), _bytes(parts)]
    return arrow.Array.from_buffers(kind, count, buffers)


def _ends(lengths: Lengths) -> NDArray[Any]:
    """Where each piece begins and ends, as Arrow has it: from 0 on."""
    found = np.empty(len(lengths) + 1, np.uint32)
    found[0] = 0
    np.cumsum(lengths, dtype=np.uint32, out=found[1:])  # of one kind: nothing is converted
    return found


def _full(lengths: Lengths | None, count: int) -> Lengths:
    return np.full(count, NULL, np.uint32) if lengths is None else lengths


def _bytes(parts: Sequence[_Part]) -> Any:
    """The bytes of the parts, one after the other."""
    size = sum(len(part.data) for part in parts)
    found = np.empty(size, np.uint8)
    room = memoryview(found.data)
    start = 0
    for part in parts:
        room[start : start + len(part.data)] = part.data
        start += len(part.data)
    return _arrow().py_buffer(found)


def _headers(views: Sequence[ColumnView], count: int) -> Any:
    arrow = _arrow()
    kind = schema().field("headers").type
    if all(view.header_counts is None for view in views):
        return same(kind, None, count)
    counts = _joined([_counts(view) for view in views])
    offsets = _ends(counts).view(np.int32)
    names = _binary([_names_part(view) for view in views], arrow.string())
    try:
        names.validate(full=True)
    except arrow.ArrowInvalid as cause:
        raise DamagedEntry(f"header names are no text: {cause}", reason="columns") from cause
    values = _binary([_values_part(view) for view in views])
    pairs = arrow.StructArray.from_arrays([names, values], fields=list(kind.value_type))
    return arrow.ListArray.from_arrays(numbers(arrow.int32(), offsets), pairs, type=kind)


def _counts(view: ColumnView) -> Lengths:
    return np.zeros(view.count, np.uint32) if view.header_counts is None else view.header_counts


_NO_LENGTHS = np.zeros(0, np.uint32)


def _names_part(view: ColumnView) -> _Part:
    lengths = _NO_LENGTHS if view.name_lengths is None else view.name_lengths
    return _Part(lengths, len(lengths), view.name_bytes())


def _values_part(view: ColumnView) -> _Part:
    lengths = _NO_LENGTHS if view.header_lengths is None else view.header_lengths
    return _Part(lengths, len(lengths), view.header_bytes())
