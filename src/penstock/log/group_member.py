"""A member of a consumer group, as the program that is it sees it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, Self

from penstock.errors import Closed, Fenced, Forked
from penstock.log.group_ports import Change, Coordinator, OwnWrite
from penstock.log.group_state import (
    NO_PARTITIONS,
    GroupState,
    Offsets,
    Partitions,
    TopicPartition,
    checked_topics,
    departed,
    member_of,
    released,
    renewed,
    resubscribed,
)

HEARTBEATS_PER_LEASE = 3


class Rebalance(NamedTuple):
    """What a call changed for the member."""

    generation: int
    assignment: Partitions
    """What to read from now on."""
    gained: Partitions
    """What is new in it: go on at the committed offsets."""
    lost: Partitions
    """What is no longer in it. Stop, commit what is done, then ``release()``: others wait."""


class Member:
    """A member of a group. Made by ``GroupCoordinator.join``; lives on one event loop.

    Calls that change it run one after the other. A cancelled call may have happened in the group;
    the member learns what came of it with its next ``heartbeat()``. Using it in a forked child
    raises Forked: there would be two of it.
    """

    def __init__(self, coordinator: Coordinator, name: str, lease_seconds: float) -> None:
        self._coordinator = coordinator
        self._clock = coordinator.system.clock
        self._lease_seconds = lease_seconds
        self._process = os.getpid()
        self._order = asyncio.Lock()
        self._left = False
        self._assignment = self._releasing = NO_PARTITIONS
        self._ends_monotonic = 0.0
        self._ends_ms = 0
        self.id = name
        self.generation = 0

    def __repr__(self) -> str:
        return f"Member({self.id} of {self._coordinator.group!r}, generation {self.generation})"

    @property
    def heartbeat_seconds(self) -> float:
        """How often to call ``heartbeat()``: a third of the lease."""
        return self._lease_seconds / HEARTBEATS_PER_LEASE

    @property
    def is_live(self) -> bool:
        """Whether the lease holds by this process's own clocks; both of them have to agree."""
        in_time = self._clock.monotonic() < self._ends_monotonic
        return in_time and self._clock.time_ms() < self._ends_ms and not self._is_forked()

    @property
    def assignment(self) -> Partitions:
        """What this member reads now; nothing when its lease is over."""
        return self._assignment if self.is_live else NO_PARTITIONS

    @property
    def releasing(self) -> Partitions:
        """What it still owns for a last commit, and others wait for; nothing after the lease."""
        return self._releasing if self.is_live else NO_PARTITIONS

    async def heartbeat(self) -> Rebalance | None:
        """Renew the lease; says what changed for this member, or None.

        Raises Fenced when the group went on without it: stop all work, and join again. If the call
        fails otherwise, the lease runs on, and out.
        """
        return await self._change(lambda state, now: renewed(state, self.id, now))

    async def look(self) -> Rebalance | None:
        """See what changed for this member, as ``heartbeat()``, without a write and without a lock.

        The lease stays as it is.
        """
        async with self._order:
            self._check_usable()
            state = await self._coordinator.describe()
            self._check_usable()
            try:
                member_of(state, self.id, self.generation)
            except Fenced:
                self._forget()
                raise
            return self._take(state)

    async def release(self, partitions: Partitions | None = None) -> Rebalance | None:
        """Give away all of ``releasing``, or some: the work on it has stopped and is committed.

        It is not this member's from the moment of the call, even if the call fails; then the
        others get it after the next ``release()``, or when the lease runs out.
        """
        async with self._order:
            gone = self._releasing if partitions is None else self._releasing & partitions
            self._releasing -= gone
            return await self._call(lambda state, now: released(state, self.id, gone, now))

    async def resubscribe(self, topics: Mapping[str, int]) -> Rebalance | None:
        """Read other topics, or say that one has more partitions now: a new generation."""
        wanted = checked_topics(topics)
        return await self._change(lambda state, now: resubscribed(state, self.id, wanted, now))

    async def commit(
        self,
        offsets: Offsets,
        *,
        write: OwnWrite | None = None,
        backwards: bool = False,
    ) -> dict[TopicPartition, int]:
        """Move the group's offsets forward, durably; see ``GroupCoordinator.commit``.

        Raises Fenced, and writes nothing, when the member is behind the group's generation or does
        not own all of these partitions.
        """
        self._check_usable()
        return await self._coordinator.commit(
            self.id, self.generation, offsets, write=write, backwards=backwards
        )

    def committing(self, offsets: Offsets) -> AbstractContextManager[None]:
        """Hold the group while something is written with these offsets; blocking, for a thread.

        See ``GroupCoordinator.committing``. When it raises Fenced with the reason ``generation``,
        ``look()`` and try again: the partitions may still be this member's.
        """
        self._check_usable()
        return self._coordinator.committing(self.id, self.generation, offsets)

    async def leave(self) -> None:
        """Give everything away. Commit first. Idempotent.

        The member is out from the moment of the call; if it fails, the others get the partitions
        when the lease runs out.
        """
        if self._left or self._is_forked():
            return
        self._left = True
        self._forget()
        async with self._order:
            await self._coordinator.change(lambda state, now: departed(state, self.id, now))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.leave()

    async def begin(self, join: Change) -> None:
        """Become a member; for the coordinator."""
        await self._change(join)

    async def _change(self, change: Change) -> Rebalance | None:
        async with self._order:
            return await self._call(change)

    async def _call(self, change: Change) -> Rebalance | None:
        self._check_usable()
        # Before the call: this end of the lease comes no later than the one in the group's state.
        ends = self._clock.monotonic() + self._lease_seconds
        try:
            state = await self._coordinator.change(change)
        except Fenced:
            self._forget()
            raise
        # It may have left meanwhile; then it has nothing, whatever the state said before.
        self._check_usable()
        self._ends_monotonic = ends
        return self._take(state)

    def _take(self, state: GroupState) -> Rebalance | None:
        """See what the state has for this member."""
        before = self._assignment
        owned, assigned = state.owned_by(self.id), state.assigned_to(self.id)
        self.generation = state.generation
        self._assignment, self._releasing = owned & assigned, owned - assigned
        self._ends_ms = state.members[self.id].lease_expires_ms
        gained, lost = self._assignment - before, before - self._assignment
        if not gained and not lost:
            return None
        return Rebalance(self.generation, self._assignment, gained, lost)

    def _forget(self) -> None:
        self._assignment = self._releasing = NO_PARTITIONS

    def _is_forked(self) -> bool:
        return os.getpid() != self._process

    def _check_usable(self) -> None:
        if self._is_forked():
            raise Forked("the member joined before fork(): join again in the child")
        if self._left:
            raise Closed(f"{self!r} has left: join again")
