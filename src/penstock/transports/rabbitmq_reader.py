"""Reading a stream of RabbitMQ: a subscription that begins where the reading does.

The server sends chunks against credit, one for each that was taken, so what waits here is bounded. The
subscription keeps nothing that matters: it is made anew at the next offset whenever it was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from rstream import schema
from rstream.constants import OffsetType

from penstock.transports.rabbitmq_connection import RabbitConnection, Slot
from penstock.transports.rabbitmq_records import records_of
from penstock.transports.rabbitmq_settings import unknown_topic
from penstock.transports.rabbitmq_wire import Chunk, Link, LinkLost, Refused
from penstock.transports.records import StreamRecord

CREDIT = 4
"""Chunks that may wait here."""
WAIT_SECONDS = 10.0
"""A read without anything new comes back after that."""
NO_STREAM = 2


class ChunkReader:
    """The chunks of one stream from an offset on, in order and without a gap."""

    def __init__(self, connection: RabbitConnection, stream: str) -> None:
        self._connection = connection
        self._stream = stream
        self._slot: Slot | None = None
        self._link: Link | None = None
        self._next = -1
        """What is returned next."""
        self._chunks: list[Chunk] = []
        self._signal = asyncio.Event()

    async def read(self, offset: int) -> list[Chunk]:
        """What has arrived from this offset on; waits a while when nothing has.

        The first chunk may begin before the offset. Raises Refused when there is no such stream.
        """
        if self._link is None or self._link.is_lost or offset != self._next:
            await self._begin(offset)
        if not self._chunks:
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    await self._signal.wait()
        self._signal.clear()
        found, self._chunks = self._chunks, []
        if found:
            self._next = found[-1].end
            if self._link is not None and self._slot is not None:
                self._link.credit(self._slot.number, len(found))
        return found

    async def _begin(self, offset: int) -> None:
        await self._end()
        if self._slot is None:
            self._slot = await self._connection.slot()
        slot = self._slot
        self._chunks = []
        self._signal.clear()

        async def subscribe(link: Link) -> None:
            self._link = link
            link.on_chunk[slot.number] = self._arrived
            link.on_lost.add(self._signal.set)
            link.on_change[slot.number] = (self._stream, self._changed)
            await _subscribe(link, slot.number, self._stream, offset_spec(offset), CREDIT)

        self._next = -1
        await self._connection.call(subscribe, slot.line)
        self._next = offset

    def _arrived(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._signal.set()

    def _changed(self) -> None:
        """The server dropped the subscription: the stream is gone, or has another leader."""
        self._next = -1
        self._signal.set()

    async def _end(self) -> None:
        """Make sure that the server sends no more under this number."""
        link = self._link
        if link is not None and self._slot is not None:
            number = self._slot.number
            link.on_chunk.pop(number, None)
            link.on_change.pop(number, None)
            link.on_lost.discard(self._signal.set)
            with suppress(LinkLost, Refused):
                await link.call(
                    schema.Unsubscribe, schema.UnsubscribeResponse, subscription_id=number
                )
        self._link = None

    async def close(self) -> None:
        """End the subscription, as far as the server can be reached."""
        await self._end()
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.release()


def offset_spec(offset: int) -> schema.OffsetSpec:
    """From this offset on."""
    return schema.OffsetSpec.from_params(OffsetType.OFFSET, offset)


async def _subscribe(
    link: Link, number: int, stream: str, spec: schema.OffsetSpec, credit: int
) -> None:
    await link.call(
        schema.Subscribe,
        schema.SubscribeResponse,
        subscription_id=number,
        stream=stream,
        offset_spec=spec,
        credit=credit,
        properties=[],
    )


async def look(connection: RabbitConnection, stream: str, spec: schema.OffsetSpec) -> Chunk | None:
    """The chunk at a place of a stream; None when there is none yet.

    The server sends a chunk that is there before it answers what was asked next, so one that has not
    come by then is not there.
    """
    # It goes on when this call is cancelled: nobody else may have its number before it is done.
    looking = asyncio.ensure_future(_looked(connection, stream, spec))
    looking.add_done_callback(_heard)
    return await asyncio.shield(looking)


def _heard(looking: asyncio.Future[Chunk | None]) -> None:
    if not looking.cancelled():
        looking.exception()  # whoever asked may be gone


async def _looked(
    connection: RabbitConnection, stream: str, spec: schema.OffsetSpec
) -> Chunk | None:
    slot = await connection.slot()

    async def ask(link: Link) -> Chunk | None:
        found: list[Chunk] = []
        link.on_chunk[slot.number] = found.append
        try:
            await _subscribe(link, slot.number, stream, spec, 1)
            await link.call(
                schema.Unsubscribe, schema.UnsubscribeResponse, subscription_id=slot.number
            )
        finally:
            link.on_chunk.pop(slot.number, None)
        return found[0] if found else None

    try:
        return await connection.call(ask, slot.line)
    finally:
        slot.release()


async def bounds(connection: RabbitConnection, stream: str) -> tuple[int, int]:
    """The first offset that is kept, and the end. Raises Refused when there is no such stream."""
    last = await look(connection, stream, schema.OffsetSpec(OffsetType.LAST))
    if last is None:
        return 0, 0
    first = await look(connection, stream, schema.OffsetSpec(OffsetType.FIRST))
    return (first or last).first, last.end


class RabbitSource:
    """The partitions of one topic; see :class:`penstock.transports.reading.PartitionSource`."""

    def __init__(
        self,
        connection: RabbitConnection,
        topic: str,
        stream: Callable[[int], str],
        partitions: Callable[[], Awaitable[int]],
        count: Callable[[int], None],
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._stream = stream
        self._partitions = partitions
        self._count = count
        self._readers: dict[int, ChunkReader] = {}
        self._turns: dict[int, asyncio.Lock] = {}

    async def open(self) -> int:
        return await self._partitions()

    async def close(self) -> None:
        readers, self._readers = list(self._readers.values()), {}
        await asyncio.gather(*(one.close() for one in readers), return_exceptions=True)

    async def read(self, partition: int, offset: int, records_max: int) -> Sequence[StreamRecord]:
        reader = self._readers.get(partition)
        if reader is None:
            reader = ChunkReader(self._connection, self._stream(partition))
            self._readers[partition] = reader
        # One that was cancelled may still be on its way out.
        async with self._turns.setdefault(partition, asyncio.Lock()):
            try:
                chunks = await reader.read(offset)
            except Refused as error:
                raise self._error(error) from None
        found: list[StreamRecord] = []
        for chunk in chunks:
            found += records_of(chunk, self._topic, partition, offset)
        self._count(len(found))
        return found

    async def bounds(self, partition: int) -> tuple[int, int]:
        try:
            return await bounds(self._connection, self._stream(partition))
        except Refused as error:
            raise self._error(error) from None

    async def offset_at(self, partition: int, time_ms: int) -> int:
        """By the time at which the server stored the records, chunk by chunk."""
        return await offset_at(self._connection, self._stream(partition), time_ms)

    def _error(self, error: Refused) -> Exception:
        if error.code == NO_STREAM:
            return unknown_topic(self._topic)
        return self._connection.settings.failed("refuses to read", str(error), error.code)


async def offset_at(connection: RabbitConnection, stream: str, time_ms: int) -> int:
    """The first offset of the first chunk that was stored at that time or later; else the end."""
    first, end = await bounds(connection, stream)
    last = await look(connection, stream, schema.OffsetSpec(OffsetType.LAST))
    if last is None or last.time_ms < time_ms:
        return end
    spec = schema.OffsetSpec.from_params(OffsetType.TIMESTAMP, max(0, time_ms))
    found = await look(connection, stream, spec)
    while found is not None and found.time_ms < time_ms:
        found = await look(connection, stream, offset_spec(found.end))
    return end if found is None else max(first, found.first)
