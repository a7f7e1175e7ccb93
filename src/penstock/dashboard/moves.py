"""Moving a group to another place: what would happen as a value first, then the move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from penstock import errors
from penstock.dashboard import texts
from penstock.dashboard.sources import Bounds, Source
from penstock.observe import GroupSnapshot
from penstock.transports import StartPosition
from penstock.upkeep import move_group

START, END, OFFSET, TIME = "start", "end", "offset", "time"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a group shall go on."""

    kind: str
    value: int = 0
    """An offset, or milliseconds since 1970."""


def target_of(kind: str, text: str) -> Target:
    """What somebody typed; InvalidOption says what can be typed."""
    if kind in (START, END):
        return Target(kind)
    if kind == OFFSET:
        if not text.strip().isdecimal() or len(text) > 99:
            raise errors.InvalidOption("an offset is a number such as 1200", option="offset")
        return Target(kind, int(text))
    time_ms = texts.parse_time(text)
    if time_ms is None:
        raise errors.InvalidOption(
            "a time is written as 2026-03-01 12:00, in UTC, or with a zone", option="time"
        )
    return Target(kind, time_ms)


@dataclass(frozen=True, slots=True)
class Move:
    """A group in one partition: where it is, and where it goes."""

    partition: int
    before: int
    after: int | None
    """None: the broker finds it by time when it is done."""
    target: StartPosition

    def text(self) -> str:
        """What becomes of the records in between."""
        if self.after is None:
            return "The broker finds the offset."
        difference = self.after - self.before
        if difference == 0:
            return "Nothing changes."
        one = abs(difference) == 1
        records = texts.plural(abs(difference), "record")
        if difference < 0:
            return f"{records} {'comes' if one else 'come'} again."
        return f"{records} {'is' if one else 'are'} passed over."


async def preview(source: Source, group: GroupSnapshot, to: Target) -> list[Move]:
    """What a seek would do in each partition; nothing is changed."""
    bounds = {one.partition: one for one in await source.bounds(group.topic)}
    return [
        await _move(source, group.topic, part.committed or 0, bounds[part.partition], to)
        for part in group.partitions
        if part.partition is not None and part.partition in bounds
    ]


async def _move(source: Source, topic: str, before: int, bounds: Bounds, to: Target) -> Move:
    if to.kind == TIME:
        after = await source.offset_at(topic, bounds.partition, to.value)
        when = datetime.fromtimestamp(to.value / 1_000, UTC)
        return Move(bounds.partition, before, after, when if after is None else after)
    offset = {START: bounds.first, END: bounds.end, OFFSET: to.value}[to.kind]
    offset = min(max(offset, bounds.first), bounds.end)
    return Move(bounds.partition, before, offset, offset)


async def move(source: Source, group: GroupSnapshot, moves: Sequence[Move]) -> None:
    """Do it; SubscriberBusy when the group has members."""
    to = {one.partition: one.target for one in moves}
    await source.change(lambda transport: move_group(transport, group.topic, group.group, to))
