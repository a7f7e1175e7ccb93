"""What an open finds and mends: a torn tail is cut and reported, damage is refused and named.

How the two are told apart: a sync covers every byte before it, so a record that the head or any
later entry calls durable was whole on the disk once. If such a record does not read back, that is
damage, and cutting there would throw acknowledged records away. If nothing claims the bytes, they
are the tail of a write that a crash cut short, and nobody was told that they were safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.errors import DamagedEntry, DamagedFile, DamageError
from penstock.log.frame import (
    HEADER_BYTES,
    KIND_END,
    KIND_START,
    Entry,
    parse_header,
)
from penstock.log.head import Head
from penstock.log.names import PartitionKeys, SegmentName
from penstock.log.segment import SegmentEnd, SegmentSource, SegmentStart


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening a partition found."""

    topic: str
    partition: int
    next_offset: int
    bytes_checked: int = 0
    """Bytes behind the last known durable position that were read and checked."""
    bytes_cut: int = 0
    """Bytes of a torn tail that were cut off: nobody was told that they were durable."""
    head_lost: bool = False
    """The head was absent or unreadable and was made anew from the segments."""
    head_damaged: bool = False
    """One of the two slots of the head was damaged and was written anew."""

    @property
    def clean(self) -> bool:
        """Whether there was nothing to mend."""
        return not (self.bytes_cut or self.head_lost or self.head_damaged)


@dataclass(frozen=True, slots=True)
class TailEnd:
    """Where the sound part of a partition ends."""

    head: Head
    log_id: bytes | None
    checked: int
    spans: Sequence[tuple[SegmentSource, int]] = ()
    """The segments that are kept, each with the position from where it was not known durable."""
    torn: tuple[SegmentSource, int] | None = None
    """The segment and position from where bytes are to be cut."""
    surplus: Sequence[SegmentSource] = ()
    """Segments behind the torn position, with nothing durable in them."""


class TailScanner:
    """Walks once from the last durable position to the end of the log. Changes nothing."""

    def __init__(
        self, keys: PartitionKeys, segments: Sequence[SegmentSource], head: Head | None
    ) -> None:
        self._keys = keys
        self._segments = segments
        self._head = _start_at(segments, head)
        self._chain_known = head is not None
        self._position = self._start_position = self._head.position
        self._sealed = False
        self._log_id: bytes | None = None
        self._checked = 0

    def find_end(self) -> TailEnd:
        """The sound end; raises when something durable is missing or does not read back."""
        start = self._head
        rest = [one for one in self._segments if one.name.base >= start.segment_base]
        found = bool(rest) and rest[0].name.base == start.segment_base
        if not found and (rest or start.next_offset > start.segment_base):
            raise self._missing(start.segment_base)
        for number, source in enumerate(rest):
            if number:
                self._enter(source)
            if not self._walk(source):
                return self._torn(rest[:number], rest[number:])
        return TailEnd(self._head, self._log_id, self._checked, self._spans(rest))

    def _spans(self, kept: Sequence[SegmentSource]) -> list[tuple[SegmentSource, int]]:
        return [(one, 0 if place else self._start_position) for place, one in enumerate(kept)]

    def _enter(self, source: SegmentSource) -> None:
        """Go on in the next segment, which must begin where the last one ended."""
        if source.name.base != self._head.next_offset:
            raise self._missing(self._head.next_offset)
        self._position = 0
        self._sealed = False

    def _walk(self, source: SegmentSource) -> bool:
        """Take in the segment's sound entries; whether they reach to where they should."""
        size = source.size()
        if size < self._position:
            raise self._durable_damage(source, size, self._head.durable_offset)
        try:
            for entry in source.entries(self._position, size):
                self._take(source, entry)
        except DamagedEntry:
            return False
        return self._sealed or source is self._segments[-1]

    def _take(self, source: SegmentSource, entry: Entry) -> None:
        header = entry.header
        if self._sealed:
            raise DamagedEntry("an entry follows the end of the segment", reason="order")
        if self._chain_known and header.previous != self._head.checksum:
            raise DamagedEntry("the entry does not follow the one before", reason="chain")
        if header.base_offset != self._head.next_offset or entry.timestamp < self._head.timestamp:
            raise DamagedEntry("the entry does not follow the one before", reason="order")
        if (header.kind == KIND_START) != (entry.position == 0):
            raise DamagedEntry("the start entry is not where the segment starts", reason="start")
        if header.kind == KIND_START:
            self._check_start(source, SegmentStart.parse(entry))
        self._advance(entry)

    def _check_start(self, source: SegmentSource, start: SegmentStart) -> None:
        expected = (self._keys.topic, self._keys.partition, source.name.rewrite)
        if (start.topic, start.partition, start.rewrite) != expected:
            raise DamagedEntry("the segment belongs to another place", reason="start")
        if self._log_id not in (None, start.log_id):
            raise DamagedEntry("the segment belongs to another log", reason="log id")
        self._log_id = start.log_id

    def _advance(self, entry: Entry) -> None:
        header = entry.header
        self._position = entry.position + header.entry_bytes
        self._checked += header.entry_bytes
        self._chain_known = True
        self._head = self._head._replace(
            position=self._position,
            next_offset=header.next_offset,
            checksum=header.checksum,
            timestamp=entry.timestamp,
        )
        if entry.position == 0:
            self._head = self._head._replace(segment_base=header.base_offset)
        if header.kind == KIND_END:
            self._sealed = True
            self._head = after_end(self._head, SegmentEnd.parse(entry).chain_on(header.checksum))

    def _torn(self, before: Sequence[SegmentSource], rest: Sequence[SegmentSource]) -> TailEnd:
        """The end at a torn position; raises when something durable lies behind it."""
        claimed = max([self._head.durable_offset, *self._claims(rest)])
        if claimed > self._head.next_offset:
            raise self._durable_damage(rest[0], self._position, claimed)
        torn = (rest[0], self._position)
        # A segment that is torn at its very start goes as a whole.
        spans = self._spans([*before, *rest[: 1 if self._position else 0]])
        return TailEnd(self._head, self._log_id, self._checked, spans, torn, rest[1:])

    def _claims(self, rest: Sequence[SegmentSource]) -> Iterator[int]:
        """The durable offsets that sound headers behind the position claim. No entry claims itself."""
        position = self._position + self._torn_bytes(rest[0])
        for source in rest:
            for _, header in source.headers(position, source.size()):
                if header.durable_offset <= header.base_offset:
                    yield header.durable_offset
            position = 0

    def _torn_bytes(self, source: SegmentSource) -> int:
        """Bytes of the torn entry if its header is whole: what looks like one inside is a value."""
        try:
            header = parse_header(source.store.read(source.key, self._position, HEADER_BYTES))
        except DamageError:
            return 0
        follows = header.previous == self._head.checksum
        return header.entry_bytes if follows or not self._chain_known else 0

    def _durable_damage(self, source: SegmentSource, position: int, claimed: int) -> DamageError:
        offset = self._head.next_offset
        cause = DamagedEntry(
            f"records from offset {offset} do not read back, though all below {claimed} were "
            "durable",
            offset=offset,
            durable_offset=claimed,
            reason="durable records damaged",
        )
        return source.damage(cause, position)

    def _missing(self, base: int) -> DamagedFile:
        name = self._keys.log(SegmentName(base))
        return DamagedFile(
            f"{name} is missing, and records in it were durable. Put it back, or let "
            "penstock.repair() go on with what is left",
            file=name,
            reason="missing",
        )


def after_end(head: Head, link: int) -> Head:
    """The head behind a sealed segment: at the start of the next one, which is not there yet.

    At position 0 the head's checksum is what the start entry of the segment will chain to.
    """
    moved = head._replace(segment_base=head.next_offset, position=0, checksum=link)
    return moved.synced()


def _start_at(segments: Sequence[SegmentSource], head: Head | None) -> Head:
    """Where to start: at the head's durable position, or at the last sound segment."""
    if head is not None:
        return head._replace(
            position=head.durable_position,
            next_offset=head.durable_offset,
            checksum=head.durable_checksum,
            timestamp=head.timestamp if head.durable_position == head.position else 0,
        )
    for source in reversed(segments):
        if _has_start(source) or source is segments[0]:
            base, first = source.name.base, segments[0].name.base
            return Head(segment_base=base, next_offset=base, start=first)
    return Head()


def _has_start(source: SegmentSource) -> bool:
    try:
        # That entry alone: those behind it are walked through anyway.
        return bool(SegmentStart.parse(source.first_entry()))
    except DamageError:
        return False
