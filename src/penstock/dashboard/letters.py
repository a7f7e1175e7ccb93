"""Dead letters as the dashboard shows them, and the places they are kept in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from penstock import errors
from penstock.dashboard import texts
from penstock.resilience import DeadLetter, DeadLetterFilter, DeadLetterQueue, Reason
from penstock.upkeep import LetterStep

SHOWN_MAX = 500
"""So many letters are listed, the newest; a filter finds the others."""
NOTE = "in the dashboard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Chooses letters: those that fit everything that is given."""

    topic: str = ""
    handler: str = ""
    error: str = ""
    reason: str = ""
    key: str = ""
    text: str = ""
    """Somewhere in the payload."""

    def matches(self, letter: DeadLetter) -> bool:
        """Whether a letter fits."""
        told = f"{letter.error_type} {letter.error}".lower()
        return (
            _fits(self.topic, letter.topic)
            and _fits(self.handler, letter.handler)
            and self.error.lower() in told
            and self.reason in ("", letter.reason)
            and (not self.key or self.key == key_text(letter))
            and (not self.text or self.text in payload_text(letter))
        )


def _fits(wanted: str, name: str) -> bool:
    return not wanted or wanted in name or fnmatchcase(name, wanted)


def key_text(letter: DeadLetter) -> str:
    """The key, as it can be typed."""
    key = letter.key
    if isinstance(key, bytes):
        return texts.line(key)
    return "" if key is None else str(key)


def payload_text(letter: DeadLetter) -> str:
    """The message, as it can be read and edited."""
    return _text(letter.message, letter.raw)


def original_text(letter: DeadLetter) -> str:
    """The message as it failed, when it was edited since; else nothing."""
    if letter.original is None and letter.original_raw is None:
        return ""
    return _text(letter.original, letter.original_raw)


def _text(message: Any, raw: bytes | None) -> str:
    return texts.payload(raw) if message is None else texts.message_json(message)


@dataclass(frozen=True, slots=True)
class Listed:
    """What a shelf holds of a choice."""

    letters: tuple[DeadLetter, ...]
    """The newest first, at most SHOWN_MAX."""
    chosen: int
    """How many fit."""
    all: int
    """How many there are."""


def listed(letters: Sequence[DeadLetter], choice: Choice) -> Listed:
    """The letters that fit. Blocking work for many of them."""
    fitting = [one for one in letters if choice.matches(one)]
    return Listed(tuple(reversed(fitting[-SHOWN_MAX:])), len(fitting), len(letters))


class Shelf(ABC):
    """Where letters are."""

    name: str
    where: str
    """In words."""
    editable: bool = True

    @abstractmethod
    async def letters(self) -> Sequence[DeadLetter]:
        """All of them, the oldest first."""

    @abstractmethod
    async def replay(self, ids: Collection[str], *, dry_run: bool, force: bool) -> list[LetterStep]:
        """Send them to where they came from; a dry run says what would happen."""

    @abstractmethod
    async def purge(self, ids: Collection[str]) -> int:
        """Throw them away; how many."""

    @abstractmethod
    async def edit(self, letter: DeadLetter, text: str) -> None:
        """Give a letter another message; InvalidMessage when it is none."""


class LiveShelf(Shelf):
    """The letters of a bus in this process; all is done on the loop of the bus."""

    def __init__(self, name: str, queue: DeadLetterQueue, at_home: Callable[..., Any]) -> None:
        self.name = name
        self.where = f"bus {name}, in this process"
        self._queue = queue
        self._at_home = at_home

    async def letters(self) -> Sequence[DeadLetter]:
        letters: Sequence[DeadLetter] = await self._at_home(self._letters())
        return letters

    async def _letters(self) -> Sequence[DeadLetter]:
        return self._queue.list(DeadLetterFilter())

    async def replay(self, ids: Collection[str], *, dry_run: bool, force: bool) -> list[LetterStep]:
        report = await self._at_home(self._queue.replay(list(ids), dry_run=dry_run, force=force))
        return [LetterStep(one.id, one.topic, one.refused or one.error) for one in report.steps]

    async def purge(self, ids: Collection[str]) -> int:
        purged: int = await self._at_home(self._queue.purge(list(ids)))
        return purged

    async def edit(self, letter: DeadLetter, text: str) -> None:
        message = letter.message
        given = {"raw": text.encode()} if message is None else {"message": decoded(message, text)}
        await self._at_home(self._queue.edit(letter.id, note=NOTE, **given))


def decoded(message: Any, text: str) -> Any:
    """A message of the same class from JSON; InvalidMessage says what is wrong."""
    try:
        return msgspec.json.decode(text, type=type(message))
    except (msgspec.MsgspecError, ValueError) as error:
        name = type(message).__name__
        raise errors.InvalidMessage(
            f"this is no {name}: {error}", type=name, reason=str(error)
        ) from error


def reasons(letters: Sequence[DeadLetter]) -> list[str]:
    """The reasons that letters have, and that one can choose by."""
    return sorted({str(one.reason) for one in letters} or {str(one) for one in Reason})
