"""Moving sealed segments to the tier store, where they are read from as before.

A segment is checked from its first byte to its last, written to the tier, read back and compared,
and only then removed here. A crash at any point leaves at least one good copy; of two equal ones
the local one is read, and the next round finishes the move.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from penstock.errors import DamageError, KeyNotFound, StoreFailed
from penstock.log.index import Index
from penstock.log.names import PartitionKeys
from penstock.log.reader import PartitionReader
from penstock.log.sealed import (
    HELD_SEGMENT_BYTES_MAX,
    checked_entries,
    maintenance,
    remove_file,
    remove_leftovers,
    sealed_segments,
    secure_head,
    stores_of,
)
from penstock.log.segment import SegmentSource
from penstock.stores.base import PersistentBackingStore

PIECE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TieringReport:
    """What a round of moving segments did."""

    segments_moved: int = 0
    bytes_moved: int = 0
    damage: tuple[DamageError, ...] = ()
    """Segments that are damaged and therefore stay where they are."""
    too_large: tuple[str, ...] = ()
    """Segments that are larger than what a move may hold in memory; they stay where they are."""
    busy: bool = False
    """Another process was at work on the partition, or its head is to be mended; the next round
    does what is left."""


def move_sealed(
    store: PersistentBackingStore,
    keys: PartitionKeys,
    tier: PersistentBackingStore,
    *,
    keep_local: int = 0,
) -> TieringReport:
    """Move the sealed segments but for the ``keep_local`` newest to the tier, oldest first.

    The maintenance lock is held for one segment at a time, so that a new subscriber, which waits
    for it, never waits for a whole round.
    """
    with maintenance(store, keys) as held:
        if not held:
            return TieringReport(busy=True)
        remove_leftovers(keys, stores_of(store, tier))
        reader = PartitionReader(store, keys, tier)
        sealed = sealed_segments(reader.segments(), reader.head())
        local = [one for one in sealed if one.store is store]
        leaving = local[: max(0, len(local) - keep_local)]
        if leaving and not secure_head(store, keys):
            return TieringReport(busy=True)
    return _move_all(reader, leaving, store, tier)


def _move_all(
    reader: PartitionReader,
    sources: list[SegmentSource],
    store: PersistentBackingStore,
    tier: PersistentBackingStore,
) -> TieringReport:
    report = TieringReport()
    for source in sources:
        try:
            data = _checked_bytes(source)
        except DamageError as found:
            report = replace(report, damage=(*report.damage, found))
            continue
        except KeyNotFound:
            # Removed or rewritten meanwhile.
            continue
        if data is None:
            report = replace(report, too_large=(*report.too_large, source.key))
            continue
        with maintenance(store, reader.keys) as held:
            if not held:
                return replace(report, busy=True)
            if source in reader.segments():
                move_segment(reader.keys, source, data, tier)
                moved, size = report.segments_moved + 1, report.bytes_moved + len(data)
                report = replace(report, segments_moved=moved, bytes_moved=size)
    return report


def _checked_bytes(source: SegmentSource) -> bytes | None:
    """The whole segment, which never changes under its name; None when it is too large to hold.

    This is the long part, and needs no lock.
    """
    if source.size() > HELD_SEGMENT_BYTES_MAX:
        return None
    deque(checked_entries(source), maxlen=0)
    return source.store.read(source.key)


def move_segment(
    keys: PartitionKeys, source: SegmentSource, data: bytes, tier: PersistentBackingStore
) -> None:
    """Move one sealed segment, these bytes, and its index. Needs the maintenance lock.

    Raises StoreFailed when the tier gives back other bytes than it was given; the local segment
    stays as it is then.
    """
    index = _sound_index(keys, source)
    if index:
        tier.write(keys.index(source.name), index)
    tier.write(source.key, data)
    if not _reads_back(source.key, data, tier):
        raise StoreFailed(
            f"{source.key} reads back from the tier with other bytes; it stays where it was",
            key=source.key,
            operation="read back",
        )
    remove_file(keys, source)


def _reads_back(key: str, data: bytes, tier: PersistentBackingStore) -> bool:
    """Whether the tier has these bytes; piece by piece, so that they are not in memory twice."""
    view = memoryview(data)
    pieces = range(0, len(data), PIECE_BYTES)
    return tier.size(key) == len(data) and all(
        tier.read(key, start, PIECE_BYTES) == view[start : start + PIECE_BYTES] for start in pieces
    )


def _sound_index(keys: PartitionKeys, source: SegmentSource) -> bytes:
    try:
        data = source.store.read(keys.index(source.name))
    except KeyNotFound:
        return b""
    return data if Index.parse(data) is not None else b""
