"""How groups stand: their lag, their members, their state, and why one does not go on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock import errors
from penstock.cli.places import Place
from penstock.observe import GroupPartition, GroupSnapshot, Observer, Snapshot, Stall
from penstock.transports import EmbeddedTransport, Transport

JOURNALS = "journal."


@dataclass(frozen=True)
class Part:
    """A group in one partition."""

    found: GroupPartition

    def row(self) -> tuple[object, ...]:
        """For a table."""
        one = self.found
        return (one.partition, one.committed, one.end, one.lag_records, one.lag_seconds, one.state)


@dataclass(frozen=True)
class Sight:
    """A group and one topic that it reads."""

    found: GroupSnapshot
    stalls: Sequence[Stall]
    knows_members: bool
    """Whether the transport tells who reads."""
    late: bool
    """Whether it is further behind than the settings allow."""

    @property
    def group(self) -> str:
        """Its name."""
        return self.found.group

    @property
    def topic(self) -> str:
        """What it reads."""
        return self.found.topic

    @property
    def lag_records(self) -> int:
        """Records that it has not committed."""
        return self.found.lag_records

    @property
    def lag_seconds(self) -> float:
        """The age of the oldest of them."""
        return self.found.lag_seconds

    @property
    def state(self) -> str:
        """What it does."""
        return str(self.found.state)

    @property
    def why(self) -> str:
        """What holds it up."""
        if self.found.cause is None:
            return "late" if self.late else ""
        return str(self.found.cause)

    @property
    def members_text(self) -> object:
        """How many read for it, where that is known."""
        return len(self.found.members) if self.knows_members else None

    @property
    def partitions(self) -> list[Part]:
        """One by one."""
        return [Part(one) for one in self.found.partitions]

    @property
    def details(self) -> list[str]:
        """Each stall in a line, and each member."""
        lines = [one.explain() for one in self.stalls]
        return lines + [f"member {name}" for name in self.found.members]

    def headline(self) -> str:
        """The group in a line."""
        cause = f" ({self.why})" if self.why else ""
        return (
            f"{self.group} on {self.topic}: {self.state}{cause}, {self.lag_records:,} records and "
            f"{self.lag_seconds:,.1f} s behind"
        )

    def plain(self, *, partitions: bool) -> dict[str, Any]:
        """For programs."""
        one = self.found
        found: dict[str, Any] = {
            "group": one.group,
            "topic": one.topic,
            "state": self.state,
            "cause": None if one.cause is None else str(one.cause),
            "late": self.late,
            "lag_records": one.lag_records,
            "lag_seconds": one.lag_seconds,
            "members": list(one.members) if self.knows_members else None,
            "stalls": [_plain_stall(stall) for stall in self.stalls],
        }
        if partitions:
            found["partitions"] = [_plain_part(part) for part in one.partitions]
        return found


def _plain_stall(stall: Stall) -> dict[str, Any]:
    return {
        "partition": stall.partition,
        "offset": stall.offset,
        "since_ms": stall.since_ms,
        "seconds": stall.seconds,
        "cause": str(stall.cause),
        "detail": stall.detail,
    }


def _plain_part(part: GroupPartition) -> dict[str, Any]:
    return {
        "partition": part.partition,
        "committed": part.committed,
        "end": part.end,
        "lag_records": part.lag_records,
        "lag_seconds": part.lag_seconds,
        "state": str(part.state),
        "cause": None if part.cause is None else str(part.cause),
    }


async def look(
    place: Place, *, group: str | None = None, topic: str | None = None, watch: float = 0.0
) -> list[Sight]:
    """The groups, or one of them; UnknownTopic, or UsageError, when what is named is not there."""
    async with place.reading() as transport:
        if group is not None or topic is not None:
            await topics_of(transport, group, topic)
        seen = await _observe(transport, watch or place.stalled_seconds, watch)
        return [
            Sight(
                one,
                [
                    each
                    for each in seen.stalls
                    if (each.group, each.topic) == (one.group, one.topic)
                ],
                isinstance(transport, EmbeddedTransport),
                one.lag_records > place.lag_records or one.lag_seconds > place.lag_seconds,
            )
            for one in seen.groups
            if (group is None or one.group == group)
            and (topic is None or one.topic == topic)
            and not one.topic.startswith(JOURNALS)
        ]


async def _observe(transport: Transport, stall_seconds: float, watch: float) -> Snapshot:
    transport.capabilities.require(transport.name, ["list_groups", "lag"])
    observer = Observer(stall_seconds=stall_seconds, durations=False)
    observer.watch(transport)
    try:
        seen = await observer.look()
        if watch:
            await asyncio.sleep(watch)
            seen = await observer.look()
    finally:
        await observer.close()
    told = [one.error for one in seen.logs] + [one.error for one in seen.transports]
    for error in told:
        if error is not None:
            raise errors.StorageError(f"the groups cannot be looked at: {error}")
    return seen


async def topics_of(transport: Transport, group: str | None, topic: str | None) -> list[str]:
    """The topics that a group reads, or the named one; InvalidName and the like when it does not."""
    transport.capabilities.require(transport.name, ["list_groups"])
    names = [topic] if topic is not None else list(await transport.topics())
    if group is None:
        await transport.partitions(names[0])  # UnknownTopic when it is not there
        return names
    found = [name for name in names if group in await transport.groups(name)]
    if not found:
        where = f"topic {topic!r}" if topic is not None else "any topic"
        raise errors.InvalidOption(
            f"no group {group!r} reads {where}: `penstock group list` shows those that do",
            option="group",
        )
    return found
