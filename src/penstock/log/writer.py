"""Group commit: publishers fill a batch, one worker writes it, all of them share the sync."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from penstock.errors import BufferFull, InvalidOption, PenstockError, RecordTooLarge, RetentionFull
from penstock.log.batch import Batch, Parcel, Router
from penstock.log.columns import Columns
from penstock.log.frame import Draft, draft
from penstock.log.partition import PartitionLog
from penstock.log.receipts import Placement, Receipt
from penstock.log.tail import TailCache
from penstock.log.topic import FsyncPolicy, TopicConfig
from penstock.system import System, Worker

_NOTHING = -1
OnCommit = Callable[[Sequence[Receipt]], None]


class TopicWriter:
    """Takes records for a topic from any thread and commits them in batches on a worker.

    A publish adds to the open batch. The worker takes all that has gathered, routes it, appends
    it to the partitions and syncs as the policy says; meanwhile the next batch gathers. A batch
    closes at its limits of records and bytes; with no linger a lone record is committed at once.
    """

    def __init__(
        self,
        topic: str,
        config: TopicConfig,
        logs: Sequence[PartitionLog],
        caches: Sequence[TailCache],
        *,
        system: System,
        worker: Worker,
        on_commit: OnCommit,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.topic = topic
        self.config = config
        self._logs = logs
        self._caches = caches
        self._system = system
        self._worker = worker
        self._on_commit = on_commit
        self._loop = loop
        self._router = Router(len(logs), system.random.randrange(len(logs)))
        self._lock = threading.Lock()
        self._open = Batch(Receipt(topic, loop))
        self._closed: list[Batch] = []
        self.pending_bytes = 0
        """Bytes that were accepted and are not written yet."""
        # One comparison on the hot path: whoever refuses everything sets it to nothing.
        self._limit = config.buffer_bytes_max
        self._last_place = config.batch_records_max - 1
        self._refusal: PenstockError | None = None
        self._scheduled = False
        self._unsynced = [0] * len(logs)
        self._sync_scheduled = False
        self.accepted = self.committed = self.failed = self.commits = 0

    # Any thread

    def add(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp: int | None = None,
        *,
        durable: bool = False,
    ) -> tuple[Receipt, int]:
        """Add one record to the open batch; its receipt and its place there.

        Never waits. Raises BufferFull at the bound; the record was not taken then.
        """
        if value.__class__ is bytes and key is None and headers is None:
            size = len(value)
        else:
            size = _size(value, key, headers)
        with self._lock:
            pending = self.pending_bytes + size
            if pending > self._limit or size > self.config.record_bytes_max:
                self._refuse(size)
            self.pending_bytes = pending
            batch = self._open
            place = batch.add(value, key, headers, timestamp)
            batch.size += size
            if durable:
                batch.durable = True
            if batch.size >= self.config.batch_bytes_max or place >= self._last_place:
                self._close_open()
            if not self._scheduled:
                self._schedule()
        return batch.receipt, place

    def add_many(self, columns: Columns, *, durable: bool = False) -> Receipt:
        """Add a batch of its own, within the limits of a batch; all of it or, raising, none."""
        size = columns.byte_size()
        batch = Batch(Receipt(self.topic, self._loop))
        batch.values = list(columns.values)
        batch.keys = _listed(columns.keys)
        batch.headers = _listed(columns.headers)
        batch.timestamps = _listed(columns.timestamps)
        batch.size = size
        batch.durable = durable
        with self._lock:
            alone = len(columns) == 1
            if self.pending_bytes + size > self._limit or (
                alone and size > self.config.record_bytes_max
            ):
                self._refuse(size)
            self.pending_bytes += size
            self._close_open()
            self._close(batch)
            if not self._scheduled:
                self._schedule()
        return batch.receipt

    def refuse_from_now_on(self, refusal: PenstockError) -> None:
        """Raise this on every publish: the queue was closed."""
        with self._lock:
            self._refusal = refusal
            self._limit = _NOTHING

    def reject_while_full(self, full: bool) -> None:
        """Retention says whether the topic is at its size and rejects records."""
        refusal = RetentionFull(
            f"topic {self.topic!r} is at its retention size and rejects records until its "
            "subscribers have consumed some, or the limit is raised",
            topic=self.topic,
        )
        with self._lock:
            if self._refusal is None or isinstance(self._refusal, RetentionFull):
                self._refusal = refusal if full else None
                self._limit = _NOTHING if full else self.config.buffer_bytes_max

    def abandon_after_fork(self, refusal: PenstockError) -> None:
        """In a forked child: refuse everything; the lock may have been held by a lost thread."""
        self._lock = threading.Lock()
        self.refuse_from_now_on(refusal)

    def reconfigure(self, config: TopicConfig) -> None:
        """Use other settings from now on; what was accepted stays accepted."""
        with self._lock:
            self.config = config
            self._last_place = config.batch_records_max - 1
            if self._refusal is None:
                self._limit = config.buffer_bytes_max

    def _refuse(self, size: int) -> None:
        """Raise why a record of this size is not taken now."""
        if self._refusal is not None:
            raise self._refusal
        if size > self.config.record_bytes_max:
            raise self._too_large(size)
        raise BufferFull(
            f"{self.pending_bytes} bytes of {self.topic!r} wait for the disk, which is the "
            "limit (buffer_bytes_max); wait with publish() or try again",
            topic=self.topic,
            pending_bytes=self.pending_bytes,
        )

    def _close_open(self) -> None:
        if self._open.values:
            self._close(self._open)
            self._open = Batch(Receipt(self.topic, self._loop))

    def _close(self, batch: Batch) -> None:
        batch.receipt.count = len(batch.values)
        self.accepted += len(batch.values)
        self._closed.append(batch)

    def _schedule(self) -> None:
        self._scheduled = True
        if self.config.linger_ms and not self._closed:
            self._worker.submit_after(self.config.linger_ms / 1000, self.commit)
        else:
            self._worker.submit(self.commit)

    def _too_large(self, size: int) -> RecordTooLarge:
        limit = self.config.record_bytes_max
        return RecordTooLarge(
            f"the record has {size} bytes, {self.topic!r} takes {limit} (record_bytes_max): "
            "store the payload elsewhere and publish a reference to it",
            topic=self.topic,
            size=size,
            limit=limit,
        )

    # On the worker

    def commit(self) -> None:
        """Write all that has gathered, and tell."""
        with self._lock:
            self._close_open()
            batches, self._closed = self._closed, []
            self._scheduled = False
        if not batches:
            return
        self.commits += 1
        self._commit_parcels(self._route(batches))
        self._finish(batches)

    def sync(self) -> None:
        """Make everything that was committed durable. Failures poison and are found by callers."""
        self._sync_scheduled = False
        for partition, log in enumerate(self._logs):
            if self._unsynced[partition] and log.poison is None:
                self._try_sync(partition, log)
        self._on_commit(())

    def _try_sync(self, partition: int, log: PartitionLog) -> None:
        try:
            log.sync()
        except (PenstockError, OSError):
            self._caches[partition].clear()
        else:
            self._unsynced[partition] = 0

    def _route(self, batches: Sequence[Batch]) -> dict[int, list[Parcel]]:
        now = self._system.clock.time_ms()
        parcels: dict[int, list[Parcel]] = {}
        for batch in batches:
            for partition, parcel in self._router.route(batch, now):
                parcels.setdefault(partition, []).append(parcel)
        return parcels

    def _commit_parcels(self, parcels: Mapping[int, Sequence[Parcel]]) -> None:
        jobs = [partial(self._commit_partition, *item) for item in parcels.items()]
        if self.config.fsync is FsyncPolicy.EVERY_MESSAGE:
            # Each job waits for its own sync; side by side they wait once.
            self._worker.run_all(jobs)
        else:
            for job in jobs:
                job()

    def _commit_partition(self, partition: int, parcels: Sequence[Parcel]) -> None:
        records = sum(len(parcel.places) for parcel in parcels)
        sync = self._wants_sync(partition, parcels, records)
        try:
            drafts = [self._draft(parcel.columns) for parcel in parcels]
            appended = self._logs[partition].append(drafts, sync=sync)
        except (PenstockError, OSError) as error:
            self._fail(partition, parcels, error)
            return
        self._unsynced[partition] = 0 if sync else self._unsynced[partition] + records
        for parcel, base_offset in zip(parcels, appended.base_offsets, strict=True):
            placed = Placement(partition, parcel.places, base_offset, appended.timestamp, sync)
            parcel.batch.receipt.placements.append(placed)
            self._caches[partition].add(
                base_offset, appended.timestamp, parcel.columns, parcel.batch.size
            )
        if not sync and not self._sync_scheduled:
            self._sync_scheduled = True
            self._worker.submit_after(self.config.fsync_interval_ms / 1000, self.sync)

    def _wants_sync(self, partition: int, parcels: Sequence[Parcel], records: int) -> bool:
        config = self.config
        if config.fsync is FsyncPolicy.EVERY_MESSAGE:
            return True
        if any(parcel.batch.durable for parcel in parcels):
            return True
        due = self._unsynced[partition] + records >= config.fsync_messages
        return due and config.fsync is FsyncPolicy.EVERY_N_MESSAGES

    def _draft(self, columns: Columns) -> Draft:
        flags, body = columns.encode()
        return draft(flags, body, len(columns), codec=self.config.codec)

    def _fail(self, partition: int, parcels: Sequence[Parcel], error: BaseException) -> None:
        self._caches[partition].clear()
        for parcel in parcels:
            parcel.batch.receipt.errors[partition] = error

    def _finish(self, batches: Sequence[Batch]) -> None:
        with self._lock:
            self.pending_bytes -= sum(batch.size for batch in batches)
        receipts = [batch.receipt for batch in batches]
        for receipt in receipts:
            placed = sum(len(placement.places) for placement in receipt.placements)
            self.committed += placed
            self.failed += receipt.count - placed
            receipt.done = True
        self._on_commit(receipts)


_Item = TypeVar("_Item")


def _listed(column: Sequence[_Item] | None) -> list[_Item] | None:
    return None if column is None else list(column)


def _size(value: bytes | None, key: bytes | None, headers: Mapping[str, bytes] | None) -> int:
    """Bytes of a record; InvalidOption when a part of it is not bytes."""
    size = 0
    if value.__class__ is bytes:
        size = len(value)
    elif value is not None:
        raise _not_bytes("value", value)
    if key is not None:
        if key.__class__ is not bytes:
            raise _not_bytes("key", key)
        size += len(key)
    if headers:
        size += _headers_size(headers)
    return size


def _headers_size(headers: Mapping[str, bytes]) -> int:
    for name, value in headers.items():
        if name.__class__ is not str or value.__class__ is not bytes:
            raise InvalidOption("headers map str to bytes", option="headers")
    return sum(len(name.encode()) + len(value) for name, value in headers.items())


def _not_bytes(what: str, item: object) -> InvalidOption:
    return InvalidOption(
        f"the {what} is {type(item).__name__}, it must be bytes: encode it first", option=what
    )


def check_columns(columns: Columns) -> None:
    """InvalidOption unless every column has the right types and the same length."""
    kinds = {bytes, type(None)}
    for name in ("values", "keys"):
        column = getattr(columns, name)
        if column is not None and not set(map(type, column)) <= kinds:
            odd = next(item for item in column if type(item) not in kinds)
            raise _not_bytes(name, odd)
    for headers in columns.headers or ():
        _headers_size(headers or {})
    for name in ("keys", "headers", "timestamps"):
        column = getattr(columns, name)
        if column is not None and len(column) != len(columns.values):
            raise InvalidOption(f"{name} has {len(column)} items, values {len(columns.values)}")
