"""Moving a group to another place: what would happen as a value first, then the move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from penstock import errors
from penstock.cli.group_sight import topics_of
from penstock.cli.places import Place
from penstock.cli.positions import Bound, Position
from penstock.cli.reading import bounds
from penstock.transports import EmbeddedTransport, PartitionLag, Transport
from penstock.upkeep import move_group


@dataclass(frozen=True)
class Move:
    """A group in one partition: where it is, and where it goes."""

    topic: str
    partition: int
    before: int
    after: int | None
    """None: the broker finds it by time when it is done."""
    target: Position

    @property
    def difference(self) -> int | None:
        """Records that come again (negative), or are passed over."""
        return None if self.after is None else self.after - self.before

    def plain(self) -> dict[str, Any]:
        """For programs."""
        found = asdict(self)
        del found["target"]
        return found | {"difference": self.difference}


async def preview(
    place: Place, group: str, topic: str | None, to: Bound, partitions: Sequence[int]
) -> list[Move]:
    """What a seek would do; nothing is changed."""
    async with place.reading() as transport:
        transport.capabilities.require(
            transport.name, ["seek_time" if to.kind == "time" else "seek", "lag"]
        )
        name = await _one_topic(transport, group, topic)
        starts = {one.partition: one.committed for one in await bounds(transport, name)}
        lags = await transport.lag(name, group)
        for number in partitions:
            if number not in starts:
                raise errors.UnknownPartition(
                    f"topic {name!r} has partitions 0 to {len(starts) - 1}, not {number}",
                    topic=name,
                    partition=number,
                )
        return [
            Move(name, one.partition, one.committed, after, target)
            for one in lags
            if not partitions or one.partition in partitions
            for target in [to.position(starts[one.partition], one.end)]
            for after in [await _offset(transport, name, one, target)]
        ]


async def _one_topic(transport: Transport, group: str, topic: str | None) -> str:
    found = await topics_of(transport, group, topic)
    if len(found) > 1:
        raise errors.InvalidOption(
            f"group {group!r} reads {', '.join(found)}: say which one with --topic", option="topic"
        )
    return found[0]


async def _offset(transport: Transport, topic: str, lag: PartitionLag, to: Position) -> int | None:
    if isinstance(to, int):
        return to
    if isinstance(transport, EmbeddedTransport) and isinstance(to, datetime):
        async for record in transport.queue.replay(topic, start=to, partition=lag.partition):
            return record.offset
        return lag.end
    return None


async def move(place: Place, group: str, moves: Sequence[Move]) -> None:
    """Do it; SubscriberBusy when the group has members."""
    async with place.writing() as transport:
        to = {one.partition: one.target for one in moves}
        await move_group(transport, moves[0].topic, group, to)
