"""A member of a group that reads quorum queues of RabbitMQ: what it commits is gone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aio_pika.exceptions import AMQPException, ChannelNotFoundEntity
from aiormq.exceptions import ChannelLockedResource

from penstock.errors import (
    Closed,
    Fenced,
    NotSupported,
    OffsetOutOfRange,
    PenstockError,
    SubscriberBusy,
    UnknownPartition,
    UsageError,
)
from penstock.log.records import NO_HEADERS
from penstock.transports.assignment import MemberAssignment
from penstock.transports.base import BATCH_RECORDS_MAX, Consumer, check_opened
from penstock.transports.rabbitmq_amqp import LOST, AmqpConnection
from penstock.transports.rabbitmq_connection import CALL_SECONDS, PAUSE_SECONDS
from penstock.transports.rabbitmq_records import as_bytes
from penstock.transports.reading import arrival
from penstock.transports.records import StartPosition, StreamBatch, StreamRecord

KEY, NULL, TIME = "x-penstock-key", "x-penstock-null", "x-penstock-time"
_OURS = (KEY, NULL, TIME)


@dataclass(slots=True)
class _Queue:
    """A partition of the group: what has come, and what is not acknowledged."""

    name: str
    channel: AbstractChannel | None = None
    arrived: deque[tuple[int, AbstractIncomingMessage]] = field(default_factory=deque)
    """Offset and message; not delivered yet."""
    open: dict[int, AbstractIncomingMessage] = field(default_factory=dict)
    """Delivered, not acknowledged; by offset, in order."""
    since: int = 0
    """Offsets below it came on a connection that is lost, and come again."""
    next: int = 0
    """The offset of the next message that comes."""
    delivered: int = 0
    committed: int = 0


class QueueConsumer(Consumer):
    """Reads the queues of a group, alone, or beside others without an order.

    Offsets are numbers that this member gives, from 0 on: they mean nothing to another one, nor
    after a restart. When the connection is lost, what was delivered and not committed comes again
    under new offsets, and a commit of the old ones raises Fenced.
    """

    def __init__(
        self,
        connection: AmqpConnection,
        topic: str,
        group: str,
        queues: Callable[[], Any],
        among: set[Consumer],
        count: Callable[[int], None],
        *,
        prefetch: int,
        lock: str | None,
    ) -> None:
        self.topic = topic
        self.group = group
        self._connection = connection
        self._find = queues
        self._among = among
        self._count = count
        self._prefetch = prefetch
        self._lock = lock
        self._lock_channel: AbstractChannel | None = None
        self._queues: list[_Queue] = []
        self._paused: set[int] = set()
        self._turn = 0
        self._generation = 0
        self._arrived = asyncio.Event()
        self._lost = asyncio.Event()
        self._trouble: PenstockError | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Future[None]] = set()
        self._opening = asyncio.Lock()
        self._is_open = False
        self._closed = False

    # Life

    async def open(self) -> None:
        """Take the queues; SubscriberBusy when another member has them, UnknownTopic without any."""
        async with self._opening:
            self._check_not_closed()
            if self._is_open:
                return
            names: list[str] = await self._find()
            self._queues = [_Queue(name) for name in names]
            self._among.add(self)
            try:
                await self._connection.waiting(self._consume())
            except BaseException:
                await self._let_go()
                self._among.discard(self)
                raise
            self._connection.on_lost.add(self._lost.set)
            self._task = asyncio.create_task(self._stay())
            self._is_open = True

    async def close(self) -> None:
        """Give the queues back, with all that is not committed. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._arrived.set()
        self._connection.on_lost.discard(self._lost.set)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._among.discard(self)
        await self._let_go()

    async def _let_go(self) -> None:
        await self._give_queues()
        channel, self._lock_channel = self._lock_channel, None
        if channel is not None and self._lock is not None and not channel.is_closed:
            await self._ended(partial(self._unlocked, channel, self._lock))

    @staticmethod
    async def _unlocked(channel: AbstractChannel, lock: str) -> None:
        await channel.queue_delete(lock)
        await channel.close()

    async def _ended(self, end: Callable[[], Awaitable[None]]) -> None:
        """As far as the server can be reached; else it notices by itself."""
        with suppress(*LOST, AMQPException, PenstockError):
            await self._connection.waiting(self._connection.attempt(end))

    async def _give_queues(self) -> None:
        for queue in self._queues:
            channel, queue.channel = queue.channel, None
            if channel is not None and not channel.is_closed:
                await self._ended(channel.close)

    async def _stay(self) -> None:
        """Take the queues again whenever the connection, or one of them, was lost."""
        while True:
            await self._lost.wait()
            self._lost.clear()
            self._generation += 1
            for queue in self._queues:
                queue.arrived.clear()
                queue.open.clear()
                queue.next = queue.since = queue.delivered
            # Some may be on the connection of now, when several were lost in a row.
            await self._let_go()
            await self._take_again()

    async def _take_again(self) -> None:
        while not self._lost.is_set():
            try:
                await self._consume()
                return
            except SubscriberBusy:
                # The server has not noticed yet that this one is gone.
                await self._let_go()
            except (PenstockError, AMQPException) as error:
                await self._let_go()
                self._tell(error)
            await asyncio.sleep(PAUSE_SECONDS)

    def _tell(self, error: Exception) -> None:
        """Whoever asks for the next batch hears of it."""
        if not isinstance(error, PenstockError):
            error = self._connection.settings.failed("refused a call", str(error))
        self._trouble = error
        self._arrived.set()

    async def _consume(self) -> None:
        self._generation += 1
        while self._lock is not None and self._lock_channel is None:
            with suppress(*LOST):
                self._lock_channel = await self._connection.attempt(self._locked)
                continue
            await asyncio.sleep(PAUSE_SECONDS)
        for queue in self._queues:
            while queue.channel is None:
                with suppress(*LOST):
                    # The answer may come behind all that waits in the queue.
                    await self._connection.attempt(partial(self._consume_one, queue), CALL_SECONDS)
                    continue
                await asyncio.sleep(PAUSE_SECONDS)

    async def _locked(self) -> AbstractChannel:
        """Have the queue that only one connection may have; SubscriberBusy when it is another's."""
        assert self._lock is not None
        mine = {one for one in self._among if isinstance(one, QueueConsumer) and one is not self}
        if any(one._lock == self._lock and one._lock_channel is not None for one in mine):
            raise self._busy()
        channel = await self._connection.channel(publisher_confirms=False)
        try:
            await channel.declare_queue(self._lock, exclusive=True)
        except ChannelLockedResource:
            raise self._busy() from None
        return channel

    def _busy(self) -> SubscriberBusy:
        return SubscriberBusy(
            f"group {self.group!r} of {self.topic!r} has a member: a quorum queue has one reader at a "
            "time, so that the order is kept, unless the transport says ordered=false",
            subscriber=self.group,
            topic=self.topic,
        )

    async def _consume_one(self, queue: _Queue) -> None:
        # A channel for each: an acknowledgement of all up to a message is of its channel.
        channel = await self._connection.channel(publisher_confirms=False)
        await channel.set_qos(prefetch_count=self._prefetch)
        generation = self._generation

        async def arrived(message: AbstractIncomingMessage) -> None:
            if generation == self._generation and not self._closed:
                queue.arrived.append((queue.next, message))
                queue.next += 1
                self._count(1)
                self._arrived.set()

        try:
            found = await channel.get_queue(queue.name)
            queue.channel = channel  # the first messages come before the answer
            await self._watch(queue, channel)
            await found.consume(arrived)
        except ChannelNotFoundEntity:
            raise NotSupported(
                f"group {self.group!r} of {self.topic!r} has no queues any more: subscribe again",
                topic=self.topic,
            ) from None
        except BaseException:
            # It may have become a reader: it must not keep what it is sent.
            queue.channel = None
            closing = asyncio.ensure_future(_closed(channel))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            raise

    async def _watch(self, queue: _Queue, channel: AbstractChannel) -> None:
        """The server may end a channel, or the reading of a queue, and keep the connection.

        It does so for a member that does not commit for half an hour.
        """

        def ended(*_: object) -> None:
            if queue.channel is channel:
                self._lost.set()

        channel.close_callbacks.add(ended)
        beneath = await channel.get_underlay_channel()
        beneath.on_consumer_cancel_callbacks.add(ended)

    # Reading

    async def next_batch(
        self, timeout: float | None = None, records_max: int = BATCH_RECORDS_MAX
    ) -> StreamBatch:
        """The next records of some partition. Nothing comes while ``prefetch`` are not committed."""
        if not self._is_open:
            await self.open()
        look = partial(self._next, records_max)
        return await arrival(self.topic, look, self._arrived, timeout)

    def _next(self, records_max: int) -> StreamBatch | None:
        self._check_not_closed()
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble.again()
        count = len(self._queues)
        for step in range(count):
            number = (self._turn + step) % count
            if self._queues[number].arrived and number not in self._paused:
                self._turn = (number + 1) % count
                return self._taken(number, records_max)
        return None

    def _taken(self, number: int, records_max: int) -> StreamBatch:
        queue = self._queues[number]
        records: list[StreamRecord] = []
        while queue.arrived and len(records) < records_max:
            offset, message = queue.arrived.popleft()
            queue.open[offset] = message
            records.append(_record(self.topic, number, offset, message))
        queue.delivered = records[-1].offset + 1
        return StreamBatch(self.topic, number, records, queue.delivered)

    async def seek(self, to: StartPosition, *, partition: int | None = None) -> None:
        """Not in a queue: what was committed is gone."""
        raise NotSupported("a quorum queue has no place to go to: use mode=streams", missing="seek")

    async def pause(self, *partitions: int) -> None:
        """Deliver nothing of these partitions; up to ``prefetch`` records wait here meanwhile."""
        self._check_numbers(partitions)
        self._paused |= set(partitions)

    async def resume(self, *partitions: int) -> None:
        """Deliver records of these partitions again."""
        self._check_numbers(partitions)
        self._paused -= set(partitions)
        self._arrived.set()

    def assignment(self) -> MemberAssignment:
        """All partitions; the generation counts the connections."""
        check_opened(self._is_open)
        return MemberAssignment(self._generation, frozenset(range(len(self._queues))))

    def positions(self) -> dict[int, int]:
        """Partition → how many records were delivered to this member."""
        check_opened(self._is_open)
        return {number: queue.delivered for number, queue in enumerate(self._queues)}

    # Committing

    async def commit(self, done: StreamBatch | Mapping[int, int] | None = None) -> None:
        """Acknowledge what was delivered up to an offset; the server forgets it.

        Fenced for what came on a connection that is lost: it comes again.
        """
        check_opened(self._is_open)
        for number, offset in self._wanted(done).items():
            queue = self._queues[number]
            passed = [at for at in queue.open if at < offset]
            if passed:
                await self._acknowledge(queue, queue.open[passed[-1]], multiple=True)
                for at in passed:
                    queue.open.pop(at, None)
            queue.committed = max(queue.committed, offset)

    async def acknowledge(self, *records: StreamRecord) -> None:
        """Acknowledge single records, in any order; others before them stay."""
        for queue, offset in self._delivered(records):
            await self._acknowledge(queue, queue.open[offset], multiple=False)
            queue.open.pop(offset, None)

    async def reject(self, *records: StreamRecord, requeue: bool = True) -> None:
        """Give records back to their queue, or drop them (to a dead letter exchange, if it has one)."""
        for queue, offset in self._delivered(records):
            message = queue.open[offset]
            await self._told(queue, lambda one=message: one.reject(requeue=requeue))  # type: ignore[misc]
            queue.open.pop(offset, None)

    async def _acknowledge(
        self, queue: _Queue, message: AbstractIncomingMessage, *, multiple: bool
    ) -> None:
        await self._told(queue, lambda: message.ack(multiple=multiple))

    async def _told(self, queue: _Queue, tell: Callable[[], Any]) -> None:
        """Tell the server, and wait until it has heard it."""
        channel = queue.channel
        if channel is None:
            raise self._fenced(queue)

        async def both() -> None:
            await tell()
            # Acknowledgements have no answer of their own; this has, and comes after them.
            await channel.set_qos(prefetch_count=self._prefetch)

        try:
            await self._connection.waiting(self._connection.attempt(both))
        except (*LOST, AMQPException):
            raise self._fenced(queue) from None

    def _wanted(self, done: StreamBatch | Mapping[int, int] | None) -> dict[int, int]:
        if done is None:
            return {number: queue.delivered for number, queue in enumerate(self._queues)}
        if isinstance(done, StreamBatch):
            if done.topic != self.topic:
                raise UsageError(f"this batch is of {done.topic!r}, not of {self.topic!r}")
            done = {done.partition: done.next_offset}
        self._check_numbers(done)
        for number, offset in done.items():
            self._check_offset(number, offset)
        return dict(done)

    def _check_offset(self, number: int, offset: int) -> None:
        queue = self._queues[number]
        if not 0 <= offset <= queue.delivered:
            raise OffsetOutOfRange(
                f"offset {offset} of {self.topic}/{number} was not delivered here: use 0 to "
                f"{queue.delivered}",
                topic=self.topic,
                partition=number,
                offset=offset,
                earliest=0,
                end=queue.delivered,
            )
        if queue.committed < offset <= queue.since:
            raise self._fenced(queue)

    def _delivered(self, records: Iterable[StreamRecord]) -> list[tuple[_Queue, int]]:
        check_opened(self._is_open)
        found = []
        for record in records:
            self._check_numbers([record.partition])
            queue = self._queues[record.partition]
            if record.offset not in queue.open:
                raise self._fenced(queue)
            found.append((queue, record.offset))
        return found

    # Checks

    def _fenced(self, queue: _Queue) -> Fenced:
        return Fenced(
            f"what was delivered of {queue.name!r} is settled, or came on a connection that is lost: "
            "then it comes again",
            group=self.group,
            generation=self._generation,
            reason="connection",
            topic=self.topic,
        )

    def _check_not_closed(self) -> None:
        if self._closed:
            raise Closed(f"the consumer of {self.topic!r} is closed")
        self._connection.check_open()

    def _check_numbers(self, partitions: Iterable[int]) -> None:
        check_opened(self._is_open)
        for number in partitions:
            if not 0 <= number < len(self._queues):
                raise UnknownPartition(
                    f"topic {self.topic!r} has partitions 0 to {len(self._queues) - 1}, not {number}",
                    topic=self.topic,
                    partition=number,
                )


async def _closed(channel: AbstractChannel) -> None:
    with suppress(*LOST, AMQPException, TimeoutError):
        await asyncio.wait_for(channel.close(), CALL_SECONDS)


def _record(
    topic: str, partition: int, offset: int, message: AbstractIncomingMessage
) -> StreamRecord:
    found = message.headers
    time = found.get(TIME)
    if not isinstance(time, int):
        time = 0 if message.timestamp is None else round(message.timestamp.timestamp() * 1_000)
    key = found.get(KEY)
    headers = {name: as_bytes(found[name]) for name in found if name not in _OURS}
    return StreamRecord(
        topic,
        partition,
        offset,
        time,
        None if key is None else as_bytes(key),
        None if NULL in found else message.body,
        MappingProxyType(headers) if headers else NO_HEADERS,
    )
