"""What a member of a group needs of whoever keeps the group: a store with locks, or a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from penstock.log.group_state import GroupState, Offsets, TopicPartition
from penstock.scaling.assignment import AssignmentStrategy
from penstock.system import System

if TYPE_CHECKING:
    from penstock.log.group_member import Member

Change = Callable[[GroupState, int], GroupState]
"""From the present state and the time in ms to the next state; what it raises changes nothing."""
OwnWrite = Callable[[], Callable[[], object] | None]
"""Makes durable what belongs to a commit. What it returns is called when the offsets have moved."""


class Bells(Protocol):
    """Tells members at once that partitions have moved."""

    def follow(self, group: str, listener: Callable[[], None]) -> None:
        """Call the listener, on the loop, when the bell of a group rings."""

    def forget(self, group: str, listener: Callable[[], None]) -> None:
        """Call it no longer."""


class Coordinator(Protocol):
    """Keeps the state and the offsets of one group; see ``GroupCoordinator``."""

    group: str
    system: System

    async def join(
        self,
        topics: Mapping[str, int],
        *,
        strategy: AssignmentStrategy | str | None = None,
        name: str | None = None,
        guard: Callable[[], None] | None = None,
    ) -> Member:
        """Become a member that reads these topics, given with their partition counts."""

    async def describe(self) -> GroupState:
        """The group as it is now."""

    async def change(self, change: Change) -> GroupState:
        """Change the group, alone; the state that came of it."""

    async def commit(
        self,
        member: str,
        generation: int,
        offsets: Offsets,
        *,
        write: OwnWrite | None = None,
        backwards: bool = False,
    ) -> dict[TopicPartition, int]:
        """Move offsets forward if the partitions are this member's; else Fenced."""

    def committing(
        self, member: str, generation: int, offsets: Offsets
    ) -> AbstractContextManager[None]:
        """Hold the group while the owner of these partitions writes something of its own."""

    async def recovered(self, partitions: Iterable[TopicPartition]) -> None:
        """Return when nothing is left of those who died on the way, for who goes on in these partitions."""
