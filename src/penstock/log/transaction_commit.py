"""The parts of a commit: what it is about, and what is left to do once it is decided."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from penstock.errors import TransactionPending
from penstock.log.transaction_decision import Decision, OffsetMove
from penstock.log.transaction_roll import Displaced, RunAll
from penstock.log.transaction_staging import Drafted, ShareBuilder, StagedRecords, Target, note
from penstock.system import Buffer

_T = TypeVar("_T")


class Outcome(NamedTuple):
    """What came of a commit."""

    producer: str
    number: int
    repeated: bool = False
    """The transaction of this number was committed before: this call did nothing."""
    records: int = 0


class GroupOffsets(NamedTuple):
    """Offsets of a group that move with a transaction: the next one to read in each partition."""

    group: str
    offsets: Mapping[tuple[str, int], int]

    def moves(self) -> list[OffsetMove]:
        """As a decision has them, but for where they are now."""
        return [OffsetMove(self.group, *place, -1, at) for place, at in self.offsets.items()]


class Work:
    """What a decision is about: entries in memory, and in staged files."""

    def __init__(self, records: Sequence[Drafted], staged: Sequence[StagedRecords] = ()) -> None:
        self.staged = [one for one in staged if one.shares]
        self.shares = ShareBuilder()
        self.buffers: list[Buffer] = []
        self.bodies: dict[int, Sequence[Buffer]] = {}
        self.count = sum(one.records for one in self.staged)
        for source, one in enumerate(self.staged, 1):
            self._add_staged(source, one)
        position = 0
        for target, entry in records:
            self.shares.add(target, [note(entry, 0, position)])
            self.bodies[position] = entry.body
            self.buffers += entry.body
            self.count += entry.record_count
            position += entry.stored_length

    def files(self) -> tuple[str, ...]:
        """The staged files, in the order in which the notes count them."""
        return tuple(one.file for one in self.staged)

    def _add_staged(self, source: int, one: StagedRecords) -> None:
        for share in one.shares:
            target = Target(share.topic, share.partition, share.topic_epoch)
            # Each file counts itself as the first one.
            self.shares.add(target, [replace(entry, source=source) for entry in share.entries])


class Task(Generic[_T]):
    """A job on another thread, and what came of it."""

    def __init__(self, job: Callable[[RunAll], _T], run_all: RunAll) -> None:
        self._job = job
        self._run_all = run_all
        self._done = threading.Event()
        self._result: list[_T] = []
        self._failure: BaseException | None = None

    def run(self) -> None:
        """On the other thread; never raises."""
        try:
            self._result.append(self._job(self._run_all))
        except BaseException as failure:
            self._failure = failure
        finally:
            self._done.set()

    def wait(self) -> _T:
        """What the job returned, or raised. The disk calls of the job have deadlines of their own."""
        self._done.wait()
        if self._failure is not None:
            raise self._failure
        return self._result[0]


class Commit:
    """A transaction that is decided, and being appended; or a repetition of one.

    ``finish()`` must be called: until then nobody else can use the producer.
    """

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome

    def finish(self, *, moved: bool = False) -> Outcome:
        """Return when all is in its topics; ``moved`` says that the caller moved the offsets."""
        return self.outcome


class Decided(Commit):
    """One that is decided."""

    def __init__(
        self,
        outcome: Outcome,
        decision: Decision,
        appended: Callable[[], Sequence[Displaced]],
        move: Callable[[Sequence[OffsetMove]], None],
        complete: Callable[[Sequence[Displaced]], object],
        release: Callable[[], None],
    ) -> None:
        super().__init__(outcome)
        self._decision = decision
        self._appended = appended
        self._move = move
        self._complete = complete
        self._release = release

    def finish(self, *, moved: bool = False) -> Outcome:
        """See :class:`Commit`. Raises TransactionPending when something goes wrong from here on."""
        try:
            self._finish(moved)
        except Exception as cause:
            raise self._pending(cause) from cause
        finally:
            self._release()
        return self.outcome

    def _finish(self, moved: bool) -> None:
        try:
            if not moved:
                self._move(self._decision.moves)
        finally:
            # Also when the offsets did not move: the appends are on their way.
            displaced = self._appended()
        self._complete(displaced)

    def _pending(self, cause: Exception) -> TransactionPending:
        name, number, *_ = self.outcome
        return TransactionPending(
            f"transaction {number} of {name!r} is committed, but not wholly in its topics yet "
            f"({cause}): do not repeat it. It is rolled forward when the producer is used or opened "
            "again, when the log is opened, and by its maintenance",
            producer=name,
            number=number,
        )
