"""The tail cache: the newest records of a partition, for subscribers that keep up.

What a process commits stays in memory for a while, so its own subscribers read it without
touching the disk. Bounded by bytes; the oldest batches go first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import repeat
from typing import NamedTuple

from penstock.log.columns import Columns
from penstock.log.records import NO_HEADERS, Record


class _CachedBatch(NamedTuple):
    base_offset: int
    timestamp: int
    columns: Columns
    size: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.columns)

    def records(self, topic: str, partition: int, offset: int) -> list[Record]:
        """The records from an offset on."""
        columns = self.columns
        if offset > self.base_offset:
            columns = columns.pick(slice(offset - self.base_offset, None))
        keys: Iterable[bytes | None] = repeat(None) if columns.keys is None else columns.keys
        times = repeat(self.timestamp) if columns.timestamps is None else columns.timestamps
        headers = (
            repeat(NO_HEADERS)
            if columns.headers is None
            else [one or NO_HEADERS for one in columns.headers]
        )
        offsets = range(max(offset, self.base_offset), self.next_offset)
        return list(
            map(
                Record, repeat(topic), repeat(partition), offsets, times,
                keys, columns.values, headers,
            )
        )  # fmt: skip


class TailCache:
    """The newest batches of one partition. One thread at a time adds; any may read."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._batches: list[_CachedBatch] = []
        self.hits = 0

    def add(self, base_offset: int, timestamp: int, columns: Columns, size: int) -> None:
        """Remember a committed batch. One that another process's batch precedes starts anew."""
        batches = self._batches
        if batches and batches[-1].next_offset != base_offset:
            batches, self._bytes = [], 0
        batches = [*batches, _CachedBatch(base_offset, timestamp, columns, size)]
        self._bytes += size
        while batches and self._bytes > self._bytes_max:
            self._bytes -= batches.pop(0).size
        # A new list each time: readers in other threads keep a consistent one.
        self._batches = batches

    def read(
        self, topic: str, partition: int, offset: int, durable_offset: int
    ) -> list[Record] | None:
        """The durable records of the batch that holds the offset; None when it is not here."""
        batches = self._batches
        place = bisect_right(batches, offset, key=lambda batch: batch.base_offset)
        batch = batches[place - 1] if place else None
        if batch is None or not offset < batch.next_offset <= durable_offset:
            return None
        self.hits += 1
        return batch.records(topic, partition, offset)

    def clear(self) -> None:
        """Forget everything, for example after a failed write."""
        self._batches, self._bytes = [], 0
