"""What there is to read: the partitions of the topics that a query wants, and where they end."""

from __future__ import annotations

import re
import select
from collections.abc import Iterator, Mapping
from contextlib import suppress

from penstock.errors import KeyNotFound, StorageError, UnknownPartition, UnknownTopic
from penstock.log.epoch import Epochs
from penstock.log.names import PartitionKeys
from penstock.spark.offsets import Offsets, offset_in
from penstock.spark.open_log import OpenLog
from penstock.spark.options import SourceOptions
from penstock.spark.planning import Range
from penstock.system import Watch

TOPICS_EVERY_SECONDS = 0.5
"""How often topics and their partition counts are looked up again."""
POLL_SECONDS = 0.02
"""How often heads are looked at where changes cannot be watched."""


class Frontier:
    """The ends of partitions, and waiting until one of them moves. One thread at a time."""

    def __init__(self, log: OpenLog, options: SourceOptions) -> None:
        self._log = log
        self._options = options
        self._pattern = None if options.pattern is None else re.compile(options.pattern)
        self._partitions: dict[str, tuple[int, ...]] = {}
        self._epochs: dict[str, Epochs] = {}
        self._looked_at: float | None = None
        self._watch: Watch | None = log.store.watch()
        self._watched: set[str] = set()

    def partitions(self, *, anew: bool = False) -> dict[str, tuple[int, ...]]:
        """The partitions that are there, by topic; those of new topics come in by themselves."""
        now = self._log.system.clock.monotonic()
        due = self._looked_at is None or now >= self._looked_at + TOPICS_EVERY_SECONDS
        if anew or due:
            self._partitions = dict(self._find())
            self._looked_at = now
        return self._partitions

    def ends(self, *, anew: bool = False) -> dict[str, dict[int, int]]:
        """The durable end of each partition."""
        return {
            topic: {one: self.end(topic, one) for one in numbers}
            for topic, numbers in self.partitions(anew=anew).items()
        }

    def within_epoch(self, begin: Offsets, ends: Offsets) -> Offsets:
        """The ends, not beyond the epoch that is being read.

        Another partition count sends keys elsewhere. Who finishes an epoch before the next one
        begins gets the records of a key in their order.
        """
        return {topic: self._capped(topic, begin, of) for topic, of in ends.items()}

    def _capped(self, topic: str, begin: Offsets, ends: Mapping[int, int]) -> Mapping[int, int]:
        for following in self._epochs.get(topic, ())[1:]:
            reached = {one: offset_in(begin, topic, one) for one in ends}
            if any(reached[one] < following.start(one) for one in ends):
                # Some may have started beyond it.
                return {
                    one: min(end, max(following.start(one), reached[one]))
                    for one, end in ends.items()
                }
        return ends

    def check_all_there(self) -> None:
        """UnknownTopic when a topic that was named is not there, for those who cannot wait."""
        missing = [one for one in self._options.topics if one not in self.partitions()]
        if missing or not self.partitions():
            what = f"topic {missing[0]!r}" if missing else f"topic like {self._options.pattern!r}"
            there = ", ".join(self._log.topics()) or "none"
            raise UnknownTopic(
                f"there is no {what} in {self._log.path}. Topics there: {there}",
                topic=missing[0] if missing else None,
            )

    def wait(self, seconds: float) -> None:
        """Return when a watched partition may have moved, or after so many seconds."""
        if self._watch_heads():
            assert self._watch is not None, "it has just been used"
            select.select([self._watch.fileno()], [], [], seconds)
            self._watch.drain()
        else:
            self._log.system.clock.sleep(min(seconds, POLL_SECONDS))

    def sized(self, wanted: Range) -> Range:
        """The range with about how many bytes it has on the disk."""
        reader = self._log.reader(wanted.topic, wanted.partition)
        head = reader.head()
        sources = [one for one in reader.segments() if one.name.base < head.durable_offset]
        total = 0.0
        for number, source in enumerate(sources):
            last = number + 1 == len(sources)
            end = head.durable_offset if last else sources[number + 1].name.base
            common = min(end, wanted.end) - max(source.name.base, wanted.start)
            if common > 0 and end > source.name.base:
                with suppress(KeyNotFound):
                    size = reader.limit(source, head)
                    total += size * common / (end - source.name.base)
        return Range(wanted.topic, wanted.partition, wanted.start, wanted.end, int(total))

    def end(self, topic: str, partition: int) -> int:
        """The durable end of a partition."""
        return self._log.head(topic, partition).durable_offset

    def earliest(self, topic: str, partition: int) -> int:
        """The first offset that is still there."""
        return self._log.reader(topic, partition).earliest()

    def bounds(self) -> tuple[Offsets, Offsets]:
        """The first offset and the end of each partition."""
        ends = self.ends(anew=True)
        first = {topic: {one: self.earliest(topic, one) for one in ends[topic]} for topic in ends}
        return first, ends

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        """The first record that was appended then or later; None when there is none."""
        reader = self._log.reader(topic, partition)
        found = max(reader.earliest(), reader.offset_at(time_ms))
        return found if found < reader.head().durable_offset else None

    def _find(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        names = self._options.topics
        if self._pattern is not None:
            names = tuple(one for one in self._log.topics() if self._pattern.fullmatch(one))
        for name in names:
            state = self._log.topic(name)
            if state is not None:
                self._epochs[name] = state.epochs
                yield name, self._wanted(name, state.partitions_all)

    def _wanted(self, topic: str, count: int) -> tuple[int, ...]:
        if self._options.partitions is None:
            return tuple(range(count))
        wanted = self._options.partitions[topic]
        if wanted and wanted[-1] >= count:
            raise UnknownPartition(
                f"option assign asks for partition {wanted[-1]} of {topic!r}, which has partitions "
                f"0 to {count - 1}",
                topic=topic,
                partition=wanted[-1],
            )
        return wanted

    def _watch_heads(self) -> bool:
        """Whether all heads are watched; where that is not possible, they are asked."""
        if self._watch is None:
            return False
        try:
            for topic, numbers in self._partitions.items():
                for key in (PartitionKeys(topic, one).head for one in numbers):
                    if key not in self._watched:
                        self._log.store.watch_key(self._watch, key)
                        self._watched.add(key)
        except StorageError:
            # No more watches, or a head that is not there yet.
            return False
        return bool(self._watched)
