"""A history as columns, so that millions of operations are checked at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.testing.history import (
    AnyOperation,
    Assigned,
    Committed,
    Committing,
    Deciding,
    Drained,
    Polled,
    Refused,
    Sending,
    Sent,
    Sought,
)

Numbers = NDArray[np.int64]
OFFSET_BITS = 44
UNKNOWN = -1


def places(partitions: Numbers, offsets: Numbers) -> Numbers:
    """Partition and offset as one number each, in the order of the log."""
    return (partitions << OFFSET_BITS) | offsets


def place_name(place: int) -> str:
    """``partition/offset`` of such a number."""
    return f"{place >> OFFSET_BITS}/{place & ((1 << OFFSET_BITS) - 1)}"


class Rows:
    """Columns that grow: a few numbers for each operation, and lists that are laid end to end."""

    def __init__(self, single: str, listed: str) -> None:
        self._single: dict[str, list[int]] = {name: [] for name in single.split()}
        self._listed: dict[str, list[int]] = {name: [] for name in listed.split()}
        self._lengths: list[int] = []

    def add(self, *single: int, **listed: list[int]) -> None:
        """One operation; its lists have the same length."""
        for column, number in zip(self._single.values(), single, strict=True):
            column.append(number)
        length = 0
        for name, numbers in listed.items():
            self._listed[name].extend(numbers)
            length = len(numbers)
        self._lengths.append(length)

    def columns(self) -> dict[str, Numbers]:
        """All columns, of one length: numbers of an operation stand beside each of its items."""
        lengths = np.array(self._lengths, dtype=np.int64)
        made = {
            name: np.repeat(np.array(numbers, dtype=np.int64), lengths)
            for name, numbers in self._single.items()
        }
        for name, numbers in self._listed.items():
            made[name] = np.array(numbers, dtype=np.int64)
        made["operation"] = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        return made


@dataclass
class Columns:
    """What a history says; see :func:`columns_of`."""

    sends: dict[str, Numbers]
    """value, key, process, at, number: the how manieth send of all."""
    sent: dict[str, Numbers]
    """value, process, partition, offset, at."""
    decided: dict[str, Numbers]
    """Records of transactions whose commits began: value, at."""
    refused: Numbers
    reads: dict[str, Numbers]
    """value, group, process, session, partition, offset, began, at."""
    attempts: dict[str, Numbers]
    """Commits that began: group, partition, offset, at."""
    commits: dict[str, Numbers]
    """Commits that were acknowledged: group, partition, offset, began, at."""
    starts: dict[str, Numbers]
    """Where members went on with what was new to them: group, partition, offset, began, at."""
    groups: list[str]
    processes: list[str]
    seekers: set[int]
    """Groups that went elsewhere by themselves."""
    drained: set[int]
    operations: int


@dataclass
class _Member:
    """What a process has, and since when its reads of a partition belong together."""

    generation: int = UNKNOWN
    has: frozenset[int] = frozenset()
    ends: dict[int, int] = field(default_factory=dict)
    """Partition → the offset behind what it read last."""
    sessions: dict[int, int] = field(default_factory=dict)


class _Builder:
    def __init__(self) -> None:
        self.groups: dict[str, int] = {}
        self.processes: dict[str, int] = {}
        self.members: dict[tuple[int, int], _Member] = {}
        self.sessions = 0
        self.sends = Rows("process at", "value key number")
        self.sent = Rows("process partition at", "value offset")
        self.decided = Rows("at", "value")
        self.refused: list[int] = []
        self.reads = Rows("group process session partition began at", "value offset")
        self.attempts = Rows("group at", "partition offset")
        self.commits = Rows("group began at", "partition offset")
        self.starts = Rows("group began at", "partition offset")
        self.seekers: set[int] = set()
        self.drained: set[int] = set()
        self.sends_so_far = 0

    def take(self, operation: AnyOperation) -> None:
        process = self.processes.setdefault(operation.process, len(self.processes))
        match operation:
            case Polled():
                self._polled(process, operation)
            case Sending(values=values, keys=keys):
                keys = keys or [UNKNOWN] * len(values)
                first, self.sends_so_far = self.sends_so_far, self.sends_so_far + len(values)
                numbers = list(range(first, self.sends_so_far))
                self.sends.add(process, operation.at, value=values, key=keys, number=numbers)
            case Sent(values=values, partition=partition, offsets=offsets):
                offsets = offsets or [UNKNOWN] * len(values)
                self.sent.add(process, partition, operation.at, value=values, offset=offsets)
            case Deciding(values=values):
                self.decided.add(operation.at, value=values)
            case Refused(values=values):
                self.refused.extend(values)
            case _:
                self._grouped(process, operation)

    def _grouped(
        self, process: int, operation: Committing | Committed | Assigned | Sought | Drained
    ) -> None:
        group = self._group(operation.group)
        match operation:
            case Committing(at=at, offsets=offsets):
                self.attempts.add(group, at, partition=[*offsets], offset=[*offsets.values()])
            case Committed(began=began, at=at, offsets=offsets):
                listed = {"partition": [*offsets], "offset": [*offsets.values()]}
                self.commits.add(group, began, at, **listed)
            case Assigned():
                self._assigned(group, self._member(group, process), operation)
            case Sought(offsets=offsets):
                self.seekers.add(group)
                member = self._member(group, process)
                member.sessions = {
                    number: session
                    for number, session in member.sessions.items()
                    if number not in offsets
                }
            case Drained():
                self.drained.add(group)

    def _polled(self, process: int, poll: Polled) -> None:
        group = self._group(poll.group)
        member = self._member(group, process)
        sessions = member.sessions
        if poll.offsets:
            member.ends[poll.partition] = poll.offsets[-1] + 1
        if (session := sessions.get(poll.partition)) is None:
            self.sessions += 1
            session = sessions[poll.partition] = self.sessions
        self.reads.add(
            group,
            process,
            session,
            poll.partition,
            poll.began,
            poll.at,
            value=poll.values,
            offset=poll.offsets,
        )

    def _assigned(self, group: int, member: _Member, to: Assigned) -> None:
        # What it had, and what comes back before it was given away, goes on where it was: that
        # is beyond what is committed.
        fresh = {
            number: at
            for number, at in to.positions.items()
            if number not in member.has and member.ends.get(number) != at
        }
        listed = {"partition": [*fresh], "offset": [*fresh.values()]}
        self.starts.add(group, to.began, to.at, **listed)
        # Between two generations that do not follow each other a partition may have been away
        # and come back.
        stays = to.generation <= member.generation + 1
        member.sessions = {
            number: session
            for number, session in member.sessions.items()
            if stays and number in to.positions
        }
        member.generation, member.has = to.generation, frozenset(to.positions)

    def _group(self, name: str) -> int:
        return self.groups.setdefault(name, len(self.groups))

    def _member(self, group: int, process: int) -> _Member:
        if (member := self.members.get((group, process))) is None:
            member = self.members[group, process] = _Member()
        return member


def columns_of(operations: Iterable[AnyOperation]) -> Columns:
    """The columns of a history; one pass."""
    builder = _Builder()
    count = 0
    for count, operation in enumerate(operations, 1):  # noqa: B007 - the last one counts
        builder.take(operation)
    return Columns(
        builder.sends.columns(),
        builder.sent.columns(),
        builder.decided.columns(),
        np.array(builder.refused, dtype=np.int64),
        builder.reads.columns(),
        builder.attempts.columns(),
        builder.commits.columns(),
        builder.starts.columns(),
        list(builder.groups),
        list(builder.processes),
        builder.seekers,
        builder.drained,
        count,
    )
