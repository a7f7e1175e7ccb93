"""The tail cache: the newest records of a partition, for subscribers that keep up.

What a process commits stays in memory for a while, so its own subscribers read it without
touching the disk. Bounded by bytes, over all partitions of a queue; the oldest batches go first.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import NamedTuple

from penstock.log.columns import Columns
from penstock.log.records import NO_HEADERS, Record

READ_BYTES = 1024 * 1024
"""What is served at once, about: as much as is read from the disk at once."""
BATCH_OVERHEAD_BYTES = 400
"""What a batch takes beside its records, about: the lists, the slot, the places in the runs."""


class _CachedBatch(NamedTuple):
    base_offset: int
    timestamp: int
    columns: Columns
    failures: int

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


class _Slot:
    """A place for a batch; it is empty when the batch has to go."""

    __slots__ = ("batch", "size")

    def __init__(self, batch: _CachedBatch, size: int) -> None:
        self.batch: _CachedBatch | None = batch
        self.size = size


class TailBudget:
    """The bytes that all tail caches of a queue may hold together; the oldest batches go first.

    A batch counts with what its own records take in memory, and a little for itself.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.lock = threading.Lock()
        """Held by all that changes a cache. Readers do without."""
        self._slots: deque[_Slot] = deque()
        self._empty = 0

    def put(self, slot: _Slot) -> None:
        """Count one more batch, and drop old ones until there is room. Needs the lock."""
        self._slots.append(slot)
        self.bytes += slot.size
        while self.bytes > self.bytes_max:
            self._drop_oldest()
        if self._empty * 2 > len(self._slots):
            self._slots = deque(one for one in self._slots if one.batch is not None)
            self._empty = 0

    def _drop_oldest(self) -> None:
        slot = self._slots.popleft()
        if slot.batch is None:
            self._empty -= 1
        else:
            self.bytes -= slot.size
            slot.batch = None

    def drop(self, slots: Iterable[_Slot]) -> None:
        """Empty the slots. Needs the lock."""
        for slot in slots:
            if slot.batch is not None:
                self.bytes -= slot.size
                self._empty += 1
                slot.batch = None


class _Run:
    """Consecutive batches, in two lists of the same length that only grow at their ends."""

    __slots__ = ("base_offsets", "next_offset", "slots")

    def __init__(self, base_offsets: list[int], slots: list[_Slot], next_offset: int) -> None:
        self.base_offsets = base_offsets
        self.slots = slots
        self.next_offset = next_offset

    def without_empty(self) -> _Run:
        """The same run; a new one when half of it is gone, so that an add costs the same ever."""
        slots = self.slots
        middle = len(slots) // 2
        if not slots or slots[middle].batch is not None:
            return self
        return _Run(self.base_offsets[middle + 1 :], slots[middle + 1 :], self.next_offset)


class TailCache:
    """The newest batches of one partition. One thread at a time adds; any may read.

    Each batch is kept with the count of failures in the head at that time. After a failed sync
    of any process the offsets of lost records are given to others: batches from before it are
    not served any more.
    """

    def __init__(self, budget: TailBudget, count_failures: Callable[[], int] = int) -> None:
        self._budget = budget
        self._count_failures = count_failures
        self._failures = 0
        self._run = _Run([], [], 0)
        self.hits = 0

    def add(self, base_offset: int, timestamp: int, columns: Columns) -> None:
        """Remember a committed batch. One that another process's batch precedes starts anew."""
        size = BATCH_OVERHEAD_BYTES + columns.byte_size()
        slot = _Slot(_CachedBatch(base_offset, timestamp, columns, self._count_failures()), size)
        with self._budget.lock:
            if self._run.next_offset != base_offset:
                self._clear()
            run = self._run = self._run.without_empty()
            # The slot first: a reader takes no place that has none.
            run.slots.append(slot)
            run.base_offsets.append(base_offset)
            run.next_offset = base_offset + len(columns)
            self._budget.put(slot)

    def read(
        self, topic: str, partition: int, offset: int, durable_offset: int
    ) -> list[Record] | None:
        """The durable records from an offset on, about READ_BYTES of them; None when it is not here.

        Those of a batch are served together, when all of it is durable.
        """
        run = self._run
        place = bisect_right(run.base_offsets, offset) - 1
        records: list[Record] = []
        size = 0
        while 0 <= place < len(run.base_offsets) and size < READ_BYTES:
            slot = run.slots[place]
            batch = slot.batch
            if batch is None or not self._serves(batch, offset, durable_offset):
                break
            records += batch.records(topic, partition, offset)
            offset = batch.next_offset
            size += slot.size
            place += 1
        self.hits += bool(records)
        return records or None

    def _serves(self, batch: _CachedBatch, offset: int, durable_offset: int) -> bool:
        is_there = offset < batch.next_offset <= durable_offset
        return is_there and batch.failures == self._failures

    def note_failures(self, failures: int) -> None:
        """A head says that so many writes and syncs failed so far, in whatever process."""
        self._failures = max(self._failures, failures)

    def clear(self) -> None:
        """Forget everything, for example after a failed write."""
        with self._budget.lock:
            self._clear()

    def _clear(self) -> None:
        self._budget.drop(self._run.slots)
        self._run = _Run([], [], 0)
