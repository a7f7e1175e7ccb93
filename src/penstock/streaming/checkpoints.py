"""Where checkpoints are kept: in a cache with bounds, written through to any store."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Self

from penstock.bus.timers import Timers
from penstock.errors import BusyError
from penstock.log.names import check_name
from penstock.scaling.cache import TIMEOUT_SECONDS, BoundedCache
from penstock.scaling.cache_backing import CacheBacking
from penstock.scaling.cache_statistics import CacheStatistics
from penstock.scaling.cache_through import Runner
from penstock.scaling.limits import ScalingLimits
from penstock.stores.base import PersistentBackingStore
from penstock.streaming.checkpoint import (
    StreamCheckpoint,
    damaged,
    decode_checkpoint,
    encode_checkpoint,
    utc_of,
)
from penstock.streaming.guarded_store import GuardedStore, StoreIsAhead, check_generation
from penstock.streaming.ranges import Position
from penstock.system import System

PREFIX = "checkpoints"
TRIES_MAX = 10
"""How often a commit is written anew because another process was faster each time."""


class CheckpointStore:
    """The checkpoints of any number of groups, topics and partitions.

    In the store the checkpoint of a partition has the name ``checkpoints/{topic}/{group}/partition-{p}``.
    Memory holds those that were used last (10,000 unless the limits say otherwise); all of them
    are in the store.

    A commit is **durable when it returns**, and handled records stay handled: committing 9 and then
    3 leaves 9. One of an older generation than the last one raises Fenced. *Cancelled* or after its
    deadline, a commit may still be written. *After a crash* the store has every commit that
    returned. *A damaged checkpoint* raises DamagedFile for whoever reads or commits it, until
    :meth:`reset` says where to go on. When more than ``queue_depth_max`` operations wait for the
    store, another raises BufferFull and does nothing.

    Other processes may commit to the same store. Memory may lag behind them: who takes a partition over
    calls :meth:`read` with ``fresh=True``. It belongs to one event loop and does not close the store.
    """

    def __init__(
        self,
        store: PersistentBackingStore,
        *,
        limits: ScalingLimits | None = None,
        runner: Runner = asyncio.to_thread,
        system: System | None = None,
    ) -> None:
        self._clock = (system or System()).clock
        self._timers = Timers(self._clock)
        self._runner = runner
        self._guarded = GuardedStore(store)
        backing: CacheBacking[str, StreamCheckpoint] = CacheBacking(
            store=self._guarded,
            prefix=f"{PREFIX}/",
            encode=encode_checkpoint,
            decode=decode_checkpoint,
        )
        self._cache: BoundedCache[str, StreamCheckpoint] = BoundedCache(
            limits, backing=backing, runner=runner, system=system
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def read(
        self,
        group: str,
        topic: str,
        partition: int,
        *,
        fresh: bool = False,
        timeout: float = TIMEOUT_SECONDS,
    ) -> StreamCheckpoint | None:
        """The last checkpoint, None when there was none. ``fresh`` asks the store, not memory."""
        key = checkpoint_key(group, topic, partition)
        if fresh:
            found = await self._cache.refresh(key, timeout=timeout)
        else:
            found = await self._cache.get(key, timeout=timeout)
        return found if found is None else _of_its_own(key, found)

    async def commit(
        self,
        group: str,
        topic: str,
        partition: int,
        position: Position | int,
        *,
        generation: int = 0,
        timeout: float = TIMEOUT_SECONDS,
    ) -> StreamCheckpoint:
        """Write what is handled, and return what is committed once it is durable.

        An offset is that of the next record: ``record.offset + 1`` after the record.
        """
        key = checkpoint_key(group, topic, partition)
        wanted = self._checkpoint(group, topic, partition, position, generation)
        present = await self.read(group, topic, partition, timeout=timeout)
        if present is not None:
            check_generation(key, generation, present)
            if wanted.says_no_more_than(present):
                return present
            wanted = present.joined(wanted)
        return await self._write(key, wanted, timeout)

    async def reset(
        self,
        group: str,
        topic: str,
        partition: int,
        position: Position | int,
        *,
        generation: int = 0,
        timeout: float = TIMEOUT_SECONDS,
    ) -> StreamCheckpoint:
        """Set a checkpoint, backwards too, and in place of a damaged one.

        What a seek or a repair asks for. Nobody may commit to the partition at the same time.
        """
        key = checkpoint_key(group, topic, partition)
        wanted = self._checkpoint(group, topic, partition, position, generation)
        name = f"{PREFIX}/{key}"
        self._guarded.resets[name] = wanted
        try:
            await self._cache.put(key, wanted, timeout=timeout)
        finally:
            if self._guarded.resets.get(name) is wanted:
                del self._guarded.resets[name]
        return wanted

    async def delete(
        self, group: str, topic: str, partition: int, *, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        """Forget a checkpoint; the group begins anew there. One that is not there is no error."""
        await self._cache.delete(checkpoint_key(group, topic, partition), timeout=timeout)

    async def checkpoints(
        self, group: str, topic: str, *, timeout: float = TIMEOUT_SECONDS
    ) -> list[StreamCheckpoint]:
        """All checkpoints of a group in a topic, by partition, as the store has them."""
        folder = f"{PREFIX}/{check_name('topic', topic)}/{check_name('group', group)}/"
        async with self._timers.deadline(timeout, "read checkpoints"):
            found = await self._runner(partial(self._read_all, folder))
        return sorted(found, key=lambda one: one.partition)

    def resize(self, entries_max: int) -> None:
        """Keep another number of checkpoints in memory, from now on; all are in the store."""
        limits = self._cache.current_limits.with_(cache_entries_max=entries_max)
        self._cache.reconfigure_limits(limits)

    def statistics(self) -> CacheStatistics:
        """The figures of the cache."""
        return self._cache.statistics()

    async def close(self, *, timeout: float = TIMEOUT_SECONDS) -> None:
        """Take no more calls, and return when all that was begun is done."""
        await self._cache.close(timeout=timeout)

    def _checkpoint(
        self, group: str, topic: str, partition: int, position: Position | int, generation: int
    ) -> StreamCheckpoint:
        place = Position(position) if isinstance(position, int) else position
        return StreamCheckpoint(
            group=group,
            topic=topic,
            partition=partition,
            offset=place.offset,
            gaps=place.gaps,
            committed_at=utc_of(self._clock.time_ms()),
            generation=generation,
        )

    async def _write(self, key: str, wanted: StreamCheckpoint, timeout: float) -> StreamCheckpoint:
        for _ in range(TRIES_MAX):
            try:
                await self._cache.put(key, wanted, timeout=timeout)
            except StoreIsAhead as ahead:
                wanted = ahead.both
            else:
                return wanted
        raise BusyError(f"others committed {key} {TRIES_MAX} times in between; nothing was written")

    def _read_all(self, folder: str) -> list[StreamCheckpoint]:
        return [
            _of_its_own(
                name.removeprefix(f"{PREFIX}/"), decode_checkpoint(self._guarded.read(name), name)
            )
            for name in self._guarded.list(folder)
        ]


def checkpoint_key(group: str, topic: str, partition: int) -> str:
    """The key of a checkpoint, below the prefix."""
    check_name("topic", topic)
    return f"{topic}/{check_name('group', group)}/partition-{partition}"


def _of_its_own(key: str, found: StreamCheckpoint) -> StreamCheckpoint:
    """Refuse a checkpoint that stands under the name of another: a copy that went astray."""
    own = checkpoint_key(found.group, found.topic, found.partition)
    if own == key:
        return found
    raise damaged(f"{PREFIX}/{key}", f"it is that of {own}")
