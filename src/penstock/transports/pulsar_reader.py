"""Reading partitions from Pulsar: a reader of the client for each, and the offsets of what it brings.

A reader keeps its place at the broker in memory only: what a group has committed is in its log, see
:mod:`penstock.transports.pulsar_keys`. After a lost connection the client goes on behind what it gave out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import _pulsar  # type: ignore[import-not-found]

from penstock.transports.pulsar_client import Ok, PulsarConnection, calling
from penstock.transports.pulsar_index import Position, PulsarIndex, Start
from penstock.transports.pulsar_records import decoded
from penstock.transports.records import StreamRecord

WAIT_SECONDS = 5.0
"""How long a read waits for a first message."""
AT_ONCE = 500
"""Messages that are taken over in one go on the event loop."""
AT_ONCE_BYTES = 8 * 1024 * 1024

Message = tuple[int, Any]
"""An offset, and the message of the client."""


class PartitionReader:
    """The messages of one partition in order, with their offsets.

    Messages that the broker has removed are left out: the offset of the next one shows it.
    """

    def __init__(self, connection: PulsarConnection, index: PulsarIndex, topic: str) -> None:
        self._connection = connection
        self._index = index
        self._topic = topic
        self._native: Any = None
        self._waiting: asyncio.Future[tuple[Any, Any]] | None = None
        self._held: deque[Any] = deque()
        """Messages that were taken from the client and not returned yet."""
        self._next = 0
        self.position: Position | None = None
        """The entry of the last message that was returned; None: the next offset is not known."""
        self._place = -1
        """Which message of that entry; -1: all of it is done."""

    @property
    def is_open(self) -> bool:
        """Whether it has a place to read from."""
        return self._native is not None

    async def begin(self, start: Start) -> None:
        """Read from there on."""
        self.close()
        self._native = await self._connection.reader(
            self._topic, start.position, inclusive=start.inclusive
        )
        self._place = -1
        self.position = None
        if start.offset is not None and start.position is not None:
            self._next = start.offset
            ledger, entry = start.position
            self.position = Position(ledger, entry - 1 if start.inclusive else entry)

    def close(self) -> None:
        """Let go of it."""
        native, self._native = self._native, None
        self._held.clear()
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if native is not None:
            self._connection.drop(native)

    async def read(self, messages_max: int = AT_ONCE) -> list[Message]:
        """What is there; waits a while when nothing is. Cancelling it loses nothing."""
        if not self._held and not await self._first():
            return []
        self._drain(min(messages_max, AT_ONCE))
        found: list[Message] = []
        while self._held:
            message = self._held[0]
            where = message.message_id()
            position, place = Position(where.ledger_id(), where.entry_id()), where.batch_index()
            if not self._follows(position, place):
                if found:
                    break  # What is certain goes first.
                facts = await self._index.peek(position)
                self._next = facts.first + max(0, place)
            found.append((self._next, message))
            self._held.popleft()
            self._next += 1
            self.position, self._place = position, place
        return found

    def _follows(self, position: Position, place: int) -> bool:
        """Whether it is the very next message."""
        before = self.position
        if position == before:
            return place == self._place + 1 and self._place >= 0
        if before is None or position.ledger != before.ledger:
            return False
        return position.entry == before.entry + 1 and place <= 0

    async def _first(self) -> bool:
        """Wait for a message."""
        if self._waiting is None:
            self._waiting = calling(self._native.read_next_async)
        done, _ = await asyncio.wait([self._waiting], timeout=WAIT_SECONDS)
        if not done or self._waiting is None:
            return False
        waiting, self._waiting = self._waiting, None
        result, message = waiting.result()
        if result != Ok:
            self.close()
            raise self._connection.error(result, f"read {self._topic!r}", topic=self._topic)
        self._held.append(message)
        return True

    def _drain(self, messages_max: int) -> None:
        """Take what the client has, without waiting."""
        read, held = self._native.read_next, self._held
        size = 0
        try:
            while len(held) < messages_max and size < AT_ONCE_BYTES:
                message = read(0)
                held.append(message)
                size += message.length()
        except _pulsar.PulsarException:
            # Nothing more now, or an error that the next wait tells.
            return


class PulsarSource:
    """The partitions of one topic; see :class:`penstock.transports.reading.PartitionSource`."""

    def __init__(
        self,
        connection: PulsarConnection,
        topic: str,
        names: Callable[[], Any],
        count: Callable[[int], None],
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._look = names
        self._count = count
        self._names: Sequence[str] = ()
        self._readers: dict[int, PartitionReader] = {}
        self._wanted: dict[int, int] = {}
        self._turns: dict[int, asyncio.Lock] = {}

    async def open(self) -> int:
        self._names = await self._look()
        return len(self._names)

    async def close(self) -> None:
        readers, self._readers = list(self._readers.values()), {}
        for one in readers:
            one.close()

    async def read(self, partition: int, offset: int, records_max: int) -> Sequence[StreamRecord]:
        # One that was cancelled may still be on its way out.
        async with self._turns.setdefault(partition, asyncio.Lock()):
            reader = self._reader(partition)
            if not reader.is_open or self._wanted.get(partition) != offset:
                await reader.begin(await self.index(partition).locate(offset))
                self._wanted[partition] = offset
            found = await reader.read(records_max)
            if found:
                self._wanted[partition] = max(offset, found[-1][0] + 1)
        topic = self._topic
        records = [decoded(topic, partition, at, one) for at, one in found if at >= offset]
        self._count(len(records))
        return records

    def _reader(self, partition: int) -> PartitionReader:
        reader = self._readers.get(partition)
        if reader is None:
            reader = PartitionReader(
                self._connection, self.index(partition), self._names[partition]
            )
            self._readers[partition] = reader
        return reader

    def index(self, partition: int) -> PulsarIndex:
        """The offsets of a partition."""
        return PulsarIndex(self._connection.settings, self._connection.http, self._names[partition])

    async def bounds(self, partition: int) -> tuple[int, int]:
        return await self.index(partition).bounds()

    async def offset_at(self, partition: int, time_ms: int) -> int:
        """By the time at which the broker stored the records."""
        return await self.index(partition).offset_at(time_ms)
