"""Small files that change in place: two slots, written in turn, each with its own checksum.

::

    slot (512 bytes) = magic 4 bytes | version u16 | length u16 | generation u64
                       | payload, padded with zeros to 492 bytes | CRC-32C u32

Generation g goes to slot g mod 2, so a torn write never touches the newest sound slot. The first
write fills both slots, so an empty slot beside a written one is damage. The slots are a sector
each. Every byte of a slot is under its checksum, and so is the key: the file of another place, put
here by mistake, is damage.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import UnsupportedFormat
from penstock.stores.base import PersistentBackingStore

SLOT_BYTES = 512
VERSION = 1
_FRONT = struct.Struct("<4sHHQ")
_CHECKSUM = struct.Struct("<I")
PAYLOAD_BYTES_MAX = SLOT_BYTES - _FRONT.size - _CHECKSUM.size
FIRST_GENERATION = 2
"""The newest one after the first write."""


class Slot(NamedTuple):
    """The newest sound slot of a file, and how many slots were damaged."""

    generation: int
    payload: bytes
    damaged: int


NO_SLOT = Slot(0, b"", 0)


class SlottedFile:
    """Two slots under one key of a store. One writer at a time; readers need no lock."""

    def __init__(self, store: PersistentBackingStore, key: str, magic: bytes) -> None:
        self._store = store
        self._magic = magic
        self._place = crc32c(key.encode())
        # The bytes of the file as they were last seen or written, and their newest slot: one
        # value, as threads may read side by side. The same bytes need not be parsed again.
        self._known = (b"", NO_SLOT)
        self.key = key

    def read(self) -> Slot:
        """The newest sound slot; generation 0 when none was ever written or none is sound.

        It is the same object for as long as the file has the same bytes.
        """
        data = self._store.read(self.key, 0, 2 * SLOT_BYTES)
        known, slot = self._known
        if data != known:
            slot = self._newest_of(data)
            self._known = (data, slot)
        return slot

    def _newest_of(self, data: bytes) -> Slot:
        first, second = self._parse(data[:SLOT_BYTES]), self._parse(data[SLOT_BYTES:])
        if first and second and first.generation and second.generation:
            return max(first, second)
        return self._newest([first, second])

    @staticmethod
    def _newest(slots: list[Slot | None]) -> Slot:
        """The newest of slots that are not all sound."""
        damaged = slots.count(None)
        newest = max((slot for slot in slots if slot is not None), default=NO_SLOT)
        if newest.generation:
            # Both slots were written with the first generation: an empty one was lost.
            damaged += slots.count(NO_SLOT)
        return newest._replace(damaged=damaged)

    def write(self, generation: int, payload: bytes) -> Slot:
        """Write the slot of this generation; durable only after a sync of the key.

        Returns what :meth:`read` returns while nobody else writes and the other slot is sound.
        """
        slot = Slot(generation, payload, 0)
        if generation <= FIRST_GENERATION:
            whole = self.first(payload)
            self._store.write_at(self.key, 0, [whole])
            self._known = (whole, slot)
        else:
            packed = self._pack(generation, payload)
            self._store.write_at(self.key, generation % 2 * SLOT_BYTES, [packed])
            self._expect(packed, slot)
        return slot

    def _expect(self, packed: bytes, slot: Slot) -> None:
        """Know what the file has now, if the other slot was sound and is older."""
        known, before = self._known
        if before.damaged or not 0 < before.generation < slot.generation:
            return
        other = known[SLOT_BYTES:] if slot.generation % 2 == 0 else known[:SLOT_BYTES]
        self._known = (packed + other if slot.generation % 2 == 0 else other + packed, slot)

    def first(self, payload: bytes) -> bytes:
        """The whole file at first: the payload stands in both slots, as generations 1 and 2."""
        return self.whole(FIRST_GENERATION, payload)

    def whole(self, generation: int, payload: bytes) -> bytes:
        """The whole file, for who replaces it at once: the payload stands in both slots.

        The other slot counts as the generation before, so damage to one slot loses nothing.
        """
        newest, other = self._pack(generation, payload), self._pack(generation - 1, payload)
        return other + newest if generation % 2 else newest + other

    def _pack(self, generation: int, payload: bytes) -> bytes:
        assert len(payload) <= PAYLOAD_BYTES_MAX, "a slot is a sector"
        body = _FRONT.pack(self._magic, VERSION, len(payload), generation)
        body += payload.ljust(PAYLOAD_BYTES_MAX, b"\0")
        return body + self._checksum(body)

    def _checksum(self, body: bytes) -> bytes:
        return _CHECKSUM.pack(crc32c(body, self._place))

    def _parse(self, data: bytes) -> Slot | None:
        """The slot, NO_SLOT when it was never written, None when it is damaged."""
        if not any(data):
            return NO_SLOT
        body = data[: SLOT_BYTES - _CHECKSUM.size]
        if len(data) < SLOT_BYTES or data[len(body) :] != self._checksum(body):
            return None
        magic, version, length, generation = _FRONT.unpack_from(body)
        if magic != self._magic or length > PAYLOAD_BYTES_MAX:
            return None
        if version != VERSION:
            raise UnsupportedFormat(
                f"{self.key} has format version {version}, this release reads {VERSION}: "
                "upgrade it",
                file=self.key,
                version=version,
            )
        return Slot(generation, body[_FRONT.size : _FRONT.size + length], 0)
