"""Keys with revisions in a stream; see :class:`penstock.transports.kv_groups.KeyValue`.

RabbitMQ has no keys that are replaced only as they were read. But a stream is one order of entries for
all who read it. So a write is an entry that names the revision at which it holds, and everybody who reads
the entries in their order finds the same writes to hold. The revision of a key is the offset of the entry
that wrote it, plus one. Whoever reads first writes an entry of its own and waits until that comes by.

The stream keeps a few megabytes. Now and then somebody writes all keys down again, in one go, so that
who comes later needs nothing that is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
from rstream import schema

from penstock.errors import BrokerFailed, Closed, LimitReached, PenstockError
from penstock.names import is_name
from penstock.transports.broker_groups import Listener
from penstock.transports.kv_groups import Entry, Key
from penstock.transports.rabbitmq_connection import PAUSE_SECONDS, RabbitConnection
from penstock.transports.rabbitmq_key_table import (
    DELETE,
    ID_BYTES,
    KEYS_BYTES_MAX,
    KEYS_MAX,
    LOOK,
    PUT,
    RING,
    SUMMARY,
    KeyTable,
    messages_of,
)
from penstock.transports.rabbitmq_reader import ChunkReader, bounds
from penstock.transports.rabbitmq_records import encoded
from penstock.transports.rabbitmq_settings import NAME
from penstock.transports.rabbitmq_wire import Chunk, Link, Refused
from penstock.transports.rabbitmq_writer import StreamWriter

LOG_BYTES = 16 * 1024 * 1024
SEGMENT_BYTES = 1024 * 1024
SUMMARY_EVERY_BYTES = 512 * 1024
"""All keys are written down again after that many bytes of entries, or ten times what they take."""
PART_BYTES = 256 * 1024
GAP_MAX = 4
"""Offsets that the server itself may take where a segment begins."""
STREAM_EXISTS = 5
ANEW_SECONDS = 1.0
"""Before a stream is read anew after an error that nobody foresaw."""
_log = logging.getLogger("penstock.transports.rabbitmq")


class _Outcome(NamedTuple):
    """What became of an entry."""

    revision: int | None
    time_ms: int


class KeyLog:
    """The keys in one stream. It is opened when it is used first, and followed from then on."""

    def __init__(self, connection: RabbitConnection, stream: str) -> None:
        self._connection = connection
        self._stream = stream
        self._reader = ChunkReader(connection, stream)
        self._writer = StreamWriter(connection, stream, stream)
        self._opening = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._waiting: dict[bytes, asyncio.Future[_Outcome]] = {}
        self._next = -1
        self._lost = False
        """Whether what is known is not to be trusted."""
        self._summing: asyncio.Task[None] | None = None
        self.table = KeyTable(stream)

    # Life

    async def open(self) -> None:
        """Make the stream when it is not there, and follow it."""
        async with self._opening:
            if self._closed:
                raise Closed("the RabbitMQ transport is closed")
            if self._task is not None and not self._task.done():
                return
            await self._connection.call(self._make)
            await self._restart()
            self._task = asyncio.create_task(self._follow())

    async def _make(self, link: Link) -> None:
        limits = {
            "max-length-bytes": str(LOG_BYTES),
            "stream-max-segment-size-bytes": str(SEGMENT_BYTES),
        }
        await make_stream(link, self._stream, limits)

    async def close(self) -> None:
        """Follow it no longer. Who waits for an answer hears that it is closed."""
        self._closed = True
        for task in (self._task, self._summing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._fail(Closed("the RabbitMQ transport is closed"))
        await self._writer.close()
        await self._reader.close()

    async def _follow(self) -> None:
        """Until it is cancelled: whatever goes wrong, who waits is told, and it goes on."""
        while True:
            try:
                if self._lost:
                    await self._restart()
                for chunk in await self._reader.read(self._next):
                    if not self._continues(chunk):
                        await self._restart()
                        break
                    self._take(chunk)
            except (Refused, PenstockError) as error:
                self._fail(self._error(error) if isinstance(error, Refused) else error)
                await asyncio.sleep(PAUSE_SECONDS)
            except Exception as error:
                await self._begin_anew(error)

    async def _begin_anew(self, error: Exception) -> None:
        """After an error that nobody foresaw: what is known may be wrong."""
        _log.error("the groups in the stream %r are read anew", self._stream, exc_info=error)
        why = f"the stream {self._stream!r} cannot be followed: {type(error).__name__}"
        self._fail(self._connection.settings.failed("cannot read its groups", why))
        self._lost = True
        await asyncio.sleep(ANEW_SECONDS)

    def _continues(self, chunk: Chunk) -> bool:
        """Not if entries were gone before they came by, or if the stream was made anew."""
        return chunk.first <= self._next + GAP_MAX and chunk.end > self._next

    async def _restart(self) -> None:
        """Begin with what is there."""
        self._next, _ = await bounds(self._connection, self._stream)
        self.table.restart(self._next)
        self._lost = False

    def _error(self, error: Refused) -> PenstockError:
        why = f"the stream {self._stream!r}: {error}"
        return self._connection.settings.failed("cannot read its groups", why, error.code)

    def _fail(self, error: Exception) -> None:
        for one in self._waiting.values():
            if not one.done():
                one.set_exception(error)
                one.exception()

    # Entries

    async def write(self, kind: str, *values: Any) -> _Outcome:
        """Add an entry; what became of it, when it has come by."""
        await self.open()
        number = self._connection.settings.system.random.randbytes(ID_BYTES)
        found: asyncio.Future[_Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[number] = found
        entry = msgspec.msgpack.encode([kind, number, *values])
        try:
            await self._writer.send([encoded(entry)])
            return await found
        finally:
            self._waiting.pop(number, None)

    def _take(self, chunk: Chunk) -> None:
        start, self._next = self._next, chunk.end
        for offset, message in messages_of(chunk):
            if offset >= start:
                for came in self.table.take(offset, chunk.time_ms, message):
                    self._tell(came.number, _Outcome(came.revision, came.time_ms), offset)

    def _tell(self, number: bytes, outcome: _Outcome, offset: int) -> None:
        found = self._waiting.get(number)
        if found is not None:
            if not found.done():
                found.set_result(outcome)
            self._sum_up(offset + 1)

    # Summaries

    def _sum_up(self, upto: int) -> None:
        """Write all keys down again when it is time. Several may do it; that does no harm."""
        if self._summing is None and self.table.bytes > SUMMARY_EVERY_BYTES:
            data = self.table.summary()
            if self.table.bytes > 10 * len(data):
                self._summing = asyncio.create_task(self._write_summary(upto, data))

    async def _write_summary(self, upto: int, data: bytes) -> None:
        number = self._connection.settings.system.random.randbytes(ID_BYTES)
        parts = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
        entries = [
            msgspec.msgpack.encode([SUMMARY, number, upto, len(parts), part]) for part in parts
        ]
        with suppress(PenstockError):
            await self._writer.send([encoded(entry) for entry in entries])
        self._summing = None

    # Keys

    def entry(self, key: Key) -> Entry | None:
        """What a key held when the last entry came by."""
        return self.table.entry(key)

    def check_room(self, key: Key, value: bytes) -> None:
        """LimitReached when there are so many keys that nobody would take one more."""
        if not self.table.has_room(key, value):
            raise LimitReached(
                f"the stream {self._stream!r} keeps at most {KEYS_MAX} keys of {KEYS_BYTES_MAX} bytes "
                "together: forget groups that are gone",
                limit=KEYS_BYTES_MAX,
                value=len(value),
            )


async def make_stream(link: Link, stream: str, arguments: dict[str, str]) -> None:
    """Make a stream; one that is there stays as it is."""
    properties = [schema.Property(name, value) for name, value in arguments.items()]
    try:
        await link.call(schema.Create, schema.CreateResponse, stream=stream, arguments=properties)
    except Refused as error:
        # 17: it is there, with other arguments.
        if error.code not in (STREAM_EXISTS, 17):
            raise


class RabbitKeys:
    """The keys of all groups: a stream for each topic, and one for the names of the topics."""

    def __init__(self, connection: RabbitConnection) -> None:
        self._connection = connection
        self._prefix = connection.settings.prefix
        self._logs: dict[str, KeyLog] = {}

    def _log(self, key: Key) -> KeyLog:
        stream = f"{self._prefix}.topics"
        if key[0] != "topics":
            stream = f"{self._prefix}.{key[1]}.groups"
        log = self._logs.get(stream)
        if log is None:
            log = self._logs[stream] = KeyLog(self._connection, stream)
        return log

    async def close(self) -> None:
        """Let go of the streams."""
        logs, self._logs = list(self._logs.values()), {}
        await asyncio.gather(*(one.close() for one in logs))

    async def get(self, key: Key) -> Entry | None:
        log = self._log(key)
        await self._write(log, LOOK, list(key))
        return log.entry(key)

    async def put(self, key: Key, value: bytes, revision: int) -> int | None:
        log = self._log(key)
        outcome = await self._write(log, PUT, list(key), value, revision)
        if outcome.revision is None:
            log.check_room(key, value)
        return outcome.revision

    async def delete(self, key: Key) -> None:
        await self._write(self._log(key), DELETE, list(key))

    async def keys(self, under: Key) -> Iterable[Key]:
        log = self._log(under)
        await self._write(log, LOOK, list(under))
        # Names of others may be anything; what is shown and asked for again are names.
        found = log.table.under(under)
        return [key for key in found if len(key) > len(under) and all(map(is_name, key))]

    async def time_ms(self) -> int:
        # Of one stream, so of one server, for all.
        return (await self._write(self._log(("topics",)), LOOK, [])).time_ms

    async def ring(self, key: Key) -> None:
        await self._write(self._log(key), RING, list(key))

    async def follow(self, key: Key, listener: Listener) -> Callable[[], Awaitable[None]]:
        log = self._log(key)
        await log.open()
        log.table.listeners.setdefault(key, set()).add(listener)

        async def end() -> None:
            log.table.listeners.get(key, set()).discard(listener)

        return end

    async def _write(self, log: KeyLog, kind: str, *values: Any) -> _Outcome:
        try:
            return await self._connection.waiting(log.write(kind, *values))
        except Refused as error:
            raise BrokerFailed(
                f"RabbitMQ at {self._connection.settings.address} cannot keep the groups: {error}",
                transport=NAME,
                code=error.code,
            ) from None
