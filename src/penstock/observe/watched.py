"""What an observer asks of each part that it watches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock.observe.values import (
    BusSnapshot,
    Cause,
    GroupKind,
    LogSnapshot,
    QuerySnapshot,
    StreamsSnapshot,
    TopicSnapshot,
    TransportSnapshot,
)

LOOK_TIMEOUT_SECONDS = 10.0
"""How long one part may take to be looked at; then it counts as silent."""


@dataclass(slots=True)
class Sight:
    """What was read of all parts, on the way to a snapshot."""

    buses: list[BusSnapshot] = field(default_factory=list)
    logs: list[LogSnapshot] = field(default_factory=list)
    topics: list[TopicSnapshot] = field(default_factory=list)
    streams: list[StreamsSnapshot] = field(default_factory=list)
    transports: list[TransportSnapshot] = field(default_factory=list)
    queries: list[QuerySnapshot] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a group stands in a partition, as a part tells it."""

    kind: GroupKind
    source: str
    group: str
    topic: str
    partition: int | None
    records: int
    """What is left to do."""
    done: object
    """Differs from the last time when something was done."""
    count: int
    """How much was done, all in all: a rate is measured by it."""
    at: float
    """When this was so, by the monotonic clock."""
    committed: int | None = None
    end: int | None = None
    age_seconds: float = 0.0
    """Of the first record that is not done."""
    since_ms: int | None = None
    """Since when nothing was done, as far as the part knows; None: it does not."""
    held_since: float | None = None
    """Since when one thing keeps others from being done, by the monotonic clock."""
    members: tuple[str, ...] = ()
    generation: int | None = None
    local: bool = True

    @property
    def place(self) -> tuple[str, str, int | None]:
        """The group, the topic and the partition, whoever tells of them."""
        return self.group, self.topic, self.partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """What holds a group up in a partition."""

    cause: Cause
    detail: str
    offset: int | None = None
    stack: tuple[str, ...] = ()


class Watched:
    """One part. Reading is quick and done on the event loop; looking may take its time."""

    def __init__(self, subject: Any, name: str) -> None:
        self.subject = subject
        self.name = name
        self.error: str | None = None
        """What kept the last look from seeing all of it."""

    def others(self) -> Iterable[Any]:
        """Parts that this one stands on, and that are to be watched too."""
        return ()

    async def look(self) -> None:
        """Look at what cannot be read at once: disks, brokers, other threads."""

    def silent(self, error: str | None) -> None:
        """The last look failed with this, or went well."""
        self.error = error

    def read(self, sight: Sight) -> None:
        """Add the figures of this moment."""

    def positions(self) -> Iterable[Position]:
        """Where the groups of this part stand."""
        return ()

    def explain(self, position: Position) -> Why | None:
        """What holds a group up, when this part knows."""
        return None

    def troubles(self) -> Iterable[str]:
        """Why no new work should come, one sentence each."""
        return ()
