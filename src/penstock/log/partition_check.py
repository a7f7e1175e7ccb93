"""Checking one partition: its segments, its head, its subscribers' offsets. Changes nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from penstock.errors import DamageError, KeyNotFound, UnsupportedFormat
from penstock.log.head import Head, HeadFile
from penstock.log.inspection import (
    Inspection,
    LostRange,
    Problem,
    Spend,
    VerifyReport,
    inspect_segment,
)
from penstock.log.names import PartitionKeys, SegmentName, topic_key
from penstock.log.offsets import OffsetFile
from penstock.log.recovery import TailScanner
from penstock.log.sealed import leftovers, sealed_segments, stores_of
from penstock.log.segment import SegmentSource, list_segments
from penstock.log.topic import TopicState
from penstock.stores.base import PersistentBackingStore

LOOKS_MAX = 3
"""A slot that looks damaged may be one that is just being written: it is looked at again."""


class PartitionCheck:
    """Checks one partition and adds what it finds to a report."""

    def __init__(
        self,
        store: PersistentBackingStore,
        keys: PartitionKeys,
        tier: PersistentBackingStore | None,
        report: VerifyReport,
        spend: Spend | None = None,
    ) -> None:
        self._store = store
        self._keys = keys
        self._tier = tier
        self._report = report
        self._spend = spend
        self._next_offset = 0
        self._earliest: int | None = None

    def mark(self) -> object:
        """Changes when somebody writes to the partition or tends it."""
        head = HeadFile(self._store, self._keys.head).read() or Head()
        return head.generation, [(one.name, one.store) for one in self._segments()]

    def run(self) -> None:
        """Everything but the subscribers' offsets."""
        self._report.partitions += 1
        head = self._read_head()
        sealed = deque(self.inspect_sealed(head), maxlen=1)
        if head is not None and self._earliest is not None:
            self._tell_missing(head.start, self._earliest)
        if head is not None:
            self._inspect_open(head, sealed[0] if sealed else None)
        self._scan_tail(head)
        self._tell_leftovers()

    def inspect_sealed(self, head: Head | None) -> Iterator[Inspection]:
        """Check the sealed segments one by one, and that each follows the one before."""
        before: Inspection | None = None
        segments = self._segments()
        self._earliest = segments[0].name.base if segments else None
        if head is None:
            # All but the last are sealed; the last is looked at as an open does it.
            head = Head(segment_base=segments[-1].name.base if segments else 0)
        sealed = sealed_segments(segments, head)
        bases = [source.name.base for source in sealed]
        for source, bound in zip(sealed, [*bases[1:], head.segment_base], strict=False):
            found = self._inspect(source, None, bound)
            if found is None:
                before = None
                continue
            self._compare(before, found)
            before = found
            yield found
        if before is not None and before.end is not None:
            self._tell_missing(before.next_offset, head.segment_base)

    def check_offsets(
        self, state: TopicState, offsets: PersistentBackingStore | None = None
    ) -> None:
        """The subscribers' offsets of this partition."""
        for name, starts in sorted(state.subscribers.items()):
            if self._keys.partition not in starts:
                # The partition came later, and the subscriber has not met it yet.
                continue
            file = OffsetFile(self._store, name, self._keys.topic, self._keys.partition, offsets)
            problem = self._offset_problem(name, file, state)
            if problem is not None:
                self._report.problems.append(problem)

    def check_epochs(self, state: TopicState) -> None:
        """The offsets at which epochs begin; call it after ``run``."""
        number = self._keys.partition
        start = max(epoch.start(number) for epoch in state.epochs)
        if start > self._next_offset:
            message = (
                f"{topic_key(state.name)} says that an epoch begins at offset {start} of partition "
                f"{number}, but the log ends at {self._next_offset}: subscribers would wait for "
                "ever. Put the missing records back, or let penstock.repair() leave a gap for them."
            )
            problem = Problem(
                topic_key(state.name), "epoch", message, None, self._next_offset, start
            )
            self._report.problems.append(problem)

    # Segments

    def _segments(self) -> list[SegmentSource]:
        return list_segments(self._keys, self._store, self._tier)

    def _inspect(self, source: SegmentSource, limit: int | None, bound: int) -> Inspection | None:
        """Check a segment; one that upkeep has replaced meanwhile is looked up again."""
        for _ in range(3):
            # A rewritten one is sealed, whatever an older head says.
            upto = None if source.name.rewrite else limit
            try:
                found = inspect_segment(
                    self._keys, source, limit=upto, bound=bound, spend=self._spend
                )
            except KeyNotFound:
                again = [one for one in self._segments() if one.name.base == source.name.base]
                if not again:
                    return None
                source = again[0]
            except UnsupportedFormat as newer:
                self._tell(source.key, "entry", str(newer))
                return None
            else:
                self._add(found)
                return found
        return None

    def _add(self, found: Inspection) -> None:
        report, keys = self._report, self._keys
        report.segments += 1
        report.records += found.records
        report.bytes += found.position
        report.problems += found.problems
        report.lost += [LostRange(keys.topic, keys.partition, *lost) for lost in found.lost]
        self._next_offset = found.next_offset

    def _compare(self, before: Inspection | None, found: Inspection) -> None:
        if before is None or before.end is None:
            return
        if before.next_offset != found.source.name.base:
            self._tell_missing(before.next_offset, found.source.name.base)
        elif found.start is not None and before.link != found.start.header.previous:
            message = f"{found.source.key} does not chain to the segment before it."
            self._tell(found.source.key, "chain", f"{message} penstock.repair() ties them again.")

    def _tell_missing(self, first: int, following: int) -> None:
        # A listing may miss a segment that is just being replaced: look again before telling.
        there = any(one.name.base == first for one in self._segments())
        if first < following and not there:
            file = self._keys.log(SegmentName(first))
            message = (
                f"{file} is missing: the records from offset {first} to before {following} are "
                "gone. Put the file back, or let penstock.repair() leave a gap for them."
            )
            problem = Problem(file, "missing", message, None, first, following)
            self._report.problems.append(problem)

    # The end

    def _read_head(self) -> Head | None:
        file = HeadFile(self._store, self._keys.head)
        try:
            head, damaged = file.look()
            for _ in range(LOOKS_MAX if damaged else 0):
                head, damaged = file.look()
        except UnsupportedFormat as newer:
            self._tell(file.key, "head", str(newer))
            return None
        if damaged:
            message = f"{file.key}: a slot is damaged. Opening the log, or repair(), mends it."
            self._tell(file.key, "head", message, harmless=True)
        elif head is None and self._segments():
            message = f"{file.key} is missing. Opening the log finds the end again."
            self._tell(file.key, "head", message, harmless=True)
        return head

    def _inspect_open(self, head: Head, last: Inspection | None) -> None:
        """The open segment, as far as the head calls it durable."""
        self._next_offset = max(self._next_offset, head.durable_offset)
        if last is not None and last.next_offset != head.segment_base:
            last = None
        link = last.link if last else None
        if head.durable_position == 0:
            if link not in (None, head.durable_checksum):
                self._tell_head(head)
            return
        source = [one for one in self._segments() if one.name.base == head.segment_base]
        if not source:
            self._tell_missing(head.segment_base, head.durable_offset)
            return
        found = self._inspect(source[0], head.durable_position, head.durable_offset)
        if found is None or found.problems:
            return
        self._compare(last, found)
        if found.source.name.rewrite == 0 and found.checksum != head.durable_checksum:
            self._tell_head(head)

    def _tell_head(self, head: Head) -> None:
        message = (
            f"{self._keys.head} does not fit the segments: it says that offset "
            f"{head.durable_offset} is next. penstock.repair() ties them again."
        )
        self._tell(self._keys.head, "head", message)

    def _scan_tail(self, head: Head | None) -> None:
        """What lies behind the durable end, as an open would look at it."""
        try:
            end = TailScanner(self._keys, self._segments(), head).find_end()
        except KeyNotFound:
            return  # the log moves on while we look
        except DamageError as damage:
            file, position = str(damage.fields.get("file")), damage.fields.get("position")
            if not any(problem.file == file for problem in self._report.problems):
                place = position if isinstance(position, int) else None
                kind = "missing" if damage.fields.get("reason") == "missing" else "entry"
                self._report.problems.append(Problem(file, kind, str(damage), place))
            return
        self._next_offset = max(self._next_offset, end.head.next_offset)
        if end.torn is not None:
            source, position = end.torn
            message = (
                f"{source.key} has a torn tail from byte {position}: a write that a crash cut "
                "short, which nobody was told is safe. Opening the log cuts it off."
            )
            problem = Problem(source.key, "torn tail", message, position, harmless=True)
            self._report.problems.append(problem)

    def _tell_leftovers(self) -> None:
        with suppress(KeyNotFound):
            for _, key in leftovers(self._keys, stores_of(self._store, self._tier)):
                message = f"{key} was left behind by a crash; the next upkeep removes it."
                self._tell(key, "leftover", message, harmless=True)

    # Offsets

    def _offset_problem(self, name: str, file: OffsetFile, state: TopicState) -> Problem | None:
        try:
            committed = file.read()
            for _ in range(LOOKS_MAX if committed and committed.damaged_slots else 0):
                committed = file.read()
        except DamageError as damage:
            return Problem(file.key, "offset", str(damage))
        if committed is None:
            message = (
                f"{file.key} is missing, though {name!r} is subscribed. Name the store that has "
                "it (offsets=...), put it back, or seek the subscriber to an offset or a time."
            )
            return Problem(file.key, "offset", message)
        if committed.offset > self._next_offset:
            message = (
                f"{file.key} says that {name!r} wants offset {committed.offset}, but the log ends "
                f"at {self._next_offset}. Seek the subscriber to {self._next_offset} or before."
            )
            return Problem(file.key, "offset", message)
        earliest = self._earliest
        protected = state.config.retention.protect_subscribers
        if protected and earliest is not None and committed.offset < earliest:
            message = (
                f"{file.key} says that {name!r} wants offset {committed.offset}, but the log "
                f"starts at {earliest}. Put older segments back, or seek to {earliest}."
            )
            return Problem(file.key, "offset", message, None, committed.offset, earliest)
        if committed.damaged_slots:
            message = (
                f"{file.key}: a slot is damaged, the other one is used: records may come again "
                f"from offset {committed.offset}. The next commit mends it."
            )
            return Problem(file.key, "offset", message, harmless=True)
        return None

    def _tell(self, file: str, kind: str, message: str, *, harmless: bool = False) -> None:
        self._report.problems.append(Problem(file, kind, message, harmless=harmless))
