"""Every metric: its name, what it counts, its labels, and where in a snapshot it comes from.

Prometheus, OpenTelemetry, the table in the documents and the dashboards go by this list.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from penstock.bus.histogram import Durations
from penstock.observe.values import GroupState, Snapshot
from penstock.pressure.readings import PressureStatistics
from penstock.resilience.breaker import BreakerState

PREFIX = "penstock_"
BREAKER_NUMBERS = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}

Sample = tuple[tuple[str, ...], float]
"""The values of the labels, in their order, and the number."""
Reader = Callable[[Snapshot], Iterable[Sample]]
DurationReader = Callable[[Snapshot], Iterable[tuple[tuple[str, ...], Durations]]]


class Kind(enum.StrEnum):
    """What a metric is."""

    COUNTER = "counter"
    """Only goes up. Prometheus adds ``_total`` to its name."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. The name is without the prefix ``penstock_``."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    read: Reader | None = None
    durations: DurationReader | None = None

    @property
    def full_name(self) -> str:
        """As Prometheus shows it."""
        total = "_total" if self.kind is Kind.COUNTER else ""
        return f"{PREFIX}{self.name}{total}"


# Buses


def _figure(field: str) -> Reader:
    return lambda seen: (((bus.name,), getattr(bus.figures, field)) for bus in seen.buses)


def _queue(field: str) -> Reader:
    return lambda seen: (
        ((bus.name, topic), getattr(queue, field))
        for bus in seen.buses
        for topic, queue in bus.figures.queues.items()
    )


def _backpressure_active(seen: Snapshot) -> Iterator[Sample]:
    for bus in seen.buses:
        pressed = any(queue.under_pressure for queue in bus.figures.queues.values())
        level = bus.pressure.level if bus.pressure is not None else 0
        yield (bus.name,), float(pressed or level > 0)


def _letters(field: str) -> Reader:
    return lambda seen: (
        ((bus.name,), getattr(bus.dead_letters, field))
        for bus in seen.buses
        if bus.dead_letters is not None
    )


def _letters_by_reason(seen: Snapshot) -> Iterator[Sample]:
    for bus in seen.buses:
        if bus.dead_letters is not None:
            for reason, count in bus.dead_letters.by_reason.items():
                yield (bus.name, str(reason)), count


def _breaker_state(seen: Snapshot) -> Iterator[Sample]:
    for bus in seen.buses:
        for handler, breaker in bus.breakers.items():
            yield (bus.name, handler), BREAKER_NUMBERS[breaker.state]


def _breaker_opened(seen: Snapshot) -> Iterator[Sample]:
    for bus in seen.buses:
        for handler, breaker in bus.breakers.items():
            yield (bus.name, handler), breaker.opened


# Pressure


def _pressures(seen: Snapshot) -> Iterator[tuple[str, PressureStatistics]]:
    for bus in seen.buses:
        if bus.pressure is not None:
            yield bus.name, bus.pressure.pressure
    for streams in seen.streams:
        yield streams.name, streams.publishers.pressure
        for topic, pressure in streams.lag_pressure.items():
            yield f"{streams.name}/{topic}", pressure


def _level(seen: Snapshot) -> Iterator[Sample]:
    return (((name,), int(one.level)) for name, one in _pressures(seen))


def _utilisation(seen: Snapshot) -> Iterator[Sample]:
    return (((name,), one.utilisation) for name, one in _pressures(seen))


def _level_seconds(seen: Snapshot) -> Iterator[Sample]:
    for name, one in _pressures(seen):
        for level, seconds in one.seconds.items():
            yield (name, level.name.lower()), seconds


def _shed(seen: Snapshot) -> Iterator[Sample]:
    for bus in seen.buses:
        if bus.pressure is not None:
            yield (bus.name,), bus.pressure.total.shed
    for streams in seen.streams:
        yield (streams.name,), streams.publishers.shed


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
        stalled = sum(at.state is GroupState.STALLED for at in one.partitions)
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


# Streams, transports, queries


def _transport(field: str) -> Reader:
    return lambda seen: (
        ((streams.name, name), getattr(one, field))
        for streams in seen.streams
        for name, one in streams.transports.items()
    )


def _connection(field: str) -> Reader:
    return lambda seen: (
        ((one.name,), float(getattr(one.connection, field))) for one in seen.transports
    )


def _run(field: str) -> Reader:
    return lambda seen: (
        ((streams.name, run.group, run.topic), getattr(run, field))
        for streams in seen.streams
        for run in streams.runs
    )


def _decisions(seen: Snapshot) -> Iterator[Sample]:
    for streams in seen.streams:
        counts: dict[tuple[str, str], int] = {}
        for one in streams.decisions:
            place = (str(one.decision.action), str(one.outcome))
            counts[place] = counts.get(place, 0) + 1
        for (action, outcome), count in counts.items():
            yield (streams.name, action, outcome), count


def _query(field: str) -> Reader:
    return lambda seen: (
        ((one.pipeline, one.group), float(getattr(one, field))) for one in seen.queries
    )


BUS, TOPIC = ("bus",), ("bus", "topic")
PLACE, GROUP = ("log", "topic", "partition"), ("source", "group", "topic", "partition")
COUNTER, GAUGE, HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

METRICS: tuple[Metric, ...] = (
    Metric(
        "events_published", COUNTER, BUS, "Events that were queued.", _figure("events_published")
    ),
    Metric(
        "events_processed",
        COUNTER,
        BUS,
        "Events that all handlers are done with.",
        _figure("events_processed"),
    ),
    Metric(
        "events_failed",
        COUNTER,
        BUS,
        "Events that a handler failed on for good.",
        _figure("events_failed"),
    ),
    Metric(
        "events_filtered",
        COUNTER,
        BUS,
        "Events that filters or middleware kept from all handlers.",
        _figure("events_filtered"),
    ),
    Metric(
        "events_unhandled",
        COUNTER,
        BUS,
        "Events that nobody listens to.",
        _figure("events_unhandled"),
    ),
    Metric(
        "events_dropped",
        COUNTER,
        BUS,
        "Events that made room for others.",
        _figure("events_dropped"),
    ),
    Metric(
        "events_unsettled",
        GAUGE,
        BUS,
        "Events that are queued, in work, or wait for a retry.",
        _figure("events_unsettled"),
    ),
    Metric(
        "commands_executed",
        COUNTER,
        BUS,
        "Commands that were executed.",
        _figure("commands_executed"),
    ),
    Metric(
        "commands_processed",
        COUNTER,
        BUS,
        "Commands that ended well.",
        _figure("commands_succeeded"),
    ),
    Metric("commands_failed", COUNTER, BUS, "Commands that failed.", _figure("commands_failed")),
    Metric(
        "event_processing_duration_seconds",
        HISTOGRAM,
        TOPIC,
        "How long the handlers of an event took.",
        durations=lambda seen: (
            ((bus.name, topic), one)
            for bus in seen.buses
            for topic, one in bus.event_durations.items()
        ),
    ),
    Metric(
        "command_processing_duration_seconds",
        HISTOGRAM,
        ("bus", "command"),
        "How long commands took.",
        durations=lambda seen: (
            ((bus.name, topic), one)
            for bus in seen.buses
            for topic, one in bus.command_durations.items()
        ),
    ),
    Metric("queue_size", GAUGE, TOPIC, "Events that wait in a queue.", _queue("depth")),
    Metric("queue_capacity", GAUGE, TOPIC, "How many may wait in it.", _queue("capacity")),
    Metric(
        "queue_rejected", COUNTER, TOPIC, "Events that a full queue refused.", _queue("rejected")
    ),
    Metric(
        "backpressure_active",
        GAUGE,
        BUS,
        "1 while a queue is above its mark or the level is above NORMAL.",
        _backpressure_active,
    ),
    Metric(
        "circuit_breaker_state",
        GAUGE,
        ("bus", "handler"),
        "0 closed, 1 half open, 2 open.",
        _breaker_state,
    ),
    Metric(
        "circuit_breaker_opened",
        COUNTER,
        ("bus", "handler"),
        "How often a circuit opened.",
        _breaker_opened,
    ),
    Metric(
        "dead_letter_queue_size", GAUGE, BUS, "Dead letters that are kept.", _letters("letters")
    ),
    Metric(
        "dead_letters_by_reason",
        GAUGE,
        ("bus", "reason"),
        "Dead letters that are kept, by why they are.",
        _letters_by_reason,
    ),
    Metric("dead_letters_added", COUNTER, BUS, "Dead letters so far.", _letters("added")),
    Metric(
        "dead_letters_lost",
        COUNTER,
        BUS,
        "Dead letters that were not taken, as there was no room.",
        _letters("rejected"),
    ),
    Metric("active_sessions", GAUGE, BUS, "Sessions that are open.", _figure("active_sessions")),
    Metric(
        "registered_handlers",
        GAUGE,
        BUS,
        "Handlers, of events and of commands.",
        lambda seen: (((bus.name,), len(bus.figures.handlers)) for bus in seen.buses),
    ),
    Metric(
        "pressure_level",
        GAUGE,
        ("subsystem",),
        "0 normal, 1 warning, 2 critical, 3 shedding.",
        _level,
    ),
    Metric(
        "pressure_utilisation_ratio",
        GAUGE,
        ("subsystem",),
        "The share of the capacity in use, of the fullest stage.",
        _utilisation,
    ),
    Metric(
        "pressure_level_seconds",
        COUNTER,
        ("subsystem", "level"),
        "How long each level lasted.",
        _level_seconds,
    ),
    Metric(
        "pressure_shed", COUNTER, ("subsystem",), "Messages that were refused to shed load.", _shed
    ),
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
    Metric(
        "transport_published",
        COUNTER,
        ("streams", "transport"),
        "Records that were acknowledged.",
        _transport("published"),
    ),
    Metric(
        "transport_delivered",
        COUNTER,
        ("streams", "transport"),
        "Records that subscribers got.",
        _transport("delivered"),
    ),
    Metric(
        "transport_failed",
        COUNTER,
        ("streams", "transport"),
        "Records whose publishers got an error.",
        _transport("failed"),
    ),
    Metric(
        "connection_up",
        GAUGE,
        ("transport",),
        "1 while the broker can be reached.",
        _connection("connected"),
    ),
    Metric(
        "connection_reconnects",
        COUNTER,
        ("transport",),
        "Connections that were lost and made again.",
        _connection("reconnects"),
    ),
    Metric(
        "connection_errors",
        COUNTER,
        ("transport",),
        "Errors of the connection, and refusals.",
        _connection("errors"),
    ),
    Metric(
        "run_consumers",
        GAUGE,
        ("streams", "group", "topic"),
        "Consumers that there are to be.",
        _run("consumers"),
    ),
    Metric(
        "run_handled", COUNTER, ("streams", "group", "topic"), "Records handled.", _run("handled")
    ),
    Metric(
        "run_restarts",
        COUNTER,
        ("streams", "group", "topic"),
        "Consumers that died and were started again.",
        _run("restarts"),
    ),
    Metric(
        "run_parked",
        GAUGE,
        ("streams", "group", "topic"),
        "Records that failed for good and hold up their partition.",
        _run("parked"),
    ),
    Metric(
        "scaling_decisions",
        GAUGE,
        ("streams", "action", "outcome"),
        "Decisions of the scaler that are remembered.",
        _decisions,
    ),
    Metric(
        "query_running", GAUGE, ("pipeline", "group"), "1 while a query runs.", _query("running")
    ),
    Metric(
        "query_input_rows_per_second",
        GAUGE,
        ("pipeline", "group"),
        "Rows per second that came.",
        _query("input_rows_per_second"),
    ),
    Metric(
        "query_processed_rows_per_second",
        GAUGE,
        ("pipeline", "group"),
        "Rows per second that were processed.",
        _query("processed_rows_per_second"),
    ),
    Metric(
        "query_batch_duration_seconds",
        GAUGE,
        ("pipeline", "group"),
        "How long the last micro-batch took.",
        _query("batch_seconds"),
    ),
    Metric(
        "query_write_duration_seconds",
        GAUGE,
        ("pipeline", "group"),
        "Of these: from the first row that was read to the commit of the sink.",
        _query("write_seconds"),
    ),
    Metric(
        "query_watermark_lag_seconds",
        GAUGE,
        ("pipeline", "group"),
        "How far the watermark of a query is behind the clock.",
        _query("watermark_lag_seconds"),
    ),
    Metric(
        "query_state_bytes",
        GAUGE,
        ("pipeline", "group"),
        "Bytes that a query keeps as its state in memory.",
        _query("state_bytes"),
    ),
    Metric(
        "query_state_rows",
        GAUGE,
        ("pipeline", "group"),
        "Rows that a query keeps as its state.",
        _query("state_rows"),
    ),
    Metric(
        "query_lag_records",
        GAUGE,
        ("pipeline", "group"),
        "Records that a query is behind.",
        _query("lag_records"),
    ),
)
