"""A durable subscriber: reads a topic from where it left off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Self

from penstock.errors import Closed, DamagedFile, DeadlineExceeded, InvalidOption, SubscriberBusy
from penstock.log.changes import Changes
from penstock.log.names import check_name, offset_key
from penstock.log.offsets import LOCK_TIMEOUT_SECONDS, OffsetFile
from penstock.log.open_topic import OpenTopic
from penstock.log.reader import Cursor, PartitionReader
from penstock.log.records import Record
from penstock.log.sealed import maintenance
from penstock.log.topic import TopicFile

Position = int | datetime | Literal["earliest", "latest"]
"""An offset, a time (with a time zone), or an end of the log."""

FETCH_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Consecutive records of one partition."""

    topic: str
    partition: int
    records: list[Record]
    next_offset: int

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


class _Place:
    """Where a subscriber stands in one partition."""

    __slots__ = ("_topic", "busy", "cursor", "damage", "delivered", "number", "offsets", "reader")

    def __init__(self, topic: OpenTopic, number: int, offsets: OffsetFile) -> None:
        self._topic = topic
        self.number = number
        self.reader: PartitionReader = topic.reader(number)
        self.offsets = offsets
        self.cursor: Cursor = self.reader.cursor(0)
        self.delivered = 0
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

    async def fetch(self) -> list[Record]:
        """The next records from the disk; none when the place was moved meanwhile."""
        cursor, start = self.cursor, self.cursor.offset
        self.busy = True
        try:
            records = await asyncio.to_thread(fetch, cursor)
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
            return []
        self.busy = False
        return records


class Subscription:
    """An async iterator over the records of a topic, in order within each partition.

    Use it as ``async with queue.subscribe(topic, name) as records: async for record in records``.
    A record is consumed when it is committed; what was delivered and not committed comes again
    after a restart. A name has one live subscription at a time, over all processes; when its
    process dies the name is free at once. Cancelling the iteration loses nothing.
    """

    def __init__(self, topic: OpenTopic, name: str, start: Position, changes: Changes) -> None:
        self.topic = topic.name
        self.name = check_name("subscriber", name)
        self._topic = topic
        self._start = start
        self._changes = changes
        self._places: list[_Place] = []
        self._turn = 0
        self._current: Record | None = None
        self._claim: AbstractContextManager[None] | None = None
        self._opening: asyncio.Future[None] | None = None
        self._releasing: asyncio.Future[None] | None = None
        self._at_work: set[asyncio.Future[None]] = set()
        self._closed = False
        self.damaged_offsets: list[str] = []
        """Offset files with a damaged slot: the older slot was used, so records may come again."""

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except asyncio.CancelledError:
            self._release_soon()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Claim the name and find the place to start. Iterating does it too."""
        self._check_open()
        if self._claim is not None:
            return
        if self._opening is None:
            self._opening = self._begin(self._open)
        opening = self._opening
        try:
            await asyncio.shield(opening)
        finally:
            if opening.done():
                self._opening = None
        self._check_open()

    async def close(self) -> None:
        """Give the name back. Nothing is committed by closing."""
        await asyncio.shield(self._release_soon())

    async def __aiter__(self) -> AsyncIterator[Record]:
        await self.open()
        self._rewind()
        while True:
            place, records = await self._next()
            cursor = place.cursor
            for record in records:
                self._current = record
                yield record
                if place.cursor is not cursor:
                    # A seek moved the place while the record was out.
                    break
            else:
                self._current = None
                place.delivered = records[-1].offset + 1

    async def batches(self, records_max: int = 10_000) -> AsyncIterator[RecordBatch]:
        """The records in batches of one partition each; never waits to fill one."""
        if records_max < 1:
            raise InvalidOption("records_max is at least 1", option="records_max")
        await self.open()
        self._rewind()
        while True:
            place, records = await self._next()
            cursor = place.cursor
            for start in range(0, len(records), records_max):
                piece = records[start : start + records_max]
                place.delivered = piece[-1].offset + 1
                yield RecordBatch(self.topic, place.number, piece, place.delivered)
                if place.cursor is not cursor:
                    break

    async def commit(self, record: Record | RecordBatch | None = None) -> None:
        """Mark as consumed, durably: up to this record, or all that was delivered.

        Offsets only move forward: committing an older record changes nothing.
        """
        await self.open()
        await asyncio.shield(self._begin(self._commit, self._wanted(record)))

    async def seek(self, to: Position, *, partition: int | None = None) -> None:
        """Go on from another place, and resume there after a restart: the seek is durable.

        Without a partition it applies to all of them; an offset needs one, unless there is one.
        """
        await self.open()
        if isinstance(to, int) and partition is None and len(self._places) > 1:
            raise InvalidOption("name the partition that the offset is of", option="partition")
        if partition is not None:
            self._topic.keys(partition)
        places = self._places if partition is None else [self._places[partition]]
        offsets = await asyncio.to_thread(self._reset, places, to)
        self._settle()
        for place, offset in zip(places, offsets, strict=True):
            place.damage = None
            place.move(offset)
        # One that waits at the old place looks at the new one.
        self._changes.wake(self.topic)

    async def forget(self) -> None:
        """Remove the offsets and the registration: retention waits for this name no longer."""
        self._check_open()
        await asyncio.shield(self._begin(self._forget))

    def positions(self) -> dict[int, int]:
        """Partition → offset of the next record that will be delivered."""
        self._check_places()
        return {place.number: self._delivered(place) for place in self._places}

    def lag(self) -> int:
        """Durable records that were not delivered yet, over all partitions."""
        self._topic.note_commits()
        durable = self._topic.durable
        return sum(
            max(0, durable[number] - position) for number, position in self.positions().items()
        )

    # Threads: opening, committing and seeking block.

    def _begin(self, job: Callable[..., None], *arguments: object) -> asyncio.Future[None]:
        """Run a job in a thread. Closing waits for it, also when its caller was cancelled."""
        work: asyncio.Future[None] = asyncio.ensure_future(asyncio.to_thread(job, *arguments))
        self._at_work.add(work)
        work.add_done_callback(self._done)
        return work

    def _done(self, work: asyncio.Future[None]) -> None:
        self._at_work.discard(work)
        if not work.cancelled():
            # Its caller may be gone.
            work.exception()

    def _release_soon(self) -> asyncio.Future[None]:
        self._closed = True
        self._changes.wake(self.topic)
        if self._releasing is None:
            self._releasing = asyncio.ensure_future(self._release())
        return self._releasing

    async def _release(self) -> None:
        if self._at_work:
            await asyncio.wait(self._at_work)
        claim, self._claim = self._claim, None
        if claim is not None:
            await asyncio.to_thread(claim.__exit__, None, None, None)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the subscription {self.name!r} is closed: subscribe again")

    def _check_places(self) -> None:
        for place in self._places:
            if place.damage is not None:
                raise place.damage

    def _open(self) -> None:
        claim = self._claim_name()
        try:
            self._places = [self._place(number) for number in range(len(self._topic.logs))]
            self._find_places()
            # Others may have appended between the opening of the topic and the watch on it.
            self._topic.refresh()
        except BaseException:
            claim.__exit__(None, None, None)
            raise
        self._claim = claim

    def _claim_name(self) -> AbstractContextManager[None]:
        claim = self._topic.around.store.lock(f"groups/{self.name}/{self.topic}.lock", 0)
        try:
            claim.__enter__()
        except DeadlineExceeded:
            raise SubscriberBusy(
                f"subscriber {self.name!r} of {self.topic!r} is in use, here or in another "
                "process: use another name, or close that one",
                subscriber=self.name,
                topic=self.topic,
            ) from None
        return claim

    def _forget(self) -> None:
        claim = self._claim_name()
        try:
            file = TopicFile(self._topic.around.store, self.topic)
            if self.name in file.read().subscribers:
                file.remove_subscriber(self.name)
            for log in self._topic.logs:
                key = offset_key(self.name, self.topic, log.keys.partition)
                self._topic.around.store.delete(key)
        finally:
            claim.__exit__(None, None, None)

    def _place(self, number: int) -> _Place:
        offsets = OffsetFile(self._topic.around.store, self.name, self.topic, number)
        return _Place(self._topic, number, offsets)

    def _find_places(self) -> None:
        file = TopicFile(self._topic.around.store, self.topic)
        if self.name not in file.read().subscribers:
            self._register(file)
        for place in self._places:
            try:
                place.move(self._resume(place))
            except DamagedFile as damage:
                place.damage = damage

    def _register(self, file: TopicFile) -> None:
        """Choose where to start, and let retention wait for this subscriber from now on."""
        store = self._topic.around.store
        with ExitStack() as held:
            for place in self._places:
                # Retention holds the same lock: what is chosen here is not about to go.
                held.enter_context(maintenance(store, place.reader.keys, LOCK_TIMEOUT_SECONDS))
            starts = {place.number: resolve(place.reader, self._start) for place in self._places}
            # The offsets first: a registered subscriber without them is damage.
            self._reset(self._places, self._start)
            file.add_subscriber(self.name, starts)

    def _resume(self, place: _Place) -> int:
        committed = place.offsets.read()
        if committed is None:
            raise DamagedFile(
                f"{place.offsets.key} is missing, though {self.name!r} had committed offsets. "
                "Restore it, or unsubscribe and subscribe again to choose where to start",
                file=place.offsets.key,
                reason="missing",
            )
        if committed.damaged_slots:
            self.damaged_offsets.append(place.offsets.key)
        return committed.offset

    def _reset(self, places: list[_Place], to: Position) -> list[int]:
        """Set the offsets, durably; the places themselves move on the event loop."""
        now = self._topic.around.system.clock.time_ms()
        # A reader of its own: the place's may be in use by an iteration.
        offsets = [resolve(self._topic.reader(place.number), to) for place in places]
        for place, offset in zip(places, offsets, strict=True):
            place.offsets.reset(offset, now)
        return offsets

    def _commit(self, wanted: dict[int, int]) -> None:
        now = self._topic.around.system.clock.time_ms()
        for number, offset in wanted.items():
            self._places[number].offsets.commit(offset, now)

    # Delivering

    def _wanted(self, record: Record | RecordBatch | None) -> dict[int, int]:
        if record is None:
            return self.positions()
        if record.topic != self.topic:
            raise InvalidOption(
                f"the record is of {record.topic!r}, the subscription of {self.topic!r}",
                option="record",
            )
        self._topic.keys(record.partition)
        if isinstance(record, Record):
            return {record.partition: record.offset + 1}
        return {record.partition: record.next_offset}

    def _delivered(self, place: _Place) -> int:
        current = self._current
        if current is not None and current.partition == place.number:
            return current.offset + 1
        return place.delivered

    def _rewind(self) -> None:
        """Start again behind what was delivered: an iteration may have been left in a batch."""
        self._check_places()
        self._settle()
        for place in self._places:
            place.move(place.delivered)

    def _settle(self) -> None:
        """The record that is out counts as delivered."""
        for place in self._places:
            place.delivered = self._delivered(place)
        self._current = None

    async def _next(self) -> tuple[_Place, list[Record]]:
        """The next records of some partition; waits for them. The partitions take turns."""
        while True:
            changed = self._changes.ticket(self.topic)
            for _ in self._places:
                place = self._places[self._turn]
                self._turn = (self._turn + 1) % len(self._places)
                self._check_open()
                if place.cursor.offset < self._topic.durable[place.number]:
                    records = self._cached(place) or await place.fetch()
                    if records:
                        return place, records
            await self._changes.wait(self.topic, changed)

    def _cached(self, place: _Place) -> list[Record] | None:
        """From memory, when this process committed the records a moment ago."""
        number = place.number
        durable = self._topic.durable[number]
        cache = self._topic.caches[number]
        records = cache.read(self.topic, number, place.cursor.offset, durable)
        if records:
            place.cursor.seek(records[-1].offset + 1)
        return records


def resolve(reader: PartitionReader, to: Position) -> int:
    """The offset that a position means in a partition."""
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


def fetch(cursor: Cursor, bytes_max: int = FETCH_BYTES) -> list[Record]:
    """The next records from the disk, or none at the durable end."""
    start = cursor.offset
    keys = cursor.keys
    while entries := cursor.fetch(bytes_max):
        records: list[Record] = []
        for entry in entries:
            records += entry.view().records(keys.topic, keys.partition)
        if records and records[0].offset < start:
            records = [record for record in records if record.offset >= start]
        if records:
            return records
        # Compaction took the rest of that entry: there may be more behind it.
    return []
