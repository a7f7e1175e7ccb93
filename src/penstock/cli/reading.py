"""Records of a topic between two places.

Reading a log leaves no trace. A broker is read by a group, which is forgotten afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from penstock import Record, System, errors
from penstock.cli.positions import Position, Range
from penstock.transports import EmbeddedTransport, PartitionLag, Transport
from penstock.upkeep import assigned

if TYPE_CHECKING:
    from penstock.transports import Consumer

POLL_SECONDS = 0.1
"""How often a log that another process writes to is looked at."""
NOBODY = "penstock-cli"
"""A group that never reads: its lag is all that there is."""
IDLE_SECONDS = 5.0
"""So long without a record means that there are none, whatever the offsets say."""


@dataclass(frozen=True)
class Part:
    """What is wanted of one partition."""

    partition: int
    start: Position
    stop: int
    """The offset after the last one."""
    until_ms: int | None = None
    """Records from this time on are not wanted."""

    @property
    def size(self) -> int:
        """How many records that are, at the most."""
        return max(0, self.stop - self.start) if isinstance(self.start, int) else self.stop


async def bounds(transport: Transport, topic: str) -> Sequence[PartitionLag]:
    """``committed`` is the first offset that is kept, ``end`` the one after the last, in each partition."""
    transport.capabilities.require(transport.name, ["lag"])
    return await transport.lag(topic, NOBODY)


async def parts_of(
    transport: Transport, topic: str, wanted: Range, partitions: Sequence[int] = ()
) -> list[Part]:
    """What a range means in each partition as it is now."""
    if _has_time(wanted):
        transport.capabilities.require(transport.name, ["seek_time"])
    known = await bounds(transport, topic)
    for number in partitions:
        if not any(one.partition == number for one in known):
            raise errors.UnknownPartition(
                f"topic {topic!r} has partitions 0 to {len(known) - 1}, not {number}",
                topic=topic,
                partition=number,
            )
    return [_part(one, wanted) for one in known if not partitions or one.partition in partitions]


def _has_time(wanted: Range) -> bool:
    return "time" in (wanted.first.kind, wanted.last.kind if wanted.last else "")


def _part(known: PartitionLag, wanted: Range) -> Part:
    start = wanted.first.position(known.committed, known.end)
    if wanted.last is None:
        return Part(known.partition, start, known.end)
    stop = wanted.last.position(known.committed, known.end)
    if isinstance(stop, datetime):
        return Part(known.partition, start, known.end, int(stop.timestamp() * 1_000))
    assert isinstance(stop, int), "a bound is an offset or a time"
    return Part(known.partition, start, stop)


def records(
    transport: Transport, topic: str, parts: Sequence[Part], *, follow: bool = False
) -> AsyncGenerator[Record, None]:
    """The records of the parts, the older ones first; with ``follow`` also those that come, for ever."""
    if isinstance(transport, EmbeddedTransport):
        return _of_log(transport, topic, parts, follow=follow)
    return _of_broker(transport, topic, parts, follow=follow)


# From a log


async def _of_log(
    transport: EmbeddedTransport, topic: str, parts: Sequence[Part], *, follow: bool
) -> AsyncGenerator[Record, None]:
    reached = {part.partition: part.stop for part in parts}
    all_partitions = len(parts) >= await transport.partitions(topic)
    streams = [_of_partition(transport, topic, part) for part in parts]
    async for record in _merged(streams):
        reached[record.partition] = max(reached[record.partition], record.offset + 1)
        yield record
    while follow:
        found = False
        for number, offset in reached.items():
            async for record in transport.queue.replay(topic, start=offset, partition=number):
                found = True
                reached[number] = record.offset + 1
                yield record
        if not found:
            await asyncio.sleep(POLL_SECONDS)
            if all_partitions:
                # The topic may have got more of them.
                count = await transport.partitions(topic)
                reached |= {number: 0 for number in range(count) if number not in reached}


async def _of_partition(
    transport: EmbeddedTransport, topic: str, part: Part
) -> AsyncIterator[Record]:
    replay = transport.queue.replay(
        topic, start=part.start, end=part.stop, partition=part.partition
    )
    async for record in replay:
        if part.until_ms is None or record.timestamp < part.until_ms:
            yield record


async def _merged(streams: Sequence[AsyncIterator[Record]]) -> AsyncIterator[Record]:
    """The records of all partitions, by time."""
    if len(streams) == 1:
        async for record in streams[0]:
            yield record
        return
    heads = {number: await anext(stream, None) for number, stream in enumerate(streams)}
    while waiting := {number: head for number, head in heads.items() if head is not None}:
        number = min(waiting, key=lambda one: (waiting[one].timestamp, one))
        yield waiting[number]
        heads[number] = await anext(streams[number], None)


# From a broker


async def _of_broker(
    transport: Transport, topic: str, parts: Sequence[Part], *, follow: bool
) -> AsyncGenerator[Record, None]:
    group = f"{NOBODY}-{System().random.getrandbits(48):012x}"
    wanted = {part.partition: part for part in parts}
    if not follow:
        wanted = {number: part for number, part in wanted.items() if _is_some(part)}
    if not wanted:
        return
    try:
        async with transport.subscribe(topic, group, requires=["seek"]) as consumer:
            await assigned(consumer, len(await transport.lag(topic, group)))
            async for record in _from(consumer, wanted, follow=follow):
                yield record
    finally:
        with suppress(errors.PenstockError):
            await transport.forget(topic, group)


def _is_some(part: Part) -> bool:
    return not isinstance(part.start, int) or part.start < part.stop


async def _from(
    consumer: Consumer, wanted: Mapping[int, Part], *, follow: bool
) -> AsyncIterator[Record]:
    for number in consumer.assignment().partitions:
        if number in wanted:
            await consumer.seek(wanted[number].start, partition=number)
        else:
            await consumer.pause(number)
    left = _left(consumer, wanted)
    while left or follow:
        try:
            batch = await consumer.next_batch(None if follow else IDLE_SECONDS)
        except errors.DeadlineExceeded:
            return  # what is left has no records: markers of transactions, or what was removed
        part = wanted.get(batch.partition)
        for record in batch.records if part is not None else ():
            assert part is not None, "only those are looked at"
            late = part.until_ms is not None and record.timestamp >= part.until_ms
            if (follow or record.offset < part.stop) and not late:
                yield record
        left = _left(consumer, wanted)


def _left(consumer: Consumer, wanted: Mapping[int, Part]) -> bool:
    """Whether a partition has records that are wanted and not read."""
    reached = consumer.positions()
    return any(reached.get(number, 0) < part.stop for number, part in wanted.items())
