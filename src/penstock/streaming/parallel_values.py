"""What a parallel consumer is told, and what it tells."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic

from penstock.errors import InvalidOption
from penstock.streaming.key_lanes import Taken


class AfterPoison(enum.StrEnum):
    """What becomes of the later records of a key when one has failed for good."""

    FOLLOW = "follow"
    """They are handled."""
    WAIT = "wait"
    """They wait until :meth:`ParallelConsumer.release`; other keys go on."""


@dataclass(frozen=True, slots=True)
class ParkedRecord(Generic[Taken]):
    """A record that failed for good, or the first of a key that waits because of one."""

    record: Taken
    error: Exception | None
    dead_letter: bool
    """Whether ``on_poison`` took it; if not, it is not handled and not committed."""
    waiting: int
    """Records of its key that wait behind it."""


@dataclass(frozen=True, slots=True)
class ParallelStatistics:
    """Counts since the start, and the figures of this moment."""

    handled: int
    failures: int
    """Attempts that failed."""
    dead_letters: int
    passed_over: int
    """Records that had been taken or handled before."""
    running: int
    buffered: int
    """Records that were taken and have not left, the running and the parked ones among them."""
    parked: int


def after_poison_named(name: AfterPoison | str) -> AfterPoison:
    """The choice of this name; raises InvalidOption."""
    try:
        return AfterPoison(name)
    except ValueError:
        known = ", ".join(AfterPoison)
        raise InvalidOption(
            f"there is no after_poison {name!r}: use one of {known}", option="after_poison"
        ) from None


def check_at_least(option: str, value: int, least: int) -> None:
    """Refuse a number that is too small."""
    if value < least:
        raise InvalidOption(f"{option} is {value}, and has to be at least {least}", option=option)
