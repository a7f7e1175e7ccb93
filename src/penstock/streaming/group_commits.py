"""Commits of one member of a group: the offset to the transport, what is beyond it to a checkpoint.

**One truth.** Where a group goes on is the offset that the transport has committed. A checkpoint says
what is handled beyond that offset, and counts only while it stands at the very same offset: after a
seek, or a crash between the two writes, it says nothing. Then records that were handled come again;
none is passed over.
"""

from __future__ import annotations

from penstock.streaming.checkpoints import CheckpointStore
from penstock.streaming.ranges import Position
from penstock.transports.base import Consumer


class GroupCommits:
    """Commits positions for one consumer. Without a store, what is beyond the offset is not kept."""

    def __init__(self, consumer: Consumer, store: CheckpointStore | None) -> None:
        self._consumer = consumer
        self._store = store
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
