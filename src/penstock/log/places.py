"""Places in a partition: what a position means, and reading on from where a reader stands."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Literal

from penstock.errors import DamagedFile, InvalidOption, OffsetOutOfRange
from penstock.log import fetched
from penstock.log.fetched import FETCH_BYTES, Fetched
from penstock.log.frame import OFFSET_MAX
from penstock.log.offsets import OffsetFile
from penstock.log.open_topic import OpenTopic
from penstock.log.reader import Cursor, PartitionReader
from penstock.log.records import Record

Position = int | datetime | Literal["earliest", "latest"]
"""An offset, a time (with a time zone), or an end of the log."""

LOOK_BYTES = 4_096
"""One record is wanted: an entry that is larger is read whole all the same."""


def resolve(reader: PartitionReader, to: Position) -> int:
    """The offset that a position means in a partition; an offset may lie outside of the log."""
    if to == "earliest":
        return reader.earliest()
    if to == "latest":
        return reader.head().durable_offset
    if isinstance(to, datetime):
        if to.tzinfo is None:
            raise InvalidOption("the time needs a time zone, for example datetime.now(UTC)")
        return max(reader.earliest(), reader.offset_at(int(to.timestamp() * 1000)))
    if isinstance(to, int) and to >= 0:  # type: ignore[redundant-expr]  # callers may not check
        return to
    raise InvalidOption(
        f"{to!r} is not a position: use an offset, a datetime, 'earliest' or 'latest'"
    )


def resolve_start(reader: PartitionReader, to: Position) -> int:
    """The offset to read on from; OffsetOutOfRange when the log does not reach that far.

    The durable end itself is allowed. Whoever stood beyond it would skip what is published next.
    """
    offset = resolve(reader, to)
    if not isinstance(to, int):
        return offset
    earliest, end = reader.earliest(), reader.head().durable_offset
    if earliest <= offset <= end:
        return offset
    keys = reader.keys
    raise OffsetOutOfRange(
        f"offset {offset} of {keys.topic}/{keys.partition} is "
        f"{'gone' if offset < earliest else 'not written yet'}: use {earliest} to {end}, "
        "'earliest' or 'latest'",
        topic=keys.topic,
        partition=keys.partition,
        offset=offset,
        earliest=earliest,
        end=end,
    )


def check_one_partition(to: Position, partitions: int) -> None:
    """An offset means something in one partition only."""
    if isinstance(to, int) and partitions > 1:
        raise InvalidOption(
            f"offset {to} is of one partition, and the topic has {partitions}: name the partition "
            "in seek(..., partition=...), or use a time, 'earliest' or 'latest'",
            option="partition",
        )


def has_records(reader: PartitionReader, first: int, end: int) -> bool:
    """Whether there is a record between two offsets; compaction and repair may have left none."""
    try:
        records = fetch(reader.cursor(first), LOOK_BYTES)
    except OffsetOutOfRange:
        # Retention took them; the subscriber has to say where it goes on.
        return True
    return bool(records) and records[0].offset < end


def fetch(cursor: Cursor, bytes_max: int = FETCH_BYTES) -> list[Record]:
    """The next records from the disk, as objects, or none at the durable end."""
    return fetched.fetch(cursor, bytes_max).take(OFFSET_MAX)


class Place:
    """Where a subscriber stands in one partition."""

    __slots__ = (
        "_topic",
        "busy",
        "cursor",
        "damage",
        "delivered",
        "number",
        "offsets",
        "read_to",
        "reader",
    )

    def __init__(self, topic: OpenTopic, number: int, offsets: OffsetFile) -> None:
        self._topic = topic
        self.number = number
        self.reader: PartitionReader = topic.reader(number)
        self.offsets = offsets
        self.cursor: Cursor = self.reader.cursor(0)
        self.delivered = 0
        self.read_to = 0
        """Behind what was read, which may be more than the loop knows to be durable: the disk was asked later."""
        self.damage: DamagedFile | None = None
        """Why it is not known where to go on; a seek says it."""
        self.busy = False
        """A thread is reading with this reader and cursor."""

    def move(self, offset: int) -> None:
        """Go on from another offset; who reads at the old place notices the new cursor."""
        if self.busy:
            self.reader = self._topic.reader(self.number)
            self.busy = False
        self.cursor = self.reader.cursor(offset)
        self.delivered = offset

    async def next(self, end: int | None) -> Fetched:
        """The next records before this offset, from memory or from the disk; perhaps none."""
        found = self.cached() or await self.fetch()
        if end is not None and found and found.next_offset() > end:
            self.cursor.seek(end)
            return found.before(end)
        return found

    async def fetch(self) -> Fetched:
        """The next records from the disk; none when the place was moved meanwhile."""
        cursor, start = self.cursor, self.cursor.offset
        self.busy = True
        try:
            found = await asyncio.to_thread(fetched.fetch, cursor)
        except asyncio.CancelledError:
            # The thread goes on, with what is not this place's reader and cursor any more.
            delivered = self.delivered
            self.move(start)
            self.delivered = delivered
            raise
        except BaseException:
            self.busy = False
            raise
        if self.cursor is not cursor:
            return Fetched(cursor.keys, ())
        self.busy = False
        if found:
            self.read_to = max(self.read_to, found.next_offset())
        return found

    def cached(self) -> Fetched | None:
        """From memory, when this process committed the next records a moment ago."""
        number, topic = self.number, self._topic
        cache = topic.caches[number]
        records = cache.read(topic.name, number, self.cursor.offset, topic.durable[number])
        if not records:
            return None
        self.cursor.seek(records[-1].offset + 1)
        return Fetched(topic.keys(number), [records])
