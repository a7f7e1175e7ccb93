"""Dead letters as values: the letter, how to choose some, what a replay would do, and the events."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from penstock.messages import DEFAULT_SESSION, Event, Priority, topic


class Reason(enum.StrEnum):
    """Why a message became a dead letter."""

    FAILED = "FAILED"
    """Its handler failed for the last time."""
    CIRCUIT_OPEN = "CIRCUIT_OPEN"
    """Its handler was not called, as it fails too often."""
    BEHIND_ANOTHER = "BEHIND_ANOTHER"
    """An earlier message of its key is a dead letter, and the order is kept."""
    NOT_DECODED = "NOT_DECODED"
    """Its bytes are no message of its class."""
    EXPIRED = "EXPIRED"
    """It was too old to be handled."""
    STOPPED = "STOPPED"
    """The bus stopped before the handler was done with it."""


class Edit(msgspec.Struct, frozen=True):
    """A change that somebody made to a dead letter."""

    time_ms: int
    what: str
    """What was changed."""
    note: str = ""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that one handler could not deal with, and what is known of the failure.

    It is a value: a change makes another letter with the same id.
    """

    id: str
    topic: str
    message_type: str
    """The dotted name of the message's class."""
    reason: Reason
    message: Any = None
    """The message; None when it does not decode, or its class is gone."""
    raw: bytes | None = None
    """The encoded message, when there is no message."""
    command: bool = False
    handler: str = ""
    session: str = DEFAULT_SESSION
    priority: int = int(Priority.NORMAL)
    headers: Mapping[str, str] = {}
    key: Any = None
    """The key that it had when it failed; an edit does not change it."""
    message_id: str = ""
    correlation_id: str | None = None
    causation_id: str | None = None
    published_ms: int = 0
    error_type: str = ""
    error: str = ""
    traceback: str = ""
    attempts: int = 0
    first_failed_ms: int = 0
    last_failed_ms: int = 0
    partition: int | None = None
    offset: int | None = None
    """Where the record is in the log, when it came from there."""
    group: str | None = None
    """The group that it was read for, when it came from a durable topic."""
    replays: int = 0
    """How often the message had been replayed before it failed this time."""
    original: Any = None
    """The message as it failed, when it was edited since."""
    original_raw: bytes | None = None
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Chooses dead letters: those that fit everything that is given. Without anything, all."""

    topic: str | None = None
    """A topic, or a glob such as ``orders.*``."""
    handler: str | None = None
    """A handler's name, or a glob."""
    error_type: str | None = None
    """The dotted name of the error's class, or its last part."""
    reason: Reason | None = None
    session: str | None = None
    key: Any = None
    since_ms: int | None = None
    """Failed last at this time or later."""
    until_ms: int | None = None
    """Failed last before this time."""
    where: Callable[[DeadLetter], bool] | None = None

    def matches(self, letter: DeadLetter) -> bool:
        """Whether the letter fits."""
        return (
            self._fits_names(letter)
            and (self.reason is None or letter.reason is self.reason)
            and (self.session is None or letter.session == self.session)
            and (self.key is None or letter.key == self.key)
            and (self.since_ms is None or letter.last_failed_ms >= self.since_ms)
            and (self.until_ms is None or letter.last_failed_ms < self.until_ms)
            and (self.where is None or self.where(letter))
        )

    def _fits_names(self, letter: DeadLetter) -> bool:
        return (
            _fits(self.topic, letter.topic)
            and _fits(self.handler, letter.handler)
            and (self.error_type is None or f".{letter.error_type}".endswith(f".{self.error_type}"))
        )


def _fits(wanted: str | None, name: str) -> bool:
    return wanted is None or wanted == name or fnmatchcase(name, wanted)


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One letter of a replay: where it goes, and whether it went."""

    id: str
    topic: str
    handler: str
    """Who failed on it. An event goes to this handler or to all, as the bus is told."""
    session: str
    key: Any
    replays: int
    """Which replay of the message this is, from 1."""
    refused: str | None = None
    """Why it is not replayed, or None."""
    error: str | None = None
    """What went wrong when it was published; the letter is still there."""

    @property
    def fine(self) -> bool:
        """Whether it is, or would be, replayed."""
        return self.refused is None and self.error is None


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay did; for a dry run, what it would do."""

    steps: tuple[ReplayStep, ...]
    dry_run: bool = False

    @property
    def replayed(self) -> int:
        """Letters that are replayed, or would be."""
        return sum(step.fine for step in self.steps)

    @property
    def left(self) -> tuple[ReplayStep, ...]:
        """Those that stay, with the reason."""
        return tuple(step for step in self.steps if not step.fine)


# ---------------------------------------------------------------------------------- the events


class _DeadLettered(Event, frozen=True, kw_only=True):
    letter_id: str
    topic: str
    message_type: str
    handler: str
    session: str
    error_type: str
    error: str
    attempts: int
    reason: Reason


@topic("penstock.dead_letters.event")
class DeadLetterEvent(_DeadLettered, frozen=True, kw_only=True):
    """An event became a dead letter for one of its handlers."""


@topic("penstock.dead_letters.command")
class DeadLetterCommandEvent(_DeadLettered, frozen=True, kw_only=True):
    """A command became a dead letter."""


def event_of(letter: DeadLetter) -> DeadLetterEvent | DeadLetterCommandEvent:
    """The event that tells of a dead letter."""
    kind = DeadLetterCommandEvent if letter.command else DeadLetterEvent
    return kind(
        letter_id=letter.id,
        topic=letter.topic,
        message_type=letter.message_type,
        handler=letter.handler,
        session=letter.session,
        error_type=letter.error_type,
        error=letter.error,
        attempts=letter.attempts,
        reason=letter.reason,
    )
