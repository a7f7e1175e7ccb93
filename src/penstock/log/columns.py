"""The body of an entry: a batch of records as columns.

::

    value lengths      u32 × n        0xFFFFFFFF is a null value
    key lengths        u32 × n        when KEYS; 0xFFFFFFFF is no key
    timestamps         i64 × n        when TIMES (milliseconds); else the entry's own
    offset deltas      u32 × n        when SPARSE: offset = base offset + delta, rising
    header counts      u32 × n        when HEADERS; m is their sum
    name lengths       u32 × m        when HEADERS
    header lengths     u32 × m        when HEADERS
    key bytes, value bytes, name bytes, header bytes

All integers are little-endian. Columns make Python fast: a batch is written with a few joins
and read into Arrow without an object per record.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DamagedEntry
from penstock.log.records import NO_HEADERS, Record
from penstock.speedups import compiled
from penstock.system import Buffer

KEYS = 1
TIMES = 2
SPARSE = 4
HEADERS = 8
KNOWN_FLAGS = KEYS | TIMES | SPARSE | HEADERS

NULL = 0xFFFFFFFF
RECORD_OVERHEAD_BYTES = 64
"""What a record takes in memory beside its bytes: many small ones must not fill it unseen."""
SMALL = 64
"""Up to so many integers Python adds up sooner than numpy."""
_T = TypeVar("_T")
_U32 = np.dtype("<u4")
_I64 = np.dtype("<i8")

Lengths = NDArray[np.uint32]


@dataclass(slots=True)
class Columns:
    """A batch of records on its way to the log, as parallel lists. Absent columns are None."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    timestamps: Sequence[int] | None = None
    headers: Sequence[Mapping[str, bytes] | None] | None = None
    deltas: Sequence[int] | None = None
    # Made once: sizes are asked for on the way in, and written on the way out.
    _value_lengths: array[int] | None = field(default=None, repr=False, compare=False)
    _byte_size: int | None = field(default=None, init=False, repr=False, compare=False)

    def value_lengths(self) -> array[int]:
        """The lengths of the values; NULL for a null value."""
        if self._value_lengths is None:
            self._value_lengths = _lengths(self.values)
        return self._value_lengths

    def encode(self) -> tuple[int, list[Buffer]]:
        """The flags and the buffers of the body."""
        flags = 0
        lengths: list[Buffer] = [self.value_lengths().tobytes()]
        data: list[Buffer] = []
        if self.keys is not None:
            flags |= KEYS
            lengths.append(_lengths(self.keys).tobytes())
            data.append(_join(self.keys))
        if self.timestamps is not None:
            flags |= TIMES
            lengths.append(np.array(self.timestamps, _I64).tobytes())
        if self.deltas is not None:
            flags |= SPARSE
            lengths.append(np.array(self.deltas, _U32).tobytes())
        data.append(_join(self.values))
        if self.headers is not None:
            flags |= HEADERS
            header_lengths, header_data = _encode_headers(self.headers)
            lengths += header_lengths
            data += header_data
        return flags, lengths + data

    def __len__(self) -> int:
        return len(self.values)

    def byte_size(self) -> int:
        """Bytes that the records take in memory, about: keys, values, headers, the objects."""
        if self._byte_size is None:
            self._byte_size = self._count_bytes()
        return self._byte_size

    def _count_bytes(self) -> int:
        size = RECORD_OVERHEAD_BYTES * len(self.values)
        size += _sum(self.value_lengths())
        if self.keys is not None:
            size += sum(map(len, filter(None, self.keys)))
        if self.headers is not None:
            size += sum(map(_headers_size, filter(None, self.headers)))
        return size

    def all_bytes(self) -> bool:
        """Whether every value is bytes, and none is null."""
        if type(self.values) is not list:
            return False
        self._value_lengths = plain_lengths(self.values)
        return self._value_lengths is not None

    def are_bare(self) -> bool:
        """Whether there is nothing but values."""
        return self.keys is None and self.headers is None and self.timestamps is None

    def pick(self, where: slice) -> Columns:
        """The records of a slice."""
        return Columns(
            self.values[where],
            self.keys and self.keys[where],
            self.timestamps and self.timestamps[where],
            self.headers and self.headers[where],
            self.deltas and self.deltas[where],
            self._value_lengths and self._value_lengths[where],
        )

    def take(self, places: Sequence[int]) -> Columns:
        """The records at these places, in this order."""
        lengths = self._value_lengths
        if lengths is not None:
            lengths = array("I", np.frombuffer(lengths, _U32)[places].tobytes())
        return Columns(
            [*map(self.values.__getitem__, places)],
            self.keys and [*map(self.keys.__getitem__, places)],
            self.timestamps and [*map(self.timestamps.__getitem__, places)],
            self.headers and [*map(self.headers.__getitem__, places)],
            self.deltas and [*map(self.deltas.__getitem__, places)],
            lengths,
        )

    def kind(self) -> tuple[bool, ...]:
        """Which columns there are, beside the values."""
        optional = (self.keys, self.timestamps, self.headers, self.deltas)
        return tuple(column is not None for column in optional)

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns:
        """The records of several batches of one kind, one after the other. No bytes are copied."""
        lengths = array("I")
        for part in parts:
            lengths.extend(part.value_lengths())
        made = Columns(
            [*chain.from_iterable(part.values for part in parts)],
            _chained([part.keys for part in parts]),
            _chained([part.timestamps for part in parts]),
            _chained([part.headers for part in parts]),
            None,
            lengths,
        )
        made._byte_size = sum(part.byte_size() for part in parts)
        return made


def _chained(columns: Sequence[Sequence[_T] | None]) -> list[_T] | None:
    """One column of several; None when they are absent."""
    there = [column for column in columns if column is not None]
    return [*chain.from_iterable(there)] if there else None


def _headers_size(headers: Mapping[str, bytes]) -> int:
    return sum(len(name.encode()) + len(value) for name, value in headers.items())


def _lengths(items: Sequence[bytes | None]) -> array[int]:
    if compiled is not None and type(items) is list:
        found: array[int] | None = compiled.plain_lengths(items)
        if found is not None:
            return found
    return python_lengths(items)


def python_lengths(items: Sequence[bytes | None]) -> array[int]:
    """The lengths of the items; NULL for None."""
    try:
        # By way of a list, which is quicker than an array that grows.
        return array("I", list(map(len, items)))  # type: ignore[arg-type]
    except TypeError:
        return array("I", [NULL if item is None else len(item) for item in items])


def plain_lengths(items: list[Any]) -> array[int] | None:
    """The lengths of the items when all of them are bytes; else None."""
    if compiled is not None:
        found: array[int] | None = compiled.plain_lengths(items)
        return found
    return python_plain_lengths(items)


def python_plain_lengths(items: list[Any]) -> array[int] | None:
    """As :func:`plain_lengths`."""
    return python_lengths(items) if set(map(type, items)) <= {bytes} else None


def _sum(lengths: array[int]) -> int:
    if len(lengths) > SMALL:
        return total_bytes(np.frombuffer(lengths, _U32))
    total = sum(lengths)
    return total - NULL * lengths.count(NULL) if total >= NULL else total


def _join(items: Sequence[bytes | None]) -> bytes:
    try:
        return b"".join(items)  # type: ignore[arg-type]
    except TypeError:
        return b"".join(item for item in items if item is not None)


def _encode_headers(
    headers: Sequence[Mapping[str, bytes] | None],
) -> tuple[list[bytes], list[bytes]]:
    counts = array("I", [len(one) if one else 0 for one in headers])
    pairs = list(chain.from_iterable(one.items() for one in headers if one))
    names = [name.encode() for name, _ in pairs]
    values = [value for _, value in pairs]
    lengths = [counts.tobytes(), _lengths(names).tobytes(), _lengths(values).tobytes()]
    return lengths, [b"".join(names), b"".join(values)]


@dataclass(slots=True)
class ColumnView:
    """The columns of one stored batch, as views of its bytes; nothing is copied yet."""

    count: int
    base_offset: int
    timestamp: int
    value_lengths: Lengths
    key_lengths: Lengths | None
    timestamps: NDArray[np.int64] | None
    deltas: Lengths | None
    header_counts: Lengths | None
    name_lengths: Lengths | None
    header_lengths: Lengths | None
    body: Buffer
    keys_at: int
    values_at: int
    names_at: int
    headers_at: int
    end_at: int

    def __len__(self) -> int:
        return self.count

    def first_offset(self) -> int:
        """The offset of the first record; there must be one."""
        return self.base_offset if self.deltas is None else self.base_offset + int(self.deltas[0])

    def last_offset(self) -> int:
        """The offset of the last record; there must be one."""
        behind = self.count - 1 if self.deltas is None else int(self.deltas[-1])
        return self.base_offset + behind

    def key_bytes(self) -> memoryview:
        """All keys, one after the other."""
        return memoryview(self.body)[self.keys_at : self.values_at]

    def value_bytes(self) -> memoryview:
        """All values, one after the other."""
        return memoryview(self.body)[self.values_at : self.names_at]

    def name_bytes(self) -> memoryview:
        """All names of headers, one after the other."""
        return memoryview(self.body)[self.names_at : self.headers_at]

    def header_bytes(self) -> memoryview:
        """All values of headers, one after the other."""
        return memoryview(self.body)[self.headers_at : self.end_at]

    def offsets(self) -> NDArray[np.int64]:
        """The offset of each record."""
        if self.deltas is None:
            return np.arange(self.base_offset, self.base_offset + self.count, dtype=np.int64)
        return self.deltas.astype(np.int64) + self.base_offset

    def times(self) -> NDArray[np.int64]:
        """The timestamp of each record."""
        if self.timestamps is None:
            return np.full(self.count, self.timestamp, np.int64)
        return self.timestamps

    def values(self) -> list[bytes | None]:
        """The values as objects."""
        return _cut(self.body, self.values_at, self.value_lengths)

    def keys(self) -> Iterable[bytes | None]:
        """The keys as objects."""
        if self.key_lengths is None:
            return repeat(None, self.count)
        return _cut(self.body, self.keys_at, self.key_lengths)

    def headers(self) -> Iterable[Mapping[str, bytes]]:
        """The headers as objects."""
        if self.header_counts is None or self.name_lengths is None or self.header_lengths is None:
            return repeat(NO_HEADERS, self.count)
        names = [_text(name) for name in _cut(self.body, self.names_at, self.name_lengths)]
        values = _cut(self.body, self.headers_at, self.header_lengths)
        pairs = iter(zip(names, values, strict=True))
        return [_take_headers(pairs, count) for count in self.header_counts.tolist()]

    def records(self, topic: str, partition: int) -> list[Record]:
        """The batch as record objects."""
        is_plain = self.deltas is None and self.timestamps is None and self.header_counts is None
        if compiled is None or not is_plain:
            return python_records(self, topic, partition)
        found: list[Record] = compiled.records(
            Record, topic, partition, self.base_offset, self.timestamp, NO_HEADERS, self.body,
            self.keys_at, self.key_lengths, self.values_at, self.value_lengths,
        )  # fmt: skip
        return found

    def columns(self) -> Columns:
        """The batch as lists again, to be written somewhere else."""
        return Columns(
            self.values(),
            None if self.key_lengths is None else list(self.keys()),
            None if self.timestamps is None else self.timestamps.tolist(),
            None if self.header_counts is None else list(self.headers()),
            None if self.deltas is None else self.deltas.tolist(),
        )


def python_records(view: ColumnView, topic: str, partition: int) -> list[Record]:
    """As :meth:`ColumnView.records`, for any columns."""
    base = view.base_offset
    offsets: Iterable[int] = (
        range(base, base + view.count) if view.deltas is None else view.offsets().tolist()
    )
    times = repeat(view.timestamp) if view.timestamps is None else view.timestamps.tolist()
    rows = (repeat(topic), repeat(partition), offsets, times, view.keys(), view.values())
    return list(map(Record, *rows, view.headers()))


def _take_headers(pairs: Any, count: int) -> Mapping[str, bytes]:
    return dict(next(pairs) for _ in range(count)) if count else NO_HEADERS


def _text(name: bytes | None) -> str:
    return (name or b"").decode("utf-8", "replace")


def _cut(body: Buffer, start: int, lengths: Lengths) -> list[bytes | None]:
    if compiled is not None:
        found: list[bytes | None] = compiled.cut(body, start, lengths)
        return found
    return python_cut(body, start, lengths)


def python_cut(body: Buffer, start: int, lengths: Lengths) -> list[bytes | None]:
    """Pieces of these lengths, one after the other; NULL gives None."""
    body = bytes(body)  # so that a slice of it is too
    ends = np.cumsum(lengths, dtype=np.int64)
    if len(lengths) and int(lengths.max()) == NULL:
        return _cut_with_nulls(body, start, lengths)
    if len(lengths) and lengths[0] and (lengths == lengths[0]).all():
        # All of one length: numpy cuts them without a step in Python for each.
        pieces: list[bytes | None] = np.frombuffer(
            body, f"V{lengths[0]}", len(lengths), start
        ).tolist()
        return pieces
    ends += start
    stops = ends.tolist()
    return [body[a:b] for a, b in zip([start, *stops], stops, strict=False)]


def _cut_with_nulls(body: bytes, start: int, lengths: Lengths) -> list[bytes | None]:
    items: list[bytes | None] = []
    for length in lengths.tolist():
        if length == NULL:
            items.append(None)
        else:
            items.append(body[start : start + length])
            start += length
    return items


def total_bytes(lengths: Lengths) -> int:
    """Sum of the lengths, nulls counting nothing."""
    total = int(np.add.reduce(lengths, dtype=np.int64))  # sum() takes a longer way to it
    return total - NULL * int(np.count_nonzero(lengths == NULL)) if total >= NULL else total


class _Cursor:
    """Takes columns off the front of a body, never beyond its end."""

    __slots__ = ("body", "position")

    def __init__(self, body: Buffer) -> None:
        self.body = body
        self.position = 0

    def take(self, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        size = dtype.itemsize * count
        if size > len(self.body) - self.position:
            raise DamagedEntry("the columns are longer than the body", reason="columns")
        column = np.frombuffer(self.body, dtype, count, self.position)
        self.position += size
        return column

    def skip(self, size: int) -> int:
        start = self.position
        self.position += size
        return start


def decode(body: Buffer, flags: int, count: int, base_offset: int, timestamp: int) -> ColumnView:
    """Views of the columns of a body; DamagedEntry when they do not fill it exactly."""
    if flags & ~KNOWN_FLAGS:
        raise DamagedEntry(f"unknown column flags {flags:#x}", reason="flags")
    cursor = _Cursor(body)
    value_lengths = cursor.take(_U32, count)
    key_lengths = cursor.take(_U32, count) if flags & KEYS else None
    timestamps = cursor.take(_I64, count) if flags & TIMES else None
    deltas = cursor.take(_U32, count) if flags & SPARSE else None
    if deltas is not None and (deltas[1:] <= deltas[:-1]).any():
        raise DamagedEntry("the offset deltas do not rise", reason="columns")
    header_counts = cursor.take(_U32, count) if flags & HEADERS else None
    pairs = 0 if header_counts is None else int(header_counts.sum(dtype=np.int64))
    name_lengths = cursor.take(_U32, pairs) if flags & HEADERS else None
    header_lengths = cursor.take(_U32, pairs) if flags & HEADERS else None
    # By their places: sixteen names take as long as a column.
    view = ColumnView(
        count, base_offset, timestamp,
        value_lengths, key_lengths, timestamps, deltas, header_counts, name_lengths, header_lengths,
        body,
        cursor.skip(0 if key_lengths is None else total_bytes(key_lengths)),
        cursor.skip(total_bytes(value_lengths)),
        cursor.skip(0 if name_lengths is None else total_bytes(name_lengths)),
        cursor.skip(0 if header_lengths is None else total_bytes(header_lengths)),
        cursor.position,
    )  # fmt: skip
    if cursor.position != len(body):
        raise DamagedEntry("the columns do not fill the body", reason="columns")
    return view
