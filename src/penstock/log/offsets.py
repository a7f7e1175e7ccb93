"""Subscriber offsets: one small file for each subscriber and partition.

Two slots, written in turn and synced, so a commit is atomic and durable when it returns. Offsets
only move forward: committing 9 and then 3 leaves 9. A damaged slot is reported; the other one,
which is older, is used, so records may come again but none is skipped.

The bytes may live in another store than the log's, the offsets store. One that cannot change a
value in place gets the whole file anew with each commit. The lock is always that of the log's
store, which every process shares.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.errors import DamagedFile, InvalidOption, KeyNotFound
from penstock.log.deadlines import LOCK_TIMEOUT_SECONDS
from penstock.log.names import offset_key
from penstock.log.slots import FIRST_GENERATION, SlottedFile
from penstock.stores.base import PersistentBackingStore

_FIELDS = struct.Struct("<Qq")
_OFFSET_MAX = (1 << 63) - 1


class CommittedOffset(NamedTuple):
    """The next offset that a subscriber wants, and what was found on the way."""

    offset: int
    committed_ms: int
    damaged_slots: int = 0


class OffsetFile:
    """The committed offset of one subscriber in one partition.

    The offset is that of the next record to read: everything below it is consumed. ``store`` is
    the log's own, ``offsets`` is where the bytes are when that is another one.
    """

    def __init__(
        self,
        store: PersistentBackingStore,
        group: str,
        topic: str,
        partition: int,
        offsets: PersistentBackingStore | None = None,
    ) -> None:
        self._locks = store
        self._store = store if offsets is None else offsets
        self._in_place = self._store.capabilities.log
        self.key = offset_key(group, topic, partition)
        self._slots = SlottedFile(self._store, self.key, b"OFFS")
        self._durable_generation = 0

    def is_elsewhere(self) -> bool:
        """Whether an offset that is not found may be in a store that is not looked at.

        Locking makes an empty file in the log's own store; if nothing else is there, the offset
        was written to another one.
        """
        return self._store is not self._locks or self._locks.exists(self.key)

    def read(self) -> CommittedOffset | None:
        """The committed offset, None when nothing was committed yet; DamagedFile when unreadable."""
        return self._read()[1]

    def commit(self, offset: int, now_ms: int) -> int:
        """Move the offset forward to this one, durably; returns where it stands."""
        check_offset(offset)
        with self._locks.lock(self.key, LOCK_TIMEOUT_SECONDS):
            generation, present = self._read()
            self._secure(generation, present)
            if present is not None and present.offset >= offset:
                return present.offset
            self._write(max(generation + 1, FIRST_GENERATION), offset, now_ms)
            return offset

    def move(self, before: int, after: int, now_ms: int) -> bool:
        """Move forward to ``after`` if ``before`` is what is committed; -1 stands for nothing.

        Whether it did. A move may be repeated: the second time, and after a seek, it does nothing.
        """
        with self._locks.lock(self.key, LOCK_TIMEOUT_SECONDS):
            generation, present = self._read()
            self._secure(generation, present)
            if (-1 if present is None else present.offset) != before or after <= before:
                return False
            self._write(max(generation + 1, FIRST_GENERATION), after, now_ms)
            return True

    def reset(self, offset: int, now_ms: int) -> None:
        """Set the offset, backwards too: what an explicit seek or a repair asks for."""
        check_offset(offset)
        with self._locks.lock(self.key, LOCK_TIMEOUT_SECONDS):
            try:
                generation, present = self._read()
                self._secure(generation, present)
            except DamagedFile:
                generation = 0
            self._write(max(generation + 1, FIRST_GENERATION), offset, now_ms)

    def delete(self) -> None:
        """Remove the offset, and the empty file that locking made. Nobody may use it meanwhile."""
        self._store.delete(self.key)
        if self._store is not self._locks:
            self._locks.delete(self.key)

    def _secure(self, generation: int, present: CommittedOffset | None) -> None:
        """Make sure that the newest slot is on the disk before anything builds on it.

        Whoever wrote it may have died before its sync, or the sync may have failed; the slot is
        written again because after a failed sync only that makes the next sync tell the truth.
        A file that was replaced as a whole is durable as soon as it can be read.
        """
        if self._in_place and present is not None and generation != self._durable_generation:
            self._slots.write(generation, _FIELDS.pack(present.offset, present.committed_ms))
            self._store.sync(self.key)
            self._durable_generation = generation

    def _write(self, generation: int, offset: int, now_ms: int) -> None:
        payload = _FIELDS.pack(offset, now_ms)
        if generation <= FIRST_GENERATION or not self._in_place:
            # Atomic, so that a torn first commit is not taken for a damaged file.
            self._store.write(self.key, self._slots.whole(generation, payload))
        else:
            self._slots.write(generation, payload)
            self._store.sync(self.key)
        self._durable_generation = generation

    def _read(self) -> tuple[int, CommittedOffset | None]:
        try:
            slot = self._slots.read()
        except KeyNotFound:
            return 0, None
        if slot.generation == 0:
            if slot.damaged:
                raise self._damage("no slot passes its checks")
            return 0, None
        if len(slot.payload) != _FIELDS.size:
            raise self._damage("the slot has another length")
        offset, committed_ms = _FIELDS.unpack(slot.payload)
        return slot.generation, CommittedOffset(offset, committed_ms, slot.damaged)

    def _damage(self, reason: str) -> DamagedFile:
        return DamagedFile(
            f"{self.key} is damaged: {reason}. Seek the subscriber to an offset or a time to go "
            "on; nothing is skipped or read again before you say so",
            file=self.key,
            reason=reason,
        )


def check_offset(offset: int) -> None:
    """InvalidOption unless a partition can have this offset."""
    if not 0 <= offset <= _OFFSET_MAX:
        raise InvalidOption(f"offset {offset} is outside 0..{_OFFSET_MAX}", option="offset")
