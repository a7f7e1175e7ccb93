"""Entries on their way to the disk: checked, and sealed one after the other behind a head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.errors import RecordTooLarge
from penstock.log.codec import Codec
from penstock.log.columns import Columns
from penstock.log.frame import ENTRY_BYTES_MAX, FRAME_BYTES, RECORDS_MAX, Draft, draft, seal
from penstock.log.head import Head
from penstock.log.index import IndexRow
from penstock.log.open_index import OpenIndex
from penstock.system import Buffer

WRITE_BYTES = 2 * 1024 * 1024
"""Entries are written when there are so many bytes of them: more would only take more memory."""


class Writing:
    """Entries being sealed one after the other behind a head."""

    def __init__(self, head: Head, timestamp: int) -> None:
        self.timestamp = timestamp
        self._before = head
        self._position = head.position
        self._next_offset = head.next_offset
        self._checksum = head.checksum
        self._buffers: list[Buffer] = []
        self._taken_to = head.position
        self.rows: list[IndexRow] = []

    def add(self, entry: Draft, index: OpenIndex | None = None) -> int:
        """Seal one more entry; returns its first offset."""
        offset = self._next_offset
        row = index.offer(offset, self.timestamp, self._position) if index else None
        if row is not None:
            self.rows.append(row)
        durable = self._before.durable_offset
        buffers, size, self._checksum = seal(entry, offset, durable, self._checksum, self.timestamp)
        self._buffers += buffers
        self._position += size
        self._next_offset = offset + entry.offset_span
        return offset

    @property
    def is_large(self) -> bool:
        """Whether what was not taken yet is worth a write of its own."""
        return self._position - self._taken_to >= WRITE_BYTES

    def take(self) -> tuple[int, Sequence[Buffer]]:
        """The entries since the last time, and the position of the first: to be written."""
        position, self._taken_to = self._taken_to, self._position
        buffers, self._buffers = self._buffers, []
        return position, buffers

    def head(self, *, synced: bool = False) -> Head:
        """The head behind the entries; all before it is durable if they were synced."""
        (base, _, _, durable_position, durable_offset, _, _, durable_checksum, *rest) = self._before
        if synced:
            durable_position = self._position
            durable_offset = self._next_offset
            durable_checksum = self._checksum
        return Head._make(
            (base, self._position, self._next_offset, durable_position, durable_offset,
             self.timestamp, self._checksum, durable_checksum, *rest)
        )  # fmt: skip


def drafts_of(batches: Sequence[Columns], codec: Codec) -> Iterable[Draft]:
    """The batches as entries to be; of several, each is made when the one before was written.

    All at once they would take fresh memory from the system, which costs more than to write them.
    To compress takes too long for that: others wait for the partition meanwhile.
    """
    drafts = (draft(*columns.encode(), len(columns), codec=codec) for columns in batches)
    return drafts if len(batches) > 1 and codec is Codec.NONE else list(drafts)


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
