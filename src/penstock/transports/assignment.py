"""Where the assignment of partitions comes in: who coordinates a group tells a member what it has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """The partitions of one member of a group."""

    generation: int
    """Grows with every change in the group; a commit from an older one is refused."""
    partitions: frozenset[int]


class AssignmentSource(Protocol):
    """Tells what a member has. It is asked often, so it answers from memory and never waits."""

    def __call__(self, partitions: int) -> MemberAssignment:
        """What the member has now of a topic with so many partitions."""
        ...


@lru_cache(maxsize=64)
def whole_topic(partitions: int) -> MemberAssignment:
    """The assignment of a member that is alone in its group."""
    return MemberAssignment(0, frozenset(range(partitions)))
