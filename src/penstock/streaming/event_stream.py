"""A subscription as an async iterator over events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any, Protocol, Self

from penstock.bus.encoding import MessageCodec
from penstock.errors import Closed, Fenced
from penstock.log.records import Record
from penstock.streaming.checkpoints import CheckpointStore
from penstock.streaming.committing import INTERVAL_SECONDS, AutoCommit
from penstock.streaming.group_commits import Committed, GroupCommits
from penstock.streaming.outgoing import TYPE
from penstock.streaming.progress import PartitionProgress
from penstock.streaming.ranges import OFFSET_MAX, Position
from penstock.streaming.stream_event import StreamEvent, event_of
from penstock.streaming.transport_statistics import TransportMeter
from penstock.system import System
from penstock.transports.assignment import Handled, MemberAssignment, OnRevoke
from penstock.transports.base import Consumer
from penstock.transports.records import StartPosition, StreamBatch

logger = logging.getLogger("penstock.streaming")

NOTHING = MemberAssignment(-1, frozenset())
LOOK_SECONDS = 0.05
"""How often it is checked, between two events, that their partition is still this member's."""


class Subscribe(Protocol):
    """Makes the consumer of a stream."""

    def __call__(self, *, on_revoke: OnRevoke, handled: Handled) -> Consumer: ...


class EventStream(AsyncIterator[StreamEvent]):
    """The events of a topic for one member of a group, in order within each partition.

    ``async with streams.subscribe(...) as events: async for event in events``. An event counts as
    handled when the next one is asked for, or when it was acknowledged (``event.ack()``). What is
    handled is committed every few seconds and on :meth:`close`. With ``auto_ack=False`` only what
    was acknowledged is handled. With ``auto_commit=None`` the same, and you commit.

    *Cancelled* while it waits, or while you handle an event, nothing is lost: the next loop over
    the stream begins with the event that was not handled. The same holds after ``break``: ``ack()``
    what you are done with. *After a crash* all that was not committed comes again. *In a rebalance* the
    rest of a partition that went to another member is not delivered here.

    One task at a time iterates. It belongs to one event loop.
    """

    def __init__(
        self,
        subscribe: Subscribe,
        committed: Committed,
        checkpoints: CheckpointStore | None,
        meter: TransportMeter,
        codec: MessageCodec,
        *,
        auto_ack: bool,
        auto_commit: float | None,
        records_max: int,
        system: System,
        on_close: Callable[[EventStream], object],
    ) -> None:
        self._consumer = consumer = subscribe(on_revoke=self._revoked, handled=self._handled)
        self.topic, self.group = consumer.topic, consumer.group
        self._commits = commits = GroupCommits(consumer, checkpoints, committed)
        self._meter = meter
        self._codec = codec
        self._auto_ack = auto_ack
        self._records_max = records_max
        self._on_close = on_close
        self._has = NOTHING
        self._looked_at = float("-inf")
        self._progress: dict[int, PartitionProgress] = {}
        self._expected: dict[int, int] = {}
        """Partition → the offset behind what was taken from the consumer."""
        self._partition = -1
        self._at_hand: Iterator[Record] = iter(())
        """Taken from the consumer and not delivered yet."""
        self._aside: dict[int, Iterator[Record]] = {}
        """The same, of partitions that are not at hand: perhaps they go to another member."""
        self._moved = asyncio.Event()
        self._current: StreamEvent | StreamBatch | None = None
        """Delivered, and handled as soon as the next one is asked for."""
        self._again: StreamEvent | StreamBatch | None = None
        self._filling = asyncio.Lock()
        self._clock = system.clock
        self._commits_itself = auto_commit is not None
        self._auto = AutoCommit(
            self._positions,
            commits,
            interval_seconds=INTERVAL_SECONDS if auto_commit is None else auto_commit,
            on_error=self._commit_failed,
            system=system,
        )
        self._opened = self._closed = False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Join the group. Iterating does it too. UnknownTopic when nobody has made the topic."""
        self._check_open()
        if not self._opened:
            await self._consumer.open()
            self._opened = True
            if self._commits_itself:
                self._auto.begin()

    async def close(self) -> None:
        """Commit what was handled, unless you commit yourself, and leave the group. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._on_close(self)
        try:
            if self._commits_itself and self._opened:
                with suppress(Fenced):  # another member has it, and goes on with it
                    await self._auto.close()
        finally:
            await self._consumer.close()

    # Iterating

    def __aiter__(self) -> Self:
        self._deliver_again()
        return self

    async def __anext__(self) -> StreamEvent:
        """The next event; waits for it. May be cancelled and called again: nothing is lost."""
        if isinstance(self._again, StreamEvent):
            self._current, self._again = self._again, None
            return self._current
        self._ack_current()
        while True:
            record = self._next_at_hand()
            if record is not None:
                self._current = event = self._event(record)
                return event
            await self._fill()

    async def batches(self) -> AsyncIterator[StreamBatch]:
        """Whole batches of records of one partition, for those who have no time for events.

        A batch is handled when the next one is asked for. The rules are those of single events.
        """
        self._deliver_again()
        while True:
            if isinstance(self._again, StreamBatch):
                self._current, self._again = self._again, None
                yield self._current
            self._ack_current()
            records = self._rest_at_hand()
            if not records:
                await self._fill()
                continue
            self._current = StreamBatch(
                self.topic, self._partition, records, records[-1].offset + 1
            )
            yield self._current

    # Acknowledging and committing

    def ack(self, event: StreamEvent) -> None:
        """The event is handled: the next commit may pass it."""
        progress = self._progress.get(event.partition)
        if progress is not None:
            progress.handled(event.offset)
        if event is self._current:
            self._current = None
        self._moved.set()

    async def commit(self, event: StreamEvent | StreamBatch | None = None) -> None:
        """Commit what is handled; durable when it returns. Fenced if another member has it.

        With an event or a batch, that one and all before it in its partition count as handled.
        """
        self._check_open()
        if event is not None:
            end = event.offset + 1 if isinstance(event, StreamEvent) else event.next_offset
            self._own_progress(event.partition).handled_below(end)
            if event is self._current:
                self._current = None
        await self._auto.commit()
        self._moved.set()

    def _own_progress(self, partition: int) -> PartitionProgress:
        self._follow()
        progress = self._progress.get(partition)
        if progress is None:
            raise Fenced(
                f"partition {partition} of {self.topic!r} is another member's by now: its events "
                "come again there",
                group=self.group,
                partition=partition,
                reason="partition",
            )
        if partition not in self._has.partitions:
            self._auto.forget(partition)  # to be refused once more, should it have been before
        return progress

    def decode(self, event: StreamEvent) -> Any:
        """The message that an event is; InvalidMessage when it is none that is known."""
        return decoded(self._codec, event)

    # Places

    async def seek(self, to: StartPosition, *, partition: int | None = None) -> None:
        """Go on from another place, of one partition or of all, durably.

        What was handled beyond it counts no more.
        """
        await self.open()
        numbers = self._consumer.positions() if partition is None else [partition]
        for number in numbers:
            await self._commits.forget(number)
        await self._consumer.seek(to, partition=partition)
        for number in numbers:
            self._drop(number)

    async def pause(self, *partitions: int) -> None:
        """Deliver nothing of these partitions until :meth:`resume`, but for what is at hand."""
        await self.open()
        await self._consumer.pause(*partitions)

    async def resume(self, *partitions: int) -> None:
        """Deliver events of these partitions again."""
        await self._consumer.resume(*partitions)

    def assignment(self) -> MemberAssignment:
        """Which partitions this member has, and since which generation."""
        return self._consumer.assignment()

    @property
    def committed(self) -> Mapping[int, int]:
        """Partition → the offset that this stream committed last."""
        return {number: place.offset for number, place in self._auto.committed.items()}

    # Inside

    def _event(self, record: Record) -> StreamEvent:
        self._meter.delivered += 1
        return event_of(record, self.group, self)

    def _next_at_hand(self) -> Record | None:
        if self._clock.monotonic() >= self._looked_at + LOOK_SECONDS:
            self._follow()
        for record in self._at_hand:
            if self._progress[record.partition].take(record.offset):
                return record
        return None

    def _rest_at_hand(self) -> list[Record]:
        self._follow()
        records = list(self._at_hand)
        if records:
            progress = self._progress[self._partition]
            records = [one for one in records if progress.take(one.offset)]
            self._meter.delivered += len(records)
        return records

    def _deliver_again(self) -> None:
        """A loop begins: what the last one did not finish comes first."""
        if self._current is not None:
            self._again, self._current = self._current, None

    def _ack_current(self) -> None:
        current, self._current = self._current, None
        if current is None or not self._auto_ack:
            return
        progress = self._progress.get(current.partition)
        if progress is not None and isinstance(current, StreamEvent):
            progress.handled(current.offset)
        elif progress is not None and isinstance(current, StreamBatch):
            progress.handled_below(current.next_offset)
        self._moved.set()

    async def _fill(self) -> None:
        """Wait for records and keep them at hand."""
        async with self._filling:
            await self.open()
            self._follow()
            for number in self._aside.keys() & self._has.partitions:
                if await self._begin(number):
                    return
            batch = await self._consumer.next_batch(records_max=self._records_max)
            # No await in between: what was taken is never lost by a cancellation.
            self._arrive(batch)

    def _arrive(self, batch: StreamBatch) -> None:
        number, first = batch.partition, batch.records[0].offset
        if first < self._expected.get(number, 0):
            self._aside.pop(number, None)  # it was another member's, and begins anew
        self._expected[number] = batch.next_offset
        self._aside[number] = chain(self._aside.get(number, ()), batch.records)

    async def _begin(self, partition: int) -> bool:
        """Take what was set aside; False when it is another member's by now."""
        if partition not in self._progress:
            records = list(self._aside[partition])
            self._aside[partition] = iter(records)
            first = records[0].offset
            if not await self._commits.is_next(partition, first):
                self._drop(partition)
                return False
            place = await self._commits.resume(partition, first)
            self._follow()
            if partition not in self._aside or partition not in self._has.partitions:
                return False
            self._progress[partition] = PartitionProgress(place)
        self._partition, self._at_hand = partition, self._aside.pop(partition)
        return True

    def _follow(self) -> None:
        """Look which partitions are this member's, and deliver nothing of the others."""
        if not self._opened or self._closed:
            return
        self._looked_at = self._clock.monotonic()
        now = self._consumer.assignment()
        if now == self._has:
            return
        before, self._has = self._has, now
        for number in now.partitions - before.partitions:
            self._auto.forget(number)
        if self._partition not in now.partitions:
            self._set_aside()

    def _set_aside(self) -> None:
        # It may come back before it was given away, and then goes on behind these.
        if self._partition >= 0:
            self._aside[self._partition] = self._at_hand
            self._partition, self._at_hand = -1, iter(())

    async def _revoked(self, partitions: frozenset[int]) -> None:
        """These go to another member: finish what was delivered of them, and commit that."""
        self._follow()
        while not all(map(self._is_finished, partitions)):
            self._moved.clear()
            await self._moved.wait()
        if self._commits_itself:
            with suppress(Fenced):
                await self._auto.commit()
        for number in partitions - self._consumer.assignment().partitions:
            await self._leave(number)

    async def _leave(self, partition: int) -> None:
        """What was read ahead of a partition is dropped: it comes again, wherever that is."""
        progress, end = self._progress.get(partition), self._expected.get(partition)
        if progress is not None and end is not None and progress.end < end:
            await self._commits.go_back(partition, progress.position().offset)
        self._drop(partition)

    def _is_finished(self, partition: int) -> bool:
        progress = self._progress.get(partition)
        if progress is None:
            return True
        place = progress.position()
        if self._commits_itself:
            return place.offset == progress.end
        return self._auto.committed.get(partition) == place

    def _drop(self, partition: int) -> None:
        self._progress.pop(partition, None)
        self._expected.pop(partition, None)
        self._auto.forget(partition)
        if partition == self._partition:
            self._at_hand, self._partition = iter(()), -1
        self._aside.pop(partition, None)
        for name in ("_current", "_again"):
            if (held := getattr(self, name)) is not None and held.partition == partition:
                setattr(self, name, None)

    def _commit_failed(self, partition: int, error: Exception) -> None:
        level = logging.INFO if isinstance(error, Fenced) else logging.ERROR
        logger.log(
            level, "cannot commit %s/%s for %s: %s", self.topic, partition, self.group, error
        )

    def _handled(self, partition: int) -> int:
        progress = self._progress.get(partition)
        return OFFSET_MAX if progress is None else progress.position().offset

    def _positions(self) -> dict[int, Position]:
        return {number: progress.position() for number, progress in self._progress.items()}

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the stream of {self.topic!r} for {self.group!r} was closed")


def decoded(codec: MessageCodec, event: StreamEvent) -> Any:
    """The message of an event, by the class that its header names, or by its topic."""
    named = event.headers.get(TYPE)
    name = event.topic if named is None else named.decode("utf-8", "replace")
    return codec.decode(name, event.value or b"")
