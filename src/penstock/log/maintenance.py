"""The background work on sealed segments: retention, key compaction, moving to the tier.

One thread of its own does it for all open topics of a queue, now and then and whenever it is
asked. It never holds up a publisher or a reader. Trouble with one partition is reported and does
not stop the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from penstock.errors import PenstockError
from penstock.log.compaction import CompactionReport, Compactor
from penstock.log.head import Head
from penstock.log.names import PartitionKeys
from penstock.log.open_topic import OpenTopic, Surroundings
from penstock.log.retention import (
    RetentionClock,
    RetentionInfo,
    find_needs,
    retain,
    retention_info,
)
from penstock.log.tiering import TieringReport, move_sealed
from penstock.log.topic import TopicFile, TopicState
from penstock.system import Worker

_log = logging.getLogger("penstock.log")
InUse = set[tuple[str, int]]
"""Partitions in which entries of unfinished transactions may be looked for: they stay as they are."""


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """What a round of maintenance did to one partition."""

    topic: str
    partition: int
    segments_removed: int = 0
    compaction: CompactionReport | None = None
    tiering: TieringReport | None = None
    error: PenstockError | None = None
    """What kept the round from finishing; the next one tries again."""


class Maintenance:
    """Looks after the open topics of a queue. Blocking, but for ``start``."""

    def __init__(self, around: Surroundings, topics: Callable[[], Iterable[OpenTopic]]) -> None:
        self._around = around
        self._topics = topics
        self._clock = RetentionClock(around.system.clock)
        self._compactors: dict[PartitionKeys, Compactor] = {}
        self._worker: Worker | None = None
        self._interval = 0.0
        self._stopping = False
        self._unsynced: dict[PartitionKeys, Head] = {}
        self._asked: set[str] = set()
        """Topics that wait for their retention on the thread."""

    def start(self, interval: float) -> None:
        """Run a round every so many seconds, on a thread of its own."""
        self._interval = interval
        self._worker = self._around.system.worker("penstock-maintenance")
        self._worker.submit_after(interval, self._round)

    def stop(self) -> None:
        """Begin no more rounds; returns at once."""
        self._stopping = True

    def close(self) -> None:
        """Finish the round at hand and stop."""
        self.stop()
        if self._worker is not None:
            self._worker.close()

    def follow(self, topic: OpenTopic) -> None:
        """Look after a topic that was just opened, and whenever one of its segments is sealed.

        Without a thread of its own, nothing is done by itself.
        """
        if self._worker is not None:
            # Offsets that live elsewhere may take long to read: no publisher waits for that.
            apart = self._around.offsets is not self._around.store
            look = partial(self._retain_soon if apart else self.retain, topic)
            topic.writer.on_roll = look
            look()

    def _retain_soon(self, topic: OpenTopic) -> None:
        if self._worker is not None and topic.name not in self._asked:
            self._asked.add(topic.name)
            self._worker.submit(partial(self._retain_asked, topic))

    def _retain_asked(self, topic: OpenTopic) -> None:
        self._asked.discard(topic.name)
        if not self._stopping:
            self.retain(topic)

    def retain(self, topic: OpenTopic) -> None:
        """Retention of one topic now; trouble is logged and left to the next round."""
        try:
            in_use = self._around.care.partitions_in_use()
            for log in topic.logs:
                self._retain(topic, log.keys.partition, in_use)
            topic.writer.reject_while_full(any(info.full for info in self.info(topic)))
        except PenstockError as error:
            _log.warning("retention of %s: %s", topic.name, error, extra={"topic": topic.name})

    def _retain(self, topic: OpenTopic, number: int, in_use: InUse) -> int:
        if (topic.name, number) in in_use:
            return 0
        around, now = self._around, self._clock.now_ms()
        return retain(topic.reader(number), around.store, around.tier, now, around.offsets)

    def run(self) -> list[MaintenanceReport]:
        """One round over all partitions of all open topics, and over all producers."""
        self._tend_producers()
        return [
            report
            for topic in list(self._topics())
            if not self._stopping
            for report in self._tend(topic)
        ]

    def info(self, topic: OpenTopic) -> list[RetentionInfo]:
        """What each partition of a topic holds, and what keeps it from holding less."""
        state = self._state(topic)
        return [self._info(topic, state, log.keys) for log in topic.logs]

    def _round(self) -> None:
        for report in self.run():
            if report.error is not None:
                where = f"{report.topic}/{report.partition}"
                fields = {"topic": report.topic, "partition": report.partition}
                _log.warning("maintenance of %s: %s", where, report.error, extra=fields)
        if self._worker is not None and not self._stopping:
            self._worker.submit_after(self._interval, self._round)

    def _adopt(self, topic: OpenTopic, number: int) -> None:
        """Have records synced that nobody else will sync: their writer died before it did.

        They are taken for such when a whole round has passed and the head has not moved.
        """
        keys = topic.keys(number)
        head = topic.logs[number].read_head()
        if head.durable_offset == head.next_offset:
            self._unsynced.pop(keys, None)
        elif self._unsynced.get(keys) == head:
            self._around.worker.submit(partial(topic.writer.adopt, number))
        else:
            self._unsynced[keys] = head

    def _state(self, topic: OpenTopic) -> TopicState:
        """The topic as it is on disk: other processes register subscribers too."""
        return TopicFile(self._around.store, topic.name).read()

    def _tend_producers(self) -> None:
        """Finish what processes that died had decided, and remove what they had staged."""
        care = self._around.care
        try:
            troubles = care.settle()
            care.remove_orphans()
        except PenstockError as error:
            troubles = [error]
        for trouble in troubles:
            _log.warning("maintenance of producers: %s", trouble)

    def _tend(self, topic: OpenTopic) -> list[MaintenanceReport]:
        try:
            in_use = self._around.care.partitions_in_use()
        except PenstockError as error:
            return [MaintenanceReport(topic.name, 0, error=error)]
        numbers = range(len(topic.logs))
        reports = [self._tend_partition(topic, number, in_use) for number in numbers]
        try:
            topic.writer.reject_while_full(any(info.full for info in self.info(topic)))
        except PenstockError as error:
            reports.append(MaintenanceReport(topic.name, 0, error=error))
        return reports

    def _tend_partition(self, topic: OpenTopic, number: int, in_use: InUse) -> MaintenanceReport:
        around = self._around
        keys = topic.keys(number)
        try:
            self._adopt(topic, number)
            removed = self._retain(topic, number, in_use)
            compaction = self._compact(topic, keys) if (topic.name, number) not in in_use else None
            tiering = move_sealed(around.store, keys, around.tier) if around.tier else None
        except PenstockError as error:
            return MaintenanceReport(topic.name, number, error=error)
        return MaintenanceReport(topic.name, number, removed, compaction, tiering)

    def _compact(self, topic: OpenTopic, keys: PartitionKeys) -> CompactionReport | None:
        config = self._state(topic).config
        if not config.compact_keys:
            return None
        around, now = self._around, self._clock.now_ms()
        fresh = Compactor(around.store, keys, around.tier, offsets=around.offsets)
        compactor = self._compactors.setdefault(keys, fresh)
        return compactor.run(now, config.retention.age_ms_max) if compactor.is_due(now) else None

    def _info(self, topic: OpenTopic, state: TopicState, keys: PartitionKeys) -> RetentionInfo:
        needs = find_needs(self._around.store, state, keys.partition, self._around.offsets)
        now = self._clock.now_ms()
        return retention_info(topic.reader(keys.partition), state.config.retention, needs, now)
