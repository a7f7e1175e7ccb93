"""From where groups stand to what state they are in, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock.observe.progress import Progress
from penstock.observe.values import (
    Cause,
    GroupActivity,
    GroupPartition,
    GroupSnapshot,
    Stall,
)
from penstock.observe.watched import Position, Why

NOTICE_SECONDS = 1.0
"""Who moved less long ago is not asked why it does not."""
REBALANCES = 3
"""So many changes of the members without any progress are a loop."""

Explain = Callable[[Position], Why | None]
WORST = (GroupActivity.IDLE, GroupActivity.RUNNING, GroupActivity.PAUSED, GroupActivity.STALLED)


@dataclass(frozen=True, slots=True)
class Judged:
    """One partition of a group: where it stands, how it goes, and what it is."""

    position: Position
    progress: Progress
    state: GroupActivity
    why: Why | None


def judge(position: Position, progress: Progress, explain: Explain, stall_seconds: float) -> Judged:
    """The state of a group in a partition. Without anything to do it is idle, whatever else."""
    if not position.records:
        return Judged(position, progress, GroupActivity.IDLE, None)
    why = None
    if progress.seconds >= min(NOTICE_SECONDS, stall_seconds):
        why = explain(position)
        if why is None or why.cause is Cause.NO_PROGRESS:
            why = _looping(position, progress) or why
    if progress.seconds >= stall_seconds:
        return Judged(position, progress, GroupActivity.STALLED, why or _unknown(position))
    if why is not None and why.cause is not Cause.HANDLER:
        return Judged(position, progress, GroupActivity.PAUSED, why)
    return Judged(position, progress, GroupActivity.RUNNING, None)


def _looping(position: Position, progress: Progress) -> Why | None:
    if progress.generations < REBALANCES:
        return None
    return Why(
        cause=Cause.REBALANCING,
        detail=f"the members changed {progress.generations} times, and nothing was committed",
        offset=position.committed,
    )


def _unknown(position: Position) -> Why:
    if not position.members and position.generation is not None:
        return Why(
            cause=Cause.NO_MEMBER,
            detail="no live member of the group has it",
            offset=position.committed,
        )
    who = f"; {', '.join(position.members)} should read it" if position.members else ""
    return Why(
        cause=Cause.NO_PROGRESS,
        detail=f"nothing is committed{who}",
        offset=position.committed,
    )


def stall_of(judged: Judged) -> Stall:
    """A partition that is stalled, as a value."""
    position, why = judged.position, judged.why
    assert why is not None, "who is stalled has a cause"
    return Stall(
        source=position.source,
        group=position.group,
        topic=position.topic,
        partition=position.partition,
        offset=position.committed if why.offset is None else why.offset,
        since_ms=judged.progress.since_ms,
        seconds=judged.progress.seconds,
        cause=why.cause,
        detail=why.detail,
        stack=why.stack,
        local=position.local,
    )


def grouped(judged: Iterable[Judged]) -> tuple[GroupSnapshot, ...]:
    """The groups, in order, each with its partitions."""
    groups: dict[tuple[str, str, str, str], list[Judged]] = {}
    for one in judged:
        at = one.position
        groups.setdefault((at.source, at.topic, at.group, at.kind), []).append(one)
    return tuple(_group(groups[place]) for place in sorted(groups))


def _group(partitions: Sequence[Judged]) -> GroupSnapshot:
    first = partitions[0].position
    worst = max(partitions, key=lambda one: (WORST.index(one.state), one.progress.seconds))
    records = sum(one.position.records for one in partitions)
    rate = sum(one.progress.rate for one in partitions)
    return GroupSnapshot(
        kind=first.kind,
        source=first.source,
        group=first.group,
        topic=first.topic,
        state=worst.state,
        cause=None if worst.why is None else worst.why.cause,
        lag_records=records,
        lag_seconds=max(one.position.age_seconds for one in partitions),
        rate=rate,
        drain_seconds=0.0 if not records else records / rate if rate else None,
        members=tuple(sorted({name for one in partitions for name in one.position.members})),
        generation=first.generation,
        partitions=tuple(map(_partition, partitions)),
        local=first.local,
    )


def _partition(judged: Judged) -> GroupPartition:
    position = judged.position
    return GroupPartition(
        partition=position.partition,
        committed=position.committed,
        end=position.end,
        lag_records=position.records,
        lag_seconds=position.age_seconds,
        progress_seconds=judged.progress.seconds,
        state=judged.state,
        cause=None if judged.why is None else judged.why.cause,
    )
