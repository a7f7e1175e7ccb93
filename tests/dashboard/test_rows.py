"""What the tables of the pages show, from values alone."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from penstock.dashboard import page_breakers, page_queries, page_scaling, page_topics
from penstock.observe import LogPartition, QuerySnapshot, Snapshot, TopicSnapshot
from penstock.resilience import BreakerState, BreakerStatistics
from penstock.streaming import ScalingAction, ScalingDecision, ScalingOutcome, ScalingRecord

EMPTY = Snapshot(time_ms=10_000, looked_ms=10_000)
QUERY = QuerySnapshot(
    pipeline="shop",
    name="totals",
    group="shop.totals",
    running=True,
    micro_batch=7,
    rows=100,
    input_rows_per_second=1_500.0,
    processed_rows_per_second=2_000.0,
    batch_seconds=0.25,
    write_seconds=0.1,
    state_rows=40,
    state_bytes=2_048,
    rows_too_late=3,
    watermark="2026-03-01T12:00:00Z",
    watermark_lag_seconds=90.0,
    lag_records=12,
    lag_seconds=1.5,
    error=None,
)


def test_a_query_tells_rates_batches_and_state():
    row = page_queries.row_of(QUERY)
    assert (row["state"], row["mood"]) == ("running", "good")
    assert (row["input_text"], row["processed_text"]) == ("1,500/s", "2,000/s")
    assert (row["seconds_text"], row["bytes_text"], row["lag_text"]) == (
        "250 ms, writes 100 ms",
        "2.0 KiB",
        "12, 1.5 s",
    )
    assert row["watermark"] == "90 s behind"
    failed = page_queries.row_of(replace(QUERY, running=False, error="no space left"))
    assert (failed["state"], failed["mood"]) == ("failed: no space left", "bad")
    assert page_queries.row_of(replace(QUERY, running=False))["state"] == "stopped"


def test_decisions_are_shown_with_their_reason_the_newest_first():
    def record(hour: int, outcome: ScalingOutcome) -> ScalingRecord:
        decision = ScalingDecision(
            topic="orders",
            action=ScalingAction.ADD_PARTITIONS,
            metric="rate",
            value=900.0,
            threshold=500.0,
            before=2,
            after=4,
            reason="900 records/s are more than 500",
            decided_at=datetime(2026, 3, 1, hour, tzinfo=UTC),
        )
        return ScalingRecord(decision, None, outcome, None if outcome == "done" else "no")

    decisions = (record(1, ScalingOutcome.DONE), record(2, ScalingOutcome.FAILED))
    streams: Any = SimpleNamespace(name="streams", decisions=decisions, runs=())
    newest, oldest = page_scaling.rows_of(replace(EMPTY, streams=(streams,)))
    assert (newest["outcome"], newest["mood"]) == ("failed: no", "bad")
    assert (oldest["change"], oldest["action"]) == ("2 to 4", "add partitions")
    assert oldest["reason"] == "900 records/s are more than 500"


def test_open_circuits_stand_first():
    def breaker(state: BreakerState) -> BreakerStatistics:
        return BreakerStatistics("x", state, 9, 1, 5, 3, 0, 1, 0.375, 12.0, 4_000)

    breakers = {"a.fine": breaker(BreakerState.CLOSED), "b.broken@BUS": breaker(BreakerState.OPEN)}
    bus: Any = SimpleNamespace(name="shop", breakers=breakers, errors=None)
    first, second = page_breakers.rows_of(replace(EMPTY, buses=(bus,)))
    assert (first["handler"], first["state"], first["mood"]) == ("b.broken in shop", "open", "bad")
    assert (first["rate_text"], first["retry_text"], first["since_text"]) == (
        "38%",
        "12 s",
        "6.0 s",
    )
    assert second["state"] == "closed"


def test_a_topic_that_takes_no_more_is_marked():
    part = LogPartition(
        partition=0,
        next_offset=30,
        durable_offset=30,
        earliest_offset=10,
        bytes=5_000,
        segments=1,
        oldest_ms=None,
        full=False,
        poisoned="the disk failed",
    )
    topic = TopicSnapshot(source="log", topic="orders", partitions=(part,))
    rows = page_topics.rows_of(replace(EMPTY, topics=(topic,)), {"kafka": ["a topic"]})
    assert (rows[0]["state"], rows[0]["mood"], rows[0]["records"]) == ("refuses records", "bad", 20)
    assert rows[1]["path"] == "/topic?source=kafka&topic=a+topic"
