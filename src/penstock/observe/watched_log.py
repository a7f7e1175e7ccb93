"""A log as an observer sees it: its topics, and every group that reads them, here or elsewhere."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add

from penstock.bus.histogram import NO_DURATIONS
from penstock.errors import UnknownTopic
from penstock.log.lag import PartitionLag
from penstock.log.queue import WalMessageQueue
from penstock.log.statistics import QueueStatistics, TopicStatistics
from penstock.observe.log_look import LookedAt, Readers, look_at
from penstock.observe.values import Cause, GroupKind, LogPartition, LogSnapshot, TopicSnapshot
from penstock.observe.watched import Position, Sight, Watched, Why
from penstock.system import SECOND_MS, System

NO_FIGURES = TopicStatistics((), 0, 0, 0, 0, 0, 0)


class WatchedLog(Watched):
    """A queue. Opened read-only, all of its topics are looked at; else those that are open here."""

    def __init__(self, queue: WalMessageQueue, name: str, *, system: System) -> None:
        super().__init__(queue, name)
        self._queue = queue
        self._clock = system.clock
        self._topics: Mapping[str, LookedAt] = {}
        self._at = self._clock.monotonic()
        self._now_ms = self._clock.time_ms()

    # Looking

    async def look(self) -> None:
        topics = {}
        for name in await self._names():
            try:
                opened = await self._queue._engine.topics.open_existing(name)
            except UnknownTopic:
                continue  # it was deleted meanwhile
            await opened.look_again()
            info = self._queue._engine.maintenance.info
            topics[name] = await asyncio.to_thread(look_at, opened, info)
        self._topics = topics
        self._at, self._now_ms = self._clock.monotonic(), self._clock.time_ms()

    async def _names(self) -> list[str]:
        if self._queue._read_only:
            return await self._queue.topics()
        return list(self._queue._opened)

    # Reading

    def read(self, sight: Sight) -> None:
        figures = self._queue.statistics()
        sight.logs.append(self._log(figures))
        sight.topics.extend(
            self._topic(name, looked, figures.topics.get(name, NO_FIGURES))
            for name, looked in sorted(self._topics.items())
        )

    def _log(self, figures: QueueStatistics) -> LogSnapshot:
        store = figures.store
        held = [one.bytes for looked in self._topics.values() for one in looked.infos]
        return LogSnapshot(
            name=self.name,
            bytes=sum(held),
            reads=store.reads,
            bytes_read=store.bytes_read,
            writes=store.writes,
            bytes_written=store.bytes_written,
            syncs=store.syncs,
            error=self.error,
        )

    def _topic(self, name: str, looked: LookedAt, figures: TopicStatistics) -> TopicSnapshot:
        poison = {one.partition: one.poisoned for one in figures.partitions}
        return TopicSnapshot(
            source=self.name,
            topic=name,
            partitions=tuple(
                LogPartition(
                    partition=info.partition,
                    next_offset=head.next_offset,
                    durable_offset=head.durable_offset,
                    earliest_offset=info.earliest_offset,
                    bytes=info.bytes,
                    segments=info.segments,
                    oldest_ms=info.oldest_timestamp,
                    full=info.full,
                    poisoned=poison.get(info.partition),
                )
                for info, head in zip(looked.infos, looked.heads, strict=True)
            ),
            sync_durations=reduce(
                add, (one.sync_durations for one in figures.partitions), NO_DURATIONS
            ),
            records_accepted=figures.records_accepted,
            records_committed=figures.records_committed,
            records_failed=figures.records_failed,
            commits=figures.commits,
            pending_bytes=figures.pending_bytes,
        )

    # Groups

    def positions(self) -> Iterable[Position]:
        here = {(one.topic, one.name) for one in list(self._queue._subscriptions) if one._held}
        for topic, looked in self._topics.items():
            for group, lags in looked.lags.items():
                readers = looked.readers.get(group)
                local = (topic, group) in here or _is_here(readers)
                for lag in lags:
                    yield self._position(topic, group, lag, readers, local=local)

    def _position(
        self, topic: str, group: str, lag: PartitionLag, readers: Readers | None, *, local: bool
    ) -> Position:
        return Position(
            kind=GroupKind.LOG,
            source=self.name,
            group=group,
            topic=topic,
            partition=lag.partition,
            records=lag.records,
            done=lag.committed,
            count=lag.committed,
            at=self._at,
            committed=lag.committed,
            end=lag.end,
            age_seconds=lag.milliseconds / SECOND_MS if lag.records else 0.0,
            since_ms=max(lag.committed_ms or 0, self._now_ms - lag.milliseconds),
            members=() if readers is None else readers.of(topic, lag.partition),
            generation=None if readers is None else readers.generation,
            local=local,
        )

    def explain(self, position: Position) -> Why | None:
        if position.source != self.name:
            return None
        here = (
            one
            for one in list(self._queue._subscriptions)
            if (one.topic, one.name) == (position.topic, position.group)
        )
        if any(position.partition in one._paused for one in here):
            detail = "the subscription is paused: resume() lets it go on"
            return Why(cause=Cause.PAUSED, detail=detail, offset=position.committed)
        return self._held_elsewhere(position)

    def _held_elsewhere(self, position: Position) -> Why | None:
        """A live member that commits nothing; only its process can tell why."""
        looked = self._topics.get(position.topic)
        readers = looked.readers.get(position.group) if looked is not None else None
        if readers is None or position.local:
            return None
        detail = readers.tell(position.topic, position.partition, self._now_ms)
        if detail is None:
            return None
        return Why(cause=Cause.NO_PROGRESS, detail=detail, offset=position.committed)

    def troubles(self) -> Iterable[str]:
        if self.error is not None:
            yield f"the log {self.name!r} cannot be looked at: {self.error}"
        for looked in self._topics.values():
            yield from looked.troubles
        for name, topic in self._queue.statistics().topics.items():
            for one in topic.partitions:
                if one.poisoned is not None:
                    yield f"{name}/{one.partition} takes no more records: {one.poisoned}"


def _is_here(readers: Readers | None) -> bool:
    return readers is not None and readers.has_process(os.getpid())
