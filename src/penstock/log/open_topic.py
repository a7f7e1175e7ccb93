"""A topic that is open in this process: its partitions, its writer, what is known of its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.errors import PenstockError, UnknownPartition
from penstock.log.names import PartitionKeys
from penstock.log.partition import PartitionLog
from penstock.log.reader import PartitionReader
from penstock.log.receipts import PublishedRow, Receipt
from penstock.log.recovery import RecoveryReport
from penstock.log.tail import TailCache
from penstock.log.topic import TopicState
from penstock.log.writer import TopicWriter
from penstock.stores.base import PersistentBackingStore
from penstock.system import System, Worker


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every open topic of a queue shares."""

    store: PersistentBackingStore
    tier: PersistentBackingStore | None
    system: System
    worker: Worker
    loop: asyncio.AbstractEventLoop
    tail_cache_bytes: int
    read_only: bool


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
        self.caches = [TailCache(around.tail_cache_bytes) for _ in self.logs]
        self.reports: list[RecoveryReport] = []
        if not around.read_only:
            self.reports = [log.attach() for log in self.logs]
        self.durable = [log.read_head().durable_offset for log in self.logs]
        """The durable offset of each partition as the event loop knows it."""
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

    def refresh(self) -> bool:
        """Look at the heads, which any process may have moved; whether one did move."""
        return self._note([log.read_head().durable_offset for log in self.logs])

    def note_commits(self) -> None:
        """Take over what this process's own commits made durable; no disk call."""
        self._note([log.head.durable_offset for log in self.logs])

    def _note(self, durable: Sequence[int]) -> bool:
        """Take over what is ahead; whether anything was. From any thread: it never goes back."""
        with self._noting:
            moved = [max(pair) for pair in zip(self.durable, durable, strict=True)]
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
