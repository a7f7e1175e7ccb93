"""One group: its lag over time, partition by partition, and a seek that says first what it does."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from penstock import errors
from penstock.dashboard import figures, moves, parts, texts
from penstock.dashboard.board import Board
from penstock.dashboard.charts import Chart
from penstock.dashboard.frame import frame, live
from penstock.dashboard.moves import END, OFFSET, START, TIME, Move
from penstock.dashboard.page_topics import address as topic_address
from penstock.dashboard.parts import MOODS, Column, Table, Tiles, careful
from penstock.dashboard.sampler import GroupKey
from penstock.observe import GroupPartition, GroupSnapshot

COLUMNS = (
    Column("partition", "Partition"),
    Column("state", "State", mood="mood"),
    Column("committed", "Committed", number=True),
    Column("end", "End", number=True),
    Column("lag", "Lag", number=True, shown="lag_text"),
    Column("seconds", "Oldest unread", number=True, shown="seconds_text"),
    Column("progress", "Last progress", number=True, shown="progress_text"),
)
MOVE_COLUMNS = (
    Column("id", "Partition"),
    Column("before", "Is at", number=True),
    Column("after", "Would go to", number=True),
    Column("text", "So"),
)
LAG, OLDEST, RATE, MEMBERS = "Lag in records", "Oldest unread", "Rate", "Members"
KINDS = {
    START: "The first record that is kept",
    END: "The end: pass all over",
    OFFSET: "An offset",
    TIME: "A time",
}


def build(source: str = "", topic: str = "", group: str = "") -> None:
    """The page."""
    key = (source, topic, group)
    with frame(group or "Group", "/groups") as board:
        with parts.row("ps-dim"):
            ui.label("reads")
            ui.link(topic, topic_address(source, topic))
            ui.label(f"in {source}")
            state = parts.badge("")
        cause = ui.label().classes("ps-dim")
        tiles = Tiles(LAG, OLDEST, RATE, MEMBERS)
        with parts.card("When it is caught up"):
            drain = ui.label().props("role=status")
        with ui.element("div").classes("ps-two"):
            with parts.card("Lag in records"):
                records = Chart("Lag in records", "records")
            with parts.card("Lag in seconds"):
                seconds = Chart("Lag in seconds", "seconds")
        with parts.card("Partitions"):
            table = Table("Partitions", COLUMNS, _nothing)
        _Seek(board, key)

        def draw() -> None:
            found = find(board, key)
            history = board.sampler.lags(key)
            drain.set_text(figures.drain(history))
            times = [one.time_ms for one in history]
            records.set(times, [one.records for one in history])
            seconds.set(times, [one.seconds for one in history])
            if found is None:
                table.set([])
                return
            state.set_text(str(found.state))
            parts.attribute(state, "data-mood", MOODS[found.state])
            cause.set_text(_why(board, found))
            tiles.set(LAG, texts.count(found.lag_records))
            tiles.set(OLDEST, texts.seconds(found.lag_seconds))
            tiles.set(RATE, texts.rate(found.rate))
            tiles.set(MEMBERS, str(len(found.members)))
            table.set([_row(one) for one in found.partitions])

        live(board, draw)


def find(board: Board, key: GroupKey) -> GroupSnapshot | None:
    """The group of this moment."""
    groups = board.sampler.latest.groups
    return next((one for one in groups if (one.source, one.topic, one.group) == key), None)


def _why(board: Board, group: GroupSnapshot) -> str:
    for stall in board.sampler.latest.stalls:
        if (stall.source, stall.topic, stall.group) == (group.source, group.topic, group.group):
            return stall.explain()
    return "" if group.cause is None else f"Held up: {group.cause}"


def _nothing() -> ui.element:
    return parts.empty(
        "This group is not there", "It was deleted, or its topic was. Look at the list of groups."
    )


def _row(part: GroupPartition) -> dict[str, Any]:
    return {
        "id": str(part.partition),
        "partition": part.partition,
        "state": str(part.state) if part.cause is None else f"{part.state}: {part.cause}",
        "mood": MOODS[part.state],
        "committed": part.committed,
        "end": part.end,
        "lag": part.lag_records,
        "lag_text": texts.count(part.lag_records),
        "seconds": round(part.lag_seconds, 1),
        "seconds_text": texts.seconds(part.lag_seconds),
        "progress": round(part.progress_seconds),
        "progress_text": "–"
        if not part.lag_records
        else f"{texts.seconds(part.progress_seconds)} ago",
    }


class _Seek:
    """The form: choose, look at what would happen, do it."""

    def __init__(self, board: Board, key: GroupKey) -> None:
        self._board, self._key = board, key
        self._moves: list[Move] = []
        with parts.card("Seek"):
            parts.text(
                "div", "Let the group go on from another place. Stop its members first.", "ps-dim"
            )
            with ui.element("div").classes("ps-fields ps-broad"):
                self._kind = parts.choice("Go on from", KINDS, START)
                self._value = parts.field("Offset or time")
            self._value.bind_visibility_from(
                self._kind, "value", backward=lambda kind: kind in (OFFSET, TIME)
            )
            self._kind.on_value_change(self._forget)
            self._value.on_value_change(self._forget)
            with parts.row():
                parts.button("Preview", careful(self._preview))
                self._do = parts.button("Seek", careful(self._seek), "danger")
            self._table = Table("What the seek does", MOVE_COLUMNS, lambda: ui.element("div"))
        self._do.set_visibility(False)

    def _group(self) -> GroupSnapshot:
        found = find(self._board, self._key)
        if found is None:
            raise errors.InvalidOption("this group is not there any more", option="group")
        return found

    def _forget(self) -> None:
        """What was shown does not hold any more."""
        self._moves = []
        self._table.set([])
        self._do.set_visibility(False)

    async def _preview(self) -> None:
        group = self._group()
        target = moves.target_of(self._kind.value, self._value.value or "")
        source = self._board.source_of_group(group.source)
        self._moves = await moves.preview(source, group, target)
        self._table.set(
            [
                {
                    "id": str(one.partition),
                    "before": one.before,
                    "after": "by time" if one.after is None else one.after,
                    "text": one.text(),
                }
                for one in self._moves
            ]
        )
        self._do.set_visibility(bool(self._moves))

    async def _seek(self) -> None:
        group = self._group()
        details = [f"partition {one.partition}: {one.text()}" for one in self._moves]
        what = f"This moves {group.group} on {group.topic}."
        if group.members:
            many = texts.plural(len(group.members), "member")
            what += f" It has {many}: the seek is refused until that is stopped."
        if not await parts.confirm("Seek the group?", what, "Seek", details):
            return
        source = self._board.source_of_group(group.source)
        await moves.move(source, group, self._moves)
        self._forget()
        parts.tell(f"{group.group} goes on from there.")
