"""Group commit: publishers fill a batch, one worker writes it, all of them share the sync."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from penstock.errors import Closed, DeadlineExceeded, PenstockError, RetentionFull, UsageError
from penstock.log.appending import drafts_of
from penstock.log.batch import Batch, Item, gather, ungathered
from penstock.log.checks import largest_record, packed
from penstock.log.columns import RECORD_OVERHEAD_BYTES, Columns
from penstock.log.epoch_routing import ROUTES_MAX, Routing
from penstock.log.inlet import TopicInlet
from penstock.log.partition import OtherEpoch, PartitionLog
from penstock.log.published import PublishedRow, acknowledge, fail
from penstock.log.receipts import Placement, Receipt, was_told
from penstock.log.refusals import buffer_full, interrupted, record_too_large, retention_full
from penstock.log.sharing import Limits, Parcel
from penstock.log.tail import TailCache
from penstock.log.topic import FsyncPolicy, TopicConfig
from penstock.system import Job, System, Worker

OnCommit = Callable[[Sequence[Receipt], list[PublishedRow]], None]


class TopicWriter(TopicInlet):
    """Takes records for a topic from any thread and commits them in batches on a worker.

    Publishers append to a queue. The worker takes all that has gathered, routes it, appends it
    to the partitions and syncs as the policy says; meanwhile the next records gather. With no
    linger a lone record is committed at once. Single records come in by the inlet, which says why
    that needs no lock.
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
        epoch: int = 0,
        partitions: int | None = None,
        catch_up: Job | None = None,
    ) -> None:
        # Records go to the first of the logs; catch_up calls reroute when the epoch is over.
        self.topic = topic
        self.config = config
        self._logs = logs
        self._caches = caches
        self._system = system
        self._worker = worker
        self._on_commit = on_commit
        self.on_roll: Job | None = None
        """Called on the worker after a segment was sealed, before its commit is acknowledged."""
        self._loop = loop
        self._row_kind = PublishedRow
        self._catch_up = catch_up
        self._routing = Routing(epoch, partitions or len(logs), system)
        self._items: list[Item] = []
        self._receipt = Receipt(topic, loop)
        self._numbers = 1
        self._committing = 0
        self._failures: dict[int, tuple[int, BaseException]] = {}
        """Partition → the last commit that failed, and why; -1 stands for all of them."""
        self._gathered_bytes = 0
        self._committing_bytes = 0
        self._room = config.buffer_bytes_max
        self._record_bytes_max = config.record_bytes_max
        self.refusal: PenstockError | None = None
        """Why nothing is taken now, or None."""
        self._scheduled = False
        self._lingering = False
        self._shared = False
        """Whether the last commit had several publishers, or the next one may have."""
        self._unsynced = [0] * len(logs)
        self._sync_scheduled = False
        self._refusing = threading.Lock()
        self._stopped = False
        self._unheard: BaseException | None = None
        self._unsynced_because: dict[int, BaseException] = {}
        self._rolls = 0
        self.accepted = self.committed = self.failed = self.commits = 0

    # Any thread

    def add_waiting(self, row: PublishedRow, size: int) -> None:
        """Add one record that somebody waits for. Raises as ``add_nowait`` does."""
        if self._gathered_bytes + size > self._room or size > self._record_bytes_max:
            self._refuse(size)
        self._items.append(row)
        self._gathered_bytes += size + RECORD_OVERHEAD_BYTES
        if not self._scheduled or self._lingering:
            self._schedule()

    def add_many(
        self, columns: Columns, *, durable: bool = False, at_once: bool = False
    ) -> Receipt:
        """Add a batch of its own, within the limits of a batch; all of it or, raising, none.

        With ``at_once`` it is committed in this call where commits are made in this thread and
        nobody would share it. Who asks for that lets others have a turn, and then calls ``go_on``.
        """
        receipt = Receipt(self.topic, self._loop)
        receipt.count = len(columns)
        size = columns.byte_size()
        if len(columns) == 1:
            # A largest record fits an empty buffer, as it does when it is added alone.
            size -= RECORD_OVERHEAD_BYTES
        self._take(Batch(columns, receipt, size=size, durable=durable, awaited=True), size)
        if (not self._scheduled or self._lingering) and not (at_once and self._commit_alone()):
            self._schedule()
        return receipt

    def _commit_alone(self) -> bool:
        lone = not (self._shared or self.config.linger_ms) and self._worker.run_now(self.commit)
        # Whoever comes before the publisher goes on shares the next commit with it.
        self._shared = self._shared or lone
        return lone

    def go_on(self) -> None:
        """A publisher that committed at once goes on; nobody else has come, or a commit is scheduled."""
        self._shared = False

    def check_sizes(self, pieces: Sequence[Columns]) -> None:
        """RecordTooLarge when a record of the pieces is, before any of them is added."""
        limit = self.config.record_bytes_max
        for piece in pieces:
            # A piece of several records has at most the size of a batch.
            if len(piece) == 1 or limit < self.config.batch_bytes_max:
                largest = largest_record(piece)
                if largest > limit:
                    self._refuse(largest)

    @property
    def pending_bytes(self) -> int:
        """Bytes that were accepted and are not written yet."""
        return self._gathered_bytes + self._committing_bytes

    def take_trouble(self) -> BaseException | None:
        """Why records are not written or not durable, unless somebody has heard of it.

        Of those that were not written it tells once.
        """
        unheard, self._unheard = self._unheard, None
        trouble = next(iter(self._unsynced_because.values()), None)
        if unheard is not None and not was_told(unheard):
            trouble = unheard
        return trouble.again() if isinstance(trouble, PenstockError) else trouble

    def refuse_from_now_on(self, refusal: PenstockError) -> None:
        """Raise this on every publish."""
        with self._refusing:
            self.refusal = refusal
            self._set_room()

    pack = staticmethod(packed)

    def abandon_after_fork(self, refusal: PenstockError) -> None:
        """In a forked child: refuse everything. A thread that is gone may have held the lock."""
        self._refusing = threading.Lock()
        self.refuse_from_now_on(refusal)

    def reject_while_full(self, full: bool) -> None:
        """Retention says whether the topic is at its size and rejects records."""
        with self._refusing:
            before = self.refusal
            if before is None or isinstance(before, RetentionFull):
                self.refusal = retention_full(self.topic) if full else None
                self._set_room()
        if isinstance(before, RetentionFull):
            # Who came between the refusal and the room waits for a commit, and none may come.
            self._on_commit((), [])

    def stop(self) -> None:
        """The worker has ended: fail what came in beside the refusal, now and later."""
        self._stopped = True
        self._fail_late()

    def _fail_late(self) -> None:
        with self._refusing:
            self._scheduled = False
            receipt = self._next_receipt()
            self._committing = receipt.number
            batches = self._gather(self._take_all(), receipt)
        if batches:
            self._fail_rest(batches, self.refusal or Closed("the queue is closed"))
        self._finish(receipt, batches)

    def reconfigure(self, config: TopicConfig) -> None:
        """Use other settings from now on; what was accepted stays accepted."""
        self.config = config
        self._record_bytes_max = config.record_bytes_max
        self._set_room()

    def _take(self, item: Item, size: int) -> None:
        """Append to the queue if there is room."""
        if self._gathered_bytes + size > self._room:
            # The records of a batch were checked one by one: here it can only be the buffer.
            self._refuse(0)
        self._items.append(item)
        self._gathered_bytes += size

    def _set_room(self) -> None:
        self._room = self.config.buffer_bytes_max - self._committing_bytes
        # Looked at last: a refusal of another thread may have come in between.
        if self.refusal is not None:
            self._room = -1

    def _refuse(self, size: int) -> None:
        """Raise why a record of this size is not taken now."""
        if self.refusal is not None:
            raise self.refusal.again()
        limit = self.config.record_bytes_max
        if size > limit:
            raise record_too_large(self.topic, size, limit)
        if self._lingering:
            # What lingers fills the buffer: there is nothing to wait for.
            self._submit()
        raise buffer_full(self.topic, self.pending_bytes)

    def _schedule(self) -> None:
        """Ask for a commit: now, or after the linger time unless a batch is full."""
        config = self.config
        full = (
            self._gathered_bytes >= config.batch_bytes_max
            or len(self._items) >= config.batch_records_max
        )
        if config.linger_ms and not full:
            if not self._scheduled:
                self._scheduled = self._lingering = True
                self._ask(partial(self._worker.submit_after, config.linger_ms / 1000))
            return
        self._submit()

    def _submit(self) -> None:
        self._scheduled = True
        self._lingering = False
        self._ask(self._worker.submit)

    def _ask(self, submit: Callable[[Job], None]) -> None:
        try:
            submit(self.commit)
        except BaseException as error:
            # Whoever comes next asks again, unless the loop that would commit is gone for good.
            self._scheduled = self._lingering = False
            if isinstance(error, UsageError):
                self.refuse_from_now_on(error)
            raise
        if self._stopped:
            self._fail_late()

    # On the worker

    def commit(self) -> None:
        """Write all that has gathered, and tell."""
        items, batches, receipt = list[Item](), list[Batch](), self._receipt
        try:
            # In this order; see the class.
            self._scheduled = self._lingering = False
            self._next_receipt()
            self._try_items(items, batches, receipt)
            self._tell(receipt, batches)
        except BaseException as interruption:
            # On a loop that commits a signal may end the program: the publishers know before. Where
            # nothing was begun they need not, as the worker tries it again.
            if receipt is not self._receipt:
                self._give_up(items, batches, receipt, interrupted(self.topic, interruption))
                self._tell(receipt, batches)
            raise

    def _try_items(self, items: list[Item], batches: list[Batch], receipt: Receipt) -> None:
        """Take and write what has gathered; what was not written fails, and the worker lives on."""
        try:
            self._committing = receipt.number
            self._gathered_bytes = 0
            items += self._take_all()
            self._shared = len(items) > 1
            batches += self._gather(items, receipt)
            self._committing_bytes = sum(batch.size for batch in batches)
            self._set_room()
            if batches:
                self.commits += 1
                self._commit_batches(batches)
        except Exception as error:
            # No memory, no thread.
            self._give_up(items, batches, receipt, error)

    def _give_up(
        self, items: list[Item], batches: list[Batch], receipt: Receipt, error: BaseException
    ) -> None:
        if not batches:
            batches += ungathered(items, receipt)
            self.accepted += sum(batch.receipt.count for batch in batches)
        self._fail_rest(batches, error)

    def _tell(self, receipt: Receipt, batches: Sequence[Batch]) -> None:
        """Those who wait go on. To be told twice changes nothing."""
        self._committing_bytes = 0
        self._set_room()
        self._look_after_rolls()
        self._finish(receipt, batches)

    def _look_after_rolls(self) -> None:
        """Let retention look whenever a segment was sealed, before more is acknowledged."""
        rolls = sum(log.rolls for log in self._logs)
        if rolls != self._rolls and self.on_roll is not None:
            self.on_roll()
        self._rolls = rolls

    def adopt(self, partition: int) -> None:
        """Sync what a writer of another process left unsynced when it died."""
        if self._logs[partition].poison is None:
            self._try_sync(partition, self._logs[partition])
            self._on_commit((), [])

    def _next_receipt(self) -> Receipt:
        """Begin the receipt of the next commit; returns that of this one."""
        receipt, self._receipt = self._receipt, Receipt(self.topic, self._loop, self._numbers)
        self._numbers += 1
        return receipt

    def _join(self, before: Receipt, receipt: Receipt) -> None:
        """A record was added between two receipts, and this one was given out for it."""
        receipt.since = min(receipt.since, before.since)
        if receipt.done:
            self._inherit(receipt)

    def _inherit(self, receipt: Receipt) -> None:
        for partition, (number, error) in list(self._failures.items()):
            if number >= receipt.since:
                receipt.errors.setdefault(partition, error)

    def _take_all(self) -> list[Item]:
        """All that is there. What comes meanwhile is added behind it, and stays."""
        taken = self._items[:]
        del self._items[: len(taken)]
        return taken

    def _gather(self, items: list[Item], receipt: Receipt) -> list[Batch]:
        config = self.config
        now = self._system.clock.time_ms()
        limits = (config.batch_records_max, config.batch_bytes_max)
        batches = list(gather(items, receipt, now, *limits))
        receipt.count = sum(len(one.columns) for one in batches if one.receipt is receipt)
        self.accepted += sum(len(one.columns) for one in batches)
        return batches

    def sync(self) -> None:
        """Make everything that was committed durable. Failures poison and are found by callers."""
        self._sync_scheduled = False
        for partition, log in enumerate(self._logs):
            if self._unsynced[partition] and log.poison is None:
                self._try_sync(partition, log)
            if self._unsynced[partition] and log.poison is None:
                self._schedule_sync()
        self._on_commit((), [])

    def _try_sync(self, partition: int, log: PartitionLog) -> None:
        try:
            log.sync()
        except Exception as error:
            # Poisoned, and then callers hear of it; or locked for too long, and it is tried again.
            self._caches[partition].clear()
            self._unsynced_because[partition] = error
        else:
            self._unsynced[partition] = 0
            self._unsynced_because.pop(partition, None)

    def grow(self, count: int) -> None:
        """Get ready for more partitions, before they are among the logs."""
        self._unsynced += [0] * (count - len(self._unsynced))

    def reroute(self, epoch: int, partitions: int) -> None:
        """Send records to other partitions from the next batch on; from any thread."""
        self._routing = Routing(epoch, partitions, self._system)

    def _commit_batches(self, batches: Sequence[Batch]) -> None:
        """Write the batches; those that the partitions of a new epoch refuse are sent anew."""
        routing = self._routing
        limits = Limits(self.config.batch_records_max, self.config.batch_bytes_max)
        parcels = routing.route(batches, limits)
        for _ in range(ROUTES_MAX):
            astray = self._commit_parcels(parcels, routing.epoch)
            if not astray:
                return
            assert self._catch_up is not None, "only repartition() makes epochs"
            self._catch_up()
            routing = self._routing
            parcels = routing.route_again(astray, limits)
        raise DeadlineExceeded(f"topic {self.topic!r} is repartitioned all the time: try again")

    def _commit_parcels(
        self, parcels: Mapping[int, Sequence[Parcel]], epoch: int
    ) -> Sequence[Parcel]:
        """Write the parcels; returns those that are of another epoch than their partitions."""
        waiting: list[Job] = []
        astray: list[Parcel] = []
        for partition, mine in parcels.items():
            records = sum(len(parcel.columns) for parcel in mine)
            sync = self._wants_sync(partition, mine, records)
            job = partial(self._commit_partition, partition, mine, records, sync, epoch, astray)
            if sync:
                waiting.append(job)
            else:
                job()
        # Each of these waits for its own sync; side by side they wait once.
        self._worker.run_all(waiting)
        return astray

    def _commit_partition(
        self,
        partition: int,
        parcels: Sequence[Parcel],
        records: int,
        sync: bool,
        epoch: int,
        astray: list[Parcel],
    ) -> None:
        try:
            drafts = drafts_of([parcel.columns for parcel in parcels], self.config.codec)
            appended = self._logs[partition].append(drafts, sync=sync, epoch=epoch)
        except OtherEpoch:
            astray += parcels
            return
        except Exception as error:
            # Whatever it is, the publishers hear of it and the worker lives on.
            self._fail(partition, parcels, error)
            return
        self._unsynced[partition] = 0 if sync else self._unsynced[partition] + records
        if sync:
            self._unsynced_because.pop(partition, None)
        for parcel, offset in zip(parcels, appended.base_offsets, strict=True):
            self._caches[partition].add(offset, appended.timestamp, parcel.columns)
            for batch, placed in parcel.placed(partition, offset, appended.timestamp, sync):
                self._place(batch, placed)
        if not sync:
            self._schedule_sync()

    def _schedule_sync(self) -> None:
        if not self._sync_scheduled:
            self._sync_scheduled = True
            self._worker.submit_after(self.config.fsync_interval_ms / 1000, self.sync)

    def _wants_sync(self, partition: int, parcels: Sequence[Parcel], records: int) -> bool:
        config = self.config
        if config.fsync is FsyncPolicy.EVERY_MESSAGE:
            return True
        if any(batch.durable for parcel in parcels for batch, _ in parcel.portions):
            return True
        due = self._unsynced[partition] + records >= config.fsync_messages
        return due and config.fsync is FsyncPolicy.EVERY_N_MESSAGES

    def _place(self, batch: Batch, placed: Placement) -> None:
        batch.receipt.placements.append(placed)
        if batch.rows:
            acknowledge(batch.rows, self.topic, placed)

    def _fail(self, partition: int, parcels: Sequence[Parcel], error: BaseException) -> None:
        self._caches[partition].clear()
        self._failures[partition] = (self._committing, error)
        for batch, places in (portion for parcel in parcels for portion in parcel.portions):
            self._remember(batch, error)
            batch.receipt.errors[partition] = error
            if batch.rows:
                fail(batch.rows, places, error)

    def _remember(self, batch: Batch, error: BaseException) -> None:
        if not batch.awaited and (self._unheard is None or was_told(self._unheard)):
            self._unheard = error

    def _fail_rest(self, batches: Sequence[Batch], error: BaseException) -> None:
        """Fail the records that have neither a place nor an error yet."""
        self._failures[-1] = (self._committing, error)
        for batch in batches:
            self._remember(batch, error)
            batch.receipt.errors.setdefault(-1, error)
            fail(batch.rows, range(len(batch.rows)), error)

    def _finish(self, receipt: Receipt, batches: Sequence[Batch]) -> None:
        done = list({receipt, *(one.receipt for one in batches)})
        # Before and after, as a publisher may join the receipt in between.
        self._inherit(receipt)
        receipt.all_durable = not any(self._unsynced)
        for one in done:
            if not one.done:
                placed = sum(len(placement.places) for placement in one.placements)
                self.committed += placed
                self.failed += one.count - placed
            one.done = True
        self._inherit(receipt)
        rows = [row for batch in batches for row in batch.rows if row is not None]
        self._on_commit(done, rows)
