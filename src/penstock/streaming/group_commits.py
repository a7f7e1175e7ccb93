"""Commits of one member of a group: the offset to the transport, what is beyond it to a checkpoint.

**One truth.** Where a group goes on is the offset that the transport has committed. A checkpoint says
what is handled beyond that offset, and counts only while it stands at the very same offset: after a
seek, or a crash between the two writes, it says nothing. Then records that were handled come again;
none is passed over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.streaming.checkpoints import CheckpointStore
from penstock.streaming.ranges import Position
from penstock.transports.base import Consumer

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
        """Partition → the committed offset that was sought because records were left out."""
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

        If records were left out in between (they came, and their partition seemed to go to another
        member, and stayed), it goes back to them and says no: they come again. Records that
        compaction took are no reason to go back twice. Nobody may commit the partition meanwhile.
        """
        stands = await self._committed(partition)
        if partition not in self._consumer.assignment().partitions:
            return False
        if stands >= first or self._sought.get(partition) == stands:
            return True
        self._sought[partition] = stands
        await self._consumer.seek(stands, partition=partition)
        return False

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
