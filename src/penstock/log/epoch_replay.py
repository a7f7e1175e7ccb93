"""Reading what is there, without a subscriber: epoch by epoch, partition by partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.log.fetched import ITERATED_RECORDS, fetch
from penstock.log.open_topic import OpenTopic
from penstock.log.places import Position, check_one_partition, resolve
from penstock.log.records import Record

if TYPE_CHECKING:
    from penstock.log.queue import WalMessageQueue


class Stretch(NamedTuple):
    """Offsets of one partition, all of one epoch."""

    partition: int
    first: int
    stop: int


async def replayed(
    queue: WalMessageQueue, name: str, start: Position, end: Position, partition: int | None
) -> AsyncIterator[Record]:
    """The durable records between two positions. Those of a key come in their order."""
    topic = await queue._engine.topics.open_existing(name)
    await topic.look_again()
    if partition is None:
        check_one_partition(start, len(topic.logs))
        check_one_partition(end, len(topic.logs))
    numbers = range(len(topic.logs)) if partition is None else [partition]
    ranges = {
        number: await asyncio.to_thread(_range, topic, number, start, end) for number in numbers
    }
    for number, first, stop in stretches(topic, ranges):
        cursor = topic.reader(number).cursor(first)
        while cursor.offset < stop and (found := await asyncio.to_thread(fetch, cursor)):
            wanted = found.before(stop)
            while records := wanted.take(ITERATED_RECORDS):
                for record in records:
                    yield record


def _range(topic: OpenTopic, number: int, start: Position, end: Position) -> tuple[int, int]:
    reader = topic.reader(number)
    return resolve(reader, start), resolve(reader, end)


def stretches(topic: OpenTopic, ranges: dict[int, tuple[int, int]]) -> Iterator[Stretch]:
    """The ranges cut where epochs begin, the older epochs first."""
    begun = topic.state.epochs[1:]
    for following in (*begun, None):
        for number, (first, stop) in ranges.items():
            upto = stop if following is None else min(stop, following.start(number))
            if first < upto:
                ranges[number] = (upto, stop)
                yield Stretch(number, first, upto)
