"""How far a subscriber is behind, in records and in time, asked by anyone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.errors import OffsetOutOfRange
from penstock.log.names import check_name
from penstock.log.offsets import OffsetFile
from penstock.log.open_topic import OpenTopic
from penstock.log.reader import LOOKUPS_MAX, PartitionReader
from penstock.log.topic import TopicState

if TYPE_CHECKING:
    from penstock.log.queue import WalMessageQueue

LOOK_BYTES = 4_096
"""The time of one record is wanted: an entry that is larger is read whole all the same."""
FOREVER = 1 << 62


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """What a group has not consumed of one partition."""

    partition: int
    committed: int
    """Offset of the first record that is not committed."""
    end: int
    """Offset of the next record that will be written; what is below it can be read."""
    milliseconds: int
    """Age of the first record that is not committed, by its timestamp; 0 when there is none."""
    committed_ms: int | None = field(default=None, compare=False)
    """When the group committed last, in milliseconds since 1970; None when nobody knows."""

    @property
    def records(self) -> int:
        """How many records are not committed; those that compaction took count too."""
        return max(0, self.end - self.committed)


async def topic_state(queue: WalMessageQueue, topic: str) -> TopicState:
    """What a topic is; UnknownTopic when nobody has made it."""
    opened = await queue._engine.topics.open_existing(topic)
    await opened.look_again()
    return opened.state


async def lag_of(queue: WalMessageQueue, topic: str, name: str) -> Sequence[PartitionLag]:
    """The lag of a subscriber in each partition, live or not.

    One that never subscribed has everything before it that is still kept.
    """
    check_name("subscriber", name)
    opened = await queue._engine.topics.open_existing(topic)
    await opened.look_again()
    return await asyncio.to_thread(lags_of, opened, name)


def lags_of(topic: OpenTopic, name: str) -> list[PartitionLag]:
    """The lag of a subscriber in each partition. Blocking."""
    now = topic.around.system.clock.time_ms()
    return [_lag(topic, name, number, now) for number in range(len(topic.logs))]


def _lag(topic: OpenTopic, name: str, number: int, now_ms: int) -> PartitionLag:
    around = topic.around
    file = OffsetFile(around.store, name, topic.name, number, around.offsets)
    return lag_in(topic.reader(number), file, number, now_ms)


def lag_in(reader: PartitionReader, file: OffsetFile, number: int, now_ms: int) -> PartitionLag:
    """The lag in one partition, of whoever commits to the file. Blocking."""
    found = file.read()
    end = reader.head().durable_offset
    committed = reader.earliest() if found is None else found.offset
    since = _time_from(reader, committed) if committed < end else now_ms
    committed_ms = None if found is None else found.committed_ms
    return PartitionLag(number, committed, end, max(0, now_ms - since), committed_ms)


def _time_from(reader: PartitionReader, offset: int) -> int:
    """The timestamp of the first record from an offset on that is still there."""
    for _ in range(LOOKUPS_MAX):
        # Retention may take the first records away between the two looks.
        with suppress(OffsetOutOfRange):
            return _first_time(reader, max(offset, reader.earliest()))
    return _first_time(reader, reader.earliest())


def _first_time(reader: PartitionReader, offset: int) -> int:
    cursor = reader.cursor(offset)
    while entries := cursor.fetch(LOOK_BYTES):
        for view in (entry.view(copy=False) for entry in entries):
            place = int(view.offsets().searchsorted(offset))
            if place < view.count:
                return int(view.times()[place])
    # Compaction took all of them, so nothing is waiting.
    return FOREVER
