"""Reading the partitions that a member of a group was given, ahead of whoever takes the records.

One task for each partition reads from the broker, a :class:`PartitionSource`, into a bounded buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Protocol

from penstock.errors import (
    Closed,
    DeadlineExceeded,
    InvalidOption,
    OffsetOutOfRange,
    PenstockError,
)
from penstock.log.places import check_one_partition
from penstock.transports.records import StartPosition, StreamBatch, StreamRecord

BUFFER_RECORDS = 4_000
"""Of one partition; when half of it is free, more is read."""
BUFFER_BYTES = 16 * 1024 * 1024
"""Of one partition; what is read at once may go beyond it."""
PAUSE_SECONDS = 0.2
"""Before reading is tried again after an error."""
AT_ONCE = 64
"""Partitions that are started side by side."""


class PartitionSource(Protocol):
    """The partitions of one topic on a broker."""

    async def open(self) -> int:
        """How many partitions there are; UnknownTopic when there is no such topic."""

    async def close(self) -> None:
        """Let go of everything."""

    async def read(self, partition: int, offset: int, records_max: int) -> Sequence[StreamRecord]:
        """The next records from an offset on. Waits a while for the first; may return none.

        It may be cancelled at any time, and called again with another offset.
        """

    async def bounds(self, partition: int) -> tuple[int, int]:
        """The first offset that is kept, and the end."""

    async def offset_at(self, partition: int, time_ms: int) -> int:
        """The first offset with that time or a later one; the end when there is none."""


@dataclass(slots=True)
class _Place:
    """Where a partition stands here."""

    number: int
    delivered: int = 0
    fetched: int = 0
    end: int = 0
    """The end that the broker told last."""
    records: list[StreamRecord] = field(default_factory=list)
    taken: int = 0
    """How many of the records were delivered."""
    size: int = 0
    room: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return len(self.records) - self.taken

    def move(self, offset: int) -> None:
        """Go on from there; what was read and not delivered is dropped."""
        self.stop()
        self.delivered = self.fetched = offset
        self._empty()

    def stop(self) -> None:
        task, self.task = self.task, None
        if task is not None:
            task.cancel()

    def put(self, records: Sequence[StreamRecord]) -> None:
        self.records.extend(records)
        self.fetched = records[-1].offset + 1
        self.size += sum(len(one.value or b"") for one in records)
        if self.waiting * 2 > BUFFER_RECORDS or self.size > BUFFER_BYTES:
            self.room.clear()

    def take(self, records_max: int) -> list[StreamRecord]:
        records = self.records[self.taken : self.taken + records_max]
        self.taken += len(records)
        self.delivered = records[-1].offset + 1
        if not self.waiting:
            self._empty()
        elif self.waiting * 2 <= BUFFER_RECORDS and self.size <= BUFFER_BYTES:
            self.room.set()
        return records

    def _empty(self) -> None:
        self.records = []
        self.taken = self.size = 0
        self.room.set()


Claim = Callable[[int, Callable[[], Awaitable[int]]], Awaitable[int]]
"""Partition, and where a new group starts in it → the offset from which on it is this member's."""


class BufferedReading:
    """The records of those partitions of a broker's topic that a member was given; others are held.

    The calls that are not ``async`` take effect at once: nothing of a partition that is held is
    delivered any more.
    """

    def __init__(
        self, source: PartitionSource, topic: str, group: str, start: StartPosition
    ) -> None:
        self.topic = topic
        self.name = group
        self.on_growth: Callable[[], None] | None = None
        self.claim: Claim | None = None
        """Set by the consumer, before a partition is started."""
        self._source = source
        self._start = start
        self._places: list[_Place] = []
        self._given: frozenset[int] = frozenset()
        self._turn = 0
        self._arrived = asyncio.Event()
        self._trouble: Exception | None = None
        self._closed = False

    # Life

    async def open(self) -> None:
        """Find the topic; UnknownTopic when it is not there."""
        self._check_open()
        count = await self._source.open()
        self._places = [_Place(number) for number in range(count)]

    async def close(self) -> None:
        """Stop reading; who waits gets Closed. Idempotent."""
        if self._closed:
            return
        self._closed = True
        tasks = [place.task for place in self._places if place.task is not None]
        for place in self._places:
            place.stop()
        self._arrived.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._source.close()

    def enter(self) -> None:
        """Anybody may join."""

    @property
    def partitions(self) -> int:
        """How many the topic has."""
        return len(self._places)

    # Where it stands

    def delivered(self) -> dict[int, int]:
        """Partition → offset of the next record that will be delivered, for all partitions."""
        return {place.number: place.delivered for place in self._places}

    def ends(self) -> list[int]:
        """The end of each partition: what the broker told last, or what was read since."""
        return [max(place.end, place.fetched) for place in self._places]

    async def see_ends(self, offsets: Mapping[int, int]) -> None:
        """Ask the broker for the ends of those partitions where the offset is beyond what is known."""
        known = self.ends()
        for number, offset in offsets.items():
            if 0 <= number < len(known) and offset > known[number]:
                _, self._places[number].end = await self._source.bounds(number)

    async def start(self, partitions: Iterable[int]) -> None:
        """Claim them, and go to where the group has committed."""
        numbers = sorted(partitions)
        for first in range(0, len(numbers), AT_ONCE):
            await asyncio.gather(*map(self._start_one, numbers[first : first + AT_ONCE]))

    async def _start_one(self, number: int) -> None:
        assert self.claim is not None, "the consumer says how"
        offset = await self.claim(number, lambda: self._resolve(number, self._start))
        self._places[number].move(offset)

    async def resolve(self, partitions: Iterable[int], to: StartPosition) -> dict[int, int]:
        """The offsets that a position means in these partitions; nothing moves."""
        numbers = list(partitions)
        check_one_partition(to, len(numbers))
        found = await asyncio.gather(*(self._resolve(number, to) for number in numbers))
        return dict(zip(numbers, found, strict=True))

    async def _resolve(self, number: int, to: StartPosition) -> int:
        if isinstance(to, datetime):
            if to.tzinfo is None:
                raise InvalidOption("a time needs a time zone", option="to")
            return await self._source.offset_at(number, round(to.timestamp() * 1_000))
        first, end = await self._source.bounds(number)
        self._places[number].end = end
        if isinstance(to, int):
            return self._checked(number, to, first, end)
        if to not in ("earliest", "latest"):
            raise InvalidOption(
                f"{to!r} is no position: use an offset, a time, 'earliest' or 'latest'", option="to"
            )
        return first if to == "earliest" else end

    def _checked(self, number: int, offset: int, first: int, end: int) -> int:
        if first <= offset <= end:
            return offset
        raise OffsetOutOfRange(
            f"offset {offset} of {self.topic}/{number} is "
            f"{'gone' if offset < first else 'not written yet'}: use {first} to {end}",
            topic=self.topic,
            partition=number,
            offset=offset,
            earliest=first,
            end=end,
        )

    def go_to(self, offsets: Mapping[int, int]) -> None:
        """Go on from these offsets, in memory."""
        for number, offset in offsets.items():
            self._places[number].move(offset)
        self._read_given()

    def deliver(self, partitions: Iterable[int]) -> None:
        """Deliver these partitions from where they are, and hold all others."""
        self._given = frozenset(partitions)
        for place in self._places:
            if place.number not in self._given and place.task is not None:
                # What was read ahead is read again later: it may be another member's by then.
                place.move(place.delivered)
        self._read_given()

    def fail(self, error: Exception | None) -> None:
        """Let whoever reads know, once; None: what went wrong before works again."""
        self._trouble = error
        self._arrived.set()

    # Records

    async def next_batch(self, timeout: float | None, records_max: int) -> StreamBatch:
        """The next records of some partition; DeadlineExceeded when none came in time."""
        look = partial(self._next, records_max)
        return await arrival(self.topic, look, self._arrived, timeout)

    def _next(self, records_max: int) -> StreamBatch | None:
        """From the partitions in turn."""
        self._check_open()
        count = len(self._places)
        for step in range(count):
            place = self._places[(self._turn + step) % count]
            if place.waiting and place.number in self._given:
                self._turn = (place.number + 1) % count
                records = place.take(records_max)
                return StreamBatch(self.topic, place.number, records, place.delivered)
        return None

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the consumer of {self.topic!r} is closed")
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble.again() if isinstance(trouble, PenstockError) else trouble

    def _read_given(self) -> None:
        if self._closed:
            return
        for number in self._given:
            place = self._places[number]
            if place.task is None:
                place.task = asyncio.create_task(self._read(place))

    async def _read(self, place: _Place) -> None:
        while True:
            await place.room.wait()
            try:
                room = max(1, BUFFER_RECORDS - place.waiting)
                records = await self._source.read(place.number, place.fetched, room)
            except PenstockError as error:
                self.fail(error)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if records:
                place.put(records)
                self._arrived.set()


async def arrival(
    topic: str,
    look: Callable[[], StreamBatch | None],
    arrived: asyncio.Event,
    timeout: float | None,
) -> StreamBatch:
    """The first batch that ``look`` finds; it looks again whenever something has arrived."""
    try:
        async with asyncio.timeout(timeout):
            while (batch := look()) is None:
                arrived.clear()
                await arrived.wait()
            return batch
    except DeadlineExceeded:
        # A call to the broker was late, and looking tells of it: its message says more.
        raise
    except TimeoutError:
        raise DeadlineExceeded(
            f"no record of {topic!r} came within {timeout:g} s: ask again when you like, nothing is "
            "lost",
            topic=topic,
            seconds=timeout,
        ) from None
