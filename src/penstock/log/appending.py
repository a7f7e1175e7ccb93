"""Entries on their way to the disk: checked, and sealed one after the other behind a head."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import RecordTooLarge
from penstock.log.frame import ENTRY_BYTES_MAX, FRAME_BYTES, RECORDS_MAX, Draft, seal
from penstock.log.head import Head
from penstock.log.index import IndexRow
from penstock.log.open_index import OpenIndex
from penstock.system import Buffer


class Writing:
    """Entries being sealed one after the other behind a head."""

    def __init__(self, head: Head, timestamp: int) -> None:
        self.timestamp = timestamp
        self._before = head
        self._position = head.position
        self._next_offset = head.next_offset
        self._checksum = head.checksum
        self.buffers: list[Buffer] = []
        self.rows: list[IndexRow] = []

    def add(self, entry: Draft, index: OpenIndex | None = None) -> int:
        """Seal one more entry; returns its first offset."""
        offset = self._next_offset
        row = index.offer(offset, self.timestamp, self._position) if index else None
        if row is not None:
            self.rows.append(row)
        durable = self._before.durable_offset
        buffers, size, self._checksum = seal(entry, offset, durable, self._checksum, self.timestamp)
        self.buffers += buffers
        self._position += size
        self._next_offset = offset + entry.offset_span
        return offset

    def head(self) -> Head:
        """The head behind the entries."""
        return self._before._replace(
            position=self._position,
            next_offset=self._next_offset,
            timestamp=self.timestamp,
            checksum=self._checksum,
        )


def check_sizes(drafts: Sequence[Draft]) -> None:
    """Refuse what no reader would take, before anything is written."""
    for entry in drafts:
        size = max(entry.stored_length, entry.body_length) + FRAME_BYTES
        if size > ENTRY_BYTES_MAX or entry.record_count > RECORDS_MAX:
            raise RecordTooLarge(
                f"an entry of {size} bytes and {entry.record_count} records is over the limit of "
                f"{ENTRY_BYTES_MAX} bytes and {RECORDS_MAX} records",
                size=size,
                limit=ENTRY_BYTES_MAX,
            )
