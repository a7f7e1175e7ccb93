"""Writing to a stream of RabbitMQ so that each message is kept once, and finding where it is.

A writer has a name, and numbers its messages. The server drops a number that it has seen of that name:
when a connection is lost, the server is asked for the last number, and all behind it is sent again.
Confirms name no offsets. So the first and the last record of a batch carry a mark, and the end of the
stream is read along until the marks come by.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

from rstream import schema

from penstock.errors import PenstockError, RecordTooLarge, Unreachable
from penstock.transports.rabbitmq_connection import PAUSE_SECONDS, RabbitConnection, Slot
from penstock.transports.rabbitmq_reader import NO_STREAM, ChunkReader, bounds
from penstock.transports.rabbitmq_records import MARK_BYTES, marks_of
from penstock.transports.rabbitmq_settings import unknown_topic
from penstock.transports.rabbitmq_wire import (
    STREAM_UNAVAILABLE,
    Link,
    LinkLost,
    Refused,
    publish_frame,
)

WAITING_MAX = 20_000
"""Messages without a confirm; whoever has more waits."""
FRAME_MESSAGES = 1_000
FRAME_BYTES = 512 * 1024
MESSAGE_EXTRA_BYTES = 64
IDLE_SECONDS = 1.0
"""After that long without a mark the end of the stream is looked up anew, not read up to."""
NAME_BITS = 96
RETRIED = (*STREAM_UNAVAILABLE, 18)
"""Codes after which the publisher is declared again: also when the server does not know it."""


class Batch:
    """Messages that are confirmed together."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, error: Exception | None = None) -> None:
        """One more is confirmed, or refused."""
        self.left -= 1
        if self.done.done():
            return
        if error is not None:
            self.done.set_exception(error)
            self.done.exception()
        elif not self.left:
            self.done.set_result(None)


class StreamWriter:
    """Messages to one stream, in order, each kept once."""

    def __init__(self, connection: RabbitConnection, stream: str, topic: str) -> None:
        self._connection = connection
        self._stream = stream
        self._topic = topic
        bits = connection.settings.system.random.getrandbits(NAME_BITS)
        self._name = f"penstock-{bits:024x}"
        self._number = 0
        self._waiting: deque[tuple[int, bytes, Batch]] = deque()
        self._last_sent = 0
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()
        self._slot: Slot | None = None
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._stale = asyncio.Event()
        self.sent_again = 0

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send, and wait until all of them are confirmed. Cancelled: they are sent all the same."""
        self._check_sizes(messages)
        while self._waiting and len(self._waiting) + len(messages) > WAITING_MAX:
            self._room.clear()
            await self._room.wait()
        batch = Batch(len(messages))
        first = self._number + 1
        self._number += len(messages)
        new = [(first + place, data, batch) for place, data in enumerate(messages)]
        self._waiting.extend(new)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        elif self._link is not None:
            # It goes on when this call is cancelled: a number that is left out is never sent.
            await asyncio.shield(self._sent(self._link, new))
        await asyncio.shield(batch.done)

    async def _sent(self, link: Link, messages: Sequence[tuple[int, bytes, Batch]]) -> None:
        with suppress(LinkLost):
            await self._transmit(link, messages)

    async def close(self) -> None:
        """Stop sending; what was not confirmed is given up."""
        task, self._task = self._task, None
        link = self._link
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        slot, self._slot = self._slot, None
        if slot is not None:
            await self._let_go(slot, link)
            slot.release()

    async def _let_go(self, slot: Slot, link: Link | None) -> None:
        if link is None or link.is_lost:
            return
        link.on_confirm.pop(slot.number, None)
        link.on_change.pop(slot.number, None)
        with suppress(LinkLost, Refused):
            await link.call(
                schema.DeletePublisher, schema.DeletePublisherResponse, publisher_id=slot.number
            )

    # A connection after the other

    async def _run(self) -> None:
        try:
            if self._slot is None:
                self._slot = await self._connection.slot()
            while True:
                with suppress(LinkLost):
                    await self._serve(await self._slot.line.link(), self._slot.number)
                await asyncio.sleep(PAUSE_SECONDS)
        except (Refused, PenstockError) as error:
            self._fail(error)

    async def _serve(self, link: Link, number: int) -> None:
        self._stale.clear()
        link.on_lost.add(self._stale.set)
        link.on_change[number] = (self._stream, self._stale.set)
        link.on_confirm[number] = self._settled
        try:
            await self._declare(link, number)
            self._link = link
            again = list(self._waiting)
            self.sent_again += bool(again and again[0][0] <= self._last_sent)
            await self._transmit(link, again)
            await self._stale.wait()
        except Refused as error:
            if error.code not in STREAM_UNAVAILABLE:
                raise
        finally:
            self._link = None
            link.on_lost.discard(self._stale.set)

    async def _declare(self, link: Link, number: int) -> None:
        with suppress(Refused):
            # From before, when the stream had another leader.
            await link.call(
                schema.DeletePublisher, schema.DeletePublisherResponse, publisher_id=number
            )
        await link.call(
            schema.DeclarePublisher,
            schema.DeclarePublisherResponse,
            publisher_id=number,
            reference=self._name,
            stream=self._stream,
        )
        answer = await link.call(
            schema.QueryPublisherSequence,
            schema.QueryPublisherSequenceResponse,
            publisher_ref=self._name,
            stream=self._stream,
        )
        while self._waiting and self._waiting[0][0] <= answer.sequence:
            self._waiting.popleft()[2].settle()

    async def _transmit(self, link: Link, messages: Sequence[tuple[int, bytes, Batch]]) -> None:
        """In order: the server drops a number that is lower than one that it has seen."""
        assert self._slot is not None
        async with self._turn:
            for part in _frames(messages):
                if link is not self._link:
                    return  # they are sent again by whoever has the next one
                link.send(publish_frame(self._slot.number, part))
                self._last_sent = max(self._last_sent, part[-1][0])
                await link.drain()

    # What the server says

    def _settled(self, ids: Sequence[int], code: int) -> None:
        if code in RETRIED:
            self._stale.set()
        elif code:
            self._refuse(set(ids), self._error(Refused(code)))
        else:
            # They come in order: all up to the last are confirmed.
            last = max(ids)
            while self._waiting and self._waiting[0][0] <= last:
                self._waiting.popleft()[2].settle()
        self._room.set()

    def _refuse(self, ids: set[int], error: PenstockError) -> None:
        for number, _, batch in self._waiting:
            if number in ids:
                batch.settle(error)
        self._waiting = deque(one for one in self._waiting if one[0] not in ids)

    def _fail(self, error: Exception) -> None:
        self._task = None
        found = self._error(error) if isinstance(error, Refused) else error
        waiting, self._waiting = self._waiting, deque()
        for _, _, batch in waiting:
            batch.settle(found)
        self._room.set()

    def _error(self, error: Refused) -> PenstockError:
        if error.code == NO_STREAM:
            return unknown_topic(self._topic)
        return self._connection.settings.failed("refuses to store", str(error), error.code)

    def _check_sizes(self, messages: Sequence[bytes]) -> None:
        limit = self._connection.frame_bytes_max - MESSAGE_EXTRA_BYTES
        for message in messages:
            if len(message) > limit:
                raise RecordTooLarge(
                    f"a record of {len(message)} bytes for {self._topic!r} is larger than this server "
                    f"takes, {limit} bytes with its key and headers: make it smaller, or raise "
                    "stream.frame_max of the server",
                    topic=self._topic,
                    size=len(message),
                    limit=limit,
                )


def _frames(
    messages: Sequence[tuple[int, bytes, Batch]],
) -> Iterator[Sequence[tuple[int, bytes, Batch]]]:
    """Parts that fit into a frame."""
    start = size = 0
    for place, (_, data, _) in enumerate(messages):
        size += len(data) + 12
        if place > start and (size > FRAME_BYTES or place - start >= FRAME_MESSAGES):
            yield messages[start:place]
            start, size = place, len(data) + 12
    if start < len(messages):
        yield messages[start:]


class Tail:
    """Reads the end of a stream along while somebody waits for marks, and tells their offsets."""

    def __init__(self, connection: RabbitConnection, stream: str) -> None:
        self._connection = connection
        self._stream = stream
        self._reader = ChunkReader(connection, stream)
        self._next = -1
        self._used = 0.0
        self._marks: dict[bytes, asyncio.Future[int]] = {}
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    def new_mark(self) -> bytes:
        """Bytes that no other record has."""
        return self._connection.settings.system.random.randbytes(MARK_BYTES)

    async def expect(self, mark: bytes) -> asyncio.Future[int]:
        """The offset of the record with this mark, which is not sent yet."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            idle = not self._marks and loop.time() - self._used > IDLE_SECONDS
            if self._next < 0 or idle:
                _, self._next = await bounds(self._connection, self._stream)
            found = self._marks[mark] = loop.create_future()
            if self._task is None:
                self._task = asyncio.create_task(self._run())
        return found

    def forget(self, mark: bytes) -> None:
        """Nobody waits for it any more."""
        found = self._marks.pop(mark, None)
        if found is not None:
            found.cancel()

    async def close(self) -> None:
        """Stop reading."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._reader.close()

    async def _run(self) -> None:
        try:
            while self._marks:
                # A broker that is away for long: who waits for an offset has a deadline of his own.
                with suppress(Unreachable):
                    await self._read_on()
            self._used = asyncio.get_running_loop().time()
        except (Refused, PenstockError) as error:
            self._fail(error)
        finally:
            self._task = None

    async def _read_on(self) -> None:
        for chunk in await self._reader.read(self._next):
            self._next = chunk.end
            for mark, offset in marks_of(chunk):
                self._tell(mark, offset)

    def _tell(self, mark: bytes, offset: int) -> None:
        found = self._marks.pop(mark, None)
        if found is not None and not found.done():
            found.set_result(offset)

    def _fail(self, error: Exception) -> None:
        self._next = -1
        for found in self._marks.values():
            if not found.done():
                found.set_exception(error)
                found.exception()
        self._marks.clear()
