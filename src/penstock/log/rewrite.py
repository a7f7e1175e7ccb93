"""Writing a sealed segment anew, with records left out. Offsets never change.

The new file is the next rewrite generation of the segment. It covers the same offsets: entries
that stay keep their offsets, timestamps and codec; an entry of which some records stay gets
offset deltas; *gap* entries cover what is gone. Its end entry says what the next segment chains
to, so the chain between segments holds without touching the next one.

A crash leaves the old file, or both, or the new one. Of two, the higher rewrite counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.log.codec import Codec
from penstock.log.frame import KIND_GAP, KIND_RECORDS, Entry, draft, repack, seal
from penstock.log.index import Index, IndexBuilder, IndexRow
from penstock.log.names import PartitionKeys, SegmentName
from penstock.log.sealed import checked_entries, remove_file
from penstock.log.segment import LINK_REPLACED, SegmentEnd, SegmentSource, SegmentStart
from penstock.system import Buffer

SPAN_MAX = 0xFFFFFFFF
GAP_LOST = 1
"""Flag of a gap whose records were lost to damage; without it they were removed on purpose."""

Decide = Callable[[Entry], Sequence[int] | None]
"""Which records of an entry stay: their places, in order; None means all."""


class Gap(NamedTuple):
    """Offsets without records, waiting for what comes behind them."""

    first: int
    next: int
    timestamp: int
    flags: int


class SegmentWriter:
    """Builds a segment in memory, entry by entry, in the order of offsets."""

    def __init__(self, start: SegmentStart, base: int, previous: int, timestamp: int) -> None:
        self.data = bytearray()
        self.base = base
        self.next_offset = base
        self.records = 0
        self._first_timestamp = timestamp
        self._timestamp = timestamp
        self._durable = 0
        self._checksum = previous
        self._gap: Gap | None = None
        self._builder = IndexBuilder()
        self._rows: list[IndexRow] = []
        self._add(seal(start.draft(), base, 0, previous, timestamp))

    def keep(self, entry: Entry) -> None:
        """Take over a whole entry of records, or a gap."""
        header = entry.header
        self.cover(header.base_offset, entry.timestamp)
        if header.kind == KIND_GAP:
            self.leave_out(entry, header.flags)
        else:
            self._put(entry, [entry.body])

    def keep_some(self, entry: Entry, places: Sequence[int]) -> None:
        """Take over the records at these places; the others become a hole or a gap."""
        if not places:
            self.leave_out(entry)
            return
        header = entry.header
        self.cover(header.base_offset, entry.timestamp)
        columns = entry.view().columns()
        if columns.deltas is None:
            columns.deltas = range(len(columns))
        kept = columns.take(places)
        flags, body = kept.encode()
        made = draft(flags, body, len(kept), codec=Codec(header.codec))
        changed = header._replace(flags=flags, record_count=len(kept), body_length=made.body_length)
        self._put(entry._replace(header=changed), made.body)

    def leave_out(self, entry: Entry, flags: int = 0) -> None:
        """Put a gap in the place of an entry."""
        self.cover(entry.header.base_offset, entry.timestamp)
        self.cover(entry.header.next_offset, entry.timestamp, flags)

    def cover(self, next_offset: int, timestamp: int, flags: int = GAP_LOST) -> None:
        """Put a gap before an offset, if there are offsets in between; gaps alike are merged."""
        if next_offset <= self.next_offset:
            return
        timestamp = max(timestamp, self._timestamp)
        gap = Gap(self.next_offset, next_offset, timestamp, flags)
        if self._gap is not None and self._gap.flags == flags:
            gap = gap._replace(first=self._gap.first)
        else:
            self._flush_gap()
        self._gap = gap
        self.next_offset = next_offset

    def finish(self, link: int) -> tuple[bytearray, Index]:
        """Seal it; ``link`` is what the start entry of the next segment chains to."""
        self._flush_gap()
        end = SegmentEnd(
            records=self.records,
            first_offset=self.base,
            next_offset=self.next_offset,
            size=len(self.data),
            first_timestamp=self._first_timestamp,
            last_timestamp=self._timestamp,
            flags=LINK_REPLACED,
            link=link,
        )
        self._add(
            seal(end.draft(), self.next_offset, self._durable, self._checksum, self._timestamp)
        )
        return self.data, Index(self._rows)

    def _put(self, entry: Entry, body: Sequence[Buffer]) -> None:
        self._flush_gap()
        header = entry.header._replace(previous=self._checksum)
        self._timestamp = max(self._timestamp, entry.timestamp)
        self._durable = max(self._durable, header.durable_offset)
        row = self._builder.offer(header.base_offset, self._timestamp, len(self.data))
        if row is not None:
            self._rows.append(row)
        self.records += header.record_count
        self.next_offset = header.next_offset
        self._add(repack(header, body, self._timestamp))

    def _flush_gap(self) -> None:
        gap, self._gap = self._gap, None
        if gap is None:
            return
        self._timestamp = max(self._timestamp, gap.timestamp)
        for first in range(gap.first, gap.next, SPAN_MAX):
            span = min(SPAN_MAX, gap.next - first)
            made = draft(gap.flags, [], 0, offset_span=span, kind=KIND_GAP)
            self._add(seal(made, first, self._durable, self._checksum, self._timestamp))

    def _add(self, sealed: tuple[list[Buffer], int, int]) -> None:
        buffers, _, self._checksum = sealed
        for buffer in buffers:
            self.data += buffer


def rewrite_segment(keys: PartitionKeys, source: SegmentSource, decide: Decide) -> SegmentSource:
    """Write a sealed segment anew without the records that ``decide`` leaves out.

    The new file is durable before the old one goes. Raises on damage, before anything is written.
    Needs the maintenance lock.
    """
    writer, link = _rewritten(source, decide)
    return replace_segment(keys, source, writer, link)


def replace_segment(
    keys: PartitionKeys, source: SegmentSource, writer: SegmentWriter, link: int
) -> SegmentSource:
    """Put what was built in the place of a segment file, in the same store."""
    written = write_segment(keys, next_name(source), source, writer, link)
    remove_file(keys, source)
    return written


def write_segment(
    keys: PartitionKeys,
    name: SegmentName,
    like: SegmentSource,
    writer: SegmentWriter,
    link: int,
) -> SegmentSource:
    """Write a segment that was built beside another one, durably, with its index."""
    data, index = writer.finish(link)
    store = like.store
    if index.rows:
        store.write(keys.index(name), index.pack())
    store.write(keys.log(name), data)
    return SegmentSource(name, store, keys.log(name))


def next_name(source: SegmentSource) -> SegmentName:
    """The name of the next rewrite of a segment."""
    return source.name._replace(rewrite=source.name.rewrite + 1)


def start_writer(source: SegmentSource, entry: Entry) -> SegmentWriter:
    """A writer for the next rewrite of a segment with this start entry."""
    start = SegmentStart.parse(entry)._replace(rewrite=source.name.rewrite + 1)
    header = entry.header
    return SegmentWriter(start, header.base_offset, header.previous, entry.timestamp)


def _rewritten(source: SegmentSource, decide: Decide) -> tuple[SegmentWriter, int]:
    writer = start_writer(source, source.first_entry())
    for entry in checked_entries(source):
        places = decide(entry) if entry.header.kind == KIND_RECORDS else None
        if places is not None:
            writer.keep_some(entry, places)
        elif entry.header.kind in (KIND_RECORDS, KIND_GAP):
            writer.keep(entry)
    return writer, source.read_end()[1]
