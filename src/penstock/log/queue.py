"""The asyncio face of the log: topics, publishing, subscribing."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from penstock.errors import (
    BufferFull,
    Closed,
    Forked,
    NotSupported,
    PenstockError,
    UsageError,
)
from penstock.log.arrow import read_arrow, read_table
from penstock.log.checks import checked_columns
from penstock.log.deadlines import check_seconds, within
from penstock.log.engine import Engine
from penstock.log.epoch_change import check_partitions
from penstock.log.epoch_replay import replayed
from penstock.log.event_log import LogEvents
from penstock.log.inlet import QueueInlet
from penstock.log.journal import LogJournal
from penstock.log.loop_worker import CommitOn, check_commit_on, worker_on
from penstock.log.maintenance import MaintenanceReport
from penstock.log.open_topic import OpenTopic, Surroundings
from penstock.log.places import Position, resolve
from penstock.log.publishing import publish_columns, publish_later
from penstock.log.queue_producers import QueueProducers
from penstock.log.reader import PartitionReader
from penstock.log.receipts import Acknowledgement, BatchAcknowledgement
from penstock.log.records import Record
from penstock.log.recovery import RecoveryReport
from penstock.log.retention import RetentionInfo
from penstock.log.statistics import QueueStatistics, topic_statistics
from penstock.log.subscription import Subscription
from penstock.log.topic import TopicConfig, TopicFile, TopicState, list_topics
from penstock.stores import open_store
from penstock.stores.base import PersistentBackingStore
from penstock.system import System

if TYPE_CHECKING:
    import pyarrow as pa

PUBLISH_TIMEOUT_SECONDS = 30.0
CLOSE_TIMEOUT_SECONDS = 30.0
TAIL_CACHE_BYTES = 8 * 1024 * 1024
MAINTENANCE_INTERVAL_SECONDS = 30.0

_live: weakref.WeakSet[WalMessageQueue] = weakref.WeakSet()


class WalMessageQueue(QueueProducers, QueueInlet):
    """A durable, partitioned message queue on the local disk, or on any store with a log.

    ``async with WalMessageQueue("./data") as queue`` opens it. Topics are made on first use with
    ``defaults``, or with their own settings by :meth:`create_topic`. Any number of processes may
    have a queue on the same directory. A queue belongs to the event loop that opened it; only
    :meth:`publish_nowait` may be called from other threads. After ``fork()`` the child must open
    its own.

    Records are committed by a thread of the queue, so that a slow disk never stops the event loop.
    With ``commit_on="loop"`` the loop's own thread writes and syncs, at the end of the turn in which
    the records came, or in the call of a lone ``publish_many``: that saves two changes of threads for each commit, which on a fast disk take
    longer than the sync, and the loop stands still for as long as the disk, or another process that
    holds the partition, takes. For programs with nothing else to do meanwhile: loaders, workers.
    What is acknowledged is as safe as ever; what nobody waited for is lost when the loop ends
    before the queue is closed.

    Sealed segments move to ``tier``, and the subscribers' offsets are kept in ``offsets``, when
    these stores are named. All processes must name the same ones.
    """

    def __init__(
        self,
        store: PersistentBackingStore | str | os.PathLike[str],
        *,
        defaults: TopicConfig | None = None,
        tier: PersistentBackingStore | str | None = None,
        offsets: PersistentBackingStore | str | None = None,
        auto_create: bool = True,
        read_only: bool = False,
        commit_on: CommitOn = "thread",
        tail_cache_bytes: int = TAIL_CACHE_BYTES,
        maintenance_interval: float | None = MAINTENANCE_INTERVAL_SECONDS,
        system: System | None = None,
    ) -> None:
        # Settings first: what is wrong with them is told before a store is opened.
        self._defaults = (defaults or TopicConfig()).check()
        self._commit_on = check_commit_on(commit_on)
        self._system = system or System()
        self._owned: list[PersistentBackingStore] = []
        try:
            self.store = self._own(store)
            self.tier = None if tier is None else self._own(tier)
            self.offsets = self.store if offsets is None else self._own(offsets)
            self._check_stores()
        except BaseException:
            self._close_owned()
            raise
        self._auto_create = auto_create
        self._read_only = read_only
        self._tail_cache_bytes = tail_cache_bytes
        self._maintenance_interval = maintenance_interval
        self._subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()
        self._journals: weakref.WeakSet[LogJournal] = weakref.WeakSet()
        self._running: Engine | None = None
        self._opened: dict[str, OpenTopic] = {}
        self._turn = {}
        self._refusal: PenstockError | None = None
        self._closing: asyncio.Future[None] | None = None
        _live.add(self)

    # Life

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Start what runs in the background. Topics are opened, and their tails checked, on first use."""
        self._check()
        if self._running is not None:
            return
        loop = asyncio.get_running_loop()
        around = Surroundings(
            store=self.store,
            tier=self.tier,
            offsets=self.offsets,
            system=self._system,
            worker=worker_on(self._commit_on, "penstock-commit", self._system, loop),
            loop=loop,
            tail_cache_bytes=self._tail_cache_bytes,
            read_only=self._read_only,
        )
        self._running = Engine(around, self._defaults, auto_create=self._auto_create)
        self._opened = self._running.topics.by_name
        self._turn = self._running.deadlines.turn
        if not self._read_only:
            await self._running.start(self._maintenance_interval)

    async def close(self, timeout: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """Commit and sync what was accepted, then let go. Idempotent.

        Raises DeadlineExceeded when the disk does not answer in time, and what went wrong when
        records that nobody waited for could not be written, or some that were acknowledged with
        ``durable=False`` could not be synced.
        """
        check_seconds(timeout)
        if self._refusal is None:
            self._turn = {}
            self._refusal = Closed("the queue is closed: make a new WalMessageQueue to go on")
            self._closing = asyncio.ensure_future(self._close(timeout, self._refusal))
        if self._closing is not None:
            # All who close wait for the end; being cancelled does not leave it half closed.
            await asyncio.shield(self._closing)

    async def _close(self, timeout: float, refusal: PenstockError) -> None:
        try:
            if self._running is not None:
                await within(timeout, self._drain(self._running, refusal), "close the queue")
                self._running.topics.raise_trouble(poison=False)
        finally:
            if self._running is not None:
                self._running.stop(refusal)
            self._close_owned()

    async def _drain(self, engine: Engine, refusal: PenstockError) -> None:
        closing = [subscription.close() for subscription in list(self._subscriptions)]
        closing += [journal.close() for journal in list(self._journals)]
        await asyncio.gather(*closing, engine.drain(refusal))

    # Topics

    async def create_topic(self, name: str, config: TopicConfig | None = None) -> TopicState:
        """Make the topic when it is not there, open it, and return what it is.

        The settings of a topic that is already there stay as they are.
        """
        topic = await self._engine.topics.open(name, config or self._defaults)
        return topic.state

    async def change_topic(self, name: str, **changes: Any) -> TopicState:
        """Change settings of a topic, such as ``retention``; not the partition count.

        This process uses them at once, others when they open the topic again.
        """
        topic = await self._engine.topics.open_existing(name)
        if self._read_only:
            raise UsageError("the queue was opened read-only")
        file = TopicFile(self.store, name)
        changed = await asyncio.to_thread(lambda: file.change_config(**changes))
        topic.reconfigure(changed.config)
        topic.writer.reconfigure(topic.state.config)
        for log in topic.logs:
            log.segment_bytes_max = topic.state.config.segment_bytes_max
        return topic.state

    async def repartition(
        self, name: str, partitions: int, timeout: float = PUBLISH_TIMEOUT_SECONDS
    ) -> TopicState:
        """Give a topic another number of partitions, more or fewer, for all processes at once.

        Everybody may go on publishing and reading: no record is lost or doubled, and the order
        per key is kept. Keys move to other partitions; subscribers get them from there when they
        have had all from before the change. Partitions that get no more records stay readable
        until retention has removed what is in them. When it raises, is cancelled, or the process
        dies, the topic has either its old count or the new one.
        """
        check_partitions(partitions)
        check_seconds(timeout)
        topic = await within(timeout, self._engine.topics.open_existing(name), f"open {name!r}")
        if self._read_only:
            raise UsageError("the queue was opened read-only")
        await within(timeout, self._engine.repartition(topic, partitions), f"repartition {name!r}")
        return topic.state

    async def topics(self) -> list[str]:
        """The names of all topics, opened here or not."""
        self._check()
        return await asyncio.to_thread(list_topics, self.store)

    async def recovery(self, name: str) -> Sequence[RecoveryReport]:
        """What opening the topic found, a report for each partition."""
        return (await self._engine.topics.open_existing(name)).reports

    # Publishing

    async def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp: int | None = None,
        durable: bool = False,
        timeout: float = PUBLISH_TIMEOUT_SECONDS,
    ) -> Acknowledgement:
        """Publish a record and wait for its acknowledgement.

        Returns when the record is as safe as the topic's ``FsyncPolicy`` says, or durable with
        ``durable=True``. A full buffer makes it wait. If it raises DeadlineExceeded, or the disk
        fails, or it is cancelled, the record may or may not be published: after a failure of the
        disk that shows when the queue is opened again. On any other error it is not published.
        """
        try:
            row = self._enter(topic, value, key, headers, timestamp, durable, timeout)
        except BufferFull:
            row = None
        if row is None:
            opened = self._opened.get(topic) or await self._open_within(topic, timeout)
            record = opened.writer.pack(value, key, headers, timestamp)
            return await publish_later(self._engine, opened, record, durable, timeout)
        return await row

    async def _open_within(self, topic: str, timeout: float) -> OpenTopic:
        check_seconds(timeout)
        return await within(timeout, self._engine.topics.open(topic), f"open {topic!r}")

    async def publish_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
        timestamps: Sequence[int] | None = None,
        durable: bool = False,
        timeout: float = PUBLISH_TIMEOUT_SECONDS,
    ) -> BatchAcknowledgement:
        """Publish many records, in order, and wait until all are acknowledged.

        They are written as few large batches, not all or none: after an error or a crash a
        leading part may be published.
        """
        check_seconds(timeout)
        columns = checked_columns(values, keys, timestamps, headers)
        opened = self._opened.get(topic) or await self._open_within(topic, timeout)
        return await publish_columns(
            self._engine, opened, columns, durable=durable, timeout=timeout
        )

    async def flush(self, timeout: float = PUBLISH_TIMEOUT_SECONDS) -> None:
        """Wait until everything that was accepted before this call is durable.

        Raises what went wrong since the last flush with records that nobody waited for, and for
        as long as a partition is poisoned.
        """
        check_seconds(timeout)
        await within(timeout, self._engine.commit(), "flush")
        self._engine.topics.raise_trouble()

    def durable_offset(self, topic: str, partition: int = 0) -> int:
        """Every record below this offset survives a power cut. The topic must be open."""
        opened = self._engine.topics.opened(topic)
        opened.keys(partition)
        opened.note_commits()
        return opened.durable[partition]

    async def wait_durable(
        self,
        topic: str,
        offset: int,
        partition: int = 0,
        timeout: float = PUBLISH_TIMEOUT_SECONDS,
    ) -> None:
        """Wait until the record at this offset is durable."""
        check_seconds(timeout)
        opening = self._engine.topics.open_existing(topic)
        opened = await within(timeout, opening, f"open {topic!r}")
        opened.keys(partition)
        wait = self._engine.wait_durable(opened, partition, offset)
        await within(timeout, wait, f"wait for offset {offset} of {topic!r}")

    # Reading

    def subscribe(self, topic: str, name: str, *, start: Position = "earliest") -> Subscription:
        """A durable subscriber: resumes where it committed, a new one at ``start``.

        A topic that is not open here yet is opened when the subscriber is used first. That raises
        UnknownTopic when nobody has made it: subscribing makes none.
        """
        engine = self._engine
        if self._read_only:
            raise UsageError("a read-only queue cannot keep offsets: use replay()")
        subscription = Subscription(engine, topic, name, start)
        self._subscriptions.add(subscription)
        return subscription

    async def unsubscribe(self, topic: str, name: str) -> None:
        """Forget a subscriber and its offsets: retention waits for it no longer."""
        subscription = self.subscribe(topic, name)
        try:
            await subscription.forget()
        finally:
            await subscription.close()

    def replay(
        self,
        topic: str,
        *,
        start: Position = "earliest",
        end: Position = "latest",
        partition: int | None = None,
    ) -> AsyncIterator[Record]:
        """The durable records between two positions, partition by partition. Commits nothing.

        Those from before a change of the partition count come before those from after it.
        """
        return replayed(self, topic, start, end, partition)

    async def read_arrow(
        self,
        topic: str,
        *,
        partition: int = 0,
        start: Position = "earliest",
        end: Position = "latest",
    ) -> pa.Table:
        """A range of a partition as an Arrow table, with no Python object per record.

        The whole range is in memory then; :meth:`replay_arrow` takes it in batches.
        """
        reader, first, stop = await self._range(topic, partition, start, end)
        return await asyncio.to_thread(read_table, reader, first, stop)

    async def replay_arrow(
        self,
        topic: str,
        *,
        partition: int = 0,
        start: Position = "earliest",
        end: Position = "latest",
    ) -> AsyncIterator[pa.RecordBatch]:
        """A range of a partition as Arrow record batches of a few megabytes each."""
        reader, first, stop = await self._range(topic, partition, start, end)
        batches = read_arrow(reader, first, stop)
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield batch

    async def _range(
        self, topic: str, partition: int, start: Position, end: Position
    ) -> tuple[PartitionReader, int, int]:
        opened = await self._engine.topics.open_existing(topic)
        await opened.look_again()
        reader = opened.reader(partition)
        first = await asyncio.to_thread(resolve, reader, start)
        stop = await asyncio.to_thread(resolve, reader, end)
        return reader, first, stop

    def statistics(self) -> QueueStatistics:
        """Counts and positions of all open topics, and of the store."""
        topics = {name: topic_statistics(topic) for name, topic in self._opened.items()}
        return QueueStatistics(topics, self.store.statistics())

    # Journals

    def journal(self, name: str) -> LogJournal:
        """Facts by key that survive a crash, as a bus with ``log=queue`` keeps them."""
        journal = LogJournal(self, name)
        self._journals.add(journal)
        return journal

    def event_log(self, name: str) -> LogEvents:
        """Where a bus of that name, with ``event_log=True``, keeps its events."""
        return LogEvents(self, name, self._defaults.retention)

    # Care

    async def retention(self, topic: str) -> Sequence[RetentionInfo]:
        """What each partition of a topic holds, and what keeps it from holding less."""
        engine = self._engine
        opened = await engine.topics.open_existing(topic)
        return await asyncio.to_thread(engine.maintenance.info, opened)

    async def maintain(self) -> Sequence[MaintenanceReport]:
        """Run retention, compaction and tiering now; they also run by themselves now and then."""
        return await asyncio.to_thread(self._engine.maintenance.run)

    # Inside

    def _open_here(self, topic: str) -> OpenTopic:
        """The topic; raises what to do when it is not open."""
        return self._engine.topics.opened(topic)

    @property
    def _engine(self) -> Engine:
        if self._running is not None and self._refusal is None:
            return self._running
        self._check()
        raise UsageError("open the queue first: async with WalMessageQueue(...) as queue")

    def _own(
        self, store: PersistentBackingStore | str | os.PathLike[str]
    ) -> PersistentBackingStore:
        if isinstance(store, PersistentBackingStore):
            return store
        is_path = isinstance(store, os.PathLike) or ":" not in store
        opened = open_store(store, system=self._system) if is_path else open_store(store)
        self._owned.append(opened)
        return opened

    def _close_owned(self) -> None:
        for store in self._owned:
            store.close()

    def _check_stores(self) -> None:
        if not self.store.capabilities.log:
            raise NotSupported(
                f"{type(self.store).__name__} cannot hold open segments: pass it as tier=... or "
                "offsets=..., and a directory, a container file or a database as the store"
            )
        if self.tier is not None and self._is_safer_than(self.tier):
            raise NotSupported(
                f"{type(self.tier).__name__} does not survive a power cut, and a tier holds the "
                "only copy of what is moved there: use a durable store as the tier"
            )
        if self._is_safer_than(self.offsets):
            raise NotSupported(
                f"{type(self.offsets).__name__} does not survive a power cut, and a committed "
                "offset must: use a durable store for the offsets"
            )

    def _is_safer_than(self, other: PersistentBackingStore) -> bool:
        return self.store.capabilities.durable > other.capabilities.durable

    def _check(self) -> None:
        if self._refusal is not None:
            raise self._refusal.again()

    def abandon_after_fork(self) -> None:
        """In a forked child: refuse every call, and let go of the parent's files."""
        self._turn = {}
        self._refusal = Forked(
            "this queue was opened before fork(): open a new one in the child process"
        )
        for topic in self._opened.values():
            topic.writer.abandon_after_fork(self._refusal)
        for store in (self.store, self.tier, self.offsets):
            if store is not None:
                store.abandon_after_fork()


def _abandon_all() -> None:
    for queue in list(_live):
        queue.abandon_after_fork()


os.register_at_fork(after_in_child=_abandon_all)
