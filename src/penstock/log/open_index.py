"""The index of the segment that is written to. Its rows are written some at a time.

A write for each row would be a third of the writes of a commit. What a process has not written yet when
it dies is missing: a seek reads on a little further.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from penstock.errors import KeyNotFound, PenstockError
from penstock.log.index import ROW_BYTES, Index, IndexBuilder, IndexRow
from penstock.log.names import PartitionKeys, SegmentName
from penstock.log.segment import CHUNK_BYTES
from penstock.stores.base import PersistentBackingStore

ROWS_TOGETHER = 16


class OpenIndex:
    """Picks the entries that get a row, and writes the rows. Failures do not count: it is a hint."""

    def __init__(self, store: PersistentBackingStore, keys: PartitionKeys) -> None:
        self._store = store
        self._keys = keys
        self.go_on(0, 0)

    def go_on(self, segment_base: int, position: int) -> None:
        """Pick entries of this segment behind this position. Rows that were not written are forgotten."""
        self._key = self._keys.index(SegmentName(segment_base))
        self._rows: list[IndexRow] = []
        self._builder = IndexBuilder(position)
        self.offer = self._builder.offer

    def keep(self, rows: Sequence[IndexRow]) -> None:
        """These entries were written: write their rows, now or later."""
        if rows:
            self._rows += rows
            if len(self._rows) >= ROWS_TOGETHER:
                self.write()

    def write(self) -> None:
        """Write the rows that were kept, behind those that are there.

        Somebody may have written them already, or later ones: another writer, or a repair.
        """
        rows, self._rows = self._rows, []
        with suppress(PenstockError):
            size = self._size() // ROW_BYTES * ROW_BYTES if rows else 0
            last = self._last_position(size)
            packed = [row.pack() for row in rows if row.position > last]
            if packed:
                self._store.write_at(self._key, size, packed)

    def trim(self, position: int) -> None:
        """Drop rows that speak of entries at or behind this position: they are gone."""
        with suppress(PenstockError):
            size_max = Index.size_max(position) + CHUNK_BYTES
            index = Index.parse(self._store.read(self._key, 0, size_max)) or Index()
            rows = [row for row in index.rows if row.position < position]
            if len(rows) < len(index.rows):
                self._store.truncate(self._key, len(rows) * ROW_BYTES)

    def _last_position(self, size: int) -> int:
        if not size:
            return -1
        index = Index.parse(self._store.read(self._key, size - ROW_BYTES, ROW_BYTES))
        return index.rows[-1].position if index else -1

    def _size(self) -> int:
        try:
            return self._store.size(self._key)
        except KeyNotFound:
            return 0
