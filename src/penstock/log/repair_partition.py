"""Repairing one partition: a plan first, then the steps of it.

Every sound entry stays at its offset. Damaged segments are written anew with gaps for what is
lost, missing ones become gaps, and the damaged files go to quarantine. When the end of the log is
damaged, the open segment is sealed and the head put behind it, so that no offset is given twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from penstock.errors import DamageError
from penstock.log.frame import KIND_END, KIND_START, Entry
from penstock.log.head import Head, HeadFile
from penstock.log.index import Index, IndexBuilder
from penstock.log.inspection import Inspection, inspect_segment
from penstock.log.names import PartitionKeys, SegmentName
from penstock.log.recovery import TailScanner, after_end
from penstock.log.rewrite import SegmentWriter, next_name, write_segment
from penstock.log.sealed import remove_file, segment_files, stores_of
from penstock.log.segment import LOG_ID_BYTES, SegmentSource, SegmentStart, list_segments
from penstock.log.walk import Walker
from penstock.stores.base import PersistentBackingStore
from penstock.system import System


class Step(NamedTuple):
    """One thing that repair does: what it says, and the doing."""

    file: str
    kind: str
    message: str
    run: Callable[[], object]
    lost: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class _Part:
    """A range of offsets and the segment that holds it, if there is one."""

    base: int
    source: SegmentSource | None = None
    found: Inspection | None = None
    bound: int = 0
    """Where it must end: the base of the next one."""
    previous: int | None = None
    """What its start entry chains to; None when that is not known."""
    link: int | None = None
    """What the next one chains to; None when that is not known."""
    rewrite: bool = False
    timestamp: int = 0


class PartitionRepair:
    """Makes the plan for one partition. Needs the maintenance lock and the partition's lock."""

    def __init__(
        self,
        store: PersistentBackingStore,
        keys: PartitionKeys,
        tier: PersistentBackingStore | None,
        system: System,
        floor: int,
        begun: int = 0,
    ) -> None:
        """``floor`` is what subscribers have committed, ``begun`` where the last epoch begins."""
        self._store = store
        self._keys = keys
        self._stores = stores_of(store, tier)
        self._tier = tier
        self._system = system
        self._floor = max(floor, begun)
        self._begun = begun
        self._head_file = HeadFile(store, keys.head)
        self._steps: list[Step] = []
        self._log_id = b""

    def plan(self) -> list[Step]:
        """What is to be done, in this order. Changes nothing; raises UnsupportedFormat."""
        head = self._head_file.read()
        segments = list_segments(self._keys, self._store, self._tier)
        opened = self._open_base(segments, head)
        parts = self._parts(segments)
        self._log_id = self._find_log_id(parts)
        parts = self._from_start(self._without_strays(parts), head, opened)
        hurt = self._tail_is_hurt(segments, head, parts, opened)
        sealed = parts if hurt else [part for part in parts if part.base < opened]
        end = self._end(parts, head) if hurt else opened
        sealed = self._bounded(sealed, opened if hurt else None, end)
        following = None if hurt else self._link_of_open(parts, head, opened)
        link = self._tie(sealed, following)
        if hurt:
            self._move_head(head, sealed, end, link)
        for place, part in enumerate(sealed):
            self._mend(part, sealed[place - 1] if place else None)
        return self._steps

    # What is there

    def _open_base(self, segments: Sequence[SegmentSource], head: Head | None) -> int:
        if head is not None:
            return head.segment_base
        return segments[-1].name.base if segments else 0

    def _parts(self, segments: Sequence[SegmentSource]) -> list[_Part]:
        bases = [source.name.base for source in segments]
        following: list[int | None] = [*bases[1:], None]
        return [self._part(base, bound) for base, bound in zip(bases, following, strict=False)]

    def _from_start(self, parts: list[_Part], head: Head | None, opened: int) -> list[_Part]:
        """The parts, with one that is missing before all others."""
        first = parts[0].base if parts else opened
        if head is None or first <= head.start:
            return parts
        return [_Part(head.start, None, None, first, rewrite=True), *parts]

    def _part(self, base: int, bound: int | None) -> _Part:
        """The best file of a segment: the newest, unless that is damaged and another is not."""
        files = [one for one in segment_files(self._keys, self._stores) if one.name.base == base]
        files.sort(key=lambda one: (-one.name.rewrite, one.store is not self._store))
        worse: list[Inspection] = []
        for source in files:
            found = inspect_segment(self._keys, source, bound=bound)
            if not _hurts(found):
                for one in worse:
                    self._drop(one.source, "it is damaged, and there is a sound copy of it")
                return self._part_of(found)
            worse.append(found)
        return self._part_of(worse[0])

    def _part_of(self, found: Inspection) -> _Part:
        part = _Part(found.source.name.base, found.source, found, found.next_offset)
        part.rewrite = _hurts(found)
        part.timestamp = found.timestamp
        part.previous = found.start.header.previous if found.start is not None else None
        part.link = found.link
        return part

    def _find_log_id(self, parts: Sequence[_Part]) -> bytes:
        """What most segments say; of two, the newer one; a new one when none can be read."""
        starts = [part.found.start for part in reversed(parts) if part.found and part.found.start]
        ids = Counter(SegmentStart.parse(start).log_id for start in starts)
        if ids:
            return ids.most_common(1)[0][0]
        return self._system.random.randbytes(LOG_ID_BYTES)

    def _without_strays(self, parts: Sequence[_Part]) -> list[_Part]:
        """Without files that do not belong here; they go to quarantine."""
        kept: list[_Part] = []
        for part in parts:
            before = kept[-1] if kept else None
            source = part.source
            assert source is not None, "gaps come later"
            if before is not None and not before.rewrite and part.base < before.bound:
                self._drop(source, "its offsets are in the segment before it already")
            elif (reason := self._foreign(source)) is not None:
                self._drop(source, reason)
                kept.append(_Part(part.base, rewrite=True))
            else:
                kept.append(part)
        return kept

    def _foreign(self, source: SegmentSource) -> str | None:
        entry = _first_entry(source)
        if entry is None:
            return None
        start = SegmentStart.parse(entry)
        if (start.topic, start.partition) != (self._keys.topic, self._keys.partition):
            return f"it belongs to {start.topic}/{start.partition}"
        return None if start.log_id == self._log_id else "it belongs to another log"

    # The end of the log

    def _tail_is_hurt(
        self,
        segments: Sequence[SegmentSource],
        head: Head | None,
        parts: Sequence[_Part],
        opened: int,
    ) -> bool:
        """Whether opening the log would refuse, or the durable part of the open segment is hurt."""
        known = {part.source for part in parts}
        if any(one not in known for one in segments if one.name.base >= opened):
            return True
        try:
            end = TailScanner(self._keys, segments, head).find_end()
        except DamageError:
            return True
        if end.torn is not None:
            source, position = end.torn
            message = f"cut {source.size() - position} bytes of a torn tail from byte {position}"
            self._steps.append(Step(source.key, "torn tail", message, _nothing))
        if end.head.next_offset < self._begun:
            return True
        if head is None:
            return end.head.next_offset < self._floor
        return self._open_is_hurt(parts, head)

    def _open_is_hurt(self, parts: Sequence[_Part], head: Head) -> bool:
        part = next((one for one in parts if one.base == head.segment_base), None)
        if part is None or part.source is None or head.durable_position == 0:
            return False
        found = inspect_segment(
            self._keys, part.source, limit=head.durable_position, bound=head.durable_offset
        )
        return _hurts(found) or found.checksum != head.durable_checksum

    def _end(self, parts: Sequence[_Part], head: Head | None) -> int:
        """The next offset: behind all that is sound and all that was ever called durable."""
        durable = head.durable_offset if head is not None else self._floor
        return max([durable, self._begun, *(part.bound for part in parts)])

    def _link_of_open(self, parts: Sequence[_Part], head: Head | None, opened: int) -> int | None:
        """What the open segment chains to, or will chain to."""
        for part in parts:
            if part.base == opened:
                return part.previous
        return head.checksum if head is not None else None

    def _move_head(self, head: Head | None, sealed: Sequence[_Part], end: int, link: int) -> None:
        timestamp = max([part.timestamp for part in sealed], default=0)
        before = head or Head()
        moved = before._replace(next_offset=end, timestamp=max(before.timestamp, timestamp))
        message = f"seal the open segment; the next record gets offset {end}"
        run = partial(self._head_file.write_durably, after_end(moved, link))
        self._steps.append(Step(self._keys.head, "head", message, run))

    # What the segments are to become

    def _bounded(self, parts: Sequence[_Part], opened: int | None, end: int) -> list[_Part]:
        """The parts with their bounds, and with gaps where there is nothing."""
        parts = [part for part in parts if part.base < end or self._drop_empty(part)]
        if opened is not None and opened < end and all(part.base < opened for part in parts):
            parts.append(_Part(opened, rewrite=True))
        result: list[_Part] = []
        bounds = [*(part.base for part in parts[1:]), end]
        for part, bound in zip(parts, bounds, strict=False):
            result.append(part)
            if part.rewrite or part.bound >= bound:
                part.bound = bound
            else:
                result.append(_Part(part.bound, None, None, bound, rewrite=True))
        return result

    def _drop_empty(self, part: _Part) -> bool:
        if part.source is not None:
            self._drop(part.source, "nothing in it was durable, and nothing in it is sound")
        return False

    def _tie(self, parts: Sequence[_Part], following: int | None) -> int:
        """Let each part link to what comes behind it; returns what comes behind the last."""
        wanted = [*(part.previous for part in parts[1:]), following]
        for part, link in zip(parts, wanted, strict=False):
            if not part.rewrite and link is not None and part.link != link:
                part.rewrite = True
            if part.rewrite:
                part.link = link if link is not None else _own_link(part)
        before = 0
        for part in parts:
            part.previous = before if part.previous is None else part.previous
            before = part.link or 0
        if following is not None:
            return following
        return before

    # Steps

    def _mend(self, part: _Part, before: _Part | None) -> None:
        if not part.rewrite:
            self._mend_index(part)
            return
        if before is not None:
            part.timestamp = max(part.timestamp, before.timestamp)
        _, lost = self._build(part)
        ranges = ", ".join(f"{first} to {following - 1}" for first, following in lost)
        loss = f"the records {ranges} are lost" if lost else "nothing is lost"
        if part.source is None:
            key = self._keys.log(SegmentName(part.base, 1))
            message = f"leave a gap for a missing segment; {loss}"
        else:
            key = part.source.key
            message = f"write the segment anew from its sound entries; {loss}"
        self._steps.append(Step(key, "segment", message, partial(self._write, part), tuple(lost)))

    def _write(self, part: _Part) -> None:
        writer, _ = self._build(part)
        link = part.link or 0
        if part.source is None:
            name = SegmentName(part.base, 1)
            write_segment(self._keys, name, SegmentSource(name, self._store, ""), writer, link)
            return
        quarantine(part.source)
        write_segment(self._keys, next_name(part.source), part.source, writer, link)
        remove_file(self._keys, part.source)

    def _build(self, part: _Part) -> tuple[SegmentWriter, list[tuple[int, int]]]:
        """The segment anew, and the offsets that are lost."""
        rewrite = 1 if part.source is None else part.source.name.rewrite + 1
        start = SegmentStart(self._log_id, self._keys.partition, rewrite, self._keys.topic)
        first = part.found.first_timestamp if part.found else None
        timestamp = part.timestamp if first is None else first
        writer = SegmentWriter(start, part.base, part.previous or 0, timestamp)
        lost = []
        for entry in self._sound_entries(part):
            header = entry.header
            if writer.next_offset <= header.base_offset and header.next_offset <= part.bound:
                if header.base_offset > writer.next_offset:
                    lost.append((writer.next_offset, header.base_offset))
                writer.keep(entry)
        if writer.next_offset < part.bound:
            lost.append((writer.next_offset, part.bound))
            writer.cover(part.bound, part.timestamp)
        return writer, lost

    def _sound_entries(self, part: _Part) -> Iterator[Entry]:
        if part.source is not None:
            for step in Walker(part.source, part.source.size()).steps():
                if isinstance(step, Entry) and step.header.kind not in (KIND_START, KIND_END):
                    yield step

    def _mend_index(self, part: _Part) -> None:
        found = part.found
        if found is None or not found.problems:
            return
        key = self._keys.index(found.source.name)
        run = partial(rebuild_index, self._keys, found.source, found.source.size())
        self._steps.append(Step(key, "index", "make the index anew", run))

    def _drop(self, source: SegmentSource, reason: str) -> None:
        def run() -> None:
            quarantine(source)
            remove_file(self._keys, source)

        self._steps.append(Step(source.key, "segment", f"put it into quarantine: {reason}", run))


def rebuild_index(keys: PartitionKeys, source: SegmentSource, limit: int) -> None:
    """Make the index of a sound segment anew, or remove it when it needs none."""
    builder = IndexBuilder()
    rows = []
    for entry in source.entries(0, limit):
        if entry.header.record_count:
            row = builder.offer(entry.header.base_offset, entry.timestamp, entry.position)
            rows += [] if row is None else [row]
    source.store.delete(keys.index(source.name))
    if rows:
        source.store.write(keys.index(source.name), Index(rows).pack())


def quarantine(source: SegmentSource) -> str:
    """Keep a copy of a file under ``quarantine/``; returns its key. Idempotent."""
    return quarantine_file(source.store, source.key)


def quarantine_file(store: PersistentBackingStore, key: str) -> str:
    """Keep a copy of any file under ``quarantine/``; returns its key. Idempotent."""
    data = store.read(key)
    number = 0
    while True:
        copy = f"quarantine/{key}" + (f".{number}" if number else "")
        if not store.exists(copy):
            store.write(copy, data)
            return copy
        if store.read(copy) == data:
            return copy
        number += 1


def _hurts(found: Inspection) -> bool:
    return any(not problem.harmless for problem in found.problems)


def _own_link(part: _Part) -> int:
    return part.found.checksum if part.found is not None else 0


def _first_entry(source: SegmentSource) -> Entry | None:
    """The start entry, if it can be read."""
    try:
        entry = source.first_entry()
        SegmentStart.parse(entry)
    except DamageError:
        return None
    return entry


def _nothing() -> None:
    """The step is done by opening the partition afterwards."""
