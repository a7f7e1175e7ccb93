"""A group of a bus that reads a topic of a transport."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from penstock.bus.timers import Timers
from penstock.errors import Closed, DeadlineExceeded, Fenced
from penstock.transports.base import Consumer, Transport
from penstock.transports.records import StreamBatch, StreamRecord

LOOK_SECONDS = 1.0
"""How often a group that gets nothing is told how far the topic goes."""
HAND_OVER_SECONDS = 5.0
"""How long partitions that go to another member wait for the handlers."""


class TopicReader:
    """A durable subscriber, as a bus needs it: a member of a group of the transport.

    The group may have members in other processes: then each has partitions of its own. What was read
    and not committed comes again, to this or to another one.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        group: str,
        written: Mapping[int, int],
        timers: Timers,
    ) -> None:
        self.topic = topic
        self.group = group
        self._transport = transport
        self._written = written
        """Partition → the offset behind what this process has written."""
        self._timers = timers
        self._consumer: Consumer | None = None
        self._delivered: dict[int, int] = {}
        self._moved = asyncio.Event()
        self._ends: dict[int, int] = {}
        self._committed: dict[int, int] = {}

    async def open(self) -> None:
        """Join the group. Each try has a consumer of its own."""
        if self._consumer is None:
            consumer = self._transport.subscribe(self.topic, self.group, on_revoke=self._hand_over)
            await consumer.open()
            self._consumer = consumer
            await self._look()

    async def close(self) -> None:
        """Leave the group."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()

    async def next_batch(
        self, timeout: float | None = None, records_max: int = 1
    ) -> StreamBatch | Sequence[StreamRecord]:
        """The next records of one partition; none when none came for a while, with a look at the end."""
        consumer = self._opened()
        try:
            batch = await consumer.next_batch(timeout or LOOK_SECONDS, records_max)
            self._delivered[batch.partition] = batch.next_offset
            return batch
        except DeadlineExceeded:
            await self._look()
            return ()

    async def pause(self, partitions: Collection[int]) -> None:
        """Deliver nothing of those that are still ours."""
        if mine := self._mine(partitions):
            await self._opened().pause(*mine)

    async def resume(self, partitions: Collection[int]) -> None:
        """Deliver records of those that are still ours."""
        if mine := self._mine(partitions):
            await self._opened().resume(*mine)

    async def commit(self, record: StreamRecord | None = None) -> None:
        """Mark as consumed up to this record; of a partition that went to another member, nothing.

        One that is about to go takes commits until it has gone.
        """
        if record is None:
            await self._opened().commit()
            return
        try:
            await self._opened().commit({record.partition: record.offset + 1})
        except Fenced:
            if self._mine([record.partition]):
                raise
        else:
            self._committed[record.partition] = record.offset + 1
            self._moved.set()

    def positions(self) -> Mapping[int, int]:
        """The next offset of each partition that this member has."""
        return {} if self._consumer is None else self._consumer.positions()

    def lag(self) -> int:
        """Records that were not read yet, as far as is known: by offsets, which may have gaps."""
        return sum(
            max(0, self._end_of(partition) - max(position, self._committed.get(partition, 0)))
            for partition, position in self.positions().items()
        )

    def _end_of(self, partition: int) -> int:
        return max(self._ends.get(partition, 0), self._written.get(partition, 0))

    async def _hand_over(self, partitions: frozenset[int]) -> None:
        """Let the handlers finish what was read of partitions that go to another member."""
        with suppress(DeadlineExceeded):
            async with self._timers.deadline(HAND_OVER_SECONDS, "hand partitions over"):
                while any(map(self._is_in_work, partitions)):
                    self._moved.clear()
                    await self._moved.wait()

    def _is_in_work(self, partition: int) -> bool:
        return self._committed.get(partition, 0) < self._delivered.get(partition, 0)

    async def _look(self) -> None:
        if not self._transport.capabilities.lag:
            return
        for one in await self._transport.lag(self.topic, self.group):
            self._ends[one.partition] = one.end
            self._committed[one.partition] = one.committed

    def _mine(self, partitions: Collection[int]) -> list[int]:
        return [one for one in partitions if one in self._opened().assignment().partitions]

    def _opened(self) -> Consumer:
        if self._consumer is None:
            raise Closed(f"group {self.group} reads {self.topic} no more", topic=self.topic)
        return self._consumer
