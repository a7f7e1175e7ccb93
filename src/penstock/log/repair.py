"""Saving everything that is sound, and saying exactly what is not.

Repair never changes an offset and never throws a file away: what it replaces goes to
``quarantine/`` first. It can be run again at any time; a crash in the middle is finished by the
next run. Close the queue first if you can; writers of other processes wait meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from penstock.errors import (
    DamagedFile,
    DamageError,
    KeyNotFound,
    UnknownTopic,
    UnsupportedFormat,
)
from penstock.log.deadlines import LOCK_TIMEOUT_SECONDS
from penstock.log.epoch import Epoch
from penstock.log.group_check import group_steps
from penstock.log.head import EPOCH_UNKNOWN, Head, HeadFile
from penstock.log.inspection import LostRange, Problem, inspect_segment
from penstock.log.names import PartitionKeys, SegmentName, check_name
from penstock.log.offsets import OffsetFile
from penstock.log.partition import PartitionLog
from penstock.log.repair_partition import (
    PartitionRepair,
    Step,
    quarantine_file,
    rebuild_index,
)
from penstock.log.sealed import leftovers, stores_of
from penstock.log.segment import SegmentSource
from penstock.log.topic import Retention, TopicConfig, TopicFile, TopicState
from penstock.log.verify import Places, Where, opened_all, partitions_of, topics_of, verify
from penstock.system import System


@dataclass(frozen=True, slots=True)
class RepairAction:
    """One thing that was done, or would be done."""

    file: str
    kind: str
    message: str


@dataclass(slots=True)
class RepairReport:
    """What was done, what is lost for good, and what is left for you to decide."""

    topic: str
    dry_run: bool
    actions: list[RepairAction] = field(default_factory=list)
    lost: list[LostRange] = field(default_factory=list)
    """Offsets that have no record any more; readers pass over them."""
    remaining: list[Problem] = field(default_factory=list)
    """What repair cannot decide for you, each with the way out. Empty in a dry run."""


def repair(
    where: Where,
    topic: str,
    *,
    tier: Where | None = None,
    offsets: Where | None = None,
    system: System | None = None,
    dry_run: bool = False,
    config: TopicConfig | None = None,
) -> RepairReport:
    """Make a damaged topic whole again: all sound records, in order, at their offsets.

    Afterwards the topic opens, appends go on behind everything that was ever durable, and readers
    pass over the gaps, which the report names. With ``dry_run`` nothing is changed. ``config`` is
    used when the description of the topic is lost without a generation before it; without it the
    settings are the defaults, but nothing is ever removed. Name the tier and the offsets store
    that the queue has: an offset that a subscriber has committed is never given out again.
    """
    report = RepairReport(check_name("topic", topic), dry_run)
    machine = system or System()
    with opened_all(where, tier, offsets, system) as places:
        if topic not in topics_of(places.store):
            raise UnknownTopic(f"there is no topic {topic!r} to repair", topic=topic)
        work = _Repair(places, machine, report)
        state = work.mend_topic(config)
        work.mend_groups(state)
        for partition in partitions_of(places.store, topic, state):
            work.mend_partition(PartitionKeys(topic, partition), state)
        if not dry_run:
            found = verify(places.store, topic, tier=places.tier, offsets=places.offsets)
            report.remaining = found.problems
    return report


class _Repair:
    def __init__(self, places: Places, system: System, report: RepairReport) -> None:
        self._store, self._tier, self._offsets = places
        self._system = system
        self._report = report

    def _do(self, steps: Sequence[Step], partition: int = 0) -> None:
        report = self._report
        for step in steps:
            if not report.dry_run:
                step.run()
            report.actions.append(RepairAction(step.file, step.kind, step.message))
            report.lost += [LostRange(report.topic, partition, *lost) for lost in step.lost]

    # The description of the topic

    def mend_topic(self, config: TopicConfig | None) -> TopicState:
        """The description, put right when it is damaged; raises UnsupportedFormat."""
        file = TopicFile(self._store, self._report.topic)
        try:
            state = file.read()
            message = "write the spare generation anew"
            if state.name == self._report.topic and file.is_as_written():
                return state
        except UnsupportedFormat:
            raise
        except (UnknownTopic, DamagedFile):
            state = None
            message = ""
        sound = _generations(file)
        generation = sound[0][0] if sound else 0
        if state is None or state.name != self._report.topic:
            state, message = self._topic_again(sound, config)
        self._do([self._topic_step(file, generation + 2, state, message)])
        return state

    def mend_groups(self, state: TopicState) -> None:
        """The members' files of the groups that read the topic."""
        self._do(list(group_steps(self._store, state.subscribers, self._system)))

    def _topic_again(
        self, sound: Sequence[tuple[int, TopicState]], config: TopicConfig | None
    ) -> tuple[TopicState, str]:
        name = self._report.topic
        known = [(number, one) for number, one in sound if one.name == name]
        if known:
            number, state = known[0]
            state = self._with_subscribers(self._with_epoch(state))
            return state, f"go back to generation {number}"
        message = "make it anew with default settings and no retention limits: set yours again"
        if config is not None:
            message = "make it anew with the settings that were given"
        count = len(partitions_of(self._store, name, None)) or 1
        now = self._system.clock.time_ms()
        made = config or TopicConfig(retention=Retention(age_ms_max=None, bytes_max=None))
        state = TopicState(name=name, created_ms=now, config=made, epochs=(Epoch(0, count, now),))
        return self._with_subscribers(state), message

    def _with_epoch(self, state: TopicState) -> TopicState:
        """With one more epoch when the heads know of one that the description does not have.

        All that is there counts as older, so what comes now is read after it.
        """
        numbers = partitions_of(self._store, state.name, state)
        keys = [PartitionKeys(state.name, number) for number in range(max(numbers) + 1)]
        heads = [HeadFile(self._store, one.head).read() or Head() for one in keys]
        newest = max((one.epoch for one in heads if one.epoch != EPOCH_UNKNOWN), default=0)
        if newest <= state.epoch:
            return state
        ends = tuple(head.next_offset for head in heads)
        made = Epoch(newest + 1, len(keys), self._system.clock.time_ms(), ends)
        return replace(state, epochs=(*state.epochs, made))

    def _with_subscribers(self, state: TopicState) -> TopicState:
        """Whoever has offsets in this topic is a subscriber of it."""
        subscribers = dict(state.subscribers)
        for group in self._groups():
            numbers = range(state.partitions_all)
            found = {number: self._committed(group, number) for number in numbers}
            if any(offset is not None for offset in found.values()):
                starts = {number: offset or 0 for number, offset in found.items()}
                subscribers.setdefault(group, starts)
        return replace(state, subscribers=subscribers)

    def _topic_step(
        self, file: TopicFile, generation: int, state: TopicState, message: str
    ) -> Step:
        def run() -> None:
            if file.exists():
                quarantine_file(self._store, file.key)
            file.restore(generation, state)

        return Step(file.key, "topic", message, run)

    # Partitions

    def mend_partition(self, keys: PartitionKeys, state: TopicState) -> None:
        """Segments, head, index and offsets of one partition."""
        with self._locked(keys.maintenance):
            with self._locked(keys.head):
                self._do(self._plan(keys, state), keys.partition)
            self._do(self._offset_steps(keys, state), keys.partition)
            if not self._report.dry_run:
                self._attach(keys)
            with self._locked(keys.head):
                self._do(self._open_index_steps(keys), keys.partition)
            self._do(self._leftover_steps(keys), keys.partition)

    def _locked(self, key: str) -> AbstractContextManager[object]:
        """The lock, but for a dry run, which changes nothing and so holds up nobody."""
        if self._report.dry_run:
            return nullcontext()
        return self._store.lock(key, LOCK_TIMEOUT_SECONDS)

    def _plan(self, keys: PartitionKeys, state: TopicState) -> list[Step]:
        floor = max(self._committed_by_all(keys.partition), default=0)
        begun = max(epoch.start(keys.partition) for epoch in state.epochs)
        return PartitionRepair(self._store, keys, self._tier, self._system, floor, begun).plan()

    def _leftover_steps(self, keys: PartitionKeys) -> list[Step]:
        message = "remove what a crash left behind"
        return [
            Step(key, "leftover", message, partial(store.delete, key))
            for store, key in leftovers(keys, stores_of(self._store, self._tier))
        ]

    def _open_index_steps(self, keys: PartitionKeys) -> list[Step]:
        """The index of the open segment, as far as it is durable."""
        head = HeadFile(self._store, keys.head).read()
        if head is None or head.durable_position == 0:
            return []
        name = SegmentName(head.segment_base)
        source = SegmentSource(name, self._store, keys.log(name))
        try:
            found = inspect_segment(keys, source, limit=head.durable_position)
        except KeyNotFound:
            return []
        if not any(problem.kind == "index" for problem in found.problems):
            return []
        run = partial(rebuild_index, keys, source, head.durable_position)
        return [Step(keys.index(name), "index", "make the index anew", run)]

    def _attach(self, keys: PartitionKeys) -> None:
        """Open the partition: that cuts a torn tail and settles the head."""
        log = PartitionLog(self._store, keys, system=self._system, tier=self._tier)
        found = log.attach()
        if found.head_lost or found.head_damaged:
            message = f"make the head anew; the next record gets offset {found.next_offset}"
            self._report.actions.append(RepairAction(keys.head, "head", message))

    # Offsets

    def _offset_steps(self, keys: PartitionKeys, state: TopicState) -> list[Step]:
        steps = []
        for name in sorted(state.subscribers):
            file = self._offset_file(name, keys.partition)
            try:
                committed = file.read()
            except DamageError:
                continue  # told as remaining: only a person knows where to go on
            if committed is not None and committed.damaged_slots:
                message = f"write the damaged slot anew: {name!r} goes on at {committed.offset}"
                now = self._system.clock.time_ms()
                run = partial(file.reset, committed.offset, now)
                steps.append(Step(file.key, "offset", message, run))
        return steps

    def _offset_file(self, group: str, partition: int) -> OffsetFile:
        return OffsetFile(self._store, group, self._report.topic, partition, self._offsets)

    def _groups(self) -> set[str]:
        store = self._store if self._offsets is None else self._offsets
        return {key.split("/")[1] for key in store.list("groups/")}

    def _committed(self, group: str, partition: int) -> int | None:
        try:
            found = self._offset_file(group, partition).read()
        except DamageError:
            return 0
        return None if found is None else found.offset

    def _committed_by_all(self, partition: int) -> Iterator[int]:
        for group in self._groups():
            offset = self._committed(group, partition)
            if offset is not None:
                yield offset


def _generations(file: TopicFile) -> list[tuple[int, TopicState]]:
    try:
        return file.generations()
    except KeyNotFound:
        return []
