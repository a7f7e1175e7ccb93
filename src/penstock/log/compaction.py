"""Key compaction: only the newest record of each key stays in the sealed segments.

Records without a key stay. A tombstone (a value of None) that is the newest of its key stays for
a while, and until every registered subscriber has consumed it, and then goes with its key. Offsets
never change.

The newest segments are read first, and the oldest are rewritten first: a crash in between never
brings an old value back whose tombstone has already gone. Appends and reads go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from penstock.log import columns
from penstock.log.frame import KIND_RECORDS, Entry
from penstock.log.head import Head
from penstock.log.names import PartitionKeys
from penstock.log.reader import PartitionReader
from penstock.log.retention import find_needs
from penstock.log.rewrite import rewrite_segment
from penstock.log.sealed import (
    HELD_SEGMENT_BYTES_MAX,
    checked_entries,
    maintenance,
    remove_leftovers,
    sealed_segments,
    secure_head,
    stores_of,
)
from penstock.log.segment import SegmentSource
from penstock.log.topic import TopicFile
from penstock.stores.base import PersistentBackingStore

KEYS_MAX = 1 << 19
"""Keys that one round keeps in memory, about 100 MiB. The others are left alone this round."""
OFFSET_MAX = (1 << 63) - 1
TOMBSTONE_AGE_MS = 24 * 60 * 60 * 1000
KEY_BYTES_MAX = 32
_DIGEST_BYTES = KEY_BYTES_MAX + 1


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What a round of compaction did."""

    segments_checked: int = 0
    segments_rewritten: int = 0
    records_removed: int = 0
    bytes_freed: int = 0
    keys: int = 0
    keys_left_alone: bool = False
    """There were more than KEYS_MAX keys."""
    busy: bool = False
    """Another process was at work on the partition, or its head is to be mended; nothing was done."""


class Compactor:
    """Compacts one partition, round by round. Blocking; one thread at a time."""

    def __init__(
        self,
        store: PersistentBackingStore,
        keys: PartitionKeys,
        tier: PersistentBackingStore | None = None,
        *,
        offsets: PersistentBackingStore | None = None,
        keys_max: int = KEYS_MAX,
    ) -> None:
        self._store = store
        self._keys = keys
        self._tier = tier
        self._offsets = offsets
        self._reader = PartitionReader(store, keys, tier)
        self._keys_max = keys_max
        self._done_base = -1
        self._next_due_ms: int | None = None
        self._awaited: int | None = None

    def is_due(self, now_ms: int) -> bool:
        """Whether a round may find something.

        A new sealed segment, or a tombstone that is old, or one that has been consumed by now.
        """
        base = self._reader.head().segment_base
        return (
            base != self._done_base
            or (self._next_due_ms is not None and self._next_due_ms <= now_ms)
            or (self._awaited is not None and self._needed() > self._awaited)
        )

    def _needed(self) -> int:
        """Every subscriber has consumed all below this offset; nobody needs it again."""
        state = TopicFile(self._store, self._keys.topic).read()
        lowest = find_needs(self._store, state, self._keys.partition, self._offsets).lowest
        return OFFSET_MAX if lowest is None else lowest

    def run(self, now_ms: int, tombstone_age_ms: int | None = None) -> CompactionReport:
        """One round. Raises on damage: what was rewritten before that is sound.

        A tombstone older than ``tombstone_age_ms`` (24 h when None) goes with its key when every
        subscriber has consumed it. A new subscriber registers under the same lock, so none is
        overlooked. A crash at any point loses nothing; the next round clears away what it leaves.
        """
        with maintenance(self._store, self._keys) as held:
            if not held or not secure_head(self._store, self._keys):
                return CompactionReport(busy=True)
            remove_leftovers(self._keys, stores_of(self._store, self._tier))
            age = TOMBSTONE_AGE_MS if tombstone_age_ms is None else tombstone_age_ms
            return self._run(_Round(self._keys_max, now_ms - age, self._needed()), age)

    def _run(self, work: _Round, age_ms: int) -> CompactionReport:
        head = self._reader.head()
        segments = self._reader.segments()
        sealed = sealed_segments(segments, head)
        for source in reversed(segments):
            if source.name.base <= head.segment_base:
                work.learn(self._entries(source, head))
        rewritten = [self._compact(source, work) for source in sealed]
        self._done_base = head.segment_base
        self._next_due_ms = work.next_due_ms(age_ms)
        self._awaited = work.awaited
        return CompactionReport(
            segments_checked=len(sealed),
            segments_rewritten=sum(records > 0 for records, _ in rewritten),
            records_removed=sum(records for records, _ in rewritten),
            bytes_freed=sum(size for _, size in rewritten),
            keys=work.keys,
            keys_left_alone=work.full,
        )

    def _entries(self, source: SegmentSource, head: Head) -> Iterator[Entry]:
        if source.name.base < head.segment_base:
            return checked_entries(source)
        return source.entries(0, self._reader.limit(source, head))

    def _compact(self, source: SegmentSource, work: _Round) -> tuple[int, int]:
        """Rewrite a segment if that leaves anything out; how many records and bytes went."""
        if not work.removes_any(source):
            return 0, 0
        size = source.size()
        if size > HELD_SEGMENT_BYTES_MAX:
            # Old values stay here, so the tombstones that hide them must stay too.
            work.keep_tombstones()
            return 0, 0
        records = source.read_end()[0].records
        written = rewrite_segment(self._keys, source, work.places)
        return records - written.read_end()[0].records, size - written.size()


class _Round:
    """The newest offset of each key, and what follows from it."""

    def __init__(self, keys_max: int, tombstones_before_ms: int, needed: int) -> None:
        self._newest: dict[bytes, int] = {}
        self._keys_max = keys_max
        self._before_ms: int | None = tombstones_before_ms
        self._needed = needed
        self._oldest_kept_ms: int | None = None
        self.awaited: int | None = None
        """The first tombstone that is old enough to go, but not consumed by all."""

    @property
    def keys(self) -> int:
        """How many keys are known."""
        return len(self._newest)

    @property
    def full(self) -> bool:
        """Whether there may be keys that are left alone."""
        return len(self._newest) >= self._keys_max

    def learn(self, entries: Iterable[Entry]) -> None:
        """Take in the keys of a segment; the segments behind it were taken in before."""
        newest = self._newest
        for entry in entries:
            for _, offset, key, _ in _keyed(entry):
                if key in newest:
                    newest[key] = max(newest[key], offset)
                elif len(newest) < self._keys_max:
                    newest[key] = offset

    def keep_tombstones(self) -> None:
        """From here on, every tombstone that is the newest of its key stays."""
        self._before_ms = None

    def removes_any(self, source: SegmentSource) -> bool:
        """Whether rewriting the segment would leave any record out."""
        entries = source.entries(0, source.size())
        return any(self.places(entry) is not None for entry in entries)

    def places(self, entry: Entry) -> Sequence[int] | None:
        """Which records of an entry stay; None when all do."""
        gone = {
            place
            for place, offset, key, tombstone in _keyed(entry)
            if self._goes(entry, offset, key, tombstone)
        }
        if not gone:
            return None
        return [place for place in range(entry.header.record_count) if place not in gone]

    def _goes(self, entry: Entry, offset: int, key: bytes, tombstone: bool) -> bool:
        newest = self._newest.get(key)
        if newest is None or not tombstone:
            return newest is not None and offset < newest
        if offset < newest:
            return True
        if self._before_ms is not None and entry.timestamp < self._before_ms:
            if offset < self._needed:
                return True
            self.awaited = offset if self.awaited is None else min(self.awaited, offset)
            return False
        kept = self._oldest_kept_ms
        self._oldest_kept_ms = entry.timestamp if kept is None else min(kept, entry.timestamp)
        return False

    def next_due_ms(self, age_ms: int) -> int | None:
        """When the next tombstone will be old enough to go."""
        kept = self._oldest_kept_ms
        return None if kept is None or self._before_ms is None else kept + age_ms + 1


def _keyed(entry: Entry) -> Iterator[tuple[int, int, bytes, bool]]:
    """Place, offset, key and whether it is a tombstone, of each record that has a key."""
    if entry.header.kind != KIND_RECORDS or not entry.header.flags & columns.KEYS:
        return
    view = entry.view()
    tombstones = (view.value_lengths == columns.NULL).tolist()
    parts = zip(view.offsets().tolist(), view.keys(), tombstones, strict=True)
    for place, (offset, key, tombstone) in enumerate(parts):
        if key is not None:
            yield place, offset, _fold(key), tombstone


def _fold(key: bytes) -> bytes:
    """The key, or a digest of a long one, which is longer than any key that stands for itself."""
    return key if len(key) <= KEY_BYTES_MAX else blake2b(key, digest_size=_DIGEST_BYTES).digest()
