"""Which segments may go, and removing them. Whole sealed segments, the oldest first.

A decision is a value first (:class:`RetentionPlan`), which can be shown and tested; applying it
removes files. A crash between two removals leaves a log that begins later, which is what the plan
wanted anyway. The last segment always stays, so the log's end can be found without its head.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.errors import DamagedFile, DamageError, KeyNotFound
from penstock.log.names import PartitionKeys
from penstock.log.offsets import OffsetFile
from penstock.log.reader import PartitionReader
from penstock.log.sealed import (
    Stores,
    maintenance,
    remove_leftovers,
    remove_segment,
    secure_head,
    stores_of,
)
from penstock.log.segment import SegmentSource
from penstock.log.topic import Retention, TopicFile, TopicState, WhenFull
from penstock.stores.base import PersistentBackingStore
from penstock.system import Clock

CLOCK_SLACK_MS = 60 * 60 * 1000


class RetentionClock:
    """The wall clock, but never more than an hour ahead of the time that really passed.

    A wall clock that jumps forward while the process runs would make young records look old. One
    that goes back only makes records look younger.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall_ms = clock.time_ms()
        self._monotonic = clock.monotonic()

    def now_ms(self) -> int:
        """Milliseconds since 1970, as far as retention believes it."""
        elapsed_ms = int((self._clock.monotonic() - self._monotonic) * 1000)
        return min(self._clock.time_ms(), self._wall_ms + elapsed_ms + CLOCK_SLACK_MS)


class Reason(enum.Enum):
    """Which limit a segment is beyond."""

    AGE = "age"
    SIZE = "size"
    ACKNOWLEDGED = "acknowledged"


@dataclass(frozen=True, slots=True)
class Needs:
    """What the registered subscribers of a partition still need."""

    lowest: int | None = None
    """Everything below it is consumed by all of them; None when there are no subscribers."""
    subscriber: str | None = None
    """The one that is furthest behind."""
    unreadable: tuple[DamagedFile, ...] = ()
    """Offset files that cannot be read: nothing counts as consumed until that is settled."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A segment that is to go, and why."""

    source: SegmentSource
    next_offset: int
    size: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Blocked:
    """A segment that a limit asks for, and what keeps it."""

    source: SegmentSource
    reason: Reason | None
    by: str
    subscriber: str | None = None


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What goes, in this order, and what keeps the first segment that stays."""

    keys: PartitionKeys
    removals: tuple[Removal, ...]
    blocked: Blocked | None
    sealed_bytes: int
    """Before anything is removed."""
    needs: Needs

    @property
    def bytes(self) -> int:
        """How much applying it frees."""
        return sum(one.size for one in self.removals)


@dataclass(frozen=True, slots=True)
class RetentionInfo:
    """What a partition holds, and what keeps it from holding less."""

    topic: str
    partition: int
    segments: int
    bytes: int
    """Of all segments; the limit counts the sealed ones."""
    sealed_bytes: int
    earliest_offset: int
    oldest_timestamp: int | None
    """When the oldest record was appended, in milliseconds since 1970."""
    blocked_by: str | None
    full: bool
    """Records are rejected until subscribers have consumed enough."""


def find_needs(
    store: PersistentBackingStore,
    state: TopicState,
    partition: int,
    offsets: PersistentBackingStore | None = None,
) -> Needs:
    """What the topic's subscribers still need of a partition.

    An offset file that cannot be read means: everything. So does one that is not there, down to
    where the subscriber started. Raises when the offsets store does not answer: nobody knows then
    what is needed.
    """
    needed: list[tuple[int, str]] = []
    unreadable = []
    for name, starts in sorted(state.subscribers.items()):
        file = OffsetFile(store, name, state.name, partition, offsets)
        try:
            needed.append((_needed(file, starts.get(partition, 0)), name))
        except DamagedFile as damage:
            unreadable.append(damage)
            needed.append((0, name))
    lowest, subscriber = min(needed, default=(None, None))
    return Needs(lowest, subscriber, tuple(unreadable))


def _needed(file: OffsetFile, start: int) -> int:
    committed = file.read()
    if committed is not None:
        return committed.offset
    # A bucket that is gone, or an offsets store that this process was not told of: the subscriber
    # may have gone back behind its start.
    return 0 if file.is_elsewhere() else start


def plan_retention(
    reader: PartitionReader, retention: Retention, needs: Needs, now_ms: int
) -> RetentionPlan:
    """Decide what may go now. Reads sizes and footers; changes nothing."""
    head = reader.head()
    measured = _measure(reader)
    sealed = [one for one in measured if one[0].name.base < head.segment_base]
    total = sum(size for _, size in sealed)
    # The last segment with something durable stays, also when the next one is not there yet or a
    # power cut may take it: without any segment, and without a head, offsets would start anew.
    candidates = sealed if head.durable_position and len(sealed) < len(measured) else sealed[:-1]
    planner = _Planner(retention, needs, now_ms, total)
    if measured and measured[0][0].name.base > head.start:
        # What is left would hide that something is missing.
        missing = f"damage: the segment at offset {head.start} is missing"
        planner.blocked = Blocked(measured[0][0], None, missing)
        candidates = []
    removals = tuple(planner.removals(candidates))
    return RetentionPlan(reader.keys, removals, planner.blocked, total, needs)


def _measure(reader: PartitionReader) -> list[tuple[SegmentSource, int]]:
    """The segments with their sizes, without those that another process has just removed."""
    found = []
    for source in reader.segments():
        with suppress(KeyNotFound):
            found.append((source, source.size()))
    return found


class _Planner:
    """Walks the segments, oldest first, to the first that must stay."""

    def __init__(self, retention: Retention, needs: Needs, now_ms: int, total: int) -> None:
        self._retention = retention
        self._needs = needs
        self._now_ms = now_ms
        self._bytes = total
        self.blocked: Blocked | None = None

    def removals(self, sealed: Sequence[tuple[SegmentSource, int]]) -> Iterator[Removal]:
        for source, size in sealed:
            removal = self._consider(source, size)
            if removal is None:
                return
            self._bytes -= size
            yield removal

    def _consider(self, source: SegmentSource, size: int) -> Removal | None:
        try:
            end, _ = source.read_end()
        except KeyNotFound:
            return None
        except DamageError as damage:
            self.blocked = Blocked(source, None, f"damage: {damage}")
            return None
        consumed = self._needs.lowest is not None and end.next_offset <= self._needs.lowest
        reason = self._reason(consumed, end.last_timestamp)
        if reason is None and not self._retention.acknowledged:
            return None
        if reason is None or self._keeps(reason, consumed):
            reason = reason or Reason.ACKNOWLEDGED
            self.blocked = Blocked(source, reason, self._who(), self._needs.subscriber)
            return None
        return Removal(source, end.next_offset, size, reason)

    def _reason(self, consumed: bool, last_timestamp: int) -> Reason | None:
        retention = self._retention
        if retention.acknowledged and consumed:
            return Reason.ACKNOWLEDGED
        if (
            retention.age_ms_max is not None
            and last_timestamp < self._now_ms - retention.age_ms_max
        ):
            return Reason.AGE
        if retention.bytes_max is not None and self._bytes > retention.bytes_max:
            return Reason.SIZE
        return None

    def _keeps(self, reason: Reason, consumed: bool) -> bool:
        """Whether a subscriber, or the lack of one, keeps a segment that a limit asks for."""
        if consumed:
            return False
        if reason is Reason.SIZE and self._retention.when_full is WhenFull.REJECT:
            return True
        return self._retention.protect_subscribers and self._needs.lowest is not None

    def _who(self) -> str:
        if self._needs.subscriber is None:
            return "no subscriber has consumed it"
        return f"subscriber {self._needs.subscriber!r}, which needs offset {self._needs.lowest}"


def remove_planned(plan: RetentionPlan, store: PersistentBackingStore, stores: Stores) -> int:
    """Remove what the plan says, and what a crash left behind; returns how many segments.

    The caller holds the maintenance lock.
    """
    start = plan.removals[-1].next_offset if plan.removals else 0
    removals = plan.removals if start and secure_head(store, plan.keys, start) else ()
    for removal in removals:
        remove_segment(plan.keys, removal.source.name.base, stores)
    remove_leftovers(plan.keys, stores)
    return len(removals)


def retention_info(
    reader: PartitionReader, retention: Retention, needs: Needs, now_ms: int
) -> RetentionInfo:
    """What a partition holds now, and what keeps it from holding less."""
    plan = plan_retention(reader, retention, needs, now_ms)
    measured = _measure(reader)
    limit = retention.bytes_max
    rejects = retention.when_full is WhenFull.REJECT and limit is not None
    return RetentionInfo(
        topic=reader.keys.topic,
        partition=reader.keys.partition,
        segments=len(measured),
        bytes=sum(size for _, size in measured),
        sealed_bytes=plan.sealed_bytes,
        earliest_offset=reader.earliest(),
        oldest_timestamp=_timestamp(measured[0][0]) if measured else None,
        blocked_by=plan.blocked.by if plan.blocked else None,
        full=rejects and plan.sealed_bytes - plan.bytes > (limit or 0),
    )


def _timestamp(source: SegmentSource) -> int | None:
    try:
        return source.first_entry().timestamp
    except (DamageError, KeyNotFound):
        return None


def retain(
    reader: PartitionReader,
    store: PersistentBackingStore,
    tier: PersistentBackingStore | None,
    now_ms: int,
    offsets: PersistentBackingStore | None = None,
) -> int:
    """Remove what may go; returns how many segments.

    Does nothing while another process is at work on the partition: the next round will do it.
    The subscribers are looked up under the maintenance lock, which a new subscriber holds while
    it registers: so none can start on a segment that is about to go.
    """
    stores = stores_of(store, tier)
    with maintenance(store, reader.keys) as held:
        if not held:
            return 0
        state = TopicFile(store, reader.keys.topic).read()
        needs = find_needs(store, state, reader.keys.partition, offsets)
        plan = plan_retention(reader, state.config.retention, needs, now_ms)
        return remove_planned(plan, store, stores)
