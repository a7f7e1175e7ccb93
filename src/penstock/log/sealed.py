"""What retention, compaction, tiering and repair share: the lock, the sealed segments, removal.

Only sealed segments are touched, and only by one process at a time: all of these hold the
partition's maintenance lock. Appends and reads go on meanwhile; they do not take it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.errors import DamagedEntry, DeadlineExceeded, KeyNotFound
from penstock.log.deadlines import LOCK_TIMEOUT_SECONDS
from penstock.log.frame import KIND_END, KIND_START, Entry
from penstock.log.head import Head, HeadFile
from penstock.log.names import PartitionKeys, SegmentName
from penstock.log.segment import SegmentSource
from penstock.stores.base import PersistentBackingStore

HELD_SEGMENT_BYTES_MAX = 5 << 30
"""Rewriting and moving hold a segment in memory; a larger one is left alone. It is more than a
topic may ask for (``segment_bytes_max``), as a segment ends with the commit that fills it."""

Stores = Sequence[PersistentBackingStore]


@contextmanager
def maintenance(
    store: PersistentBackingStore, keys: PartitionKeys, timeout: float = 0.0
) -> Iterator[bool]:
    """Hold the maintenance lock of the partition; yields False when somebody else has it."""
    lock = store.lock(keys.maintenance, timeout)
    try:
        lock.__enter__()
    except DeadlineExceeded:
        yield False
        return
    try:
        yield True
    finally:
        lock.__exit__(None, None, None)


def secure_head(store: PersistentBackingStore, keys: PartitionKeys, start: int = 0) -> bool:
    """Make the head durable; needed before sealed segments are removed or replaced.

    Whoever sealed them may have died before it synced the head, and a power cut would bring back
    one that speaks of a segment that is gone. False when the head itself is to be mended first,
    which the next append or open does. All below ``start`` is about to go; what is missing behind
    it was lost.
    """
    with store.lock(keys.head, LOCK_TIMEOUT_SECONDS):
        file = HeadFile(store, keys.head)
        head, damaged = file.look()
        if head is None or damaged:
            return False
        file.write_durably(head._replace(start=max(head.start, start)))
        return True


def stores_of(
    store: PersistentBackingStore, tier: PersistentBackingStore | None
) -> list[PersistentBackingStore]:
    """Where segments may be: here, and in the tier when there is one."""
    return [store] if tier is None else [store, tier]


def sealed_segments(segments: Sequence[SegmentSource], head: Head) -> list[SegmentSource]:
    """The segments that no writer touches any more, oldest first."""
    return [one for one in segments if one.name.base < head.segment_base]


def checked_entries(source: SegmentSource) -> Iterator[Entry]:
    """All entries of a sealed segment, from the start entry to the end entry.

    Raises on damage of any kind: also when an entry does not follow the one before, when the file
    goes on behind the end entry, or when it stops before one.
    """
    size = source.size()
    before: Entry | None = None
    for entry in source.entries(0, size):
        if not (_follows(before, entry) if before else _starts(source, entry)):
            cause = DamagedEntry("the entry does not follow the one before", reason="chain")
            raise source.damage(cause, entry.position)
        before = entry
        yield entry
    if before is None or before.header.kind != KIND_END:
        raise source.damage(DamagedEntry("the segment is not sealed", reason="cut off"), size)


def _starts(source: SegmentSource, entry: Entry) -> bool:
    return entry.header.kind == KIND_START and entry.header.base_offset == source.name.base


def _follows(before: Entry, entry: Entry) -> bool:
    return (
        before.header.kind != KIND_END
        and entry.header.previous == before.header.checksum
        and entry.header.base_offset == before.header.next_offset
        and entry.timestamp >= before.timestamp
    )


def segment_files(keys: PartitionKeys, stores: Stores) -> list[SegmentSource]:
    """Every segment file, superseded ones included, oldest rewrite first."""
    found = []
    for store in stores:
        for key in _keys_of(keys, store):
            name = SegmentName.parse(key.rpartition("/")[2])
            if name is not None and key == keys.log(name):
                found.append(SegmentSource(name, store, key))
    return sorted(found, key=lambda one: one.name)


def remove_segment(keys: PartitionKeys, base: int, stores: Stores) -> None:
    """Remove all files of a segment.

    The oldest rewrite goes first: a crash in between leaves the newest, never an older one that
    would come back to life. Indexes go after their segments; one that is left is never read
    again and goes with the next :func:`remove_leftovers`.
    """
    files = [one for one in segment_files(keys, stores) if one.name.base == base]
    for source in files:
        remove_file(keys, source)


def remove_file(keys: PartitionKeys, source: SegmentSource) -> None:
    """Remove one file of a segment and its index."""
    source.store.delete(source.key)
    source.store.delete(keys.index(source.name))


def leftovers(keys: PartitionKeys, stores: Stores) -> list[tuple[PersistentBackingStore, str]]:
    """Files that a crash left behind and nobody reads: superseded segments, stray indexes."""
    files = segment_files(keys, stores)
    newest = {one.name.base: one.name.rewrite for one in files}
    unused = [one for one in files if one.name.rewrite < newest[one.name.base]]
    found = [(one.store, one.key) for one in unused]
    for store in stores:
        used = {keys.index(one.name) for one in files if one.store is store and one not in unused}
        found += [
            (store, key)
            for key in _keys_of(keys, store)
            if key.endswith(".index") and key not in used
        ]
    return found


def remove_leftovers(keys: PartitionKeys, stores: Stores) -> int:
    """Remove what a crash left behind; returns how many files. Needs the maintenance lock."""
    found = leftovers(keys, stores)
    for store, key in found:
        store.delete(key)
    return len(found) + sum(store.remove_temporaries(f"{keys.folder}/") for store in stores)


def _keys_of(keys: PartitionKeys, store: PersistentBackingStore) -> list[str]:
    try:
        return store.list(f"{keys.folder}/")
    except KeyNotFound:
        return []
