"""The head: where a partition ends and how much of it is durable, shared by all processes.

Writers move it under the partition's lock, after the bytes that it speaks of. Readers look at it
without a lock. It is synced when a segment is rolled and on close; between those, a power cut may
leave an older head, which says less than is true and never more. A roll writes it to both slots,
so that no slot speaks of a segment that retention may remove.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.errors import KeyNotFound
from penstock.log.slots import FIRST_GENERATION, Slot, SlottedFile
from penstock.stores.base import PersistentBackingStore

_FIELDS = struct.Struct("<QQQQQqIII")
_EPOCH = struct.Struct("<I")
"""Follows the fields, unless it is 0: a topic that always had its partitions needs none."""
_BOTH = struct.Struct("<IQ")
"""Epoch and start follow the fields, unless the start is 0: nothing was removed yet."""
_MORE_BYTES = (0, _EPOCH.size, _BOTH.size)
EPOCH_UNKNOWN = 0xFFFFFFFF
"""The head was lost and made anew: topic.json knows the epoch."""


class Head(NamedTuple):
    """The end of a partition."""

    segment_base: int = 0
    """First offset of the open segment."""
    position: int = 0
    """Bytes written to the open segment."""
    next_offset: int = 0
    """Offset of the next record."""
    durable_position: int = 0
    """Bytes of the open segment that are synced; all earlier segments are."""
    durable_offset: int = 0
    """Every record below this offset is synced."""
    timestamp: int = 0
    """Timestamp of the last entry; entries never go back in time."""
    checksum: int = 0
    """Header checksum of the last entry, which the next one chains to."""
    durable_checksum: int = 0
    """Header checksum of the last synced entry."""
    failures: int = 0
    """Failed writes and syncs so far: when it grows, every process checks the disk again."""
    epoch: int = 0
    """How records are sent to partitions. Who sends them otherwise looks at topic.json first."""
    start: int = 0
    """Retention may have removed what is below; a segment that is missing behind it was lost."""
    generation: int = 0

    def trusts(self, later: Head) -> bool:
        """Whether that one can be built on by somebody who last saw this one."""
        return later.generation >= self.generation and later.failures == self.failures

    def synced(self) -> Head:
        """The same end, all of it durable."""
        return self._replace(
            durable_position=self.position,
            durable_offset=self.next_offset,
            durable_checksum=self.checksum,
        )


class HeadFile:
    """Reads and writes the head of a partition."""

    def __init__(self, store: PersistentBackingStore, key: str) -> None:
        self._store = store
        self._slots = SlottedFile(store, key, b"HEAD")
        self._parsed: tuple[Slot | None, Head] = (None, Head())
        """A sound slot and the head that it has."""
        self.key = key

    def read(self) -> Head | None:
        """The newest sound head; None when the file is absent, new or wholly damaged."""
        return self.look()[0]

    def look(self) -> tuple[Head | None, bool]:
        """The newest sound head, and whether a slot is damaged, so that there may be a newer one.

        Without the lock a slot may also look damaged because it is being written.
        """
        try:
            slot = self._slots.read()
        except KeyNotFound:
            return None, False
        parsed, head = self._parsed
        if slot is parsed:
            return head, False
        fields, more = slot.payload[: _FIELDS.size], slot.payload[_FIELDS.size :]
        if len(fields) < _FIELDS.size or len(more) not in _MORE_BYTES:
            return None, bool(slot.damaged or slot.generation)
        epoch, start = _BOTH.unpack(more.ljust(_BOTH.size, b"\0"))
        head = Head._make((*_FIELDS.unpack(fields), epoch, start, slot.generation))
        if not slot.damaged:
            self._parsed = (slot, head)
        return head, bool(slot.damaged)

    def write(self, head: Head) -> Head:
        """Write the head as the next generation and return it; not synced."""
        assert head.durable_offset <= head.next_offset, "never more durable than written"
        assert head.durable_position <= head.position, "never more durable than written"
        # The generation is the last field; to replace it by name takes four times as long.
        written = Head._make((*head[:-1], max(head.generation + 1, FIRST_GENERATION)))
        payload = _FIELDS.pack(*written[:-3])
        if written.start:
            payload += _BOTH.pack(written.epoch, written.start)
        elif written.epoch:
            payload += _EPOCH.pack(written.epoch)
        slot = self._slots.write(written.generation, payload)
        self._parsed = (slot, written)
        return written

    def write_durably(self, head: Head) -> Head:
        """Write the head to both slots and sync: no power cut brings an older one back."""
        written = self.write(self.write(head))
        self.sync()
        return written

    def sync(self) -> None:
        """Make the last written head durable."""
        self._store.sync(self.key)
