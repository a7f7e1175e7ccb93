"""The options and the figures of the dead letters."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.resilience.letters import Reason
from penstock.resilience.options import check_range

LETTERS_MAX = 1_000_000
REPLAYS_MAX = 1_000


class WhenDeadLettersFull(enum.StrEnum):
    """What happens when a letter comes and there is no room."""

    DROP_OLDEST = "DROP_OLDEST"
    """The oldest one makes room; it is counted and logged."""
    REJECT = "REJECT"
    """The new one is refused with BufferFull."""
    SPILL = "SPILL"
    """The oldest one is written elsewhere. It is dropped when that fails, and may be there twice
    after a crash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterOptions:
    """How many letters are kept, and how often one is replayed."""

    letters_max: int = 1_000
    when_full: WhenDeadLettersFull = WhenDeadLettersFull.DROP_OLDEST
    replays_max: int = 3
    """A message that came back this often is replayed no more, unless it is forced."""

    def __post_init__(self) -> None:
        check_range("letters_max", self.letters_max, 1, LETTERS_MAX)
        check_range("replays_max", self.replays_max, 0, REPLAYS_MAX)


@dataclass(frozen=True, slots=True)
class DeadLetterStatistics:
    """The dead letters. The counts are totals since the queue was made."""

    letters: int
    letters_max: int
    added: int
    dropped: int
    """Letters that made room for others and are gone."""
    rejected: int
    """Letters that were not taken, as there was no room."""
    spilled: int
    replayed: int
    purged: int
    unsaved: int
    """Changes that are not on the disk yet; 0 without a journal."""
    oldest_ms: int | None
    """When the oldest one failed last."""
    by_reason: Mapping[Reason, int]
    by_handler: Mapping[str, int]
