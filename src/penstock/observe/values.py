"""What an observer sees, as values: one snapshot of all that it watches.

All of them are frozen and can be written as JSON: ``snapshot.to_dict()``, ``snapshot.to_json()``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.bus.histogram import NO_DURATIONS, Durations
from penstock.bus.statistics import BusStatistics
from penstock.observe.plain import as_json, as_plain
from penstock.pressure.message_bus import BackpressureStatistics
from penstock.pressure.readings import PressureStatistics
from penstock.pressure.streaming_statistics import StreamingStatistics
from penstock.resilience.breaker import BreakerStatistics
from penstock.resilience.dead_letters import DeadLetterStatistics
from penstock.resilience.tracking import ErrorStatistics
from penstock.streaming.run_values import RunStatistics
from penstock.streaming.scaler import ScalingRecord
from penstock.streaming.transport_statistics import TransportStatistics
from penstock.transports.statistics import ConnectionStatistics


class GroupActivity(enum.StrEnum):
    """What a group does in a partition."""

    IDLE = "idle"
    """Nothing is left to do. A group without a lag is never stalled."""
    RUNNING = "running"
    """It goes on."""
    PAUSED = "paused"
    """Something holds it up on purpose, for less long than a stall takes: the cause says what."""
    STALLED = "stalled"
    """There is something to do, and nothing was done for ``stall_seconds``."""


class Cause(enum.StrEnum):
    """What holds a group up."""

    HANDLER = "handler running"
    """A handler was called and has not returned; the stack says where it waits."""
    LOOP_BLOCKED = "event loop blocked"
    """Something blocks the event loop: nothing runs beside it. The stack says what."""
    RETRYING = "waiting for a retry"
    """A handler failed, and is called again later."""
    CIRCUIT_OPEN = "circuit open"
    """A handler failed too often, and is not called for a while."""
    PRESSURE = "paused by pressure"
    """A handler wants to publish, and the pressure or a full queue makes it wait."""
    BROKER_SILENT = "broker silent"
    """The connection is lost, or the broker does not answer."""
    REBALANCING = "rebalance loop"
    """The members of the group change again and again, and nothing is committed in between."""
    NO_MEMBER = "no member"
    """Nobody reads for the group."""
    PARKED = "parked record"
    """A record failed for good and is kept: nothing behind it can be committed."""
    QUERY_FAILED = "query failed"
    """A query of Spark ended with an error."""
    PAUSED = "paused by the program"
    """Somebody called ``pause``."""
    NO_PROGRESS = "no progress"
    """Nothing is committed. Whoever reads does not tell why: it is another process, say."""


class GroupKind(enum.StrEnum):
    """What a group is."""

    LANE = "lane"
    """The handlers of one topic of a bus, in memory. The group has the name of the bus."""
    LOG = "log"
    """A subscriber or a consumer group of a log, here or in another process."""
    BROKER = "broker"
    """A consumer group of a broker."""
    SPARK = "spark"
    """A query of Spark whose log is not watched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A group that has something to do and does not go on, and why."""

    source: str
    """The bus, the log or the transport that it belongs to."""
    group: str
    topic: str
    partition: int | None
    """None for what has no partitions."""
    offset: int | None
    """The first record that is not done; None where there are no offsets."""
    since_ms: int
    """Since when nothing was done, in milliseconds since 1970."""
    seconds: float
    """How long that is."""
    cause: Cause
    detail: str
    """The cause in one sentence."""
    stack: tuple[str, ...] = ()
    """Where the handler waits, outermost first: ``file:line function``."""
    local: bool = True
    """Whether the group is in this process, so that ending it would end the stall."""

    def explain(self) -> str:
        """All of it in one line."""
        where = self.topic if self.partition is None else f"{self.topic}/{self.partition}"
        at = "" if self.offset is None else f" at offset {self.offset}"
        return f"{self.group} stands still on {where}{at} for {self.seconds:.0f} s: {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPartition:
    """How far a group is in one partition."""

    partition: int | None
    committed: int | None
    """Offset of the first record that is not done."""
    end: int | None
    """Offset of the next record that will be written."""
    lag_records: int
    lag_seconds: float
    """Age of the first record that is not done; 0 when there is none."""
    progress_seconds: float
    """How long ago something was done, or there was nothing to do."""
    state: GroupActivity
    cause: Cause | None = None
    """What holds it up, for PAUSED and STALLED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """A group and one topic that it reads."""

    kind: GroupKind
    source: str
    group: str
    topic: str
    state: GroupActivity
    """That of the partition that is worst off."""
    cause: Cause | None
    lag_records: int
    lag_seconds: float
    rate: float
    """Records per second that it did lately; 0 until it was looked at twice."""
    drain_seconds: float | None
    """How long the lag takes at that rate, when nothing new comes; None when it does not move."""
    members: tuple[str, ...]
    """Who reads for it, as far as that is known."""
    generation: int | None
    """How often the members changed, where that is known."""
    partitions: tuple[GroupPartition, ...]
    local: bool
    """Whether it is in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPartition:
    """One partition of a topic in a log."""

    partition: int
    next_offset: int
    durable_offset: int
    """Every record below it survives a power cut."""
    earliest_offset: int
    bytes: int
    """Of all segments."""
    segments: int
    oldest_ms: int | None
    """When the oldest record that is kept was appended."""
    full: bool
    """Whether records are refused until groups have consumed enough."""
    poisoned: str | None
    """Why nothing more is taken, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSnapshot:
    """A topic of a log. The counts are those of this process, since it opened the topic."""

    source: str
    topic: str
    partitions: tuple[LogPartition, ...]
    sync_durations: Durations = NO_DURATIONS
    """How long it took this process to have records on the disk."""
    records_accepted: int = 0
    records_committed: int = 0
    records_failed: int = 0
    commits: int = 0
    pending_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSnapshot:
    """A log as a whole; its topics and groups stand beside it."""

    name: str
    bytes: int
    """Of all segments of all topics, as of the last look."""
    reads: int
    bytes_read: int
    writes: int
    bytes_written: int
    syncs: int
    error: str | None
    """What kept the last look from seeing all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusSnapshot:
    """A bus, with what stands around it."""

    name: str
    figures: BusStatistics
    event_durations: Mapping[str, Durations]
    """How long handlers took, by topic. Empty unless the bus measures."""
    command_durations: Mapping[str, Durations]
    pressure: BackpressureStatistics | None
    dead_letters: DeadLetterStatistics | None
    breakers: Mapping[str, BreakerStatistics]
    errors: ErrorStatistics | None
    scaling: Mapping[str, Any] | None
    """What ``get_scaling_metrics()`` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsSnapshot:
    """A streaming manager. What has a topic in it is as of the manager's last look."""

    name: str
    publishers: StreamingStatistics
    """Publishers that wait for the transport, and the pressure they feel."""
    lag_pressure: Mapping[str, PressureStatistics]
    """What producers feel of groups that lag, by topic."""
    transports: Mapping[str, TransportStatistics]
    runs: tuple[RunStatistics, ...]
    decisions: tuple[ScalingRecord, ...]
    """What was decided about partitions and consumers, the newest last."""
    scaling: Mapping[str, Any]
    """What ``get_scaling_metrics()`` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSnapshot:
    """The connection of a transport."""

    name: str
    connection: ConnectionStatistics
    error: str | None
    """What kept the last look from seeing its groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySnapshot:
    """A query of Spark, as of the last look."""

    pipeline: str
    name: str
    group: str
    running: bool
    micro_batch: int
    rows: int
    input_rows_per_second: float
    processed_rows_per_second: float
    batch_seconds: float
    write_seconds: float
    """Of these: from the first row that was read to the commit of the sink."""
    state_rows: int
    state_bytes: int
    rows_too_late: int
    watermark: str | None
    watermark_lag_seconds: float
    lag_records: int
    lag_seconds: float
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether the process does its work, for those who would restart it or send it traffic."""

    alive: bool
    """False when something here stands still that a restart can end."""
    ready: bool
    """False while it should get no new work."""
    reasons: tuple[str, ...]
    """What is wrong, one sentence each; may hold something also while both are true."""
    stalls: tuple[Stall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that an observer watches, at one moment."""

    time_ms: int
    looked_ms: int | None
    """When logs and brokers were looked at; None: not yet."""
    buses: tuple[BusSnapshot, ...] = ()
    logs: tuple[LogSnapshot, ...] = ()
    topics: tuple[TopicSnapshot, ...] = ()
    groups: tuple[GroupSnapshot, ...] = ()
    streams: tuple[StreamsSnapshot, ...] = ()
    transports: tuple[TransportSnapshot, ...] = ()
    queries: tuple[QuerySnapshot, ...] = ()
    stalls: tuple[Stall, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them: text for enumerations and times, lists for tuples."""
        plain: dict[str, Any] = as_plain(self)
        return plain

    def to_json(self) -> str:
        """The same as JSON."""
        return as_json(self)
