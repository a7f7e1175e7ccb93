"""The metrics of streams, of connections to brokers, and of queries of Spark."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.observe.metric import COUNTER, GAUGE, Metric, Reader, Sample
from penstock.observe.values import Snapshot

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


STREAM_METRICS: tuple[Metric, ...] = (
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
        "Records that failed for good and are parked: commits do not pass them.",
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
