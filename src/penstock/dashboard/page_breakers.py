"""The circuit breakers, and what failed lately."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from penstock.dashboard import parts, texts
from penstock.dashboard.frame import frame, live
from penstock.dashboard.parts import Column, Table
from penstock.observe import Snapshot
from penstock.resilience import BreakerState

COLUMNS = (
    Column("handler", "Handler"),
    Column("state", "Circuit", mood="mood"),
    Column("rate", "Failing", number=True, shown="rate_text"),
    Column("failed", "Failed", number=True),
    Column("refused", "Refused", number=True),
    Column("opened", "Opened", number=True),
    Column("retry", "Retry in", number=True, shown="retry_text"),
    Column("since", "For", number=True, shown="since_text"),
)
ERROR_COLUMNS = (
    Column("time", "Time (UTC)"),
    Column("handler", "Handler"),
    Column("topic", "Topic"),
    Column("error", "Error", classes="ps-wide"),
)
MOODS = {BreakerState.CLOSED: "good", BreakerState.HALF_OPEN: "notice", BreakerState.OPEN: "bad"}
ERRORS_MAX = 50
DEFAULT_SESSION = "BUS"


def build() -> None:
    """The page."""
    with frame("Breakers", "/breakers") as board:
        with parts.card():
            table = Table("Circuit breakers", COLUMNS, _nothing)
        with parts.card("Recent errors"):
            errors = Table(
                "Recent errors",
                ERROR_COLUMNS,
                lambda: parts.empty("Nothing failed", "Errors of handlers are listed here."),
            )

        def draw() -> None:
            table.set(rows_of(board.sampler.latest))
            errors.set(error_rows(board.sampler.latest))

        live(board, draw)


def _nothing() -> ui.element:
    return parts.empty(
        "There are no circuit breakers here",
        "Give a handler of a ResilientMessageBus one, and attach the dashboard to its process:",
        "@bus.on(OrderPlaced, breaker=BreakerOptions())",
        "electrical_services",
    )


def rows_of(snapshot: Snapshot) -> list[dict[str, Any]]:
    """The breakers of all buses, those that are not closed first."""
    rows = [
        {
            "id": f"{bus.name}/{label}",
            "handler": f"{label.removesuffix(f'@{DEFAULT_SESSION}')} in {bus.name}",
            "state": str(one.state).lower().replace("_", " "),
            "mood": MOODS[one.state],
            "rate": round(one.failure_rate, 3),
            "rate_text": f"{one.failure_rate:.0%}",
            "failed": one.failed,
            "refused": one.refused,
            "opened": one.opened,
            "retry": round(one.retry_after, 1),
            "retry_text": texts.seconds(one.retry_after) if one.retry_after else "–",
            "since": snapshot.time_ms - one.changed_ms,
            "since_text": texts.seconds((snapshot.time_ms - one.changed_ms) / 1_000),
        }
        for bus in snapshot.buses
        for label, one in bus.breakers.items()
    ]
    return sorted(rows, key=lambda row: (row["mood"] == "good", row["id"]))


def error_rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    """The newest errors of all buses, the newest first."""
    found = [
        (one.time_ms, bus.name, place, one)
        for bus in snapshot.buses
        if bus.errors is not None
        for place, one in enumerate(bus.errors.recent)
    ]
    return [
        {
            "id": f"{name}/{time_ms}/{place}",
            "time": texts.time(time_ms),
            "handler": one.handler,
            "topic": one.topic,
            "error": texts.line(f"{one.error_type}: {one.error}".encode()),
        }
        for time_ms, name, place, one in sorted(found, key=lambda each: -each[0])[:ERRORS_MAX]
    ]
