"""A topic that is open in this process: its partitions, its writer, what is known of its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from penstock.errors import PenstockError, UnknownPartition
from penstock.log.epoch_change import change_partitions, settle
from penstock.log.head import Head
from penstock.log.names import PartitionKeys
from penstock.log.partition import PartitionLog
from penstock.log.published import PublishedRow
from penstock.log.reader import PartitionReader
from penstock.log.receipts import Receipt
from penstock.log.recovery import RecoveryReport
from penstock.log.tail import TailBudget, TailCache
from penstock.log.topic import TopicConfig, TopicFile, TopicState
from penstock.log.transaction_care import TransactionCare
from penstock.log.transactions import Transactions
from penstock.log.writer import TopicWriter
from penstock.stores.base import PersistentBackingStore
from penstock.system import System, Worker


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every open topic of a queue shares."""

    store: PersistentBackingStore
    tier: PersistentBackingStore | None
    offsets: PersistentBackingStore
    """Where the subscribers' offsets are; the store itself, if no other was named."""
    system: System
    worker: Worker
    loop: asyncio.AbstractEventLoop
    tail_cache_bytes: int
    """What the tail caches of all topics and partitions may hold together."""
    read_only: bool
    tail_budget: TailBudget = field(init=False)
    transactions: Transactions = field(init=False)
    care: TransactionCare = field(init=False)

    def __post_init__(self) -> None:
        store, system, offsets = self.store, self.system, self.offsets
        transactions = Transactions(store, tier=self.tier, offsets=offsets, system=system)
        object.__setattr__(self, "tail_budget", TailBudget(self.tail_cache_bytes))
        object.__setattr__(self, "transactions", transactions)
        object.__setattr__(self, "care", TransactionCare(store, transactions, system, offsets))


class OpenTopic:
    """One topic of a queue. Opening it checks the tails of its partitions. Blocking."""

    def __init__(
        self,
        state: TopicState,
        around: Surroundings,
        on_commit: Callable[[OpenTopic, Sequence[Receipt], list[PublishedRow]], None],
    ) -> None:
        self.name = state.name
        self.state = state
        self.around = around
        self.file = TopicFile(around.store, state.name)
        """The description, which all subscribers here share: what one has read need not be decoded by the next."""
        self._noting = threading.Lock()
        self.behind = False
        """A head is of a later epoch than ``state``: see :meth:`catch_up`."""
        self._moving = threading.Lock()
        self.logs = [self._log(number) for number in range(state.partitions_all)]
        """Those of all epochs; it only grows."""
        self.caches = [self._cache(log) for log in self.logs]
        self.reports: list[RecoveryReport] = []
        if not around.read_only:
            self.reports = [log.attach() for log in self.logs]
        self.durable = [0] * len(self.logs)
        """The durable offset of each partition as the event loop knows it."""
        self._generations = [0] * len(self.logs)
        self.refresh()
        self.writer = TopicWriter(
            state.name,
            state.config,
            self.logs,
            self.caches,
            system=around.system,
            worker=around.worker,
            on_commit=partial(on_commit, self),
            loop=around.loop,
            epoch=state.epoch,
            partitions=state.partitions,
            catch_up=self.catch_up,
        )

    def keys(self, partition: int) -> PartitionKeys:
        """The keys of a partition; UnknownPartition when the topic has fewer."""
        if not 0 <= partition < len(self.logs):
            raise UnknownPartition(
                f"topic {self.name!r} has partitions 0 to {len(self.logs) - 1}, not {partition}",
                topic=self.name,
                partition=partition,
            )
        return PartitionKeys(self.name, partition)

    def reader(self, partition: int) -> PartitionReader:
        """A new reader of a partition."""
        return PartitionReader(self.around.store, self.keys(partition), self.around.tier)

    def refresh(self, partitions: Iterable[int] | None = None) -> bool:
        """Look at the heads, which any process may have moved; whether one did move.

        All of them, or those of some partitions.
        """
        numbers = range(len(self.logs)) if partitions is None else partitions
        heads = {number: self.logs[number].read_head() for number in numbers}
        for number, head in heads.items():
            if head.generation < self._generations[number]:
                # The newest head was lost, and perhaps a count of failures with it.
                self.caches[number].clear()
            self._generations[number] = head.generation
            self.behind = self.behind or head.epoch > self.state.epoch
        return self._note(heads) or self.behind

    def repartition(self, partitions: int) -> None:
        """Change the partition count, for all processes. On the commit worker, as its logs are."""
        now = self.around.system.clock.time_ms()
        try:
            state = change_partitions(self.file, partitions, self._any_log, self._earliest, now)
        except BaseException:
            # It may have happened, or half of it.
            self.behind = True
            raise
        self.move_to(state)

    def catch_up(self) -> None:
        """Go on with the epoch that topic.json has. Blocking; waits for a change in progress."""
        if self.around.read_only:
            self.move_to(self.file.read())
        else:
            self.move_to(settle(self.around.store, self.name))

    async def look_again(self) -> None:
        """Catch up if another process has changed the partition count since."""
        await asyncio.to_thread(self.refresh)
        if self.behind:
            await asyncio.to_thread(self.catch_up)

    def move_to(self, state: TopicState) -> None:
        """Use the partitions and the epoch of this state, unless a later one is in use."""
        with self._moving:
            if state.epoch >= self.state.epoch:
                self._grow(state.partitions_all)
                self.state = replace(self.state, epochs=state.epochs)
                self.writer.reroute(state.epoch, state.partitions)
                self.behind = False

    def reconfigure(self, config: TopicConfig) -> None:
        """Use other settings; the epochs stay as they are."""
        with self._moving:
            self.state = replace(self.state, config=config)

    def _grow(self, count: int) -> None:
        first = len(self.logs)
        self.writer.grow(count)
        for number in range(first, count):
            log = self._log(number)
            if not self.around.read_only:
                self.reports.append(log.attach())
            with self._noting:
                self.caches.append(self._cache(log))
                self._generations.append(0)
                self.durable = [*self.durable, 0]
                # Last: who goes through the logs finds all that belongs to each.
                self.logs.append(log)
        self.refresh(range(first, count))

    def _any_log(self, number: int) -> PartitionLog:
        return self.logs[number] if number < len(self.logs) else self._log(number)

    def _earliest(self, number: int) -> int:
        keys = PartitionKeys(self.name, number)
        return PartitionReader(self.around.store, keys, self.around.tier).earliest()

    def note_commits(self) -> None:
        """Take over what this process's own commits made durable; no disk call."""
        self._note({number: log.head for number, log in enumerate(self.logs)})

    def _note(self, heads: Mapping[int, Head]) -> bool:
        """Take over what is ahead; whether anything was. From any thread: it never goes back."""
        with self._noting:
            moved = list(self.durable)
            for number, head in heads.items():
                # First: what was cached before a failure must not become durable by it.
                self.caches[number].note_failures(head.failures)
                moved[number] = max(moved[number], head.durable_offset)
            changed = moved != self.durable
            self.durable = moved
            return changed

    def close(self) -> None:
        """Sync and let go; partitions that are poisoned stay as they are.

        Raises, after all of them, when records that were acknowledged cannot be made durable.
        """
        failures = [failure for log in self.logs if (failure := _close(log)) is not None]
        for failure in failures:
            raise failure

    def _cache(self, log: PartitionLog) -> TailCache:
        return TailCache(self.around.tail_budget, lambda: log.head.failures)

    def _log(self, partition: int) -> PartitionLog:
        around = self.around
        return PartitionLog(
            around.store,
            PartitionKeys(self.name, partition),
            system=around.system,
            segment_bytes_max=self.state.config.segment_bytes_max,
            tier=around.tier,
        )


def _close(log: PartitionLog) -> BaseException | None:
    """Close a partition; why some of its records are not durable, or None."""
    try:
        log.close()
    except PenstockError as failure:
        return failure
    return log.poison if log.head.durable_offset < log.head.next_offset else None
