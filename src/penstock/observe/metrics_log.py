"""The metrics of logs and of groups."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.observe.metric import COUNTER, GAUGE, HISTOGRAM, Metric, Reader, Sample
from penstock.observe.values import GroupActivity, Snapshot

PLACE, GROUP = ("log", "topic", "partition"), ("source", "group", "topic", "partition")


# Logs and groups


def _partition(field: str) -> Reader:
    return lambda seen: (
        ((one.source, one.topic, str(at.partition)), getattr(at, field))
        for one in seen.topics
        for at in one.partitions
    )


def _topic(field: str) -> Reader:
    return lambda seen: (((one.source, one.topic), getattr(one, field)) for one in seen.topics)


def _poisoned(seen: Snapshot) -> Iterator[Sample]:
    for one in seen.topics:
        poisoned = sum(at.poisoned is not None for at in one.partitions)
        yield (one.source, one.topic), poisoned


def _group(field: str) -> Reader:
    return lambda seen: (
        ((one.source, one.group, one.topic, _number(at.partition)), getattr(at, field) or 0)
        for one in seen.groups
        for at in one.partitions
    )


def _stalled(seen: Snapshot) -> Iterator[Sample]:
    for one in seen.groups:
        stalled = sum(at.state is GroupActivity.STALLED for at in one.partitions)
        yield (one.source, one.group, one.topic), stalled


def _stalls_by_cause(seen: Snapshot) -> Iterator[Sample]:
    counts: dict[str, int] = {}
    for one in seen.stalls:
        counts[one.cause] = counts.get(one.cause, 0) + 1
    return (((cause,), count) for cause, count in counts.items())


def _members(seen: Snapshot) -> Iterator[Sample]:
    return (
        ((one.source, one.group, one.topic), len(one.members))
        for one in seen.groups
        if one.generation is not None
    )


def _number(partition: int | None) -> str:
    return "" if partition is None else str(partition)


LOG_METRICS: tuple[Metric, ...] = (
    Metric(
        "log_end_offset",
        GAUGE,
        PLACE,
        "Offset of the next record that is written.",
        _partition("next_offset"),
    ),
    Metric(
        "log_durable_offset",
        GAUGE,
        PLACE,
        "Every record below it survives a power cut.",
        _partition("durable_offset"),
    ),
    Metric("log_bytes", GAUGE, PLACE, "Bytes of all segments.", _partition("bytes")),
    Metric("log_segments", GAUGE, PLACE, "Segments.", _partition("segments")),
    Metric(
        "log_records_committed",
        COUNTER,
        ("log", "topic"),
        "Records that this process wrote.",
        _topic("records_committed"),
    ),
    Metric(
        "log_records_failed",
        COUNTER,
        ("log", "topic"),
        "Records whose write failed; their publishers were told.",
        _topic("records_failed"),
    ),
    Metric(
        "log_pending_bytes",
        GAUGE,
        ("log", "topic"),
        "Bytes that wait for the disk.",
        _topic("pending_bytes"),
    ),
    Metric(
        "log_poisoned_partitions",
        GAUGE,
        ("log", "topic"),
        "Partitions that take no more records in this process.",
        _poisoned,
    ),
    Metric(
        "log_fsync_duration_seconds",
        HISTOGRAM,
        ("log", "topic"),
        "How long it took to have records on the disk.",
        durations=lambda seen: (
            ((one.source, one.topic), one.sync_durations)
            for one in seen.topics
            if one.sync_durations.count
        ),
    ),
    Metric(
        "group_committed_offset",
        GAUGE,
        GROUP,
        "Offset of the first record that is not done.",
        _group("committed"),
    ),
    Metric(
        "group_lag_records",
        GAUGE,
        GROUP,
        "Records that a group is not done with.",
        _group("lag_records"),
    ),
    Metric(
        "group_lag_seconds",
        GAUGE,
        GROUP,
        "Age of the first record that is not done.",
        _group("lag_seconds"),
    ),
    Metric(
        "group_progress_age_seconds",
        GAUGE,
        GROUP,
        "How long ago something was done, or there was nothing to do.",
        _group("progress_seconds"),
    ),
    Metric("group_members", GAUGE, ("source", "group", "topic"), "Members of a group.", _members),
    Metric(
        "stalled_partitions",
        GAUGE,
        ("source", "group", "topic"),
        "Partitions with something to do in which nothing is done.",
        _stalled,
    ),
    Metric("stalls", GAUGE, ("cause",), "Stalls, by what causes them.", _stalls_by_cause),
)
