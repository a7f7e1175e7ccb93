"""One dead letter: the error, the payload, and a way to change it before it is sent again."""

from __future__ import annotations

from nicegui import ui

from penstock.dashboard import letters, parts, texts
from penstock.dashboard.frame import frame
from penstock.dashboard.letters import Shelf
from penstock.dashboard.page_letters import (
    confirm_purge,
    confirm_replay,
    show_steps,
    tell_steps,
)
from penstock.dashboard.parts import careful
from penstock.resilience import DeadLetter
from penstock.upkeep import LetterStep


async def build(shelf: str = "", letter: str = "") -> None:
    """The page."""
    with frame("Dead letter", "/dead-letters", letter) as board:
        topics = await board.topics()
        parts.show_silent(topics.silent)
        shelves = {one.where: one for one in board.shelves(topics.found)}
        kept = await shelves[shelf].letters() if shelf in shelves else ()
        found = next((one for one in kept if one.id == letter), None)
        if found is None:
            with parts.card():
                parts.empty("This dead letter is gone", "It was replayed, purged or dropped.")
                ui.link("All dead letters", "/dead-letters")
            return
        _Letter(shelves[shelf], found)


class _Letter:
    def __init__(self, shelf: Shelf, letter: DeadLetter) -> None:
        self._shelf, self._letter = shelf, letter
        with parts.card("What happened"):
            parts.facts(_facts(letter))
        if letter.traceback:
            with parts.card("Traceback"):
                parts.pre(letter.traceback, "Traceback")
        with parts.card("Payload"):
            self._payload()
        if original := letters.original_text(letter):
            with parts.card("Payload as it failed"):
                parts.pre(original, "Payload as it failed")
        if letter.edits:
            with parts.card("Edits"):
                for one in letter.edits:
                    ui.label(f"{texts.time(one.time_ms)}: {one.what} {one.note}")
        with parts.card("What to do"), parts.row():
            parts.button("Dry run", careful(self._dry_run))
            parts.button("Replay", careful(self._replay), "main-action")
            self._force = ui.checkbox("Also when it came back before")
            ui.element("div").classes("ps-space")
            parts.button("Purge", careful(self._purge), "danger")

    def _payload(self) -> None:
        text = letters.payload_text(self._letter)
        if not self._shelf.editable:
            parts.pre(text, "Payload")
            return
        self._text = ui.textarea("Payload", value=text).props("outlined autogrow")
        self._text.props["input-style"] = "font-family: ui-monospace, monospace; max-height: 420px"
        self._text.style("width: 100%")
        parts.button("Save the change", careful(self._save))

    async def _save(self) -> None:
        if self._text.value == letters.payload_text(self._letter):
            parts.tell("Nothing was changed.", bad=True)
            return
        await self._shelf.edit(self._letter, self._text.value)
        parts.tell("Saved. The payload as it failed is kept too.")
        ui.navigate.reload()

    async def _dry_run(self) -> None:
        await show_steps(await self._try())

    async def _try(self) -> list[LetterStep]:
        force = bool(self._force.value)
        return await self._shelf.replay([self._letter.id], dry_run=True, force=force)

    async def _replay(self) -> None:
        if await confirm_replay(await self._try()):
            force = bool(self._force.value)
            tell_steps(await self._shelf.replay([self._letter.id], dry_run=False, force=force))
            ui.navigate.to("/dead-letters")

    async def _purge(self) -> None:
        if await confirm_purge(1):
            await self._shelf.purge([self._letter.id])
            ui.navigate.to("/dead-letters")


def _facts(letter: DeadLetter) -> dict[str, str]:
    place = "" if letter.offset is None else f"partition {letter.partition}, offset {letter.offset}"
    return {
        "Reason": str(letter.reason),
        "Error": f"{letter.error_type}: {letter.error}".strip(": "),
        "Topic": letter.topic,
        "Place": place,
        "Group": letter.group or "",
        "Handler": letter.handler,
        "Key": letters.key_text(letter),
        "Class": letter.message_type,
        "Attempts": str(letter.attempts),
        "Replays": str(letter.replays) if letter.replays else "",
        "First failure (UTC)": texts.time(letter.first_failed_ms),
        "Last failure (UTC)": texts.time(letter.last_failed_ms),
        **{f"Header {name}": texts.line(text.encode()) for name, text in letter.headers.items()},
    }
