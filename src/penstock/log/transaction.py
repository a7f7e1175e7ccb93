"""A transaction of a producer, on the event loop: records for any topics, and a consumer's offsets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self

from penstock.errors import Closed, UsageError
from penstock.log.batch import Batch, Item, Router, gather
from penstock.log.checks import checked_columns, largest_record, record_size
from penstock.log.columns import RECORD_OVERHEAD_BYTES
from penstock.log.group_ports import OwnWrite
from penstock.log.open_topic import OpenTopic
from penstock.log.receipts import Receipt
from penstock.log.refusals import record_too_large
from penstock.log.subscription import RecordBatch, Subscription
from penstock.log.transaction_commit import Commit, GroupOffsets, Outcome
from penstock.log.transaction_staging import Drafted, StagedRecords, StagedWriter, drafted

if TYPE_CHECKING:
    from penstock.log.producer import Producer
    from penstock.log.producer_file import ProducerLease

STAGE_BYTES = 8 * 1024 * 1024
"""What a transaction gathers in memory before it writes it to a staged file."""


class GroupConsumer(Protocol):
    """A member of a group whose offsets can move with a transaction."""

    topic: str
    group: str

    def positions(self) -> dict[int, int]: ...

    def held(self, done: Done) -> Mapping[int, object]: ...

    async def commit_with(
        self, done: Mapping[int, int], write: OwnWrite, held: Mapping[int, object]
    ) -> None: ...


OffsetOwner = GroupConsumer | Subscription
Done = RecordBatch | Mapping[int, int] | None
"""What was consumed: a batch, the next offset of some partitions, or all that was delivered."""


class Transaction:
    """Records and offsets that happen together or not at all. Made by ``Producer.transaction``.

    Nothing is in any topic before :meth:`commit`. ``async with`` commits at the end, and aborts when
    the block raises or is cancelled. A crash before the decision leaves nothing, a crash after it is
    rolled forward by whoever comes next. Once a commit has begun, cancelling it does not stop it.
    """

    def __init__(self, producer: Producer, number: int | None) -> None:
        self._producer = producer
        self._number = number
        self._items: dict[str, list[Item]] = {}
        self._topics: set[str] = set()
        self._bytes = 0
        self._writer: StagedWriter | None = None
        self._staged: list[StagedRecords] = []
        self._owner: OffsetOwner | None = None
        self._offsets: dict[int, int] = {}
        self._held: dict[int, object] = {}
        """As whose the partitions were had when their records were consumed: that must not end before the commit."""
        self._closed = False
        self.outcome: Outcome | None = None
        """What came of it; None before the commit and after an abort."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            await self.abort()
        elif not self._closed:
            await self.commit()

    async def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Add a record. It gets its partition and offset when the transaction is committed."""
        size = record_size(value, key, headers, timestamp)
        opened = await self._open(topic)
        _check_size(opened, size)
        row = (value, key, dict(headers) if headers else None, timestamp)
        self._items.setdefault(topic, []).append(row)
        await self._grow(size + RECORD_OVERHEAD_BYTES)

    async def publish_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
        timestamps: Sequence[int] | None = None,
    ) -> None:
        """Add many records of a topic, in order."""
        columns = checked_columns(values, keys, timestamps, headers)
        opened = await self._open(topic)
        size = columns.byte_size()
        if size > opened.state.config.record_bytes_max:
            _check_size(opened, largest_record(columns))
        if len(columns):
            batch = Batch(columns, Receipt(topic, None), size=size)
            self._items.setdefault(topic, []).append(batch)
        await self._grow(size)

    def add_staged(self, *staged: StagedRecords) -> None:
        """Add records that were staged for this producer, by any process."""
        self._check()
        self._staged += staged

    def commit_offsets(self, owner: OffsetOwner, done: Done = None) -> None:
        """Let the offsets of a consumer move with the transaction; of one consumer only.

        If it lost a partition when the transaction is committed, that raises Fenced, and nothing
        happens; also when it has got it back since.
        """
        self._check()
        if self._owner is not None and self._owner is not owner:
            raise UsageError("a transaction has the offsets of one consumer: use one for each")
        self._owner = owner
        if not isinstance(owner, Subscription):
            self._held = {**owner.held(done), **self._held}
        for partition, offset in _offsets(owner, done).items():
            self._offsets[partition] = max(offset, self._offsets.get(partition, offset))

    async def commit(self) -> Outcome:
        """Make it happen; returns when all of it is in its topics, durably.

        Raises Fenced when the producer was opened elsewhere or the consumer lost a partition; then
        nothing happened. TransactionPending says that it happened, and that a failure keeps a part
        from its topics for now. After StoreFailed its ``happened`` tells: False, or None when not
        even that is known before the producer is opened again.
        """
        self._check()
        self._closed = True
        self.outcome = await asyncio.shield(self._producer.at_work(self._commit()))
        return self.outcome

    async def abort(self) -> None:
        """Forget it; nothing happened. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._items.clear()
        if self._writer is not None:
            waiting = await asyncio.to_thread(self._writer.finish)
            await asyncio.to_thread(self._producer.transactions.discard, [waiting])

    # Inside

    def _check(self) -> None:
        if self._closed:
            raise Closed("the transaction is over: begin another one")

    async def _open(self, topic: str) -> OpenTopic:
        self._check()
        opened = await self._producer.topic(topic)
        self._check()
        self._topics.add(topic)
        return opened

    async def _grow(self, size: int) -> None:
        self._bytes += size
        if self._bytes >= STAGE_BYTES:
            entries = self._drafts()
            if self._writer is None:
                self._writer = self._producer.transactions.writer(self._producer.name)
            await asyncio.to_thread(self._writer.add_drafted, entries)

    def _drafts(self) -> list[Drafted]:
        """The entries of what has gathered."""
        items, self._items, self._bytes = self._items, {}, 0
        now = self._producer.now_ms()
        return [
            one
            for topic, rows in items.items()
            for one in _drafted(*self._producer.route(topic), rows, now)
        ]

    async def _commit(self) -> Outcome:
        async with self._producer.committing:
            lease = await self._producer.lease()
            outcome = await self._decide(partial(self._begin, lease))
        self._producer.committed(outcome, self._topics)
        return outcome

    async def _decide(self, begin: Callable[[], Commit]) -> Outcome:
        owner = self._owner
        if owner is None:
            return await asyncio.to_thread(lambda: self._finish(begin()))
        if isinstance(owner, Subscription):
            return await owner.while_held(lambda: self._finish(begin()))
        deciding = _Deciding(begin, self._finish)
        return await deciding.done_by(owner, self._offsets, self._held)

    def _finish(self, begun: Commit, *, moved: bool = False) -> Outcome:
        """In a thread: wait for all of it, and look at the heads that it moved."""
        outcome = begun.finish(moved=moved)
        self._producer.look_at(self._topics)
        return outcome

    def _begin(self, lease: ProducerLease) -> Commit:
        """In a thread: draft what has gathered, and decide."""
        records = self._drafts()
        staged = list(self._staged)
        transactions = self._producer.transactions
        if self._writer is not None:
            self._writer.add_drafted(records)
            staged.append(self._writer.finish())
            records = []
        return transactions.begin(
            lease, number=self._number, records=records, staged=staged, offsets=self._moves()
        )

    def _moves(self) -> list[GroupOffsets]:
        owner = self._owner
        if owner is None:
            return []
        group = owner.name if isinstance(owner, Subscription) else owner.group
        keyed = {(owner.topic, number): offset for number, offset in self._offsets.items()}
        return [GroupOffsets(group, keyed)]


class _Deciding:
    """Decides and finishes in a thread of the owner, who may have given up waiting for it.

    Whoever claims it first finishes: the thread, which saves the way back to it, or who waits.
    """

    def __init__(self, begin: Callable[[], Commit], finish: Callable[..., Outcome]) -> None:
        self._begin = begin
        self._finish = finish
        self._mutex = threading.Lock()
        self._begun: Commit | None = None
        self._is_claimed = False
        self._outcome: Future[Outcome] = Future()

    async def done_by(
        self, owner: GroupConsumer, offsets: Mapping[int, int], held: Mapping[int, object]
    ) -> Outcome:
        """What came of it, once all is done. Raises what kept it from being decided."""
        try:
            await owner.commit_with(offsets, self.write, held)
            mine, moved = self.claim(), True
            assert self._begun is not None, "the owner of the offsets has to call write()"
        except BaseException:
            mine, moved = self.claim(), False
            if self._begun is None:
                raise
            # It is decided, so it is no failure: only the offsets have yet to move.
        if mine is not None:
            await asyncio.to_thread(self._settle, mine, moved=moved)
        elif not self._outcome.done():
            await asyncio.to_thread(wait, [self._outcome])
        return self._outcome.result()

    def write(self) -> Callable[[], None] | None:
        """Decide; and finish as well when nobody waits for that any more."""
        begun = self._begin()
        with self._mutex:
            self._begun = begun
            is_left_alone = self._is_claimed
        if is_left_alone:
            self._settle(begun, moved=False)
        return None if is_left_alone else self.moved

    def moved(self) -> None:
        """The offsets have moved: finish, unless who waits does."""
        begun = self.claim()
        if begun is not None:
            self._settle(begun, moved=True)

    def claim(self) -> Commit | None:
        """What is decided and that nobody finishes yet: the caller does. What is decided later, its thread does."""
        with self._mutex:
            begun = None if self._is_claimed else self._begun
            self._is_claimed = True
            return begun

    def _settle(self, begun: Commit, *, moved: bool) -> None:
        try:
            self._outcome.set_result(self._finish(begun, moved=moved))
        except BaseException as error:
            self._outcome.set_exception(error)


def _offsets(owner: OffsetOwner, done: Done) -> Mapping[int, int]:
    if done is None:
        return owner.positions()
    if isinstance(done, Mapping):
        return done
    if done.topic != owner.topic:
        raise UsageError(
            f"the batch is of {done.topic!r}, the consumer of {owner.topic!r}", topic=owner.topic
        )
    return {done.partition: done.next_offset}


def _drafted(topic: OpenTopic, router: Router, items: list[Item], now_ms: int) -> list[Drafted]:
    config = topic.state.config
    batches = gather(
        items, Receipt(topic.name, None), now_ms, config.batch_records_max, config.batch_bytes_max
    )
    return [one for batch in batches for one in drafted(topic.state, batch.columns, router)]


def _check_size(topic: OpenTopic, size: int) -> None:
    limit = topic.state.config.record_bytes_max
    if size > limit:
        raise record_too_large(topic.name, size, limit)
