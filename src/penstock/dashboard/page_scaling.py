"""What was decided about partitions and consumers, and why."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from penstock.dashboard import parts
from penstock.dashboard.frame import frame, live
from penstock.dashboard.parts import Column, Table
from penstock.observe import Snapshot

COLUMNS = (
    Column("time", "Time (UTC)"),
    Column("topic", "Topic"),
    Column("group", "Group"),
    Column("action", "Decision"),
    Column("reason", "Why", classes="ps-wide"),
    Column("change", "From and to"),
    Column("outcome", "Outcome", mood="mood"),
)
RUN_COLUMNS = (
    Column("topic", "Topic"),
    Column("group", "Group"),
    Column("consumers", "Consumers", number=True),
    Column("alive", "With partitions", number=True),
    Column("handled", "Handled", number=True),
    Column("failures", "Failures", number=True),
    Column("restarts", "Restarts", number=True),
)


def build() -> None:
    """The page."""
    with frame("Scaling", "/scaling") as board:
        with parts.card("Runs"):
            runs = Table("Runs", RUN_COLUMNS, _nothing)
        with parts.card("Decisions"):
            table = Table(
                "Decisions",
                COLUMNS,
                lambda: parts.empty(
                    "Nothing was decided yet",
                    "When a rate or a lag crosses a threshold of ScalabilityConfig, what is done about "
                    "it is listed here.",
                    icon="auto_graph",
                ),
            )

        def draw() -> None:
            runs.set(run_rows(board.sampler.latest))
            table.set(rows_of(board.sampler.latest))

        live(board, draw)


def _nothing() -> ui.element:
    return parts.empty(
        "Nothing here scales by itself",
        "Run a handler with a StreamingScalingManager, and let the observer watch it:",
        "observer.watch(manager)",
        "auto_graph",
    )


def rows_of(snapshot: Snapshot) -> list[dict[str, Any]]:
    """The decisions, the newest first."""
    found = [(streams.name, one) for streams in snapshot.streams for one in streams.decisions]
    found.sort(key=lambda pair: pair[1].decision.decided_at, reverse=True)
    return [
        {
            "id": f"{name}/{place}",
            "time": f"{one.decision.decided_at:%Y-%m-%d %H:%M:%S}",
            "topic": one.decision.topic,
            "group": one.group or "–",
            "action": one.decision.action.replace("_", " "),
            "reason": one.decision.reason,
            "change": f"{one.decision.before} to {one.decision.after}",
            "outcome": f"{one.outcome}: {one.error}" if one.error else str(one.outcome),
            "mood": "good" if one.outcome == "done" else "bad",
        }
        for place, (name, one) in enumerate(found)
    ]


def run_rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    """The runs of all managers."""
    return [
        {
            "id": f"{streams.name}/{place}",
            "topic": one.topic,
            "group": one.group,
            "consumers": one.consumers,
            "alive": one.alive,
            "handled": one.handled,
            "failures": one.failures,
            "restarts": one.restarts,
        }
        for streams in snapshot.streams
        for place, one in enumerate(streams.runs)
    ]
