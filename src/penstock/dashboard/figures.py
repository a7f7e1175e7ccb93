"""What the numbers of a snapshot say: rates, the lag, the pressure, and what holds things up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock import BackpressureState
from penstock.dashboard import texts
from penstock.observe import Cause, GroupKind, GroupSnapshot, Snapshot
from penstock.resilience import BreakerState

SECOND_MS = 1_000
SLOW_SECONDS = 60.0
"""A group that takes longer to catch up is worth a word."""
GOOD, NOTICE, BAD = "good", "notice", "bad"


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts that only grow, over all that is watched."""

    published: int
    processed: int
    failed: int
    appended: int
    """Records in topics of logs."""
    committed: int
    """By groups."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The same per second."""

    published: float = 0.0
    processed: float = 0.0
    failed: float = 0.0
    appended: float = 0.0
    committed: float = 0.0


def totals(snapshot: Snapshot) -> Totals:
    """The counts of a snapshot."""
    figures = [one.figures for one in snapshot.buses]
    ends = [part.next_offset for topic in snapshot.topics for part in topic.partitions]
    done = [part.committed or 0 for group in snapshot.groups for part in group.partitions]
    return Totals(
        published=sum(one.events_published for one in figures),
        processed=sum(one.events_processed for one in figures),
        failed=sum(one.events_failed for one in figures),
        appended=sum(ends),
        committed=sum(done),
    )


def rates(before: Snapshot, after: Snapshot) -> Rates:
    """What happened in between, per second. What became less (a topic went) counts as nothing."""
    passed = (after.time_ms - before.time_ms) / SECOND_MS
    if passed <= 0:
        return Rates()
    first, last = totals(before), totals(after)
    names = Rates.__dataclass_fields__
    return Rates(
        **{name: max(0.0, (getattr(last, name) - getattr(first, name)) / passed) for name in names}
    )


def lag_records(snapshot: Snapshot) -> int:
    """Records that groups have before them, all together."""
    return sum(group.lag_records for group in snapshot.groups)


def lag_seconds(snapshot: Snapshot) -> float:
    """Age of the oldest record that a group has before it."""
    return max((group.lag_seconds for group in snapshot.groups), default=0.0)


# The pressure


@dataclass(frozen=True, slots=True)
class Pressure:
    """How full the fullest part is."""

    level: BackpressureState
    utilisation: float
    text: str


def pressure(snapshot: Snapshot) -> Pressure | None:
    """The highest pressure; None when nothing that is watched has one."""
    found = [bus.pressure.pressure for bus in snapshot.buses if bus.pressure is not None]
    for streams in snapshot.streams:
        found += [streams.publishers.pressure, *streams.lag_pressure.values()]
    if not found:
        return None
    worst = max(found, key=lambda one: (one.level.value, one.utilisation))
    return Pressure(worst.level, worst.utilisation, worst.explain())


# What holds things up


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that somebody should know, and where to look at it."""

    mood: str
    title: str
    detail: str
    path: str | None = None


def findings(snapshot: Snapshot) -> tuple[Finding, ...]:
    """What holds things up, the worst first; one good finding when nothing does."""
    found = tuple(_findings(snapshot))
    return found or (Finding(GOOD, "Nothing holds anything up", "All groups keep up."),)


def _findings(snapshot: Snapshot) -> Iterator[Finding]:
    for stall in snapshot.stalls:
        who = f"{stall.group} on {stall.topic}" if stall.topic else stall.source
        title = f"{who} stands still: {stall.cause}"
        yield Finding(BAD, title, stall.detail, "/stalls")
    yield from _sources(snapshot)
    if not any(stall.cause is Cause.CIRCUIT_OPEN for stall in snapshot.stalls):
        yield from _breakers(snapshot)
    now = pressure(snapshot)
    if now is not None and now.level is not BackpressureState.NORMAL:
        mood = NOTICE if now.level is BackpressureState.WARNING else BAD
        yield Finding(mood, f"The pressure is {now.level.name.lower()}", now.text)
    yield from _slow(snapshot.groups)


def _sources(snapshot: Snapshot) -> Iterator[Finding]:
    silent = {one.name: one.error for one in snapshot.logs}
    silent |= {one.name: one.error for one in snapshot.transports}
    for name, error in silent.items():
        if error is not None:
            yield Finding(BAD, f"{name} cannot be looked at", error)
    for query in snapshot.queries:
        if query.error is not None:
            yield Finding(BAD, f"Query {query.name} failed", query.error, "/queries")
    for topic in snapshot.topics:
        for part in topic.partitions:
            if part.poisoned is not None:
                title = f"{topic.topic}/{part.partition} takes no more records"
                yield Finding(BAD, title, part.poisoned, "/topics")


def _breakers(snapshot: Snapshot) -> Iterator[Finding]:
    for bus in snapshot.buses:
        for label, one in bus.breakers.items():
            if one.state is BreakerState.OPEN:
                detail = f"It is tried again in {texts.seconds(one.retry_after)}."
                yield Finding(BAD, f"The circuit of {label} is open", detail, "/breakers")


def _slow(groups: Sequence[GroupSnapshot]) -> Iterator[Finding]:
    behind = [one for one in groups if one.lag_records and (one.drain_seconds or 0) > SLOW_SECONDS]
    for one in sorted(behind, key=lambda group: -(group.drain_seconds or 0))[:1]:
        yield Finding(
            NOTICE,
            f"{one.group} is the slowest on {one.topic}",
            f"It has {texts.count(one.lag_records)} records before it, does {texts.rate(one.rate)} and "
            f"needs {texts.seconds(one.drain_seconds or 0)} for them.",
            "/groups",
        )


# How long a lag lasts


@dataclass(frozen=True, slots=True)
class LagPoint:
    """Where a group stood at a moment."""

    time_ms: int
    records: int
    seconds: float
    committed: int
    """Offsets over all partitions, added up."""
    end: int


def lag_point(time_ms: int, group: GroupSnapshot) -> LagPoint:
    """The point of a group in its history."""
    return LagPoint(
        time_ms=time_ms,
        records=group.lag_records,
        seconds=group.lag_seconds,
        committed=sum(one.committed or 0 for one in group.partitions),
        end=sum(one.end or 0 for one in group.partitions),
    )


def drain(history: Sequence[LagPoint]) -> str:
    """When the lag will be gone, in words, by what the history shows of reading and writing."""
    if not history or not history[-1].records:
        return "Caught up."
    first, last = history[0], history[-1]
    passed = (last.time_ms - first.time_ms) / SECOND_MS
    if passed <= 0:
        return "Not known yet: it was seen once."
    read = max(0.0, (last.committed - first.committed) / passed)
    written = max(0.0, (last.end - first.end) / passed)
    if read == 0:
        return "It does not move."
    if read <= written:
        return f"Never at this pace: {texts.rate(written)} come in, {texts.rate(read)} are read."
    left = last.records / (read - written)
    return f"In about {texts.seconds(left)}: {texts.rate(read)} are read, {texts.rate(written)} come in."


def readable_groups(snapshot: Snapshot) -> list[GroupSnapshot]:
    """The groups that have offsets; lanes of a bus in memory have none."""
    return [one for one in snapshot.groups if one.kind is not GroupKind.LANE]
