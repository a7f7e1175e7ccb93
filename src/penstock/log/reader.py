"""Reading a partition: without a lock, up to the durable offset, checking everything on the way."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from penstock.errors import (
    DamagedEntry,
    DamagedFile,
    DamageError,
    KeyNotFound,
    OffsetOutOfRange,
    StorageError,
)
from penstock.log.deadlines import LOCK_TIMEOUT_SECONDS
from penstock.log.frame import HEADER_BYTES, KIND_END, KIND_RECORDS, Entry, parse_header
from penstock.log.head import Head, HeadFile
from penstock.log.index import Index, IndexBuilder, IndexRow
from penstock.log.names import PartitionKeys, SegmentName
from penstock.log.segment import (
    CHUNK_BYTES,
    SegmentEnd,
    SegmentSource,
    SegmentStart,
    list_segments,
)
from penstock.stores.base import PersistentBackingStore

_T = TypeVar("_T")

INDEXES_KEPT_MAX = 64
LOOKUPS_MAX = 16
"""How often a segment may move away under a reader before it counts as missing."""


def look_again(look: Callable[[], _T]) -> _T:
    """What the look finds; it looks again when a segment that it listed was taken away meanwhile.

    Retention, compaction and tiering do that, without the lock of the partition.
    """
    for _ in range(LOOKUPS_MAX - 1):
        with suppress(KeyNotFound):
            return look()
    return look()


class PartitionReader:
    """The reader's side of a partition. Blocking; one thread at a time.

    It sees what any process has made durable. Damage raises, naming the file and the position;
    a read never just ends before the durable offset.
    """

    def __init__(
        self,
        store: PersistentBackingStore,
        keys: PartitionKeys,
        tier: PersistentBackingStore | None = None,
    ) -> None:
        self.keys = keys
        self._store = store
        self._tier = tier
        self._head_file = HeadFile(store, keys.head)
        self._segments: list[SegmentSource] = []
        self._indexes: dict[str, Index] = {}
        self._log_id: bytes | None = None
        self._checked_starts: set[str] = set()

    def head(self) -> Head:
        """The end of the partition as it is now; DamagedFile when it cannot be known."""
        head, damaged = self._head_file.look()
        if damaged or (head is None and self.segments()):
            return self._head_under_lock()
        return head or Head()

    def _head_under_lock(self) -> Head:
        """What looked damaged may be a write in progress; under the lock there is none."""
        with self._store.lock(self.keys.head, LOCK_TIMEOUT_SECONDS):
            head, damaged = self._head_file.look()
            if head is not None and not damaged:
                return head
        raise DamagedFile(
            f"{self.keys.head} is damaged, so the newest records cannot be told from the end. "
            "Opening the queue for writing makes it anew from the segments",
            file=self.keys.head,
            reason="damaged" if damaged else "missing",
        )

    def earliest(self) -> int:
        """The first offset that is still there; DamagedFile when the segment at the start is lost."""
        self._refresh()
        # The head after the segments: retention moves its start before it removes any.
        head = self.head()
        first = self._segments[0].name.base if self._segments else head.segment_base
        if first > head.start:
            raise self.missing(head.start)
        return first

    def segments(self) -> Sequence[SegmentSource]:
        """The segments by first offset, looked up anew."""
        self._refresh()
        return self._segments

    def cursor(self, offset: int) -> Cursor:
        """A place to read on from."""
        return Cursor(self, offset)

    def offset_at(self, timestamp: int) -> int:
        """The first offset that was appended at or after a time; the end when there is none."""
        return look_again(lambda: self._offset_at(timestamp))

    def _offset_at(self, timestamp: int) -> int:
        head = self.head()
        source = self._segment_at_time(timestamp, head)
        if source is None:
            return head.durable_offset
        self._check_start(source)
        limit = self.limit(source, head)
        row = self._index(source).at_time(timestamp)
        if row is not None and not _is_right(source, row):
            row = self._rebuild(source).at_time(timestamp)
        for entry in source.entries(row.position if row else 0, limit):
            if entry.timestamp >= timestamp and entry.header.kind == KIND_RECORDS:
                return entry.header.base_offset
            if entry.header.kind == KIND_END:
                return entry.header.next_offset
        return head.durable_offset

    def limit(self, source: SegmentSource, head: Head) -> int:
        """Where the durable part of a segment ends."""
        if source.name.base == head.segment_base and source.name.rewrite == 0:
            return head.durable_position
        return source.size()

    def locate(self, offset: int) -> tuple[SegmentSource, int, int]:
        """The segment of an offset, and position and first offset of an entry before it."""
        source = self._segment_of(offset)
        self._check_start(source)
        # What stands first is behind the start entry: no row of an index speaks of it.
        row = self._index(source).at_offset(offset) if offset > source.name.base else None
        if row is None:
            return source, 0, source.name.base
        if not _is_right(source, row):
            row = self._rebuild(source).at_offset(offset)
        return (source, row.position, row.offset) if row else (source, 0, source.name.base)

    def forget(self) -> None:
        """Look everything up again, after segments were removed or moved."""
        self._segments = []
        self._indexes.clear()
        self._checked_starts.clear()

    def _check_start(self, source: SegmentSource) -> None:
        """Refuse a file that was put here from another topic, partition or log."""
        if source.key in self._checked_starts:
            return
        entry = source.first_entry()
        if self._log_id is None and self._segments[-1:] != [source]:
            # Of the newest one itself it is known from what was just read.
            self._log_id = self._newest_log_id()
        try:
            start = SegmentStart.parse(entry)
            found = (start.topic, start.partition, start.rewrite, entry.header.base_offset)
            if found != (
                self.keys.topic,
                self.keys.partition,
                source.name.rewrite,
                source.name.base,
            ):
                raise DamagedEntry("the segment belongs to another place", reason="start")
            if self._log_id not in (None, start.log_id):
                raise DamagedEntry("the segment belongs to another log", reason="log id")
        except DamagedEntry as cause:
            raise source.damage(cause, 0) from cause
        self._log_id = start.log_id
        self._checked_starts.add(source.key)

    def _newest_log_id(self) -> bytes | None:
        """What the newest segment says, which every open for writing checks."""
        durable_offset = self.head().durable_offset
        durable = [one for one in self.segments() if one.name.base < durable_offset]
        with suppress(DamageError):
            return SegmentStart.parse(durable[-1].first_entry()).log_id if durable else None
        return None

    def missing(self, offset: int) -> DamagedFile:
        """The error for an offset that no segment holds, though it is durable and not too old."""
        self._refresh()
        after = next((one.name.base for one in self._segments if one.name.base > offset), None)
        name = self.keys.log(SegmentName(offset))
        return DamagedFile(
            f"the records from offset {offset} of {self.keys.topic}/{self.keys.partition} to "
            f"{'the end' if after is None else f'before {after}'} are in no segment: {name} is "
            "missing. Put it back, or let penstock.repair() go on with what is left",
            file=name,
            offset=offset,
            reason="missing",
        )

    def _refresh(self) -> None:
        self._segments = list_segments(self.keys, self._store, self._tier)

    def _segment_of(self, offset: int) -> SegmentSource:
        place = self._place_of(offset)
        if not 0 < place < len(self._segments):
            # The last known segment may have been followed by another one since.
            self._refresh()
            place = self._place_of(offset)
        if place:
            return self._segments[place - 1]
        raise self._out_of_range(offset)

    def _place_of(self, offset: int) -> int:
        return bisect_right(self._segments, offset, key=lambda one: one.name.base)

    def _out_of_range(self, offset: int) -> OffsetOutOfRange | DamagedFile:
        head = self.head()
        first = self._segments[0].name.base if self._segments else head.segment_base
        if head.start <= offset < head.durable_offset:
            return self.missing(offset)
        return OffsetOutOfRange(
            f"offset {offset} of {self.keys.topic}/{self.keys.partition} is gone: "
            f"retention removed everything below {first}. Seek to {first} or later",
            topic=self.keys.topic,
            partition=self.keys.partition,
            offset=offset,
            earliest=first,
        )

    def _segment_at_time(self, timestamp: int, head: Head) -> SegmentSource | None:
        """The last segment that starts before the time, or the first one."""
        # One without durable records may be half made.
        segments = [one for one in self.segments() if one.name.base < head.durable_offset]
        place = bisect_right(segments, timestamp - 1, key=lambda one: one.first_entry().timestamp)
        return segments[max(0, place - 1)] if segments else None

    def _index(self, source: SegmentSource) -> Index:
        index = self._indexes.get(source.key)
        if index is None:
            index = self._load_index(source)
            while len(self._indexes) >= INDEXES_KEPT_MAX:
                self._indexes.pop(next(iter(self._indexes)))
            if source.name.base != self.head().segment_base:
                self._indexes[source.key] = index
        return index

    def _load_index(self, source: SegmentSource) -> Index:
        size_max = Index.size_max(source.size())
        try:
            data = source.store.read(self.keys.index(source.name), 0, size_max + 1)
        except KeyNotFound:
            data = b""
        index = Index.parse(data) if len(data) <= size_max else None
        if index is None or (index.rows and not _is_right(source, index.rows[-1])):
            return self._rebuild(source)
        return self._rebuild(source, index.rows)

    def _rebuild(self, source: SegmentSource, rows: Sequence[IndexRow] | None = None) -> Index:
        """The index from the segment itself, or the rows with those that are missing at the end.

        Kept on disk when that is possible. Rows end before damage, which the read itself finds.
        """
        head = self.head()
        index = Index(rows or ())
        known = len(index.rows)
        start = index.rows[-1].position if index.rows else 0
        builder = IndexBuilder(start)
        with suppress(DamageError):
            for entry in source.entries(start, self.limit(source, head)):
                row = builder.offer(entry.header.base_offset, entry.timestamp, entry.position)
                if row is not None and entry.header.kind == KIND_RECORDS:
                    index.rows.append(row)
        if source.name.base != head.segment_base:
            self._indexes[source.key] = index
            if rows is None or len(index.rows) > known:
                with suppress(StorageError):
                    source.store.write(self.keys.index(source.name), index.pack())
        return index


def _is_right(source: SegmentSource, row: IndexRow) -> bool:
    """Whether the row points at an entry that starts with its offset."""
    try:
        header = parse_header(source.store.read(source.key, row.position, HEADER_BYTES))
    except DamageError:
        return False
    return header.base_offset == row.offset


class Cursor:
    """A place in a partition. ``offset`` is the next record to be read."""

    def __init__(self, reader: PartitionReader, offset: int) -> None:
        self.offset = offset
        self._reader = reader
        self._source: SegmentSource | None = None
        self._position = 0
        self._expected = 0
        self._checksum: int | None = None
        self._link: tuple[int, int] | None = None

    @property
    def keys(self) -> PartitionKeys:
        """Which partition this is in."""
        return self._reader.keys

    def seek(self, offset: int) -> None:
        """Go on from another offset."""
        self.offset = offset
        self._source = None

    def fetch(self, bytes_max: int = CHUNK_BYTES) -> list[Entry]:
        """The next entries, about ``bytes_max`` of them, or none at the durable end.

        The first may hold records before ``offset``; the caller leaves them out. The cursor
        moves behind what is returned. If it raises, the cursor stays where it was.
        """
        head = self._reader.head()
        tries = 0
        while self.offset < head.durable_offset:
            before = self.offset
            try:
                found = self._read(head, bytes_max)
            except KeyNotFound:
                # Retention, compaction or tiering took the segment away between two reads.
                found = []
                self._source = None
            if found:
                return found
            if self.offset == before and self._source is None:
                tries += 1
                self._look_again(tries)
        return []

    def _look_again(self, tries: int) -> None:
        """The offset is not where it was looked for: list the segments anew, a few times."""
        self._reader.forget()
        if tries >= LOOKUPS_MAX:
            raise self._reader.missing(self.offset)

    def _read(self, head: Head, bytes_max: int) -> list[Entry]:
        if self._source is None:
            self._source, self._position, self._expected = self._reader.locate(self.offset)
            follows = self._link is not None and self._link[0] == self._expected
            self._checksum = (
                self._link[1] if self._link and follows and not self._position else None
            )
        source = self._source
        limit = self._reader.limit(source, head)
        if self._position >= limit:
            raise source.damage(DamagedEntry("the segment is cut off", reason="cut off"), limit)
        found: list[Entry] = []
        for entry in source.chunk(self._position, limit, bytes_max):
            if not self._follows(entry):
                if found:
                    break
                cause = DamagedEntry("the entry does not follow the one before", reason="chain")
                raise source.damage(cause, entry.position)
            self._move_behind(source, entry)
            if entry.header.kind == KIND_RECORDS and entry.header.next_offset > self.offset:
                found.append(entry)
            if entry.header.kind == KIND_END:
                break
        self.offset = max(self.offset, self._expected)
        return found

    def _follows(self, entry: Entry) -> bool:
        """Each entry follows the one before, in the chain and in its offsets."""
        header = entry.header
        chained = self._checksum is None or self._checksum == header.previous
        return chained and header.base_offset == self._expected

    def _move_behind(self, source: SegmentSource, entry: Entry) -> None:
        header = entry.header
        if header.kind == KIND_END:
            try:
                link = SegmentEnd.parse(entry).chain_on(header.checksum)
            except DamagedEntry as cause:
                raise source.damage(cause, entry.position) from cause
            # The next segment chains to this one; that is checked when reading goes on there.
            self._link = (header.next_offset, link)
            self._source = None
        self._position = entry.position + header.entry_bytes
        self._expected = header.next_offset
        self._checksum = header.checksum
