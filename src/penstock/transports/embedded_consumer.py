"""A consumer of the embedded transport: a durable subscriber of the log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from penstock.errors import Fenced, OffsetOutOfRange, SubscriberBusy, UnknownPartition, UsageError
from penstock.log.lag import topic_state
from penstock.log.queue import WalMessageQueue
from penstock.transports.assignment import AssignmentSource, MemberAssignment
from penstock.transports.base import BATCH_RECORDS_MAX, Consumer
from penstock.transports.records import StartPosition, StreamBatch

NOTHING = MemberAssignment(-1, frozenset())


class EmbeddedConsumer(Consumer):
    """The live member of a group on the log; its name is claimed over all processes.

    It asks its assignment source before each batch. Who changes the assignment calls
    :meth:`reassign`, so that a member that waits notices at once. A partition that is given to it
    starts at the group's committed offset; one that is taken away delivers nothing more, and
    commits of it raise Fenced.
    """

    def __init__(
        self,
        queue: WalMessageQueue,
        topic: str,
        group: str,
        start: StartPosition,
        assignment: AssignmentSource,
    ) -> None:
        self.topic = topic
        self.group = group
        self._queue = queue
        self._subscription = queue.subscribe(topic, group, start=start)
        self._source = assignment
        self._count: int | None = None
        """How many partitions there are; known when it is open."""
        self._has = NOTHING
        self._paused: frozenset[int] = frozenset()
        self._applying = asyncio.Lock()

    async def open(self) -> None:
        """Claim the group and find the places to start.

        SubscriberBusy when the group has a member: it may be opened again when that one is gone.
        """
        try:
            await self._subscription.open()
            if self._count is None:
                self._count = (await topic_state(self._queue, self.topic)).partitions
            await self.reassign()
        except SubscriberBusy:
            raise
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Give the group back. Commits nothing; who waits for a batch gets Closed. Idempotent."""
        await self._subscription.close()

    async def next_batch(
        self, timeout: float | None = None, records_max: int = BATCH_RECORDS_MAX
    ) -> StreamBatch:
        """The next records of one of its partitions, at least one."""
        await self.open()
        while True:
            await self.reassign()
            batch = await self._subscription.next_batch(timeout, records_max)
            if batch.partition in self._source(self._partitions()).partitions:
                return batch
            # Taken away while it was read: whoever has it now delivers it.

    async def commit(self, done: StreamBatch | Mapping[int, int] | None = None) -> None:
        """Mark as consumed, on the disk when this returns. Fenced for what it no longer has."""
        self._partitions()
        if done is None:
            done = self.positions()
        elif isinstance(done, StreamBatch):
            self._check_topic(done)
            done = {done.partition: done.next_offset}
        self._check_own(done)
        for partition, offset in done.items():
            self._check_offset(partition, offset)
        await self._subscription.commit(done)

    async def seek(self, to: StartPosition, *, partition: int | None = None) -> None:
        """Go on from another place, durably; without a partition, in all that it has."""
        total = self._partitions()
        if partition is None and len(self._has.partitions) == total:
            await self._subscription.seek(to)
            return
        chosen = sorted(self._has.partitions) if partition is None else [partition]
        self._check_own(chosen)
        for number in chosen:
            await self._subscription.seek(to, partition=number)

    async def pause(self, *partitions: int) -> None:
        """Deliver nothing of these partitions until :meth:`resume`; they need not be its own yet."""
        self._check_numbers(partitions)
        self._paused |= set(partitions)
        await self._subscription.pause(partitions)

    async def resume(self, *partitions: int) -> None:
        """Deliver records of these partitions again, as far as they are its own."""
        self._check_numbers(partitions)
        self._paused -= set(partitions)
        await self._subscription.resume(set(partitions) & self._has.partitions)

    def assignment(self) -> MemberAssignment:
        """Which partitions this member reads now, and since which generation."""
        self._partitions()
        return self._has

    def positions(self) -> dict[int, int]:
        """Partition → offset of the next record that will be delivered, of those it has."""
        self._partitions()
        positions = self._subscription.positions()
        return {number: positions[number] for number in sorted(self._has.partitions)}

    async def reassign(self) -> None:
        """Take over what the assignment source says now.

        When it is cancelled the old assignment stays, and the next call does it anew.
        """
        count = self._partitions()
        if self._source(count) == self._has:
            return
        async with self._applying:
            new = self._source(count)
            await self._subscription.pause(set(range(count)) - new.partitions)
            if self._has is not NOTHING:
                await self._subscription.rewind(self._gained(new))
            self._has = new
            await self._subscription.resume(new.partitions - self._paused)

    # Inside

    def _gained(self, new: MemberAssignment) -> frozenset[int]:
        """The partitions that another member may have read since they were looked at here."""
        if new.generation > self._has.generation + 1:
            # Between two looks they may have been away and come back.
            return new.partitions
        return new.partitions - self._has.partitions

    def _partitions(self) -> int:
        if self._count is None:
            raise UsageError(
                "open the consumer first: async with transport.subscribe(...) as consumer"
            )
        return self._count

    def _check_topic(self, batch: StreamBatch) -> None:
        if batch.topic != self.topic:
            raise UsageError(
                f"the batch is of {batch.topic!r}, the consumer of {self.topic!r}",
                topic=self.topic,
            )

    def _check_numbers(self, partitions: Iterable[int]) -> None:
        count = self._partitions()
        for number in partitions:
            if not 0 <= number < count:
                raise UnknownPartition(
                    f"topic {self.topic!r} has partitions 0 to {count - 1}, not {number}",
                    topic=self.topic,
                    partition=number,
                )

    def _check_own(self, partitions: Iterable[int]) -> None:
        self._check_numbers(partitions)
        now = self._source(self._partitions())
        for number in partitions:
            if number not in now.partitions:
                raise Fenced(
                    f"partition {number} of {self.topic!r} is not this member's since generation "
                    f"{now.generation} of group {self.group!r}: leave its records to the other one",
                    group=self.group,
                    generation=self._has.generation,
                    current=now.generation,
                    partition=number,
                    reason="partition",
                )

    def _check_offset(self, partition: int, offset: int) -> None:
        """Whoever commits beyond the end would skip what is produced next."""
        end = self._queue.durable_offset(self.topic, partition)
        if not 0 <= offset <= end:
            raise OffsetOutOfRange(
                f"offset {offset} of {self.topic}/{partition} cannot be committed: use 0 to {end}",
                topic=self.topic,
                partition=partition,
                offset=offset,
                end=end,
            )
