"""One topic: what comes in, and a search that copes with any size."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from nicegui import background_tasks, ui

from penstock import Record, errors
from penstock.dashboard import parts, texts
from penstock.dashboard.board import Board
from penstock.dashboard.frame import frame, live
from penstock.dashboard.matching import Wanted
from penstock.dashboard.page_groups import COLUMNS as GROUP_COLUMNS
from penstock.dashboard.page_groups import row_of
from penstock.dashboard.parts import Column, Table, careful
from penstock.dashboard.search import Place, Search, Tail

COLUMNS = (
    Column("time", "Time (UTC)"),
    Column("partition", "Partition", number=True),
    Column("offset", "Offset", number=True),
    Column("key", "Key", classes="ps-mono"),
    Column("value", "Value", classes="ps-wide ps-mono"),
)
TAIL_SECONDS = 1.0
RECORDS_PAGE = 10


def build(source: str = "", topic: str = "") -> None:
    """The page."""
    with frame(topic or "Topic", "/topics", f"Topic in {source}") as board:
        if source not in board.sources() or not topic:
            parts.empty("There is no such topic", "Choose one from the list of topics.")
            ui.link("All topics", "/topics")
            return
        with parts.card("Groups that read it"):
            groups = Table(
                "Groups",
                GROUP_COLUMNS,
                lambda: parts.empty(
                    "Nobody reads it", "A group appears here with its first member."
                ),
            )
        _Finder(board, source, topic)
        _Follower(board, source, topic)

        def draw() -> None:
            snapshot = board.sampler.latest
            found = [one for one in snapshot.groups if (one.source, one.topic) == (source, topic)]
            groups.set([row_of(one) for one in found])

        live(board, draw)


class _Records:
    """A table of records, with a look at one of them."""

    def __init__(self, label: str, nothing: str) -> None:
        self._records: dict[str, Record] = {}
        self._table = Table(
            label,
            COLUMNS,
            lambda: parts.empty("No records", nothing, icon="search"),
            action=("Show", "offset", self._show),
            rows_page=RECORDS_PAGE,
        )

    def hide(self) -> None:
        """Show nothing, until there is something to say."""
        self._table.hide()

    def set(self, records: Iterable[Record]) -> None:
        """Show these."""
        self._records = {f"{one.partition}/{one.offset}": one for one in records}
        self._table.set([_row(place, one) for place, one in self._records.items()])

    def _show(self, place: str) -> None:
        record = self._records.get(place)
        if record is not None:
            show_record(record)


def _row(place: str, record: Record) -> dict[str, Any]:
    return {
        "id": place,
        "time": texts.time(record.timestamp),
        "partition": record.partition,
        "offset": record.offset,
        "key": texts.line(record.key) if record.key is not None else "",
        "value": texts.line(record.value),
    }


def show_record(record: Record) -> None:
    """All of one record, as text."""
    title = f"{record.topic}/{record.partition} at offset {record.offset}"
    with ui.dialog() as dialog, ui.card():
        parts.heading(title)
        parts.facts(
            {
                "Time (UTC)": texts.time(record.timestamp),
                "Key": "" if record.key is None else texts.line(record.key),
                **{f"Header {name}": texts.line(value) for name, value in record.headers.items()},
            }
        )
        parts.pre(texts.payload(record.value), "Value")
        parts.button("Close", dialog.close).props("autofocus")
    dialog.props["aria-label"] = title
    dialog.on("hide", dialog.delete)
    dialog.open()


class _Follower:
    """The newest records, as they come."""

    def __init__(self, board: Board, source: str, topic: str) -> None:
        self._tail = Tail(board.source(source), topic)
        self._busy = False
        with parts.card("Newest records"):
            self._follow = ui.switch("Follow", value=True)
            self._records = _Records("Newest records", "Nothing was published to the topic yet.")
        self._records.hide()
        self._looked = False
        ui.timer(TAIL_SECONDS, self._tick)

    async def _tick(self) -> None:
        if self._busy or not self._follow.value:
            return
        self._busy = True
        try:
            if await self._tail.look() or not self._looked:
                self._looked = True
                self._records.set(self._tail.records)
        except Exception as error:
            self._follow.value = False
            parts.tell(f"The topic cannot be read: {error}", bad=True)
        finally:
            self._busy = False


class _Finder:
    """The form of a search, how far it is, and what it found."""

    def __init__(self, board: Board, source: str, topic: str) -> None:
        self._board, self._source, self._topic = board, source, topic
        self._search: Search | None = None
        self._task: asyncio.Task[None] | None = None
        with parts.card("Search"):
            with ui.element("form").classes("ps-fields") as form:
                self._key = parts.field("Key")
                self._text = parts.field("Contains")
                self._partition = parts.field("Partition", hint="all")
                self._first = parts.field("From offset")
                self._stop = parts.field("Up to offset")
                self._since = parts.field("From time (UTC)", hint="2026-03-01 12:00")
                self._until = parts.field("Up to time (UTC)", hint="2026-03-01 13:00")
            form.on("submit.prevent", self._begin)
            with parts.row():
                parts.button("Search", self._begin, "main-action")
                self._end = parts.button("Stop", self._cancel)
                self._more = parts.button("Go on", self._go_on)
                self._told = ui.label().classes("ps-dim").props("role=status")
            self._bar = ui.linear_progress(0.0, show_value=False).props("instant-feedback")
            self._bar.props["aria-label"] = "Progress of the search"
            self._found = _Records("Found records", "Nothing fits.")
        for field in form.descendants():
            if isinstance(field, ui.input):
                field.on("keydown.enter", self._begin)
        self._found.hide()
        for one in (self._bar, self._end, self._more):
            one.set_visibility(False)
        ui.context.client.on_delete(self._cancel)

    def _begin(self) -> None:
        self._cancel()
        background_tasks.create(self._run_new(), context=self._told.parent_slot)

    @careful
    async def _run_new(self) -> None:
        self._search = Search(
            self._board.source(self._source),
            self._topic,
            Wanted(_bytes(self._key), _bytes(self._text)),
            self._place(),
        )
        await self._run()

    def _place(self) -> Place:
        return Place(
            partition=_number(self._partition),
            first=_number(self._first),
            stop=_number(self._stop),
            since_ms=_time(self._since),
            until_ms=_time(self._until),
        )

    def _go_on(self) -> None:
        if self._search is not None:
            self._search.more()
            background_tasks.create(careful(self._run)(), context=self._told.parent_slot)

    async def _run(self) -> None:
        """Step by step, until it is done, enough is found, or somebody stops it."""
        search = self._search
        assert search is not None, "it was begun"
        self._end.set_visibility(True)
        self._more.set_visibility(False)
        self._bar.set_visibility(True)
        try:
            while search is self._search and await search.step() and not search.full:
                self._tell(search)
                await asyncio.sleep(0)
        finally:
            if search is self._search:
                self._end.set_visibility(False)
                self._tell(search)
                self._found.set(sorted(search.found, key=lambda one: -one.timestamp))
                self._more.set_visibility(not search.done)

    def _tell(self, search: Search) -> None:
        self._bar.set_value(search.progress)
        state = "Done: looked" if search.done else "Looked"
        self._told.set_text(
            f"{state} at {search.looked_at:,} of {search.total:,} records, found {len(search.found):,}."
        )
        self._found.set(sorted(search.found, key=lambda one: -one.timestamp))

    def _cancel(self) -> None:
        """The step at hand ends by itself; no other one begins."""
        search, self._search = self._search, None
        if search is not None and not search.done:
            self._told.set_text(f"Stopped after {search.looked_at:,} of {search.total:,} records.")
        self._end.set_visibility(False)


def _bytes(field: ui.input) -> bytes | None:
    return field.value.encode() if field.value else None


def _number(field: ui.input) -> int | None:
    text = (field.value or "").strip()
    if not text:
        return None
    if not text.isdecimal() or len(text) > 19:
        raise errors.InvalidOption(f"{text!r} is no number: use one such as 1200", option="offset")
    return int(text)


def _time(field: ui.input) -> int | None:
    text = (field.value or "").strip()
    if not text:
        return None
    found = texts.parse_time(text)
    if found is None:
        raise errors.InvalidOption(f"{text!r} is no time: write 2026-03-01 12:00", option="time")
    return found
