"""Rolling a decided transaction forward: its entries into the partitions, its offsets into the groups.

Every step may be done again. Entries that stand already are known by producer id, epoch and mark from
the share's lower bound on; offsets move only from where they were when the transaction was decided.
Needs the producer's lock, so that one does it at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import DamagedFile
from penstock.log.codec import Codec
from penstock.log.epoch_change import settle
from penstock.log.frame import KIND_RECORDS, Draft
from penstock.log.names import PartitionKeys
from penstock.log.offsets import OffsetFile
from penstock.log.partition import OtherEpoch, PartitionLog
from penstock.log.reader import PartitionReader
from penstock.log.topic import TopicFile
from penstock.log.transaction_decision import Decision, EntryNote, OffsetMove, Share
from penstock.stores.base import PersistentBackingStore
from penstock.system import Buffer, Job, System

APPEND_BYTES_MAX = 8 * 1024 * 1024
"""What one append takes at most, unless a single entry has more."""
LOGS_MAX = 256
HEADS_MENDED_MAX = 10
OFFSET_FILES_MAX = 10_000

Bodies = Callable[[EntryNote], Sequence[Buffer]]


class Places(NamedTuple):
    """The stores of a log, and the machine it is on."""

    store: PersistentBackingStore
    tier: PersistentBackingStore | None
    offsets: PersistentBackingStore | None
    system: System


class PartitionLogs:
    """The partitions that transactions write to; each is used by one thread at a time."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._mutex = threading.Lock()
        self._locks: dict[PartitionKeys, threading.Lock] = {}
        self._logs: dict[PartitionKeys, PartitionLog] = {}

    @contextmanager
    def using(self, keys: PartitionKeys, *, anew: bool) -> Iterator[PartitionLog]:
        """The partition; ``anew`` checks its tail first. After a failure it is not used again."""
        with self._mutex:
            lock = self._locks.setdefault(keys, threading.Lock())
        with lock:
            log = None if anew else self._logs.get(keys)
            if log is None:
                log = self._open(keys)
            try:
                if anew:
                    log.attach()
                yield log
            except BaseException:
                self._logs.pop(keys, None)
                raise
            self._keep(keys, log)

    def _keep(self, keys: PartitionKeys, log: PartitionLog) -> None:
        with self._mutex:
            self._logs[keys] = log
            while len(self._logs) > LOGS_MAX:
                self._logs.pop(next(iter(self._logs)))

    def _open(self, keys: PartitionKeys) -> PartitionLog:
        store, tier, _, system = self._places
        config = TopicFile(store, keys.topic).read().config
        return PartitionLog(
            store, keys, system=system, segment_bytes_max=config.segment_bytes_max, tier=tier
        )


RunAll = Callable[[Sequence[Job]], None]


class Displaced(NamedTuple):
    """What cannot go where it was sent: the topic has another partition count now."""

    share: Share
    bodies: Bodies


class Roller:
    """Does what a decision says. Blocking."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._logs = PartitionLogs(places)
        self._offset_files: dict[tuple[str, str, int], OffsetFile] = {}

    def append(
        self, decision: Decision, bodies: Bodies, run_all: RunAll, *, first: bool
    ) -> list[Displaced]:
        """Append what is missing to all partitions; returns what has to be sent to other ones.

        ``first`` says that nobody can have begun before. Raises the first trouble, after everything
        was tried.
        """
        displaced: list[Displaced] = []
        failures: list[Exception] = []

        def safely(share: Share) -> None:
            try:
                displaced.extend(self._append(decision, share, bodies, first=first))
            except Exception as failure:
                # Raised below; the other partitions go on.
                failures.append(failure)

        run_all([partial(safely, share) for share in decision.shares])
        for failure in failures:
            raise failure
        return displaced

    def move(self, moves: Sequence[OffsetMove]) -> None:
        """Move offsets, unless they moved already or somebody set them to something else."""
        now = self._places.system.clock.time_ms()
        for one in moves:
            self.offset_file(one).move(one.before, one.after, now)

    def offset_file(self, one: OffsetMove) -> OffsetFile:
        """The file that a move changes."""
        place = (one.group, one.topic, one.partition)
        file = self._offset_files.get(place)
        if file is None:
            store, _, offsets, _ = self._places
            if len(self._offset_files) >= OFFSET_FILES_MAX:
                self._offset_files.clear()
            # Kept, because a new one has to make sure that what it finds is durable.
            file = self._offset_files[place] = OffsetFile(store, *place, offsets)
        return file

    def bodies(self, producer: str, decision: Decision, records: bytes) -> Bodies:
        """Where a decision that was read has the bodies of its entries; all are checked."""

        def body(note: EntryNote) -> Sequence[Buffer]:
            start, end = note.position, note.position + note.stored_length
            if note.source == 0:
                data: Buffer = memoryview(records)[start:end]
                file = f"the decision of {producer!r}"
            else:
                file = decision.files[note.source - 1]
                data = self._places.store.read(file, start, note.stored_length)
            if len(data) != note.stored_length or crc32c(data) != note.checksum:
                raise _damage(file, decision)
            return [data]

        return body

    def _append(
        self, decision: Decision, share: Share, bodies: Bodies, *, first: bool
    ) -> list[Displaced]:
        keys = PartitionKeys(share.topic, share.partition)
        missing = list(enumerate(share.entries))
        for _ in range(HEADS_MENDED_MAX):
            with self._logs.using(keys, anew=not first) as log:
                if not first:
                    standing = self._standing(keys, decision, share)
                    missing = [one for one in enumerate(share.entries) if one[0] not in standing]
                try:
                    for drafts in _portions(decision, missing, bodies):
                        log.append(drafts, sync=True, epoch=share.topic_epoch)
                    return []
                except OtherEpoch:
                    pass
            if settle(self._places.store, share.topic).epoch != share.topic_epoch:
                break
            # The head was of no epoch, as after a repair: it is mended now.
            first = False
        return [Displaced(_rest(share, missing), bodies)]

    def _standing(self, keys: PartitionKeys, decision: Decision, share: Share) -> set[int]:
        """Which of the entries are in the partition; its tail was checked a moment ago."""
        reader = PartitionReader(self._places.store, keys, self._places.tier)
        cursor = reader.cursor(max(share.since, reader.earliest()))
        mine = (decision.producer_id, decision.epoch, decision.mark)
        found: set[int] = set()
        while entries := cursor.fetch():
            for entry in entries:
                header = entry.header
                if (header.producer_id, header.producer_epoch, header.transaction_mark) == mine:
                    found.add(header.sequence)
        return found


def _rest(share: Share, missing: Sequence[tuple[int, EntryNote]]) -> Share:
    entries = tuple(note for _, note in missing)
    return Share(share.topic, share.partition, share.topic_epoch, entries)


def _portions(
    decision: Decision, notes: Sequence[tuple[int, EntryNote]], bodies: Bodies
) -> Iterator[list[Draft]]:
    """The drafts of some entries, as many at a time as one append takes."""
    drafts: list[Draft] = []
    size = 0
    for sequence, one in notes:
        if drafts and size + one.stored_length > APPEND_BYTES_MAX:
            yield drafts
            drafts, size = [], 0
        drafts.append(_draft(decision, sequence, one, bodies(one)))
        size += one.stored_length
    if drafts:
        yield drafts


def _draft(decision: Decision, sequence: int, one: EntryNote, body: Sequence[Buffer]) -> Draft:
    return Draft(
        KIND_RECORDS,
        Codec(one.codec),
        one.flags,
        one.record_count,
        one.record_count,
        one.body_length,
        one.stored_length,
        body,
        one.checksum,
        decision.producer_id,
        decision.epoch,
        sequence,
        decision.mark,
    )


def _damage(file: str, decision: Decision) -> DamagedFile:
    return DamagedFile(
        f"{file} does not have the records that transaction {decision.number} decided on. Restore "
        "it from a backup; until then nothing more of this producer can be committed",
        file=file,
        reason="records checksum",
    )


def memory_bodies(bodies: Mapping[int, Sequence[Buffer]], rest: Bodies) -> Bodies:
    """Bodies that are still in memory, by position; the others from where they stand."""
    return lambda one: bodies[one.position] if one.source == 0 else rest(one)
