"""The groups: how far behind each is, and whether it moves."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from penstock.dashboard import parts, texts
from penstock.dashboard.figures import readable_groups
from penstock.dashboard.frame import frame, live
from penstock.dashboard.parts import MOODS, Column, Table
from penstock.observe import GroupSnapshot
from penstock.upkeep import is_journal

COLUMNS = (
    Column("group", "Group", link="path"),
    Column("topic", "Topic"),
    Column("state", "State", mood="mood"),
    Column("lag", "Lag", number=True, shown="lag_text"),
    Column("seconds", "Oldest unread", number=True, shown="seconds_text"),
    Column("rate", "Rate", number=True, shown="rate_text"),
    Column("drain", "Caught up in", number=True, shown="drain_text"),
    Column("members", "Members", number=True),
)
NEVER = 1e18


def build() -> None:
    """The page."""
    with frame("Groups", "/groups") as board, parts.card():
        wanted = parts.field("Find a group or topic")
        table = Table("Groups", COLUMNS, _nothing)

        def draw() -> None:
            text = wanted.value or ""
            groups = readable_groups(board.sampler.latest)
            table.set(
                [
                    row_of(one)
                    for one in groups
                    if (text in one.group or text in one.topic) and not is_journal(one.topic)
                ]
            )

        wanted.on_value_change(draw)
        live(board, draw)


def _nothing() -> ui.element:
    return parts.empty(
        "There are no groups here",
        "A group is made by its first member, as in:",
        "penstock consume orders -g billing",
        "group_work",
    )


def address(group: GroupSnapshot) -> str:
    """The page of a group."""
    names = {"source": group.source, "topic": group.topic, "group": group.group}
    return f"/group?{urlencode(names)}"


def row_of(group: GroupSnapshot) -> dict[str, Any]:
    """A group in a table."""
    drain = group.drain_seconds
    return {
        "id": f"{group.source}/{group.topic}/{group.group}",
        "group": group.group,
        "path": address(group),
        "topic": group.topic,
        "state": str(group.state) if group.cause is None else f"{group.state}: {group.cause}",
        "mood": MOODS[group.state],
        "lag": group.lag_records,
        "lag_text": texts.count(group.lag_records),
        "seconds": round(group.lag_seconds, 1),
        "seconds_text": texts.seconds(group.lag_seconds),
        "rate": round(group.rate, 1),
        "rate_text": texts.rate(group.rate),
        "drain": NEVER if drain is None else round(drain, 1),
        "drain_text": "does not move" if drain is None else texts.seconds(drain),
        "members": len(group.members),
    }
