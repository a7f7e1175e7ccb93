"""A topic that is open in this process: its partitions, its writer, what is known of its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.errors import PenstockError, UnknownPartition
from penstock.log.head import Head
from penstock.log.names import PartitionKeys
from penstock.log.partition import PartitionLog
from penstock.log.reader import PartitionReader
from penstock.log.receipts import PublishedRow, Receipt
from penstock.log.recovery import RecoveryReport
from penstock.log.tail import TailBudget, TailCache
from penstock.log.topic import TopicState
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "tail_budget", TailBudget(self.tail_cache_bytes))


class OpenTopic:
    """One topic of a queue. Opening it checks the tails of its partitions. Blocking."""

    def __init__(
        self,
        state: TopicState,
        around: Surroundings,
        on_commit: Callable[[OpenTopic, Sequence[Receipt | PublishedRow]], None],
    ) -> None:
        self.name = state.name
        self.state = state
        self.around = around
        self._noting = threading.Lock()
        self.logs = [self._log(number) for number in range(state.partitions)]
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
            on_commit=lambda done: on_commit(self, done),
            loop=around.loop,
        )

    def keys(self, partition: int) -> PartitionKeys:
        """The keys of a partition; UnknownPartition when the topic has fewer."""
        if not 0 <= partition < self.state.partitions:
            raise UnknownPartition(
                f"topic {self.name!r} has partitions 0 to {self.state.partitions - 1}, "
                f"not {partition}",
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
        return self._note(heads)

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
