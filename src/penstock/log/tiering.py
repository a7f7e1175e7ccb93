"""Moving sealed segments to the tier store, where they are read from as before.

A segment is checked from its first byte to its last, written to the tier, read back and compared,
and only then removed here. A crash at any point leaves at least one good copy; of two equal ones
the local one is read, and the next round finishes the move.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.errors import DamageError, KeyNotFound, StoreFailed
from penstock.log.index import Index
from penstock.log.names import PartitionKeys
from penstock.log.reader import PartitionReader
from penstock.log.sealed import (
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


@dataclass(frozen=True, slots=True)
class TieringReport:
    """What a round of moving segments did."""

    segments_moved: int = 0
    bytes_moved: int = 0
    damage: tuple[DamageError, ...] = ()
    """Segments that are damaged and therefore stay where they are."""
    busy: bool = False
    """Another process was at work on the partition, or its head is to be mended; nothing was done."""


def move_sealed(
    store: PersistentBackingStore,
    keys: PartitionKeys,
    tier: PersistentBackingStore,
    *,
    keep_local: int = 0,
) -> TieringReport:
    """Move the sealed segments but for the ``keep_local`` newest to the tier, oldest first."""
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
        return _move_all(keys, leaving, tier)


def _move_all(
    keys: PartitionKeys, sources: list[SegmentSource], tier: PersistentBackingStore
) -> TieringReport:
    moved = size = 0
    damage: list[DamageError] = []
    for source in sources:
        try:
            size += move_segment(keys, source, tier)
            moved += 1
        except DamageError as found:
            damage.append(found)
    return TieringReport(moved, size, tuple(damage))


def move_segment(keys: PartitionKeys, source: SegmentSource, tier: PersistentBackingStore) -> int:
    """Move one sealed segment and its index; returns its size. Needs the maintenance lock.

    Raises DamageError when it is damaged here, StoreFailed when the tier gives back other bytes
    than it was given; both leave the local segment as it is.
    """
    deque(checked_entries(source), maxlen=0)
    data = source.store.read(source.key)
    index = _sound_index(keys, source)
    if index:
        tier.write(keys.index(source.name), index)
    tier.write(source.key, data)
    if tier.read(source.key) != data:
        raise StoreFailed(
            f"{source.key} reads back from the tier with other bytes; it stays where it was",
            key=source.key,
            operation="read back",
        )
    remove_file(keys, source)
    return len(data)


def _sound_index(keys: PartitionKeys, source: SegmentSource) -> bytes:
    try:
        data = source.store.read(keys.index(source.name))
    except KeyNotFound:
        return b""
    return data if Index.parse(data) is not None else b""
