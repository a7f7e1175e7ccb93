"""Checking one segment from its first byte to its last, past any damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.errors import DamagedEntry, KeyNotFound
from penstock.log.frame import KIND_END, KIND_GAP, KIND_RECORDS, KIND_START, Entry
from penstock.log.index import ROW_BYTES, Index, IndexRow
from penstock.log.names import PartitionKeys
from penstock.log.rewrite import GAP_LOST
from penstock.log.segment import SegmentEnd, SegmentSource, SegmentStart
from penstock.log.walk import Step, Stretch, Walker

REPAIR = "penstock.repair() saves everything else."


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it was written."""

    file: str
    kind: str
    """topic, head, missing, entry, chain, start, end, index, offset, group, producer, transaction,
    torn tail or leftover."""
    message: str
    """A sentence for people, with the way out."""
    position: int | None = None
    """Where in the file, in bytes."""
    first_offset: int | None = None
    next_offset: int | None = None
    """When known: the records from ``first_offset`` to before ``next_offset`` are lost."""
    harmless: bool = False
    """Nothing is lost: opening the log, or its next write, mends it."""


class LostRange(NamedTuple):
    """Offsets without records, because damage took them."""

    topic: str
    partition: int
    first_offset: int
    next_offset: int


@dataclass(slots=True)
class VerifyReport:
    """What was looked at, and everything that is not as it was written."""

    topics: list[str] = field(default_factory=list)
    partitions: int = 0
    segments: int = 0
    records: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    lost: list[LostRange] = field(default_factory=list)
    """What earlier repairs could not save; the log knows it, so it is no problem any more."""

    @property
    def clean(self) -> bool:
        """Whether there is no problem at all."""
        return not self.problems

    @property
    def sound(self) -> bool:
        """Whether nothing is lost: problems, if any, are mended by opening the log."""
        return all(problem.harmless for problem in self.problems)

    def add(self, other: VerifyReport) -> None:
        """Take in what was found elsewhere."""
        self.partitions += other.partitions
        self.segments += other.segments
        self.records += other.records
        self.bytes += other.bytes
        self.problems += other.problems
        self.lost += other.lost


@dataclass(slots=True)
class Inspection:
    """What a segment is, as far as its bytes tell."""

    source: SegmentSource
    bound: int | None
    """Where its offsets must end, if that is known from elsewhere."""
    next_offset: int
    """Behind the last sound entry."""
    position: int = 0
    """Behind the last sound entry."""
    timestamp: int = 0
    checksum: int = 0
    records: int = 0
    start: Entry | None = None
    end: Entry | None = None
    first_timestamp: int | None = None
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Gaps that an earlier repair left."""
    problems: list[Problem] = field(default_factory=list)

    @property
    def link(self) -> int | None:
        """What the next segment chains to; None when that cannot be told."""
        if self.end is None:
            return None
        return SegmentEnd.parse(self.end).chain_on(self.end.header.checksum)


Spend = Callable[[int], None]


def inspect_segment(
    keys: PartitionKeys,
    source: SegmentSource,
    *,
    limit: int | None = None,
    bound: int | None = None,
    spend: Spend | None = None,
) -> Inspection:
    """Check a segment and its index.

    A sealed one as a whole; with ``limit`` the open one up to that position. ``spend`` is called
    with the bytes read, to hold the pace.
    """
    inspector = _Inspector(keys, source, limit, bound)
    return inspector.run(spend)


class _Inspector:
    def __init__(
        self, keys: PartitionKeys, source: SegmentSource, limit: int | None, bound: int | None
    ) -> None:
        self._keys = keys
        self._sealed = limit is None
        size = source.size()
        self._limit = size if limit is None else min(limit, size)
        self._cut = limit is not None and size < limit
        self._found = Inspection(source, bound, source.name.base)
        self._damage: Stretch | None = None
        self._hurt = False
        self._rows = self._read_index(source)

    def run(self, spend: Spend | None) -> Inspection:
        for step in Walker(self._found.source, self._limit).steps():
            self._take(step)
            if spend is not None:
                spend(_step_bytes(step))
        self._finish()
        return self._found

    def _take(self, step: Step) -> None:
        if isinstance(step, Stretch):
            before = self._damage
            self._damage = step if before is None else before._replace(next_position=step[1])
            return
        found, header = self._found, step.header
        if self._damage is not None:
            self._settle_damage(header.base_offset)
        elif header.base_offset != found.next_offset:
            what = f"the offsets jump from {found.next_offset} to {header.base_offset}"
            self._tell("chain", step.position, what, found.next_offset, header.base_offset)
        elif step.timestamp < found.timestamp or found.end is not None:
            self._tell("chain", step.position, "the entry does not follow the one before")
        self._note(step)

    def _note(self, entry: Entry) -> None:
        found, header = self._found, entry.header
        if (header.kind == KIND_START) != (entry.position == 0):
            self._tell("start", entry.position, "the start entry is not where the segment starts")
        if header.kind == KIND_START:
            self._check_start(entry)
        elif header.kind == KIND_END:
            self._check_end(entry)
        elif header.kind == KIND_GAP and header.flags & GAP_LOST:
            found.lost.append((header.base_offset, header.next_offset))
        found.records += header.record_count if header.kind == KIND_RECORDS else 0
        found.next_offset = max(found.next_offset, header.next_offset)
        found.position = entry.position + header.entry_bytes
        found.timestamp = max(found.timestamp, entry.timestamp)
        found.checksum = header.checksum
        if found.first_timestamp is None:
            found.first_timestamp = entry.timestamp
        row = self._rows.pop(entry.position, None)
        if row is not None and (row.offset, row.timestamp) != (header.base_offset, entry.timestamp):
            self._tell_index("a row contradicts the segment")

    def _check_start(self, entry: Entry) -> None:
        source = self._found.source
        try:
            start = SegmentStart.parse(entry)
        except DamagedEntry as damage:
            self._tell("start", entry.position, str(damage))
            return
        expected = (self._keys.topic, self._keys.partition, source.name.rewrite)
        if (start.topic, start.partition, start.rewrite) != expected:
            place = f"{start.topic}/{start.partition}, rewrite {start.rewrite}"
            self._tell("start", entry.position, f"the segment belongs to another place ({place})")
        else:
            self._found.start = entry

    def _check_end(self, entry: Entry) -> None:
        found = self._found
        try:
            end = SegmentEnd.parse(entry)
        except DamagedEntry as damage:
            self._tell("end", entry.position, str(damage))
            return
        found.end = entry
        told = (end.first_offset, end.next_offset, end.size, end.last_timestamp)
        seen = (found.source.name.base, entry.header.base_offset, entry.position, entry.timestamp)
        # What is lost to damage is counted by the footer, and not by us.
        miscounted = (end.records, end.first_timestamp) != (found.records, found.first_timestamp)
        if told != seen or (miscounted and not self._hurt):
            self._tell("end", entry.position, "the footer contradicts the segment")

    def _finish(self) -> None:
        found, bound = self._found, self._found.bound
        if self._damage is not None:
            self._settle_damage(found.next_offset if bound is None else bound)
        elif found.end is None and (self._sealed or self._cut or bound != found.next_offset):
            kind = "end" if self._sealed else "entry"
            self._tell(kind, found.position, "the segment is cut off", found.next_offset, bound)
        if any(position < self._limit for position in self._rows):
            self._tell_index("a row points to no entry")

    # Telling

    def _settle_damage(self, next_offset: int) -> None:
        stretch, self._damage = self._damage, None
        assert stretch is not None, "there is damage to tell of"
        found = self._found
        size = stretch.next_position - stretch.position
        what = f"{size} bytes are damaged ({stretch.reason})" if size else "the chain is broken"
        kind = "entry" if size else "chain"
        self._tell(kind, stretch.position, what, found.next_offset, next_offset)

    def _tell(
        self,
        kind: str,
        position: int,
        what: str,
        first: int | None = None,
        following: int | None = None,
    ) -> None:
        lost = ""
        if first is None or following is None or following <= first:
            first = following = None
        else:
            lost = f" The records from offset {first} to before {following} are lost."
        self._hurt = True
        file = self._found.source.key
        message = f"{file} at byte {position}: {what}.{lost} {REPAIR}"
        self._found.problems.append(Problem(file, kind, message, position, first, following))

    # The index

    def _read_index(self, source: SegmentSource) -> dict[int, IndexRow]:
        """The rows by position; they are crossed off as the entries come by."""
        try:
            data = source.store.read(self._keys.index(source.name))
        except KeyNotFound:
            return {}
        index = Index.parse(data)
        if index is None or len(data) % ROW_BYTES:
            self._tell_index("a row is damaged")
            return {}
        return {row.position: row for row in index.rows}

    def _tell_index(self, what: str) -> None:
        source = self._found.source
        key = self._keys.index(source.name)
        message = f"{key}: {what}. Nothing is lost: the next reader, or repair(), makes it anew."
        if not any(one.file == key for one in self._found.problems):
            self._found.problems.append(Problem(key, "index", message, harmless=True))


def _step_bytes(step: Step) -> int:
    return (
        step.next_position - step.position if isinstance(step, Stretch) else step.header.entry_bytes
    )
