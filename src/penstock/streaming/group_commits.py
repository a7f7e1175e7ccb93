"""Commits of one member of a group: the offset to the transport, what is beyond it to a checkpoint.

**One truth.** Where a group goes on is the offset that the transport has committed. A checkpoint says
what is handled beyond that offset, and counts only while it stands at the very same offset: after a
seek, or a crash between the two writes, it says nothing. Then records that were handled come again;
none is passed over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from penstock.errors import Fenced
from penstock.streaming.checkpoints import CheckpointStore
from penstock.streaming.ranges import Position
from penstock.transports.base import Consumer

NOWHERE = 1 << 62
"""What is committed of a partition when that is not known."""
Committed = Callable[[int], Awaitable[int]]
"""The offset that the group has committed of a partition."""


class GroupCommits:
    """Commits positions for one consumer. Without a store, what is beyond the offset is not kept."""

    def __init__(
        self, consumer: Consumer, store: CheckpointStore | None, committed: Committed
    ) -> None:
        self._consumer = consumer
        self._store = store
        self._committed = committed
        self._sought: dict[int, int] = {}
        """Partition → the committed offset that was sought because it was not delivered."""
        self._kept: set[int] = set()
        """Partitions that have a checkpoint in the store."""

    async def __call__(self, partition: int, position: Position) -> None:
        """Durable when it returns. Fenced, and nothing written, if another member has it."""
        await self._consumer.commit({partition: position.offset})
        if self._store is None:
            return
        group, topic = self._consumer.group, self._consumer.topic
        if position.gaps:
            self._kept.add(partition)
            await self._store.commit(group, topic, partition, position)
        elif partition in self._kept:
            await self.forget(partition)

    async def is_next(self, partition: int, first: int) -> bool:
        """Whether a partition that begins here is this member's, and begins where the group stands.

        If it does not, as the partition seemed to go to another member and stayed, it is put there,
        and the answer is no: what is left comes again. Records that compaction took are no reason
        to do so twice. Nobody may commit the partition meanwhile.
        """
        sought = self._sought.pop(partition, None)  # it counts once, for what came right after it
        stands = await self._committed(partition)
        if partition not in self._consumer.assignment().partitions:
            await self.go_back(partition, stands)
            return False
        if stands in (first, NOWHERE) or sought == stands:
            return True
        self._sought[partition] = stands
        await self._consumer.seek(stands, partition=partition)
        return False

    async def go_back(self, partition: int, offset: int) -> None:
        """Deliver again from here, should the partition come back before it was given away.

        Of what was given away the group's offset counts anyway.
        """
        with suppress(Fenced):
            await self._consumer.seek(offset, partition=partition)

    async def resume(self, partition: int, offset: int) -> Position:
        """What is handled of a partition whose next record has this offset.

        Raises DamagedFile for a checkpoint that is not sound, until :meth:`forget`.
        """
        if self._store is not None:
            found = await self._store.read(
                self._consumer.group, self._consumer.topic, partition, fresh=True
            )
            if found is not None:
                self._kept.add(partition)
                if found.offset == offset:
                    return found.position
        return Position(offset)

    async def forget(self, partition: int) -> None:
        """Remove the checkpoint: the group goes on at its offset, and nothing beyond is handled."""
        if self._store is not None:
            await self._store.delete(self._consumer.group, self._consumer.topic, partition)
        self._kept.discard(partition)
