"""One partition: appends under the lock, moves the head, rolls segments. Blocking, no threads.

A failed write or sync poisons the partition: nothing is acknowledged any more, every later call
raises, and only a new object, which checks the disk again, goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from penstock.bus.histogram import Histogram
from penstock.errors import (
    BusyError,
    DamagedEntry,
    DamagedFile,
    KeyNotFound,
    PenstockError,
    Poisoned,
    StorageError,
)
from penstock.log.appending import Writing, check_sizes
from penstock.log.deadlines import LOCK_TIMEOUT_SECONDS
from penstock.log.frame import Draft
from penstock.log.head import EPOCH_UNKNOWN, Head, HeadFile
from penstock.log.names import PartitionKeys, SegmentName
from penstock.log.open_index import OpenIndex
from penstock.log.reader import look_again
from penstock.log.recovery import RecoveryReport, TailEnd, TailScanner, after_end
from penstock.log.refusals import let_go
from penstock.log.segment import (
    CHUNK_BYTES,
    LOG_ID_BYTES,
    SegmentEnd,
    SegmentSource,
    SegmentStart,
    list_segments,
)
from penstock.stores.base import PersistentBackingStore
from penstock.system import Buffer, System

SEGMENT_BYTES = 128 * 1024 * 1024


class OtherEpoch(Exception):
    """The records were sent to partitions by another epoch than the head's: send them anew.

    Nothing was written. It never leaves the log.
    """


class Appended(NamedTuple):
    """Where drafts went: the first offset of each, and the head after them."""

    base_offsets: list[int]
    timestamp: int
    head: Head


class _Poisoning:
    """Tells of what goes wrong inside of it, which goes on its way."""

    __slots__ = ("_tell",)

    def __init__(self, tell: Callable[[BaseException], None]) -> None:
        self._tell = tell

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, cause: BaseException | None, trace: object) -> None:
        if cause is not None:
            self._tell(cause)


class PartitionLog:
    """The writer's side of a partition.

    Any number of processes may have one for the same partition. Within a process one thread at a
    time may call it.
    """

    def __init__(
        self,
        store: PersistentBackingStore,
        keys: PartitionKeys,
        *,
        system: System | None = None,
        segment_bytes_max: int = SEGMENT_BYTES,
        tier: PersistentBackingStore | None = None,
        lock_timeout: float = LOCK_TIMEOUT_SECONDS,
    ) -> None:
        self.keys = keys
        self.segment_bytes_max = segment_bytes_max
        self._store = store
        self._tier = tier
        self._system = system or System()
        self._lock_timeout = lock_timeout
        self._head_file = HeadFile(store, keys.head)
        self._poison: BaseException | None = None
        self._attached = False
        self._head_durable = False
        self._writing = False
        self._drafting = False
        self._head = Head()
        self._log_id = b""
        self._open_segment = (-1, "")
        self._index = OpenIndex(store, keys)
        self.rolls = 0
        self.syncs = Histogram()
        """How long it took to have entries on the disk."""

    @property
    def head(self) -> Head:
        """The head as this object last saw it; no disk call."""
        return self._head

    @property
    def poison(self) -> BaseException | None:
        """Why nothing can be appended any more, or None."""
        return self._poison

    def read_head(self) -> Head:
        """The head as it is now, moved by any process."""
        return self._head_file.read() or self._head

    def attach(self) -> RecoveryReport:
        """Check the tail, cut what is torn, make all that is sound durable. Needed once.

        Raises ``DamagedEntry`` or ``DamagedFile`` when something durable does not read back; the
        files are then left as they are. A crash in the middle is repaired by the next attach.
        """
        self.check()
        with self._store.lock(self._head_file.key, self._lock_timeout):
            return self._attach()

    def append(self, drafts: Iterable[Draft], *, sync: bool, epoch: int | None = None) -> Appended:
        """Append the drafts in order; with ``sync`` they are durable when the call returns.

        Each draft is taken when those before it are on their way, under the lock. A list is checked
        first: if one of it is too large, nothing was written.
        Without it they survive a crash of the process, not of the machine. If it raises, nothing
        was acknowledged; a part may be found after a restart. Raises OtherEpoch, and writes
        nothing, when the head is of another epoch than this one.
        """
        self.check()
        if isinstance(drafts, list):
            check_sizes(drafts)
        with self._store.lock_folder(self._head_file.key, self._lock_timeout):
            if not self._attached:
                self._attach()
            with self._poisoning():
                return self._append(drafts, sync=sync, epoch=epoch)

    def begin_epoch(self, epoch: int) -> int:
        """Let only writers of this epoch append from now on; returns its first offset.

        All before it is sealed and durable, so retention can remove it to the last record.
        """
        self.check()
        with self._store.lock(self._head_file.key, self._lock_timeout):
            if not self._attached:
                self._attach()
            with self._poisoning():
                head = self._secure(self._take_over())
                if head.next_offset > head.segment_base:
                    head = self._roll(head)
                if head.position == 0:
                    # Without a segment, a head that is lost could not be made anew.
                    head = self._write_entries(head, (), sync=True).head
                self._store.sync(self._segment_key(head))
                moved = head.synced()._replace(epoch=epoch)
                self._head = self._head_file.write_durably(moved)
                return moved.next_offset

    def sync(self) -> Head:
        """Make all that any process has appended so far durable."""
        self.check()
        with self._store.lock(self._head_file.key, self._lock_timeout):
            if not self._attached:
                self._attach()
            with self._poisoning():
                return self._sync()

    def close(self) -> None:
        """Sync the records and the head; a poisoned partition is left as it is."""
        if self._poison is None and self._attached and self._head.generation:
            with self._store.lock(self._head_file.key, self._lock_timeout), self._poisoning():
                self._sync()
                self._index.write()
                self._head_file.sync()

    # Failure

    def check(self) -> None:
        """Raise Poisoned, a new one each time, when nothing can be appended any more."""
        if self._poison is not None:
            raise Poisoned(
                f"partition {self.keys.partition} of {self.keys.topic} takes no more records "
                f"since a write failed ({self._poison}); close and open the queue again",
                topic=self.keys.topic,
                partition=self.keys.partition,
            ) from self._poison

    def _poisoning(self) -> _Poisoning:
        """Whatever goes wrong between the first written byte and the head poisons.

        Before that byte a store may be busy, or the memory not enough for a draft: all that was done
        until then can be done again.
        """
        self._writing = self._drafting = False
        return _Poisoning(self._failed)

    def _failed(self, cause: BaseException) -> None:
        is_harmless = self._drafting or isinstance(cause, BusyError | OtherEpoch)
        if is_harmless and not self._writing:
            return
        self._poison = cause
        let_go(cause)
        if isinstance(cause, StorageError | OSError) and not isinstance(cause, Poisoned):
            self._tell_others()

    def _tell_others(self) -> None:
        """Let every process check the tail again before it builds on it.

        After a failed sync the kernel takes bytes for clean that are not on the disk. Another
        process would sync without an error and claim them.
        """
        with suppress(PenstockError, OSError):
            head = self._head_file.read()
            if head is not None:
                self._head_file.write(head._replace(failures=head.failures + 1))

    # Under the lock

    def _attach(self) -> RecoveryReport:
        head, damaged = self._head_file.look()
        end, log_id = look_again(lambda: self._find_end(head))
        with self._poisoning():
            self._check_doubt(head or Head(), end.head)
            self._log_id = log_id
            bytes_cut = _cut(end)
            self._write_again(end)
            self._head = self._settle(head, end.head, damaged=damaged)
        self._index.go_on(self._head.segment_base, self._head.position)
        self._index.trim(self._head.position)
        self._attached = True
        return RecoveryReport(
            topic=self.keys.topic,
            partition=self.keys.partition,
            next_offset=self._head.next_offset,
            bytes_checked=end.checked,
            bytes_cut=bytes_cut,
            head_lost=head is None and bool(log_id or end.torn),
            head_damaged=damaged,
        )

    def _find_end(self, head: Head | None) -> tuple[TailEnd, bytes]:
        """Where the log ends, and its identity."""
        segments = self._list()
        end = TailScanner(self.keys, segments, head).find_end()
        return end, end.log_id or _read_log_id(self.keys, segments, end.head) or b""

    def _list(self) -> list[SegmentSource]:
        return list_segments(self.keys, self._store, self._tier)

    def _check_doubt(self, present: Head, found: Head) -> None:
        """Poison when records that this object acknowledged, and did not sync, may be lost.

        Somebody's sync failed since, or the log is shorter than it was: whoever attached next may
        have cut them and given their offsets to others. The callers must hear of it.
        """
        last = self._head
        lost = found.next_offset < last.next_offset
        if lost or (last.durable_offset < last.next_offset and present.failures != last.failures):
            place = f"partition {self.keys.partition} of {self.keys.topic}"
            raise Poisoned(
                f"{place} has no records from offset {found.next_offset} to before "
                f"{last.next_offset} any more: the topic was deleted, or cut after a failed sync"
                if lost
                else f"a sync of {place} failed in another process: the records from offset "
                f"{last.durable_offset} to before {last.next_offset}, which were acknowledged and "
                "not durable, may be lost",
                topic=self.keys.topic,
                partition=self.keys.partition,
            )

    def _settle(self, before: Head | None, found: Head, *, damaged: bool) -> Head:
        """Write the head that says that everything up to the found end is durable."""
        is_new = before is None
        before = before or Head()
        settled = found.synced()._replace(
            # Of an entry that was lost, but no entry before it is younger: time never goes back.
            timestamp=max(found.timestamp, before.timestamp),
            # Whoever lost them may have failed to tell; nobody may go on as if they were there.
            failures=before.failures + (found.next_offset < before.next_offset),
            epoch=EPOCH_UNKNOWN if damaged or (is_new and found.position) else before.epoch,
            generation=before.generation,
        )
        self._head_durable = False
        return settled if settled == before and not damaged else self._secure(settled)

    def _secure(self, head: Head) -> Head:
        """Make the head durable in both slots, once."""
        if not self._head_durable:
            head = self._head = self._head_file.write_durably(head)
            self._head_durable = True
        return head

    def _write_again(self, end: TailEnd) -> None:
        """Write what is not known to be durable over itself and sync it.

        After a failed sync the page cache shows bytes that are not on the disk and that no later
        sync would write. Written again they are dirty again, so this sync tells the truth.
        """
        for source, start in end.spans:
            size = source.size()
            if source.store is not self._store or size <= start:
                continue
            for position in range(start, size, CHUNK_BYTES):
                data = self._store.read(source.key, position, CHUNK_BYTES)
                self._store.write_at(source.key, position, [data])
            self._store.sync(source.key)

    def _append(self, drafts: Iterable[Draft], *, sync: bool, epoch: int | None) -> Appended:
        head = self._secure(self._take_over())
        if epoch is not None and head.epoch != epoch:
            raise OtherEpoch
        if head.position >= self.segment_bytes_max and head.next_offset > head.segment_base:
            head = self._roll(head)
        return self._write_entries(head, drafts, sync=sync)

    def _write_entries(self, head: Head, drafts: Iterable[Draft], *, sync: bool) -> Appended:
        writing = Writing(head, max(head.timestamp, self._system.clock.time_ms()))
        if head.position == 0:
            writing.add(self._start_entry(head))
        key = self._segment_key(head)
        base_offsets = []
        for entry in drafts if isinstance(drafts, list) else self._made(drafts):
            base_offsets.append(writing.add(entry, self._index))
            if writing.is_large:
                self._write(key, *writing.take())
        self._write(key, *writing.take())
        if sync:
            self._sync_entries(key)
        self._head = self._head_file.write(writing.head(synced=sync))
        self._index.keep(writing.rows)
        return Appended(base_offsets, writing.timestamp, self._head)

    def _made(self, drafts: Iterable[Draft]) -> Iterator[Draft]:
        """The drafts, checked. One that cannot be made does no harm while nothing is written."""
        making = iter(drafts)
        self._drafting = True
        while (entry := next(making, None)) is not None:
            check_sizes((entry,))
            self._drafting = False
            yield entry
            self._drafting = True
        self._drafting = False

    def _write(self, key: str, position: int, buffers: Sequence[Buffer]) -> None:
        """Write behind the head; from here on every failure poisons."""
        try:
            self._store.write_at(key, position, buffers)
        except BusyError as cause:
            self._note_busy(cause)
            raise
        self._writing = True

    def _note_busy(self, cause: BusyError) -> None:
        """A change can be made again when it is known not to have happened."""
        # A busy file (SQLite) was not written. A server that did not answer may still write.
        self._writing = self._writing or "file" not in cause.fields

    def _take_over(self) -> Head:
        """The present head; bytes that a dead writer left behind it are cut off."""
        found, damaged = self._head_file.look()
        head = found or Head()
        if damaged or not self._head.trusts(head):
            # Somebody's sync failed, or the newest head is lost: nothing may be cut by this one.
            self._attach()
            head = self._head
        if head.generation != self._head.generation:
            self._index.write()
            self._index.go_on(head.segment_base, head.position)
        self._head = head
        key = self._segment_key(head)
        size = self._size(key)
        if size == head.position and head.generation:
            return head
        if size and not head.generation:
            # The first writer died before it wrote a head.
            self._attach()
            return self._head
        if size > head.position:
            self._store.truncate(key, head.position)
        if size < head.position:
            raise DamagedFile(
                f"{key} has {size} bytes, the head says {head.position}: it was cut while in use",
                file=key,
                reason="shorter than the head says",
            )
        return head

    def _size(self, key: str) -> int:
        try:
            return self._store.size(key)
        except KeyNotFound:
            return 0

    def _roll(self, head: Head) -> Head:
        """Seal the open segment, durably, and point the head at the next one."""
        self._index.write()
        key = self._segment_key(head)
        source = SegmentSource(SegmentName(head.segment_base), self._store, key)
        end = SegmentEnd(
            records=head.next_offset - head.segment_base,
            first_offset=head.segment_base,
            next_offset=head.next_offset,
            size=head.position,
            first_timestamp=source.first_entry().timestamp,
            last_timestamp=head.timestamp,
        )
        writing = Writing(head, head.timestamp)
        writing.add(end.draft())
        self._write(key, *writing.take())
        self._store.sync(key)
        # Durable so that a stale head never points at a segment that retention removed.
        sealed = writing.head()
        rolled = self._head_file.write_durably(after_end(sealed, sealed.checksum))
        self._index.go_on(rolled.segment_base, 0)
        self.rolls += 1
        return rolled

    def _sync(self) -> Head:
        head = self._take_over()
        if head.durable_offset < head.next_offset:
            try:
                self._sync_entries(self._segment_key(head))
                self._head = self._head_file.write(head.synced())
            except BusyError as cause:
                self._note_busy(cause)
                raise
        return self._head

    def _sync_entries(self, key: str) -> None:
        began = self._system.clock.monotonic()
        self._store.sync(key)
        self.syncs.add(self._system.clock.monotonic() - began)

    def _start_entry(self, head: Head) -> Draft:
        if not self._log_id:
            # The log was empty when this object looked; another process may have begun it since.
            found = look_again(lambda: _read_log_id(self.keys, self._list(), head))
            self._log_id = found or self._new_log_id()
        return SegmentStart(self._log_id, self.keys.partition, 0, self.keys.topic).draft()

    def _segment_key(self, head: Head) -> str:
        base, key = self._open_segment
        if base != head.segment_base:
            key = self.keys.log(SegmentName(head.segment_base))
            self._open_segment = (head.segment_base, key)
        return key

    def _new_log_id(self) -> bytes:
        return self._system.random.randbytes(LOG_ID_BYTES)


def _cut(end: TailEnd) -> int:
    """Remove what is torn, last segment first; returns how many bytes that was."""
    if end.torn is None:
        return 0
    removed = 0
    for source in reversed(end.surplus):
        removed += source.size()
        source.store.delete(source.key)
    source, position = end.torn
    removed += source.size() - position
    if position == 0:
        source.store.delete(source.key)
    else:
        source.store.truncate(source.key, position)
        source.store.sync(source.key)
    return removed


def _read_log_id(
    keys: PartitionKeys, segments: Sequence[SegmentSource], head: Head
) -> bytes | None:
    """What the last segment that stays says; raises when it was put here from elsewhere."""
    last = head.segment_base if head.position else head.segment_base - 1
    kept = [source for source in segments if source.name.base <= last]
    if not kept:
        return None
    start = SegmentStart.parse(kept[-1].first_entry())
    if (start.topic, start.partition) != (keys.topic, keys.partition):
        cause = DamagedEntry("the segment belongs to another place", reason="start")
        raise kept[-1].damage(cause, 0)
    return start.log_id
