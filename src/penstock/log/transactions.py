"""Transactions on a log: stage, decide once, roll forward. Blocking, for any process.

::

    transactions = Transactions(store)
    producer = transactions.open("billing")  # fences whoever had it open before
    staged = transactions.stage("billing", {"invoices": Columns([b"..."])})
    transactions.commit(producer, number=7, staged=[staged])

Nothing uncommitted is ever in a partition, so readers need to know nothing of transactions. Records wait
in staged files, or in memory. The *decision* is one synced write under the producer's lock: before it the
transaction never happened, after it the transaction is committed. Then the entries are appended and the
offsets moved. Whoever finds a decision that is not finished, finishes it.

Locks are taken in this order: a group's, a producer's, a partition's or an offset's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from penstock.errors import Closed, InvalidOption, PenstockError, TransactionPending
from penstock.log.columns import Columns
from penstock.log.deadlines import LOCK_TIMEOUT_SECONDS
from penstock.log.head import HeadFile
from penstock.log.names import PartitionKeys
from penstock.log.offsets import check_offset
from penstock.log.producer_file import (
    NUMBER_MAX,
    DoneMark,
    ProducerFile,
    ProducerLease,
)
from penstock.log.transaction_commit import Commit, Decided, GroupOffsets, Outcome, Task, Work
from penstock.log.transaction_decision import Decision, DecisionFiles, OffsetMove, Standing
from penstock.log.transaction_reroute import rerouted
from penstock.log.transaction_roll import (
    Bodies,
    Displaced,
    Places,
    Roller,
    RunAll,
    memory_bodies,
)
from penstock.log.transaction_staging import Drafted, StagedRecords, StagedWriter, Target
from penstock.stores.base import PersistentBackingStore
from penstock.system import System, Worker

INLINE_BYTES_MAX = 4 * 1024 * 1024
"""Records up to this size stand in the decision itself; more get a staged file of their own.

That is one more file to make, to sync with its name, and to remove. A producer keeps its last two decisions.
"""
EPOCH_CHANGES_MAX = 100

_T = TypeVar("_T")


class Transactions:
    """The transactions of one log. Thread-safe; any number of processes may have one."""

    def __init__(
        self,
        store: PersistentBackingStore,
        *,
        tier: PersistentBackingStore | None = None,
        offsets: PersistentBackingStore | None = None,
        system: System | None = None,
        lock_timeout: float = LOCK_TIMEOUT_SECONDS,
    ) -> None:
        self._store = store
        self._system = system or System()
        self._lock_timeout = lock_timeout
        self._starting = threading.Lock()
        self._worker: Worker | None = None
        self._closed = False
        self._roller = Roller(Places(store, tier, offsets, self._system))

    def close(self) -> None:
        """Stop the thread, after what it is doing. Idempotent."""
        with self._starting:
            self._closed = True
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    # Producers

    def open(self, name: str) -> ProducerLease:
        """Take over a producer: older leases are fenced, and what they decided is finished."""
        file = ProducerFile(self._store, name)
        with file.locked(self._lock_timeout):
            lease = file.open(self._system)
            self._finish(file)
            return lease

    def last_number(self, name: str) -> int:
        """The number of the last transaction that was committed; -1 before the first."""
        return self._files(name)[1].look().number

    def finish(self, name: str, timeout: float | None = None) -> None:
        """Roll the last transaction of a producer forward, if it is not finished."""
        file, decisions = self._files(name)
        if decisions.look().pending is not None:
            with file.locked(self._lock_timeout if timeout is None else timeout):
                self._finish(file)

    def forget(self, name: str) -> None:
        """Forget a producer: its next transaction counts as its first."""
        file = ProducerFile(self._store, name)
        with file.locked(self._lock_timeout):
            self._finish(file)
            file.delete()

    # Staging

    def writer(self, producer: str) -> StagedWriter:
        """Stages many batches into one file."""
        return StagedWriter(self._store, producer, system=self._system)

    def stage(self, producer: str, records: Mapping[str, Columns]) -> StagedRecords:
        """Make records of these topics durable, in no topic yet; a commit takes the reference."""
        writer = self.writer(producer)
        for topic, columns in records.items():
            writer.add(topic, columns)
        return writer.finish()

    def discard(self, staged: Iterable[StagedRecords]) -> None:
        """Remove staged records that will not be committed."""
        for one in staged:
            self._store.delete(one.file)

    # Committing

    def commit(
        self,
        lease: ProducerLease,
        *,
        number: int | None = None,
        records: Sequence[Drafted] = (),
        staged: Sequence[StagedRecords] = (),
        offsets: Sequence[GroupOffsets] = (),
    ) -> Outcome:
        """Commit all of it or, raising, nothing; the number grows from commit to commit.

        A number that is not above the last one was committed before: nothing is done then, and the
        outcome says so. Without a number it is the next one. Raises Fenced when the producer was
        opened again, and TransactionPending when the transaction is committed but not wholly in its
        topics yet. The caller makes sure that nobody else moves these offsets.
        """
        begun = self.begin(lease, number=number, records=records, staged=staged, offsets=offsets)
        return begun.finish()

    def begin(
        self,
        lease: ProducerLease,
        *,
        number: int | None = None,
        records: Sequence[Drafted] = (),
        staged: Sequence[StagedRecords] = (),
        offsets: Sequence[GroupOffsets] = (),
    ) -> Commit:
        """As :meth:`commit` up to the decision; ``finish()`` must follow, it lets the producer go.

        Between the two the caller may move the offsets itself, while the entries are appended.
        """
        _check(lease, number, staged, offsets)
        self._check_open()
        work = self._work(lease.name, records, staged)
        file, decisions = self._files(lease.name)
        with ExitStack() as held:
            held.enter_context(file.locked(self._lock_timeout))
            file.check(lease)
            standing = self._finish(file)
            if number is not None and number <= standing.number:
                self._drop(work.staged)
                return Commit(Outcome(lease.name, number, repeated=True))
            number = standing.number + 1 if number is None else number
            decision = self._decision(lease, standing, number, work, offsets)
            decisions.write(decision, work.buffers)
            # From here on it is committed.
            bodies = memory_bodies(work.bodies, self._roller.bodies(file.name, decision, b""))
            return Decided(
                Outcome(lease.name, number, records=work.count),
                decision,
                self._started(partial(self._roller.append, decision, bodies, first=True)),
                self._roller.move,
                partial(self._complete, file, decision),
                held.pop_all().close,
            )

    # Inside

    def _files(self, name: str) -> tuple[ProducerFile, DecisionFiles]:
        file = ProducerFile(self._store, name)
        return file, DecisionFiles(self._store, file)

    def _work(
        self, name: str, records: Sequence[Drafted], staged: Sequence[StagedRecords] = ()
    ) -> Work:
        """Records that are too many for the decision get a staged file."""
        if sum(entry.stored_length for _, entry in records) <= INLINE_BYTES_MAX:
            return Work(records, staged)
        writer = self.writer(name)
        writer.add_drafted(records)
        return Work((), [*staged, writer.finish()])

    def _decision(
        self,
        lease: ProducerLease,
        standing: Standing,
        number: int,
        work: Work,
        offsets: Sequence[GroupOffsets],
    ) -> Decision:
        moves = [self._from_present(move) for one in offsets for move in one.moves()]
        return Decision(
            producer_id=lease.producer_id,
            epoch=lease.epoch,
            generation=standing.generation + 1,
            number=number,
            decided_ms=self._system.clock.time_ms(),
            shares=work.shares.shares(self._ends(work.shares.targets())),
            moves=tuple(moves),
            files=work.files(),
        )

    def _ends(self, targets: Iterable[Target]) -> dict[Target, int]:
        """The durable end of each partition: what this transaction appends comes behind it."""
        ends = {}
        for target in targets:
            keys = PartitionKeys(target.topic, target.partition)
            head = HeadFile(self._store, keys.head).read()
            ends[target] = 0 if head is None else head.durable_offset
        return ends

    def _from_present(self, move: OffsetMove) -> OffsetMove:
        present = self._roller.offset_file(move).read()
        return move if present is None else replace(move, before=present.offset)

    def _finish(self, file: ProducerFile) -> Standing:
        """Where the producer stands once its last transaction is finished. Needs the lock."""
        decisions = DecisionFiles(self._store, file)
        standing = decisions.look()
        decision = standing.pending
        if decision is None:
            return standing
        decisions.secure(standing)
        bodies = self._roller.bodies(file.name, decision, standing.records)
        self._roller.move(decision.moves)
        append = partial(self._roller.append, decision, bodies, first=False)
        return Standing(self._complete(file, decision, self._submit(append)()))

    def _complete(
        self, file: ProducerFile, decision: Decision, displaced: Sequence[Displaced]
    ) -> DoneMark:
        """All is in its topics, but for what was sent to partitions that get no more records."""
        for _ in range(EPOCH_CHANGES_MAX):
            if not displaced:
                break
            decision, bodies = self._decide_again(file, decision, displaced)
            append = partial(self._roller.append, decision, bodies, first=True)
            displaced = self._submit(append)()
        if displaced:
            raise TransactionPending(
                f"the topics of transaction {decision.number} of {file.name!r} are repartitioned "
                "all the time",
                producer=file.name,
                number=decision.number,
            )
        mark = DoneMark(decision.generation, decision.number)
        file.write_done(mark)
        if decision.files:
            # A decision without its mark would look for them after a power cut.
            file.sync_done()
            with suppress(PenstockError):
                for key in decision.files:
                    self._store.delete(key)
        return mark

    def _decide_again(
        self, file: ProducerFile, decision: Decision, displaced: Sequence[Displaced]
    ) -> tuple[Decision, Bodies]:
        """The same transaction, with what is missing of it sent to other partitions.

        All the rest of it is in its topics, and durable.
        """
        records = [
            one for share, bodies in displaced for one in rerouted(self._store, share, bodies)
        ]
        work = self._work(file.name, records)
        again = replace(
            decision,
            generation=decision.generation + 1,
            shares=work.shares.shares(self._ends(work.shares.targets())),
            # Those of before are removed in the end.
            files=(*work.files(), *decision.files),
        )
        DecisionFiles(self._store, file).write(again, work.buffers)
        return again, memory_bodies(work.bodies, self._roller.bodies(file.name, again, b""))

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the log is closed: open it again")

    def _started(self, job: Callable[[RunAll], _T]) -> Callable[[], _T]:
        """As :meth:`_submit`; a log that was closed at this very moment is told by the answer."""
        try:
            return self._submit(job)
        except Closed:
            return partial(self._submit_late, job)

    def _submit_late(self, job: Callable[[RunAll], _T]) -> _T:
        return self._submit(job)()

    def _submit(self, job: Callable[[RunAll], _T]) -> Callable[[], _T]:
        """Begin a job on the thread of the transactions; call the answer to wait for it."""
        with self._starting:
            self._check_open()
            if self._worker is None:
                self._worker = self._system.worker("penstock-transactions")
            task = Task(job, self._worker.run_all)
            self._worker.submit(task.run)
        return task.wait

    def _drop(self, staged: Sequence[StagedRecords]) -> None:
        with suppress(PenstockError):
            self.discard(staged)


def _check(
    lease: ProducerLease,
    number: int | None,
    staged: Sequence[StagedRecords],
    offsets: Sequence[GroupOffsets],
) -> None:
    if number is not None and not 0 <= number <= NUMBER_MAX:
        raise InvalidOption(f"number is {number}; it is 0 to {NUMBER_MAX}", option="number")
    for one in staged:
        if one.producer != lease.name:
            raise InvalidOption(
                f"the records were staged for producer {one.producer!r}, not {lease.name!r}",
                option="staged",
            )
    for moving in offsets:
        for offset in moving.offsets.values():
            check_offset(offset)
