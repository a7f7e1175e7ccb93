"""The queries of Spark: rates, batches, state."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from penstock.dashboard import parts, texts
from penstock.dashboard.frame import frame, live
from penstock.dashboard.parts import Column, Table
from penstock.observe import QuerySnapshot

COLUMNS = (
    Column("name", "Query"),
    Column("pipeline", "Pipeline"),
    Column("state", "State", mood="mood"),
    Column("input", "Input", number=True, shown="input_text"),
    Column("processed", "Processed", number=True, shown="processed_text"),
    Column("batch", "Batch", number=True),
    Column("seconds", "Batch takes", number=True, shown="seconds_text"),
    Column("lag", "Lag", number=True, shown="lag_text"),
    Column("rows", "State rows", number=True, shown="rows_text"),
    Column("bytes", "State size", number=True, shown="bytes_text"),
    Column("late", "Too late", number=True),
    Column("watermark", "Watermark"),
)


def build() -> None:
    """The page."""
    with frame("Spark queries", "/queries") as board, parts.card():
        table = Table("Spark queries", COLUMNS, _nothing)
        live(board, lambda: table.set([row_of(one) for one in board.sampler.latest.queries]))


def _nothing() -> ui.element:
    return parts.empty(
        "No Spark query is watched",
        "Start a pipeline, and let the observer of its process watch it:",
        "observer.watch(running)",
        "bolt",
    )


def row_of(query: QuerySnapshot) -> dict[str, Any]:
    """A query in a table."""
    state, mood = ("running", "good") if query.running else ("stopped", "notice")
    if query.error is not None:
        state, mood = f"failed: {texts.line(query.error.encode())}", "bad"
    return {
        "id": f"{query.pipeline}/{query.name}",
        "name": query.name,
        "pipeline": query.pipeline,
        "state": state,
        "mood": mood,
        "input": round(query.input_rows_per_second, 1),
        "input_text": texts.rate(query.input_rows_per_second),
        "processed": round(query.processed_rows_per_second, 1),
        "processed_text": texts.rate(query.processed_rows_per_second),
        "batch": query.micro_batch,
        "seconds": round(query.batch_seconds, 3),
        "seconds_text": f"{texts.seconds(query.batch_seconds)}, writes {texts.seconds(query.write_seconds)}",
        "lag": query.lag_records,
        "lag_text": f"{texts.count(query.lag_records)}, {texts.seconds(query.lag_seconds)}",
        "rows": query.state_rows,
        "rows_text": texts.count(query.state_rows),
        "bytes": query.state_bytes,
        "bytes_text": texts.size(query.state_bytes),
        "late": query.rows_too_late,
        "watermark": f"{texts.seconds(query.watermark_lag_seconds)} behind"
        if query.watermark
        else "–",
    }
