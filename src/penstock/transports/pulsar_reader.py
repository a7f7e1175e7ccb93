"""Reading partitions from Pulsar: a reader of the client for each, and the offsets of what it brings.

A reader keeps its place at the broker in memory only: what a group has committed is in its log, see
:mod:`penstock.transports.pulsar_keys`. After a lost connection the client goes on behind what it gave out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import _pulsar  # type: ignore[import-not-found]

from penstock.transports.pulsar_client import Ok, PulsarConnection, calling
from penstock.transports.pulsar_index import Position, PulsarIndex, Start
from penstock.transports.pulsar_records import decoded
from penstock.transports.records import StreamRecord

WAIT_SECONDS = 5.0
"""How long a read waits for a first message."""
AT_ONCE = 200
"""Messages that are taken over in one go on the event loop: with more, a commit waits for its turn there."""
AT_ONCE_BYTES = 8 * 1024 * 1024
SAMPLE = 10
"""Every tenth message is asked how large it is."""

DONE = -1
"""All messages of an entry."""
_T = TypeVar("_T")


class PartitionReader(Generic[_T]):
    """The messages of one partition in order, with their offsets.

    Messages that the broker has removed are left out: the offset of the next one shows it.
    """

    def __init__(
        self,
        connection: PulsarConnection,
        index: PulsarIndex,
        topic: str,
        made: Callable[[int, Sequence[Any]], list[_T]],
    ) -> None:
        self._connection = connection
        self._index = index
        self._topic = topic
        self._made = made
        """What is given out for messages of one entry, the first with this offset."""
        self._native: Any = None
        self._waiting: asyncio.Future[tuple[Any, Any]] | None = None
        self._held: list[Any] = []
        """Messages that were taken from the client and not given out yet."""
        self._at_once = AT_ONCE
        self._next = 0
        self._at: Position | None = None
        """The entry of the last message; None: the next offset is not known."""
        self._place = DONE
        """Which message of that entry it was."""

    @property
    def is_open(self) -> bool:
        """Whether it has a place to read from."""
        return self._native is not None

    @property
    def next_offset(self) -> int:
        """The offset behind what was returned."""
        return self._next

    async def begin(self, start: Start) -> None:
        """Read from there on."""
        self.close()
        self._native = await self._connection.reader(
            self._topic, start.position, inclusive=start.inclusive
        )
        self._at, self._place = None, DONE
        if start.offset is not None and start.position is not None:
            self._next = start.offset
            ledger, entry = start.position
            self._at = Position(ledger, entry - 1 if start.inclusive else entry)

    def close(self) -> None:
        """Let go of it."""
        native, self._native = self._native, None
        self._held.clear()
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if native is not None:
            self._connection.drop(native)

    async def read(self, messages_max: int = AT_ONCE) -> list[_T]:
        """What is there; waits a while when nothing is. Cancelling it loses nothing."""
        if not self._held:
            if self._waiting is None:
                self._take(messages_max)
                # Who has enough to read lets others go on.
                await asyncio.sleep(0)
            if not self._held and await self._wait():
                self._take(messages_max)
        if not self._held:
            return []
        whole = _same_entries(self._held, self._at, self._place)
        if not whole:
            await self._ask()
            whole = _same_entries(self._held, self._at, self._place)
        return self._given(whole)

    def _given(self, parts: list[tuple[int, int]]) -> list[_T]:
        """Give out the leading messages, whose offsets are certain."""
        found: list[_T] = []
        for start, end in parts:
            found += self._made(self._next + len(found), self._held[start:end])
        last = _Id.of(self._held[len(found) - 1])
        size = sum(one.length() for one in self._held[: len(found) : SAMPLE])
        self._at_once = max(1, min(AT_ONCE, AT_ONCE_BYTES * len(found) // (size * SAMPLE + 1)))
        del self._held[: len(found)]
        self._at, self._place = last.position, last.place
        self._next += len(found)
        return found

    async def _wait(self) -> bool:
        """Wait for a message; whether there is one."""
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

    def _take(self, messages_max: int) -> None:
        """Take what the client has, without waiting."""
        read, held = self._native.read_next, self._held
        most = min(messages_max, self._at_once)
        try:
            while len(held) < most:
                held.append(read(0))
        except _pulsar.PulsarException:
            # Nothing more now, or an error that the next wait tells.
            return

    async def _ask(self) -> None:
        """Be certain of the offset of the first message that is held."""
        where = _Id.of(self._held[0])
        facts = await self._index.peek(where.position)
        self._next = facts.first + max(0, where.place)
        if where.place > 0:
            self._at, self._place = where.position, where.place - 1
        else:
            ledger, entry = where.position
            self._at, self._place = Position(ledger, entry - 1), DONE


class _Id(NamedTuple):
    """Where a message is: its entry, and its place among the messages of that."""

    position: Position
    place: int

    @classmethod
    def of(cls, message: Any) -> _Id:
        where = message.message_id()
        return cls(Position(where.ledger_id(), where.entry_id()), where.batch_index())

    def follows(self, at: Position | None, place: int) -> bool:
        """Whether it is the very next message."""
        if at is None:
            return False
        if self.position == at:
            return self.place == place + 1 and place >= 0
        return self.position == Position(at.ledger, at.entry + 1) and self.place <= 0


def _same_entries(messages: list[Any], at: Position | None, place: int) -> list[tuple[int, int]]:
    """The leading messages that follow each other without a gap: a part of the list for each entry.

    To ask a message for its id takes as long as to read its key and its value, so few are asked.
    """
    parts: list[tuple[int, int]] = []
    start = 0
    while start < len(messages):
        first = _Id.of(messages[start])
        if not first.follows(at, place):
            break
        end = _end_of_entry(messages, start, first)
        parts.append((start, end))
        at, place, start = first.position, max(DONE, first.place + end - start - 1), end
    return parts


def _end_of_entry(messages: list[Any], start: int, first: _Id) -> int:
    """The place behind the last message that is in the same entry, and in order."""

    def is_in(place: int) -> bool:
        one = _Id.of(messages[place])
        return one.position == first.position and one.place - first.place == place - start

    low, step = start, 1
    if is_in(len(messages) - 1):
        return len(messages)
    while low + step < len(messages) and is_in(low + step):
        low, step = low + step, 2 * step
    high = min(low + step, len(messages) - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_in(middle) else (low, middle)
    return low + 1


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
        self._readers: dict[int, PartitionReader[StreamRecord]] = {}
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
            records = await reader.read(records_max)
            if records:
                self._wanted[partition] = max(offset, reader.next_offset)
        if records and records[0].offset < offset:
            # The entry begins before it.
            records = [one for one in records if one.offset >= offset]
        self._count(len(records))
        return records

    def _reader(self, partition: int) -> PartitionReader[StreamRecord]:
        reader = self._readers.get(partition)
        if reader is None:
            reader = PartitionReader(
                self._connection,
                self.index(partition),
                self._names[partition],
                partial(decoded, self._topic, partition),
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
