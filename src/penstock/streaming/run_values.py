"""What a run is told, and what it tells."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from penstock.errors import InvalidOption
from penstock.streaming.committing import INTERVAL_SECONDS
from penstock.streaming.parallel_values import check_at_least

STOP_SECONDS = 30.0
HEARTBEAT_SECONDS = 1.0
HEARTBEATS_MISSED_MAX = 30


class Executor(enum.StrEnum):
    """Where the consumers of a run are."""

    TASK = "task"
    """Tasks of this event loop. Handlers that are plain functions are called in threads."""
    PROCESS = "process"
    """Processes of their own, which import the handler by its name: for work that needs a core."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How each consumer of a run works; plain data, as it goes to other processes."""

    start: int | str = "earliest"
    in_flight_max: int = 1
    """Records that one consumer handles at the same time; those of one key in order."""
    buffered_max: int = 10_000
    auto_commit: float = INTERVAL_SECONDS
    attempts: int = 3
    """Calls of the handler for one record, the first one included."""
    retry_delay: float = 0.1
    after_poison: str = "follow"
    dead_letter_topic: str | None = None
    """Where records go that failed for good; without one they are parked, and not committed."""
    stop_seconds: float = STOP_SECONDS
    subscribe_options: dict[str, Any] = {}
    """The transport's own, such as the embedded one's ``lease_seconds``."""

    def __post_init__(self) -> None:
        for name in ("in_flight_max", "buffered_max", "attempts"):
            check_at_least(name, getattr(self, name), 1)
        for name in ("auto_commit", "stop_seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidOption(f"{name} has to be more than 0", option=name)


class PartitionWork(msgspec.Struct, frozen=True, array_like=True):
    """How far a consumer is in a partition."""

    handled: int
    """All below this offset is handled."""
    oldest_ms: int | None
    """Timestamp of the oldest record that is read and not handled."""


class MemberFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one consumer of a run has done, and what it has."""

    handled: int = 0
    failures: int = 0
    dead_letters: int = 0
    parked: int = 0
    assigned: frozenset[int] = frozenset()
    """The partitions that it has."""
    partitions: dict[int, PartitionWork] = {}
    """Those of which it has read something."""


class RunMember(Protocol):
    """One consumer of a run."""

    async def run(self) -> None:
        """Consume until it is stopped; raises what it failed with. Cancelled, it lets go at once."""
        ...

    def stop(self) -> None:
        """Begin nothing more, finish what has begun, commit, and return from :meth:`run`."""
        ...

    def figures(self) -> MemberFigures:
        """The figures of this moment."""
        ...


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """A run: its consumers here and what they did."""

    topic: str
    group: str
    executor: Executor
    consumers: int
    """How many there are to be."""
    alive: int
    """How many have partitions at the moment."""
    handled: int
    failures: int
    """Attempts that failed."""
    dead_letters: int
    parked: int
    restarts: int
    """Consumers that died and were started again."""
    last_error: str | None
    assignment: Mapping[str, tuple[int, ...]]
    """The partitions of each consumer."""
