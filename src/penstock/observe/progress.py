"""Progress clocks: when each group did something last.

A group that is alive and does nothing looks well from outside. So nobody asks here whether it is
alive: what counts is whether it moved since it has had something to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.observe.watched import Position
from penstock.scaling.rate import RateMeasure
from penstock.system import SECOND_MS, System

Place = tuple[str, str, str, str, int | None]


@dataclass(slots=True)
class Clock:
    """The progress of one group in one partition."""

    done: object
    moved: float
    """When it did something, or had nothing to do, by the monotonic clock."""
    rate: RateMeasure
    generation: int | None
    """That of the group when it moved."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How long ago a group moved, and how fast it goes."""

    seconds: float
    since_ms: int
    rate: float
    generations: int
    """How often the members changed since it moved."""


class ProgressClocks:
    """One clock for each group and partition that was seen last; others are forgotten."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._clocks: dict[Place, Clock] = {}

    def observe(self, positions: Iterable[Position]) -> list[tuple[Position, Progress]]:
        """Move the clocks of those that moved, and tell of all."""
        before, self._clocks = self._clocks, {}
        seen = []
        for position in positions:
            place = _place(position)
            clock = before.get(place) or self._start(position)
            self._clocks[place] = clock
            seen.append((position, self._move(clock, position)))
        return seen

    def _start(self, position: Position) -> Clock:
        moved = position.at
        if position.since_ms is not None and position.records:
            now = self._system.clock.time_ms()
            moved -= max(0, now - position.since_ms) / SECOND_MS
        rate = RateMeasure(position.count, system=self._system)
        return Clock(position.done, moved, rate, position.generation)

    def _move(self, clock: Clock, position: Position) -> Progress:
        if position.done != clock.done or not position.records:
            clock.done, clock.moved = position.done, max(clock.moved, position.at)
            clock.generation = position.generation
        clock.rate.observe(position.count)
        since = clock.moved
        if position.held_since is not None and position.records:
            since = min(since, position.held_since)
        seconds = max(0.0, position.at - since)
        now, wall = self._system.clock.monotonic(), self._system.clock.time_ms()
        return Progress(
            seconds=seconds,
            since_ms=wall - round((now - position.at + seconds) * SECOND_MS),
            rate=clock.rate.per_second(),
            generations=(position.generation or 0) - (clock.generation or 0),
        )


def _place(position: Position) -> Place:
    return (position.kind, position.source, *position.place)
