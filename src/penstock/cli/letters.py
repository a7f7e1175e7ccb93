"""Dead letters as a command shows them, whether a bus keeps them or a topic holds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from penstock.cli.formats import plain_bytes, time_text
from penstock.resilience import DeadLetter
from penstock.upkeep import LetterStep, key_bytes, too_often


@dataclass(frozen=True, kw_only=True)
class Letter:
    """One dead letter."""

    id: str
    source: str
    """The bus that keeps it, or the topic that holds it."""
    topic: str
    """Where it came from, and where it goes when it is replayed."""
    reason: str
    error: str = ""
    error_type: str = ""
    handler: str = ""
    group: str | None = None
    key: bytes | None = None
    value: bytes | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)
    partition: int | None = None
    offset: int | None = None
    attempts: int = 0
    replays: int = 0
    time_ms: int = 0
    traceback: str = ""
    edits: Sequence[str] = ()
    original: bytes | None = None
    refused: str | None = None
    """Why it cannot be replayed from here, or None."""
    own: Any = None
    """What the shelf knows it by."""

    @classmethod
    def of(cls, one: DeadLetter, source: str, **more: Any) -> Letter:
        """A letter as the library has it; ``more`` is known better here."""
        known = {
            "id": one.id,
            "topic": one.topic,
            "reason": str(one.reason),
            "error": one.error,
            "error_type": one.error_type,
            "handler": one.handler,
            "group": one.group,
            "key": key_bytes(one.key),
            "value": one.raw,
            "headers": {name: text.encode() for name, text in one.headers.items()},
            "partition": one.partition,
            "offset": one.offset,
            "attempts": one.attempts,
            "replays": one.replays,
            "time_ms": one.last_failed_ms,
            "traceback": one.traceback,
            "edits": [f"{each.what} {each.note}".strip() for each in one.edits],
            "original": one.original_raw,
        }
        return cls(source=source, **known | more)

    def plain(self) -> dict[str, Any]:
        """For programs."""
        return {
            "id": self.id,
            "source": self.source,
            "topic": self.topic,
            "reason": self.reason,
            "error_type": self.error_type,
            "error": self.error,
            "handler": self.handler,
            "group": self.group,
            "partition": self.partition,
            "offset": self.offset,
            "attempts": self.attempts,
            "replays": self.replays,
            "time": time_text(self.time_ms),
            "key": plain_bytes(self.key),
            "value": plain_bytes(self.value),
            "headers": {name: plain_bytes(value) for name, value in self.headers.items()},
            "edits": list(self.edits),
            "original": plain_bytes(self.original),
            "traceback": self.traceback,
        }


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Chooses letters: those that fit everything that is given."""

    ids: Sequence[str] = ()
    topic: str | None = None
    reason: str | None = None
    error: str | None = None
    handler: str | None = None
    group: str | None = None
    key: str | None = None
    contains: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def chooses_all(self) -> bool:
        """Whether nothing is given."""
        return self == Filter()

    def matches(self, letter: Letter) -> bool:
        """Whether the letter fits."""
        return (
            (not self.ids or letter.id in self.ids)
            and _fits(self.topic, letter.topic)
            and _fits(self.handler, letter.handler)
            and _fits(self.group, letter.group or "")
            and (self.reason is None or self.reason.lower() in letter.reason.lower())
            and (self.error is None or self._fits_error(letter))
            and (self.key is None or (letter.key or b"") == self.key.encode())
            and (self.contains is None or self.contains.encode() in (letter.value or b""))
            and (self.since_ms is None or letter.time_ms >= self.since_ms)
            and (self.until_ms is None or letter.time_ms < self.until_ms)
        )

    def _fits_error(self, letter: Letter) -> bool:
        wanted = self.error or ""
        return (
            _fits(wanted, letter.error_type)
            or letter.error_type.endswith(f".{wanted}")
            or wanted.lower() in letter.error.lower()
        )


def _fits(wanted: str | None, name: str) -> bool:
    return wanted is None or wanted == name or fnmatchcase(name, wanted)


class Shelf(ABC):
    """Where letters are."""

    name: str

    @abstractmethod
    async def letters(self) -> list[Letter]:
        """All that are there, the oldest first."""

    @abstractmethod
    async def replay(self, letters: Sequence[Letter]) -> list[LetterStep]:
        """Send them to where they came from, and take them away. Those that fail stay."""

    @abstractmethod
    async def purge(self, letters: Sequence[Letter]) -> int:
        """Throw them away; how many."""

    @abstractmethod
    async def edit(self, letter: Letter, value: bytes) -> None:
        """Give a letter another value, and keep it."""


def refusal(letter: Letter, *, force: bool) -> str | None:
    """Why a letter is not replayed, or None."""
    return letter.refused or (None if force else too_often(letter.replays))
