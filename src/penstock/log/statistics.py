"""What the log says of itself: values, read when asked for. Counting costs nothing in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.bus.histogram import NO_DURATIONS, Durations
from penstock.log.open_topic import OpenTopic
from penstock.stores.base import StoreStatistics


@dataclass(frozen=True, slots=True)
class PartitionStatistics:
    """One partition, as this process knows it."""

    partition: int
    next_offset: int
    """Offset of the next record that is written."""
    durable_offset: int
    """Every record below it survives a power cut."""
    poisoned: str | None
    """Why nothing more is taken, or None."""
    tail_cache_hits: int
    """Batches that subscribers got from memory."""
    sync_durations: Durations = NO_DURATIONS
    """How long it took this process to have entries on the disk."""


@dataclass(frozen=True, slots=True)
class TopicStatistics:
    """One topic, since it was opened by this process."""

    partitions: tuple[PartitionStatistics, ...]
    records_accepted: int
    """Records that publishers handed over."""
    records_committed: int
    """Records that were written."""
    records_failed: int
    """Records whose write failed; their publishers were told."""
    commits: int
    """Group commits; records per commit tell how well publishers share."""
    pending_bytes: int
    """Bytes that wait for the disk now."""
    rolls: int
    """Segments sealed by this process."""


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """A queue: its topics and the store underneath."""

    topics: Mapping[str, TopicStatistics]
    store: StoreStatistics


def topic_statistics(topic: OpenTopic) -> TopicStatistics:
    """The statistics of one open topic."""
    writer = topic.writer
    topic.note_commits()
    return TopicStatistics(
        partitions=tuple(
            PartitionStatistics(
                partition=number,
                next_offset=max(log.head.next_offset, topic.durable[number]),
                durable_offset=topic.durable[number],
                poisoned=str(log.poison) if log.poison is not None else None,
                tail_cache_hits=topic.caches[number].hits,
                sync_durations=log.syncs.durations(),
            )
            for number, log in enumerate(topic.logs)
        ),
        records_accepted=writer.accepted,
        records_committed=writer.committed,
        records_failed=writer.failed,
        commits=writer.commits,
        pending_bytes=writer.pending_bytes,
        rolls=sum(log.rolls for log in topic.logs),
    )
