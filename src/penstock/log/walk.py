"""Reading a segment past its damage: the sound entries, and the stretches that are not.

After damage the next sound entry is looked for, byte by byte. If the damaged header still tells
what the next one chains to, that one is known for sure. Otherwise bytes inside a damaged record
that look like an entry (someone stored a segment as a value) are told from real ones only by their
offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import DamagedEntry, DamageError
from penstock.log.frame import (
    ENTRY_BYTES_MAX,
    HEADER_BYTES,
    KIND_RECORDS,
    KIND_START,
    Entry,
    Header,
    parse_header,
)
from penstock.log.segment import SegmentSource

_U32 = struct.Struct("<I")


class Stretch(NamedTuple):
    """Bytes that are no sound entry, or (of no length) a place where the chain breaks."""

    position: int
    next_position: int
    reason: str


Step = Entry | Stretch


class Walker:
    """Walks over a segment once, up to a limit. Changes nothing, stops for nothing.

    Raises only UnsupportedFormat (a newer release wrote it) and StorageError.
    """

    def __init__(self, source: SegmentSource, limit: int) -> None:
        self._source = source
        self._limit = limit
        self._next_offset = source.name.base

    def steps(self) -> Iterator[Step]:
        """Entries and damaged stretches in the order of the file, without overlap."""
        before: Entry | None = None
        held: Entry | None = None
        for step in self._raw_steps():
            if held is not None:
                before, *told = _judge(held, step)
                yield from told
                held = None
            if isinstance(step, Stretch):
                yield step
                before = None
            elif before is None or _chains(before, step):
                yield step
                before = step
            else:
                held = step
        if held is not None:
            yield _foreign(held)

    def _raw_steps(self) -> Iterator[Step]:
        position = 0
        while position < self._limit:
            try:
                found = self._source.chunk(position, self._limit)
            except DamagedEntry as damage:
                following = self._next_position(position)
                yield Stretch(position, following, str(damage.fields["reason"]))
                position = following
                continue
            for entry in found:
                yield self._checked(entry)
                position = entry.position + entry.header.entry_bytes
                self._next_offset = max(self._next_offset, entry.header.next_offset)

    def _checked(self, entry: Entry) -> Step:
        """The entry, or a stretch when its columns contradict each other."""
        if entry.header.kind == KIND_RECORDS:
            try:
                _check_columns(entry)
            except DamagedEntry as damage:
                end = entry.position + entry.header.entry_bytes
                return Stretch(entry.position, end, str(damage.fields["reason"]))
        return entry

    # Going on after damage

    def _next_position(self, position: int) -> int:
        head = self._source.store.read(self._source.key, position, HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            return self._limit
        try:
            return min(position + parse_header(head).entry_bytes, self._limit)
        except DamageError:
            # One of the two is what the next entry chains to, unless both were hit.
            marks = {_U32.unpack_from(head, HEADER_BYTES - 4)[0], crc32c(head[:-4])}
            return self._search(position, position + _U32.unpack_from(head)[0] + 12, marks)

    def _search(self, position: int, end: int, marks: set[int]) -> int:
        """The next entry that chains to the damaged one, else the first that can follow it.

        ``end`` is where the damaged entry says that it ends.
        """
        plausible: int | None = None
        for found, header in self._source.headers(position, self._limit):
            if plausible is not None and found > position + ENTRY_BYTES_MAX:
                break
            if header.previous in marks:
                return found
            if plausible is None and self._may_follow(found, header):
                plausible = found
        return self._limit if plausible is None or end == self._limit else plausible

    def _may_follow(self, position: int, header: Header) -> bool:
        """Whether a whole entry stands there that can come behind the last sound one."""
        if header.kind == KIND_START or header.base_offset < self._next_offset:
            return False
        try:
            self._source.chunk(position, self._limit, header.entry_bytes)
        except DamagedEntry:
            return False
        return True


def _judge(held: Entry, after: Step) -> tuple[Entry | None, *tuple[Step, ...]]:
    """An entry that does not chain to the one before is part of the log if the next chains to it.

    Gives the entry that the next one is to follow, if any, and the steps to tell.
    """
    if isinstance(after, Entry) and _chains(held, after):
        return held, Stretch(held.position, held.position, "chain"), held
    return None, _foreign(held)


def _foreign(entry: Entry) -> Stretch:
    return Stretch(entry.position, entry.position + entry.header.entry_bytes, "chain")


def _chains(before: Entry, entry: Entry) -> bool:
    return entry.header.previous == before.header.checksum


def _check_columns(entry: Entry) -> None:
    offsets = entry.view(copy=False).offsets()
    if len(offsets) and offsets[-1] >= entry.header.next_offset:
        raise DamagedEntry("offsets of records are beyond the entry", reason="columns")
