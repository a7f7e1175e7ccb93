"""The sparse index of a segment: a row every 64 KiB, so that a seek reads little.

::

    row (32 bytes) = offset u64 | timestamp i64 | position u64 | reserved u32 | CRC-32C u32

A row says that the entry at ``position`` starts with that offset and has that timestamp. The
index is a hint and is never synced: it is rebuilt from the segment when it is absent or wrong,
and a short one only makes a seek read on further.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

INDEX_SPACING_BYTES = 64 * 1024
_ROW = struct.Struct("<QqQI")
_CHECKSUM = struct.Struct("<I")
ROW_BYTES = _ROW.size + _CHECKSUM.size


class IndexRow(NamedTuple):
    """The entry at ``position`` starts with ``offset``."""

    offset: int
    timestamp: int
    position: int

    def pack(self) -> bytes:
        """The row's bytes."""
        row = _ROW.pack(*self, 0)
        return row + _CHECKSUM.pack(crc32c(row))


class Index:
    """The rows of one segment."""

    def __init__(self, rows: Iterable[IndexRow] = ()) -> None:
        self.rows = list(rows)

    @classmethod
    def parse(cls, data: bytes) -> Index | None:
        """The index, or None when a row is damaged or out of order. A cut last row is left out."""
        rows: list[IndexRow] = []
        for start in range(0, len(data) - ROW_BYTES + 1, ROW_BYTES):
            row = _parse_row(data[start : start + ROW_BYTES])
            if row is None or (rows and not _follows(rows[-1], row)):
                return None
            rows.append(row)
        return cls(rows)

    @staticmethod
    def size_max(segment_bytes: int) -> int:
        """How many bytes the index of a segment can have."""
        return (segment_bytes // INDEX_SPACING_BYTES + 1) * ROW_BYTES

    def pack(self) -> bytes:
        """The bytes of the whole index."""
        return b"".join(row.pack() for row in self.rows)

    def at_offset(self, offset: int) -> IndexRow | None:
        """The last row at or before the offset; None means: read from the segment's start."""
        place = bisect_right(self.rows, offset, key=lambda row: row.offset)
        return self.rows[place - 1] if place else None

    def at_time(self, timestamp: int) -> IndexRow | None:
        """The last row that is older than the time; None means: read from the segment's start."""
        place = bisect_right(self.rows, timestamp - 1, key=lambda row: row.timestamp)
        return self.rows[place - 1] if place else None


def _follows(before: IndexRow, row: IndexRow) -> bool:
    return (
        row.offset > before.offset
        and row.position > before.position
        and row.timestamp >= before.timestamp
    )


def _parse_row(data: bytes) -> IndexRow | None:
    row = data[: _ROW.size]
    if data[_ROW.size :] != _CHECKSUM.pack(crc32c(row)):
        return None
    offset, timestamp, position, _ = _ROW.unpack(row)
    return IndexRow(offset, timestamp, position)


class IndexBuilder:
    """Picks the entries that get a row: one every ``INDEX_SPACING_BYTES``."""

    def __init__(self, position: int = 0) -> None:
        self._next_position = position + INDEX_SPACING_BYTES

    def offer(self, offset: int, timestamp: int, position: int) -> IndexRow | None:
        """The row for this entry, if it is to have one."""
        if position < self._next_position:
            return None
        self._next_position = position + INDEX_SPACING_BYTES
        return IndexRow(offset, timestamp, position)
