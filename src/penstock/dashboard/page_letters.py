"""The dead letters: choose some, look at them, replay or purge them."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from nicegui import background_tasks, ui

from penstock.dashboard import letters, parts, texts
from penstock.dashboard.board import Board
from penstock.dashboard.frame import frame
from penstock.dashboard.letters import Choice, Listed, Shelf
from penstock.dashboard.parts import Column, Table, careful
from penstock.resilience import DeadLetter, Reason
from penstock.upkeep import LetterStep

COLUMNS = (
    Column("time", "Failed (UTC)", link="path"),
    Column("topic", "Topic"),
    Column("reason", "Reason", mood="mood"),
    Column("error", "Error", classes="ps-wide"),
    Column("handler", "Handler"),
    Column("key", "Key", classes="ps-mono"),
    Column("attempts", "Attempts", number=True),
)
REFRESH_SECONDS = 2.0
ANY = "any"


async def build(shelf: str = "") -> None:
    """The page."""
    with frame("Dead letters", "/dead-letters") as board:
        topics = await board.topics()
        parts.show_silent(topics.silent)
        shelves = {one.where: one for one in board.shelves(topics.found)}
        if not shelves:
            with parts.card():
                parts.empty(
                    "No dead letters are kept here",
                    "Messages that fail for good are kept by a ResilientMessageBus, or in a topic that "
                    "ends with .dead-letters.",
                    icon="markunread_mailbox",
                )
            return
        _Letters(board, shelves, shelf)


class _Letters:
    def __init__(self, board: Board, shelves: dict[str, Shelf], wanted: str) -> None:
        self._board, self._shelves = board, shelves
        self._listed = Listed((), 0, 0)
        first = wanted if wanted in shelves else next(iter(shelves))
        with parts.card("Filter"), ui.element("div").classes("ps-fields"):
            self._shelf = parts.choice("Kept by", {name: name for name in shelves}, first)
            reasons = {ANY: "any", **{str(one): str(one) for one in Reason}}
            self._reason = parts.choice("Reason", reasons, ANY)
            self._fields = {
                "topic": parts.field("Topic"),
                "error": parts.field("Error"),
                "handler": parts.field("Handler"),
                "key": parts.field("Key"),
                "text": parts.field("Payload contains"),
            }
        with parts.card():
            self._told = ui.label().classes("ps-dim").props("role=status")
            with parts.row():
                parts.button("Tick all", self._tick_all)
                parts.button("Dry run", careful(self._dry_run))
                parts.button("Replay", careful(self._replay), "main-action")
                self._force = ui.checkbox("Also those that came back before")
                ui.element("div").classes("ps-space")
                parts.button("Purge", careful(self._purge), "danger")
            self._table = Table(
                "Dead letters",
                COLUMNS,
                lambda: parts.empty(
                    "No dead letter fits", "Nothing failed for good, or the filter is too narrow."
                ),
                selection=True,
            )
        for field in (self._shelf, self._reason, *self._fields.values()):
            field.on_value_change(self._soon)
        ui.timer(REFRESH_SECONDS, self._refresh)

    def _current(self) -> Shelf:
        return self._shelves[self._shelf.value]

    def _choice(self) -> Choice:
        reason = self._reason.value
        typed = {name: field.value or "" for name, field in self._fields.items()}
        return Choice(reason="" if reason == ANY else reason, **typed)

    def _soon(self) -> None:
        background_tasks.create(self._refresh(), context=self._told.parent_slot)

    @careful
    async def _refresh(self) -> None:
        choice = self._choice()
        kept = await self._current().letters()
        self._listed = await asyncio.to_thread(letters.listed, kept, choice)
        shelf = self._current().where
        self._table.set([row_of(one, shelf) for one in self._listed.letters])
        shown, fitting = len(self._listed.letters), self._listed.chosen
        cut = f" The newest {shown:,} are shown." if shown < fitting else ""
        self._told.set_text(f"{fitting:,} of {self._listed.all:,} dead letters fit.{cut}")

    def _tick_all(self) -> None:
        """All that are shown, or none when all are ticked."""
        self._table.choose(every=len(self._table.chosen) < len(self._listed.letters))

    def _ids(self) -> list[str]:
        """Those that are ticked."""
        chosen = self._table.chosen
        if not chosen:
            parts.tell("Tick the letters first.", bad=True)
        return chosen

    async def _dry_run(self) -> None:
        if ids := self._ids():
            await show_steps(await self._try(ids))

    async def _try(self, ids: list[str]) -> list[LetterStep]:
        return await self._current().replay(ids, dry_run=True, force=bool(self._force.value))

    async def _replay(self) -> None:
        ids = self._ids()
        if ids and await confirm_replay(await self._try(ids)):
            force = bool(self._force.value)
            tell_steps(await self._current().replay(ids, dry_run=False, force=force))
            self._table.choose(every=False)
            await self._refresh()

    async def _purge(self) -> None:
        if (ids := self._ids()) and await confirm_purge(len(ids)):
            parts.tell(f"Purged {texts.plural(await self._current().purge(ids), 'dead letter')}.")
            self._table.choose(every=False)
            await self._refresh()


def address(shelf: str, letter_id: str) -> str:
    """The page of a letter."""
    return f"/dead-letter?{urlencode({'shelf': shelf, 'letter': letter_id})}"


def row_of(letter: DeadLetter, shelf: str) -> dict[str, Any]:
    """A letter in a table."""
    return {
        "id": letter.id,
        "time": texts.time(letter.last_failed_ms),
        "path": address(shelf, letter.id),
        "topic": letter.topic,
        "reason": str(letter.reason),
        "mood": "notice",
        "error": texts.line(f"{letter.error_type}: {letter.error}".strip(": ").encode()),
        "handler": letter.handler.rpartition(".")[2],
        "key": letters.key_text(letter),
        "attempts": letter.attempts,
    }


# Also of the page of one letter


def step_lines(steps: list[LetterStep]) -> list[str]:
    """What becomes of letters, a line each."""
    return [
        f"{one.id}: stays, {one.refused}"
        if one.refused
        else f"{one.id}: goes to {one.topic}{'; ' + one.note if one.note else ''}"
        for one in steps
    ]


async def show_steps(steps: list[LetterStep]) -> None:
    """What a dry run says."""
    fine = sum(one.refused is None for one in steps)
    with ui.dialog() as dialog, ui.card():
        parts.heading("Dry run")
        ui.label(f"{fine:,} of {len(steps):,} would be replayed. Nothing was changed.")
        parts.pre("\n".join(step_lines(steps)), "Letters")
        parts.button("Close", dialog.close).props("autofocus")
    dialog.props["aria-label"] = "Dry run"
    dialog.open()


async def confirm_replay(steps: list[LetterStep]) -> bool:
    """Ask, with what a dry run says."""
    fine = sum(one.refused is None for one in steps)
    what = f"This publishes {texts.plural(fine, 'message')} again, to the topic each came from."
    return await parts.confirm("Replay?", what, "Replay", step_lines(steps), "main-action")


def tell_steps(steps: list[LetterStep]) -> None:
    """What a replay did."""
    stays = [one for one in steps if one.refused is not None]
    told = f"Replayed {texts.plural(len(steps) - len(stays), 'dead letter')}."
    if stays:
        told += f" {len(stays):,} stay: {stays[0].refused}"
    parts.tell(told, bad=bool(stays))


async def confirm_purge(count: int) -> bool:
    """Ask."""
    many = texts.plural(count, "dead letter")
    what = f"This throws {many} away, with the payload. There is no way back."
    return await parts.confirm("Purge?", what, "Purge")
