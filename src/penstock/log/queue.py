"""The asyncio face of the log: topics, publishing, subscribing."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from penstock.errors import (
    BufferFull,
    Closed,
    Forked,
    NotSupported,
    PenstockError,
    UnknownTopic,
    UsageError,
)
from penstock.log.arrow import read_table
from penstock.log.batch import split
from penstock.log.changes import Changes
from penstock.log.columns import Columns
from penstock.log.deadlines import Deadlines, late
from penstock.log.names import check_name
from penstock.log.open_topic import OpenTopic, Surroundings
from penstock.log.receipts import (
    Acknowledgement,
    BatchAcknowledgement,
    PublishedRow,
    Receipt,
)
from penstock.log.records import Record
from penstock.log.recovery import RecoveryReport
from penstock.log.statistics import QueueStatistics, topic_statistics
from penstock.log.subscription import Position, Subscription, fetch, resolve
from penstock.log.topic import TopicConfig, TopicFile, TopicState, list_topics
from penstock.log.writer import check_columns, record_size
from penstock.stores import open_store
from penstock.stores.base import PersistentBackingStore
from penstock.system import System

if TYPE_CHECKING:
    import pyarrow as pa

PUBLISH_TIMEOUT_SECONDS = 30.0
CLOSE_TIMEOUT_SECONDS = 30.0
TAIL_CACHE_BYTES = 8 * 1024 * 1024

_T = TypeVar("_T")
_live: weakref.WeakSet[WalMessageQueue] = weakref.WeakSet()


class WalMessageQueue:
    """A durable, partitioned message queue on the local disk, or on any store with a log.

    ``async with WalMessageQueue("./data") as queue`` opens it. Topics are made on first use with
    ``defaults``, or with their own settings by :meth:`create_topic`. Any number of processes may
    have a queue on the same directory. A queue belongs to the event loop that opened it; only
    :meth:`publish_nowait` may be called from other threads. After ``fork()`` the child must open
    its own.
    """

    def __init__(
        self,
        store: PersistentBackingStore | str | os.PathLike[str],
        *,
        defaults: TopicConfig | None = None,
        tier: PersistentBackingStore | str | None = None,
        auto_create: bool = True,
        read_only: bool = False,
        tail_cache_bytes: int = TAIL_CACHE_BYTES,
        system: System | None = None,
    ) -> None:
        self._system = system or System()
        self._owned: list[PersistentBackingStore] = []
        self.store = self._own(store)
        self.tier = None if tier is None else self._own(tier)
        if not self.store.capabilities.log:
            raise NotSupported(
                f"{type(self.store).__name__} cannot hold open segments: pass it as tier=..., "
                "and a directory, a container file or a database as the store"
            )
        self._defaults = (defaults or TopicConfig()).check()
        self._auto_create = auto_create
        self._read_only = read_only
        self._tail_cache_bytes = tail_cache_bytes
        self._topics: dict[str, OpenTopic] = {}
        self._opening: dict[str, asyncio.Task[OpenTopic]] = {}
        self._subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()
        self._durable_waiters: list[tuple[OpenTopic, int, int, asyncio.Future[None]]] = []
        self._room_waiters: list[asyncio.Future[None]] = []
        self._around: Surroundings | None = None
        self._refusal: PenstockError | None = None
        _live.add(self)

    # Life

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Start the commit thread. Topics are opened, and their tails checked, on first use."""
        self._check()
        if self._around is not None:
            return
        loop = asyncio.get_running_loop()
        self._around = Surroundings(
            store=self.store,
            tier=self.tier,
            system=self._system,
            worker=self._system.worker("penstock-commit"),
            loop=loop,
            tail_cache_bytes=self._tail_cache_bytes,
            read_only=self._read_only,
        )
        self._changes = Changes(self.store, loop)
        self._deadlines = Deadlines(loop)

    async def close(self, timeout: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """Commit and sync what was accepted, then let go. Idempotent.

        Raises DeadlineExceeded when the disk does not answer in time; what was acknowledged is
        safe all the same.
        """
        if self._refusal is not None:
            return
        self._refusal = Closed("the queue is closed")
        for topic in self._topics.values():
            topic.writer.refuse_from_now_on(self._refusal)
        for subscription in list(self._subscriptions):
            await subscription.close()
        try:
            await self._within(timeout, self._drain, "close the queue")
        finally:
            if self._around is not None:
                self._changes.close()
                self._deadlines.close()
            for store in self._owned:
                store.close()

    async def _drain(self) -> None:
        if self._around is not None:
            await self._on_worker(self._commit_all)
            await asyncio.to_thread(self._around.worker.close)
            for topic in self._topics.values():
                await asyncio.to_thread(topic.close)

    # Topics

    async def create_topic(self, name: str, config: TopicConfig | None = None) -> TopicState:
        """Make the topic when it is not there, open it, and return what it is.

        The settings of a topic that is already there stay as they are.
        """
        topic = await self._topic(name, config=config or self._defaults)
        return topic.state

    async def change_topic(self, name: str, **changes: Any) -> TopicState:
        """Change settings of a topic, such as ``retention``; not the partition count.

        This process uses them at once, others when they open the topic again.
        """
        topic = await self._topic(name)
        file = TopicFile(self.store, name)
        topic.state = await asyncio.to_thread(lambda: file.change_config(**changes))
        topic.writer.reconfigure(topic.state.config)
        for log in topic.logs:
            log.segment_bytes_max = topic.state.config.segment_bytes_max
        return topic.state

    async def topics(self) -> list[str]:
        """The names of all topics, opened here or not."""
        self._check()
        return await asyncio.to_thread(list_topics, self.store)

    async def recovery(self, name: str) -> Sequence[RecoveryReport]:
        """What opening the topic found, a report for each partition."""
        return (await self._topic(name)).reports

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
        ``durable=True``. A full buffer makes it wait. If it raises DeadlineExceeded or is
        cancelled, the record may or may not be published; on any other error it is not.
        """
        opened = self._topics.get(topic) or await self._topic(topic)
        size = record_size(value, key, headers)
        future: asyncio.Future[Acknowledgement] = self._deadlines.future(timeout)
        row = PublishedRow((value, key, headers, timestamp), durable, future)
        try:
            opened.writer.add_waiting(row, size)
        except BufferFull:
            await self._add_later(opened, row, size)
        return await future

    async def _add_later(self, topic: OpenTopic, row: PublishedRow, size: int) -> None:
        """Add a row when there is room, unless its deadline comes first."""
        added = False
        while not added and not row.future.done():
            either: list[asyncio.Future[Any]] = [self._room(), row.future]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            with suppress(BufferFull):
                topic.writer.add_waiting(row, size)
                added = True

    def publish_nowait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp: int | None = None,
    ) -> Receipt:
        """Hand a record over without waiting; from any thread.

        The receipt is shared by all records that are committed together. Raises BufferFull at the
        bound. The topic must be open in this process: ``await queue.create_topic(name)`` first.
        """
        opened = self._topics.get(topic)
        if opened is None:
            raise self._not_open(topic)
        return opened.writer.add_nowait(value, key, headers, timestamp)

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
        opened = self._topics.get(topic) or await self._topic(topic)
        columns = Columns(values, keys, timestamps, headers)
        check_columns(columns)
        try:
            async with asyncio.timeout(timeout):
                receipts = await self._hand_over(opened, columns, durable)
                for receipt in receipts:
                    await receipt.wait()
        except TimeoutError:
            raise late(f"publish to {topic!r}", timeout) from None
        return _combined(topic, receipts)

    async def _hand_over(self, topic: OpenTopic, columns: Columns, durable: bool) -> list[Receipt]:
        config = topic.writer.config
        bytes_max = min(config.batch_bytes_max, config.buffer_bytes_max)
        pieces = split(columns, config.batch_records_max, bytes_max)
        add = topic.writer.add_many
        return [await self._with_room(partial(add, one, durable=durable)) for one in pieces]

    async def _with_room(self, add: Callable[[], _T]) -> _T:
        """Add to a writer, waiting while its buffer is full."""
        while True:
            try:
                return add()
            except BufferFull:
                room = self._room()
            await room

    def _room(self) -> asyncio.Future[None]:
        """Done when a commit has made room."""
        waiter = asyncio.get_running_loop().create_future()
        self._room_waiters.append(waiter)
        return waiter

    async def flush(self, timeout: float = PUBLISH_TIMEOUT_SECONDS) -> None:
        """Wait until everything that was accepted before this call is durable."""
        self._check()
        await self._within(timeout, lambda: self._on_worker(self._commit_all), "flush")
        for topic in self._topics.values():
            for log in topic.logs:
                if log.poison is not None:
                    raise log.poison

    def durable_offset(self, topic: str, partition: int = 0) -> int:
        """Every record below this offset survives a power cut. The topic must be open."""
        opened = self._topics.get(topic)
        if opened is None:
            raise self._not_open(topic)
        opened.keys(partition)
        return opened.durable[partition]

    async def wait_durable(
        self,
        topic: str,
        offset: int,
        partition: int = 0,
        timeout: float = PUBLISH_TIMEOUT_SECONDS,
    ) -> None:
        """Wait until the record at this offset is durable."""
        opened = await self._topic(topic)
        opened.keys(partition)
        if opened.durable[partition] > offset:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._durable_waiters.append((opened, partition, offset, waiter))
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            raise late(f"wait for offset {offset} of {topic!r}", timeout) from None

    # Reading

    def subscribe(self, topic: str, name: str, *, start: Position = "earliest") -> Subscription:
        """A durable subscriber: resumes where it committed, a new one at ``start``.

        The topic must be open: ``await queue.create_topic(name)`` first.
        """
        self._check()
        if self._read_only:
            raise UsageError("a read-only queue cannot keep offsets: use replay()")
        opened = self._topics.get(topic)
        if opened is None:
            raise self._not_open(topic)
        self._changes.follow(opened)
        subscription = Subscription(opened, name, start, self._changes)
        self._subscriptions.add(subscription)
        return subscription

    async def unsubscribe(self, topic: str, name: str) -> None:
        """Forget a subscriber and its offsets: retention waits for it no longer."""
        opened = await self._topic(topic)
        check_name("subscriber", name)
        async with self.subscribe(topic, name):
            await asyncio.to_thread(TopicFile(self.store, topic).remove_subscriber, name)
            for log in opened.logs:
                key = f"groups/{name}/{topic}-{log.keys.partition}.offset"
                await asyncio.to_thread(self.store.delete, key)

    async def replay(
        self,
        topic: str,
        *,
        start: Position = "earliest",
        end: Position = "latest",
        partition: int | None = None,
    ) -> AsyncIterator[Record]:
        """The durable records between two positions, partition by partition. Commits nothing."""
        opened = await self._topic(topic)
        numbers = range(opened.state.partitions) if partition is None else [partition]
        for number in numbers:
            reader = opened.reader(number)
            first = await asyncio.to_thread(resolve, reader, start)
            stop = await asyncio.to_thread(resolve, reader, end)
            cursor = reader.cursor(first)
            while cursor.offset < stop and (records := await asyncio.to_thread(fetch, cursor)):
                for record in records:
                    if record.offset < stop:
                        yield record

    async def read_arrow(
        self,
        topic: str,
        *,
        partition: int = 0,
        start: Position = "earliest",
        end: Position = "latest",
    ) -> pa.Table:
        """A range of a partition as an Arrow table, with no Python object per record."""
        opened = await self._topic(topic)
        reader = opened.reader(partition)
        first = await asyncio.to_thread(resolve, reader, start)
        stop = await asyncio.to_thread(resolve, reader, end)
        return await asyncio.to_thread(read_table, reader, first, stop)

    def statistics(self) -> QueueStatistics:
        """Counts and positions of all open topics, and of the store."""
        topics = {name: topic_statistics(topic) for name, topic in self._topics.items()}
        return QueueStatistics(topics, self.store.statistics())

    # Inside

    def _own(
        self, store: PersistentBackingStore | str | os.PathLike[str]
    ) -> PersistentBackingStore:
        if isinstance(store, PersistentBackingStore):
            return store
        is_path = isinstance(store, os.PathLike) or ":" not in store
        opened = open_store(store, system=self._system) if is_path else open_store(store)
        self._owned.append(opened)
        return opened

    def _check(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def _not_open(self, topic: str) -> PenstockError:
        self._check()
        check_name("topic", topic)
        return UnknownTopic(
            f"topic {topic!r} is not open here: call `await queue.create_topic({topic!r})` first",
            topic=topic,
        )

    async def _topic(self, name: str, config: TopicConfig | None = None) -> OpenTopic:
        """The open topic; opened in a thread, once, however many ask at the same time."""
        self._check()
        if self._around is None:
            raise UsageError("open the queue first: async with WalMessageQueue(...) as queue")
        if name in self._topics:
            return self._topics[name]
        task = self._opening.get(name)
        if task is None:
            task = asyncio.create_task(self._open_topic(name, config))
            self._opening[name] = task
            task.add_done_callback(lambda _: self._opening.pop(name, None))
        return await asyncio.shield(task)

    async def _open_topic(self, name: str, config: TopicConfig | None) -> OpenTopic:
        around = self._around
        assert around is not None
        state = await asyncio.to_thread(self._find_topic, name, config)
        opened = await asyncio.to_thread(OpenTopic, state, around, self._on_commit)
        if self._read_only:
            opened.writer.refuse_from_now_on(UsageError("the queue was opened read-only"))
        self._topics[name] = opened
        return opened

    def _find_topic(self, name: str, config: TopicConfig | None) -> TopicState:
        file = TopicFile(self.store, name)
        if file.exists() or self._read_only or (config is None and not self._auto_create):
            return file.read()
        return file.create((config or self._defaults).check(), self._system.clock.time_ms())

    def _commit_all(self) -> None:
        for topic in self._topics.values():
            topic.writer.commit()
            topic.writer.sync()

    async def _on_worker(self, job: Callable[[], None]) -> None:
        """Run a job on the commit worker and wait for it."""
        around = self._around
        assert around is not None
        done: asyncio.Future[None] = around.loop.create_future()

        def run() -> None:
            job()
            _call(around.loop, lambda: _set(done))

        around.worker.submit(run)
        await done

    def _on_commit(self, topic: OpenTopic, done: Sequence[Receipt | PublishedRow]) -> None:
        """On the worker: wake the loop, once for all that was committed together."""
        _call(topic.around.loop, lambda: self._committed(topic, done))

    def _committed(self, topic: OpenTopic, done: Sequence[Receipt | PublishedRow]) -> None:
        topic.note_commits()
        for one in done:
            one.resolve()
        self._changes.wake(topic.name)
        self._wake_durable()
        waiters, self._room_waiters = self._room_waiters, []
        for waiter in waiters:
            _set(waiter)

    def _wake_durable(self) -> None:
        still = []
        for item in self._durable_waiters:
            topic, partition, offset, waiter = item
            poison = topic.logs[partition].poison
            if waiter.done():
                continue
            if topic.durable[partition] > offset:
                waiter.set_result(None)
            elif poison is not None:
                waiter.set_exception(poison)
            else:
                still.append(item)
        self._durable_waiters = still

    async def _within(
        self, timeout: float, operation: Callable[[], Awaitable[_T]], what: str
    ) -> _T:
        try:
            async with asyncio.timeout(timeout):
                return await operation()
        except TimeoutError:
            raise late(what, timeout) from None

    def abandon_after_fork(self) -> None:
        """In a forked child: refuse every call, and let go of the parent's files."""
        self._refusal = Forked(
            "this queue was opened before fork(): open a new one in the child process"
        )
        for topic in self._topics.values():
            topic.writer.refuse_from_now_on(self._refusal)
        for store in self._owned:
            store.abandon_after_fork()


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    # A loop that is closed has nobody left to tell.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


def _combined(topic: str, receipts: Sequence[Receipt]) -> BatchAcknowledgement:
    """One acknowledgement for several batches."""
    ranges: dict[int, tuple[int, int]] = {}
    for receipt in receipts:
        for partition, (first, end) in receipt.acknowledgement().ranges.items():
            ranges[partition] = (min(first, ranges.get(partition, (first,))[0]), end)
    durable = all(receipt.acknowledgement().durable for receipt in receipts)
    return BatchAcknowledgement(topic, sum(one.count for one in receipts), ranges, durable)


def _abandon_all() -> None:
    for queue in list(_live):
        queue.abandon_after_fork()


os.register_at_fork(after_in_child=_abandon_all)
