"""Segments: files of entries, from a start entry to an end entry.

The *start* entry names the log, the topic and the partition, and chains to the end of the segment
before, so a file that is in the wrong place shows. The *end* entry (the footer) holds counts,
offsets and size; its place in the chain makes it a checksum of the whole segment.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import DamagedEntry, DamageError, KeyNotFound
from penstock.log.frame import (
    FRAME_BYTES,
    HEADER_BYTES,
    KIND_END,
    KIND_START,
    Draft,
    Entry,
    Header,
    draft,
    entries,
    find_headers,
    parse_header,
)
from penstock.log.names import PartitionKeys, SegmentName
from penstock.stores.base import PersistentBackingStore

CHUNK_BYTES = 1024 * 1024
START_BYTES = 1024
LOG_ID_BYTES = 16
_START = struct.Struct(f"<{LOG_ID_BYTES}sII")
_END = struct.Struct("<QQQQqqII")
LINK_REPLACED = 1
END_BYTES = FRAME_BYTES + _END.size
"""Bytes of an end entry: a sealed segment's last ones."""


class SegmentStart(NamedTuple):
    """The body of a start entry."""

    log_id: bytes
    partition: int
    rewrite: int
    topic: str

    def draft(self) -> Draft:
        """The entry, to be sealed."""
        body = _START.pack(self.log_id, self.partition, self.rewrite) + self.topic.encode()
        return draft(0, [body], 0, kind=KIND_START)

    @classmethod
    def parse(cls, entry: Entry) -> SegmentStart:
        """The body of a start entry; DamagedEntry when it is not one."""
        if entry.header.kind != KIND_START or len(entry.body) <= _START.size:
            raise DamagedEntry("the segment does not begin with a start entry", reason="start")
        body = bytes(entry.body)
        log_id, partition, rewrite = _START.unpack_from(body)
        topic = body[_START.size :].decode("utf-8", "replace")
        return cls(log_id, partition, rewrite, topic)


class SegmentEnd(NamedTuple):
    """The body of an end entry."""

    records: int
    first_offset: int
    next_offset: int
    size: int
    """Bytes before the end entry."""
    first_timestamp: int
    last_timestamp: int
    flags: int = 0
    link: int = 0
    """When LINK_REPLACED: what the next segment chains to, since this one was rewritten."""

    def draft(self) -> Draft:
        """The entry, to be sealed."""
        return draft(0, [_END.pack(*self)], 0, kind=KIND_END)

    @classmethod
    def parse(cls, entry: Entry) -> SegmentEnd:
        """The body of an end entry; DamagedEntry when it is not one."""
        if entry.header.kind != KIND_END or len(entry.body) != _END.size:
            raise DamagedEntry("the segment does not end with an end entry", reason="end")
        return cls(*_END.unpack(entry.body))

    def chain_on(self, checksum: int) -> int:
        """What the start entry of the next segment chains to."""
        return self.link if self.flags & LINK_REPLACED else checksum


class SegmentSource(NamedTuple):
    """A segment and the store that it is in."""

    name: SegmentName
    store: PersistentBackingStore
    key: str

    def entries(self, position: int, limit: int) -> Iterator[Entry]:
        """The entries from a position up to a limit, which is the end of an entry.

        Raises on damage, naming the file and the position; it never just ends early.
        """
        while position < limit:
            for entry in self.chunk(position, limit):
                yield entry
                position = entry.position + entry.header.entry_bytes

    def chunk(self, position: int, limit: int, size: int = CHUNK_BYTES) -> list[Entry]:
        """The whole entries in the next ``size`` bytes, and at least one.

        Entries before a damaged one are returned; the call that starts at the damage raises.
        """
        wanted = min(max(size, HEADER_BYTES), limit - position)
        data = self.store.read(self.key, position, wanted)
        found: list[Entry] = []
        try:
            found.extend(entries(data, position))
        except DamageError as damage:
            if not found:
                raise self.damage(damage, position) from damage
        if found:
            return found
        if len(data) < wanted or len(data) < HEADER_BYTES:
            raise self._cut_off(position)
        needed = parse_header(data).entry_bytes
        del data  # It is read again with the rest of the entry: both would take twice the memory.
        return self._large(needed, position, limit)

    def headers(self, position: int, limit: int) -> Iterator[tuple[int, Header]]:
        """Every sound header between two positions with its place, whatever stands around it."""
        for start in range(position, limit, CHUNK_BYTES):
            wanted = min(CHUNK_BYTES + HEADER_BYTES, limit - start)
            for place, header in find_headers(self.store.read(self.key, start, wanted)):
                yield start + place, header

    def _large(self, needed: int, position: int, limit: int) -> list[Entry]:
        """An entry that is larger than the chunk."""
        if needed > limit - position:
            raise self._cut_off(position)
        return self.chunk(position, limit, needed)

    def _cut_off(self, position: int) -> DamageError:
        return self.damage(DamagedEntry("the entry is cut off", reason="cut off"), position)

    def damage(self, cause: DamageError, position: int) -> DamageError:
        """The same damage, with the file, the position and the way out."""
        fields = {**cause.fields, "file": self.key, "position": position}
        message = (
            f"{self.key} is damaged at byte {position}: {cause}. "
            "penstock.verify() tells how much, penstock.repair() saves the rest"
        )
        return type(cause)(message, **fields)

    def first_entry(self) -> Entry:
        """The entry at the start of the segment."""
        size = self.size()
        if size == 0:
            raise self._cut_off(0)
        return self.chunk(0, size, START_BYTES)[0]

    def read_end(self) -> tuple[SegmentEnd, int]:
        """The footer of a sealed segment and what the next one chains to; raises on damage."""
        size = self.size()
        position = size - END_BYTES
        if position < 0:
            raise self._cut_off(0)
        entry = self.chunk(position, size, END_BYTES)[0]
        try:
            end = SegmentEnd.parse(entry)
        except DamagedEntry as cause:
            raise self.damage(cause, position) from cause
        return end, end.chain_on(entry.header.checksum)

    def size(self) -> int:
        """Bytes of the segment."""
        return self.store.size(self.key)


def list_segments(
    keys: PartitionKeys, store: PersistentBackingStore, tier: PersistentBackingStore | None
) -> list[SegmentSource]:
    """The segments of a partition by first offset: the newest rewrite of each, local ones first."""
    found: dict[int, SegmentSource] = {}
    # The tier last: a segment that moves there while we look is seen in one place at least.
    for place in (store, tier):
        if place is not None:
            for source in _sources(keys, place):
                present = found.get(source.name.base)
                if present is None or source.name.rewrite > present.name.rewrite:
                    found[source.name.base] = source
    return [found[base] for base in sorted(found)]


def _sources(keys: PartitionKeys, store: PersistentBackingStore) -> Iterator[SegmentSource]:
    try:
        listed = store.list(f"{keys.folder}/")
    except KeyNotFound:
        return
    for key in listed:
        name = SegmentName.parse(key.rpartition("/")[2])
        if name is not None and key == keys.log(name):
            yield SegmentSource(name, store, key)
