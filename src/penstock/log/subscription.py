"""A durable subscriber: reads a topic from where it left off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from penstock.errors import Closed, DeadlineExceeded, InvalidOption
from penstock.log.engine import Engine
from penstock.log.epoch import first_offset
from penstock.log.epoch_barrier import EpochBarrier
from penstock.log.fetched import ITERATED_RECORDS, AtHand, Fetched
from penstock.log.membership import Membership
from penstock.log.names import check_name
from penstock.log.open_topic import OpenTopic
from penstock.log.places import Place, Position, check_one_partition
from penstock.log.records import Record
from penstock.log.topic import TopicState
from penstock.log.waiting import begin

BATCH_RECORDS_MAX = 10_000
LOOK_SECONDS = 0.05
"""How often a member at the end of an epoch looks how far the others are."""
_T = TypeVar("_T")


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


class Subscription(AtHand):
    """An async iterator over the records of a topic, in order within each partition.

    Use it as ``async with queue.subscribe(topic, name) as records: async for record in records``.
    A record is consumed when it is committed; what was delivered and not committed comes again
    after a restart. A name has one live subscription at a time, over all processes; when its
    process dies the name is free at once. Cancelling the iteration loses nothing.
    """

    def __init__(self, engine: Engine, topic: str, name: str, start: Position) -> None:
        super().__init__()
        self.topic = check_name("topic", topic)
        self.name = check_name("subscriber", name)
        self._start = start
        self._topics = engine.topics
        self._changes = engine.changes
        self._joined: Membership | None = None
        """Made when the topic is open in this process."""
        self._turn = 0
        self._paused: frozenset[int] = frozenset()
        self._place: Place | None = None
        """The partition that the records at hand are of."""
        self._followed: TopicState | None = None
        """Whose partitions and epochs are in use."""
        self._barrier = EpochBarrier()
        self._consumed_elsewhere: Mapping[int, int] = {}
        """What other members of the group have consumed, as far as it keeps an epoch shut."""
        self._filling = asyncio.Lock()
        self._opening: asyncio.Future[None] | None = None
        self._releasing: asyncio.Future[None] | None = None
        self._at_work: set[asyncio.Future[Any]] = set()
        self._closed = False
        if topic in engine.topics.by_name:
            self._join(engine.topics.by_name[topic])

    @property
    def damaged_offsets(self) -> list[str]:
        """Offset files with a damaged slot: the older slot was used, so records may come again."""
        return self._joined.damaged_offsets if self._joined else []

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
        """Claim the name and find the place to start. Iterating does it too.

        A topic that is not open in this process yet is opened first.
        """
        self._check_open()
        if self._held:
            return
        if self._opening is None:
            self._opening = self._begin(Membership.open)
            self._opening.add_done_callback(self._opened)
        await asyncio.shield(self._opening)
        self._check_open()

    async def close(self) -> None:
        """Give the name back. Nothing is committed by closing."""
        await asyncio.shield(self._release_soon())

    async def next_batch(
        self, timeout: float | None = None, records_max: int = BATCH_RECORDS_MAX
    ) -> RecordBatch:
        """The next records of some partition, at least one; never waits to fill a batch.

        Raises DeadlineExceeded when none came within ``timeout`` seconds; call it again, nothing
        is lost.
        """
        _check_records_max(records_max)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    if records := self._take(records_max):
                        return self._batch(records)
                    await self._fill()
        except DeadlineExceeded:
            # A lock further down: its message tells more.
            raise
        except TimeoutError:
            raise DeadlineExceeded(
                f"no record of {self.topic!r} came within {timeout:g} s: ask again when you like, "
                "nothing is lost",
                topic=self.topic,
                seconds=timeout,
            ) from None

    def batches(self, records_max: int = BATCH_RECORDS_MAX) -> AsyncIterator[RecordBatch]:
        """The records in batches of one partition each; never waits to fill one."""
        return _Batches(self, _check_records_max(records_max))

    async def commit(self, record: Record | RecordBatch | Mapping[int, int] | None = None) -> None:
        """Mark as consumed, durably: up to this record, or all that was delivered.

        A mapping tells for each partition the offset of the next record that is not consumed.
        Offsets only move forward: committing an older record changes nothing.
        """
        await self._ready()
        await asyncio.shield(self._begin(Membership.commit, self._wanted(record)))

    async def while_held(self, job: Callable[[], _T]) -> _T:
        """Run a blocking job in a thread, and return what it does: nobody else has the name then.

        Cancelling the wait does not stop the job; closing waits for it.
        """
        await self.open()
        done: list[_T] = []
        await asyncio.shield(self._begin(lambda _: done.append(job())))
        return done[0]

    async def seek(self, to: Position, *, partition: int | None = None) -> None:
        """Go on from another place, and resume there after a restart: the seek is durable.

        Without a partition it applies to all of them; an offset needs one, unless there is one.
        """
        await self._ready()
        places = self._places
        if partition is None:
            check_one_partition(to, len(places))
        else:
            places = self._places_of([partition])
        offsets = await asyncio.to_thread(self._call, self._membership.seek, places, to)
        self._move(places, offsets)

    async def rewind(self, partitions: Iterable[int]) -> None:
        """Go back to what is committed: what was delivered since then comes again.

        Offsets that others committed under this name meanwhile count too.
        """
        await self._ready()
        places = self._places_of(partitions)
        offsets = await asyncio.to_thread(self._call, self._membership.committed, places)
        self._move(places, offsets)

    async def pause(self, partitions: Iterable[int]) -> None:
        """Deliver nothing of these partitions until :meth:`resume`. Kept in memory only."""
        await self._ready()
        places = self._places_of(partitions)
        self._paused |= {place.number for place in places}
        # What was read and not delivered is read again later. Damage stays what it is.
        sound = [place for place in places if place.damage is None]
        self._move(sound, [self._delivered(place) for place in sound])

    async def resume(self, partitions: Iterable[int]) -> None:
        """Deliver records of these partitions again, from where they were paused."""
        await self._ready()
        self._paused -= {place.number for place in self._places_of(partitions)}
        self._changes.wake(self.topic)

    async def forget(self) -> None:
        """Remove the offsets and the registration: retention waits for this name no longer.

        The subscription is closed by it.
        """
        self._check_open()
        if self._opening is not None:
            await self.open()
        await asyncio.shield(self._begin(Membership.forget))
        await self.close()

    def positions(self) -> dict[int, int]:
        """Partition → offset of the next record that will be delivered."""
        self._check_places()
        return {place.number: self._delivered(place) for place in self._places}

    def lag(self) -> int:
        """Durable records that were not delivered yet, over all partitions."""
        if self._joined is None:
            return 0
        topic = self._topic
        topic.note_commits()
        places = self.positions()
        return sum(
            max(0, durable - places.get(number, first_offset(topic.state.epochs, number)))
            for number, durable in enumerate(topic.durable)
        )

    # Life

    @property
    def _membership(self) -> Membership:
        assert self._joined is not None, "the topic is found first"
        return self._joined

    @property
    def _topic(self) -> OpenTopic:
        return self._membership.topic

    @property
    def _held(self) -> bool:
        return self._joined is not None and self._joined.held

    @property
    def _places(self) -> list[Place]:
        return self._joined.places if self._joined else []

    def _join(self, topic: OpenTopic) -> None:
        check_one_partition(self._start, topic.state.partitions_all)
        self._changes.follow(topic)
        self._joined = Membership(topic, self.name, self._start)

    async def _find(self) -> Membership:
        """The membership; opens the topic when nobody did so before."""
        if self._joined is None:
            topic = await self._topics.open_existing(self.topic)
            self._check_open()
            if self._joined is None:
                self._join(topic)
        return self._membership

    def _begin(self, job: Callable[..., None], *arguments: object) -> asyncio.Future[None]:
        """Run a job in a thread. Closing waits for it, also when its caller was cancelled."""
        return begin(self._at_work, self._work(job, *arguments))

    async def _work(self, job: Callable[..., None], *arguments: object) -> None:
        membership = await self._find()
        await asyncio.to_thread(self._call, job, membership, *arguments)

    def _call(self, job: Callable[..., _T], *arguments: object) -> _T:
        """As long as a thread holds the name, so does the queue hold this, and closes it."""
        return job(*arguments)

    def _opened(self, _: asyncio.Future[None]) -> None:
        """Well or badly: after a failure it can be tried again."""
        self._opening = None

    def _release_soon(self) -> asyncio.Future[None]:
        self._closed = True
        self._settle()
        self._put(None)
        self._changes.wake(self.topic)
        if self._releasing is None:
            self._releasing = asyncio.ensure_future(self._release())
        return self._releasing

    async def _release(self) -> None:
        if self._at_work:
            await asyncio.wait(self._at_work)
        if self._held:
            await asyncio.to_thread(self._membership.close)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the subscription {self.name!r} is closed: subscribe again")

    def _check_places(self) -> None:
        for place in self._places:
            if place.damage is not None:
                raise place.damage.again()

    # Delivering

    def _wanted(self, record: Record | RecordBatch | Mapping[int, int] | None) -> dict[int, int]:
        if record is None:
            return self.positions()
        if isinstance(record, Mapping):
            self._check_places()
            return {self._topic.keys(number).partition: end for number, end in record.items()}
        if record.topic != self.topic:
            raise InvalidOption(
                f"the record is of {record.topic!r}, the subscription of {self.topic!r}",
                option="record",
            )
        self._topic.keys(record.partition)
        if isinstance(record, Record):
            return {record.partition: record.offset + 1}
        return {record.partition: record.next_offset}

    def _delivered(self, place: Place) -> int:
        current = self._current
        if current is not None and current.partition == place.number:
            return current.offset + 1
        return place.delivered

    def _settle(self) -> None:
        """The record that is out counts as delivered."""
        if self._place is not None:
            self._place.delivered = self._delivered(self._place)
        self._current = None

    def _places_of(self, partitions: Iterable[int]) -> list[Place]:
        return [self._places[self._topic.keys(number).partition] for number in partitions]

    def _move(self, places: list[Place], offsets: list[int]) -> None:
        """Go on from other offsets; nothing awaits in between."""
        self._settle()
        if self._place in places:
            self._put(None)
        for place, offset in zip(places, offsets, strict=True):
            place.damage = None
            place.move(offset)
        self._barrier.reset()
        self._consumed_elsewhere = {}
        # One that waits at the old place looks at the new one.
        self._changes.wake(self.topic)

    def _batch(self, records: list[Record]) -> RecordBatch:
        last = records[-1]
        self._current = last
        return RecordBatch(self.topic, last.partition, records, last.offset + 1)

    async def _wait_for_one(self) -> Record:
        while True:
            # Of several who wait, one has them made for all.
            for record in self._records:
                self._current = record
                return record
            if not self._make(ITERATED_RECORDS):
                await self._fill()

    async def _fill(self) -> None:
        """Wait for records and keep them at hand. Of several who ask, one looks for all."""
        await self.open()
        async with self._filling:
            if self._has_more():
                return
            self._check_places()
            self._put(None)
            place, fetched = await self._next()
            self._check_open()
            # No await from here on: what is at hand is never lost by a cancellation.
            self._settle()
            self._place = place
            self._put(fetched)

    async def _next(self) -> tuple[Place, Fetched]:
        """The next records of some partition; waits for them. The partitions take turns."""
        while True:
            changed = self._changes.ticket(self.topic)
            await self._follow_epochs()
            places = self._places
            self._barrier.advance(range(len(places)), self._consumed)
            for _ in places:
                self._turn %= len(places)
                place = places[self._turn]
                self._turn += 1
                self._check_open()
                if place.number in self._paused:
                    continue
                end = self._barrier.end(place.number)
                durable = self._topic.durable[place.number]
                if place.cursor.offset < (durable if end is None else min(end, durable)):
                    fetched = await place.next(end)
                    if fetched:
                        return place, fetched
            if not await self._next_epoch():
                await self._wait(changed)

    # Epochs

    async def _ready(self) -> None:
        await self.open()
        await self._follow_epochs()

    async def _follow_epochs(self) -> None:
        """Take over a change of the partition count, by whomever."""
        topic = self._topic
        if topic.state is self._followed and not topic.behind:
            return
        if topic.behind:
            await asyncio.to_thread(self._call, topic.catch_up)
        followed = topic.state
        if len(self._places) < followed.partitions_all:
            new = await asyncio.to_thread(self._call, self._membership.new_places)
            # No await from here on: of several who looked, one adds them.
            new = [place for place in new if place.number >= len(self._places)]
            self._places.extend(new)
            self._grew(new)
        self._barrier.follow(followed.epochs)
        self._followed = followed

    def _grew(self, places: Sequence[Place]) -> None:
        """There are more partitions now."""

    def _elsewhere(self) -> frozenset[int]:
        """The partitions that other members of the group read."""
        return frozenset()

    def _hears_of_all(self) -> bool:
        """Whether a bell rings for everything that keeps an epoch shut."""
        return not self._elsewhere()

    def _consumed(self, number: int) -> int:
        """How far a partition is consumed: delivered here, as nothing is at hand, or committed."""
        if number in self._elsewhere():
            return self._consumed_elsewhere.get(number, 0)
        return self._places[number].cursor.offset

    async def _next_epoch(self) -> bool:
        """Whether the next epoch may be read now, since the one at hand is consumed by all."""
        numbers = range(len(self._places))
        left = self._barrier.left(numbers, self._consumed)
        if left and self._elsewhere().issuperset(left):
            ends = {number: self._barrier.end(number) or 0 for number in left}
            consumed = await asyncio.to_thread(self._call, self._membership.consumed, ends)
            self._consumed_elsewhere = {**self._consumed_elsewhere, **consumed}
        return self._barrier.advance(numbers, self._consumed)

    async def _wait(self, changed: int) -> None:
        """Wait for the bell; if others keep the epoch shut, only a while: commits ring none."""
        if self._barrier.is_last or self._hears_of_all():
            await self._changes.wait(self.topic, changed)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self._changes.wait(self.topic, changed)


class _Batches(AsyncIterator[RecordBatch]):
    """Batch after batch; may be cancelled and taken up again, as the subscription itself."""

    def __init__(self, subscription: Subscription, records_max: int) -> None:
        self._subscription = subscription
        self._records_max = records_max

    async def __anext__(self) -> RecordBatch:
        return await self._subscription.next_batch(records_max=self._records_max)


def _check_records_max(records_max: int) -> int:
    if records_max < 1:
        raise InvalidOption("records_max is at least 1", option="records_max")
    return records_max
