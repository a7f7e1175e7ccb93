"""A topic that is open in this process: its partitions, its writer, what is known of its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.errors import UnknownPartition
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
        durable = [log.read_head().durable_offset for log in self.logs]
        moved = durable != self.durable
        self.durable = durable
        return moved

    def note_commits(self) -> None:
        """Take over what this process's own commits made durable; no disk call."""
        for partition, log in enumerate(self.logs):
            self.durable[partition] = max(self.durable[partition], log.head.durable_offset)

    def close(self) -> None:
        """Sync and let go; partitions that are poisoned stay as they are."""
        for log in self.logs:
            log.close()

    def _log(self, partition: int) -> PartitionLog:
        around = self.around
        return PartitionLog(
            around.store,
            PartitionKeys(self.name, partition),
            system=around.system,
            segment_bytes_max=self.state.config.segment_bytes_max,
            tier=around.tier,
        )
