"""What is left of transactions whose process died: finished by whoever looks, removed when it is old."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.errors import DeadlineExceeded, KeyNotFound, PenstockError
from penstock.log.deadlines import LOCK_TIMEOUT_SECONDS
from penstock.log.offsets import OffsetFile
from penstock.log.producer_file import ProducerFile, producer_names
from penstock.log.transaction_decision import Decision, DecisionFiles
from penstock.log.transaction_staging import STAGED_AGE_MS, staged_ms
from penstock.log.transactions import Transactions
from penstock.stores.base import PersistentBackingStore
from penstock.system import System

LOOK_AGAIN_SECONDS = 0.05


class TransactionCare:
    """Looks after the producers of a log. Blocking; any number of processes may do so."""

    def __init__(
        self,
        store: PersistentBackingStore,
        transactions: Transactions,
        system: System,
        offsets: PersistentBackingStore | None = None,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._transactions = transactions
        self._system = system
        self._synced: dict[str, int] = {}

    def settle(self) -> list[PenstockError]:
        """Finish every transaction that nobody else is at work on; what went wrong with some."""
        troubles: list[PenstockError] = []
        for name in producer_names(self._store):
            try:
                self._transactions.finish(name, timeout=0)
            except DeadlineExceeded:
                pass  # a live process has it, and finishes it
            except PenstockError as trouble:
                troubles.append(trouble)
        return troubles

    def settle_group(self, group: str, timeout: float = LOCK_TIMEOUT_SECONDS) -> None:
        """Return when every offset of the group that a decided transaction moves has moved.

        For whoever is about to read them. Whoever decided on one either moved it or is gone, or is
        moving it just now. May be called with or without the group's lock: it never waits for long
        while it holds a producer up.
        """
        deadline = self._system.clock.monotonic() + timeout
        for name in producer_names(self._store):
            while self._is_behind(name, group):
                self._finish_before(deadline, name)

    def settle_entries(
        self,
        group: str,
        partitions: Iterable[tuple[str, int]],
        timeout: float = LOCK_TIMEOUT_SECONDS,
    ) -> None:
        """Return when what was made of the records before the group's offsets is in its topics, all of it.

        For whoever goes on in these partitions: offsets move before the entries are appended, and what it makes of
        later records must not come before them. Call it without the group's lock: whoever is stopped while it
        appends is waited for, until the timeout.
        """
        wanted = frozenset(partitions)
        deadline = self._system.clock.monotonic() + timeout
        for name in producer_names(self._store):
            while self._moves(name, group) & wanted:
                self._finish_before(deadline, name)

    def _finish_before(self, deadline: float, name: str) -> None:
        """Try to finish it; who cannot yet looks again, until the deadline."""
        try:
            self._transactions.finish(name, timeout=LOOK_AGAIN_SECONDS)
        except DeadlineExceeded:
            if self._system.clock.monotonic() >= deadline:
                raise

    def partitions_in_use(self) -> set[tuple[str, int]]:
        """Those whose entries may still be looked for: nothing of them may be removed or rewritten.

        A mark that is not durable yet is made so, because after a power cut the transaction would
        be looked for again.
        """
        found: set[tuple[str, int]] = set()
        for name in producer_names(self._store):
            pending = self._pending(name)
            if pending is not None:
                found |= {(share.topic, share.partition) for share in pending.shares}
            else:
                self._secure_mark(ProducerFile(self._store, name))
        return found

    def remove_orphans(self, age_ms: int = STAGED_AGE_MS) -> int:
        """Remove staged files that waited too long for a decision; returns how many."""
        now = self._system.clock.time_ms()
        removed = 0
        for name, key in list(self._staged()):
            made = staged_ms(key)
            if made is not None and now - made > age_ms:
                removed += self._remove_orphan(name, key)
        return removed

    def _remove_orphan(self, name: str, key: str) -> int:
        try:
            with ProducerFile(self._store, name).locked(0):
                pending = self._pending(name)
                if pending is not None and key in pending.files:
                    return 0
                self._store.delete(key)
                return 1
        except DeadlineExceeded:
            return 0

    def _staged(self) -> Iterator[tuple[str, str]]:
        for key in self._store.list("producers/"):
            parts = key.split("/")
            if len(parts) == 4 and parts[2] == "staged":
                yield parts[1], key

    def _pending(self, name: str) -> Decision | None:
        return DecisionFiles(self._store, ProducerFile(self._store, name)).look().pending

    def _moves(self, name: str, group: str) -> set[tuple[str, int]]:
        """The partitions whose offsets the transaction moves that is not finished."""
        pending = self._pending(name)
        moves = () if pending is None else pending.moves
        return {(one.topic, one.partition) for one in moves if one.group == group}

    def _is_behind(self, name: str, group: str) -> bool:
        pending = self._pending(name)
        if pending is None:
            return False
        return any(
            self._committed(group, one.topic, one.partition) == one.before < one.after
            for one in pending.moves
            if one.group == group
        )

    def _committed(self, group: str, topic: str, partition: int) -> int:
        found = OffsetFile(self._store, group, topic, partition, self._offsets).read()
        return -1 if found is None else found.offset

    def _secure_mark(self, file: ProducerFile) -> None:
        generation = file.read_done().generation
        if not generation or self._synced.get(file.name) == generation:
            return
        try:
            file.sync_done()
            with file.locked(0):
                done = file.read_done()
                DecisionFiles(self._store, file).finish(done)
        except KeyNotFound:
            return
        except DeadlineExceeded:
            # A live process is at its next one; the mark is durable.
            return
        if done.generation == generation:
            self._synced[file.name] = generation
