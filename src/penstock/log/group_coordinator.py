"""Consumer groups on a store, across tasks and processes, without a server.

::

    coordinator = GroupCoordinator(store, "billing")
    async with await coordinator.join({"orders": 4}) as member:
        while True:
            if change := await member.heartbeat():
                ...  # stop change.lost, commit it, start change.gained
                await member.release()  # now others may have what was lost
            await member.commit({("orders", 0): 17})

Every member does a bit of the coordination under the group's lock: whoever looks removes those whose
lease ran out. A partition that moves is given to its new owner only after the old one released it,
left, or was removed.

**Leases and clocks.** A lease is a time on the wall clock of one machine; all members must run on
machines whose clocks agree. If the clock is set forward, members may be removed though they are
alive: they are told with ``Fenced`` at their next call. If it is set back, a crash is noticed later,
at most one lease after somebody looks. Either way the state names one owner of a partition, and only
that one can commit: a member that was removed, or is behind the group's generation, is refused under
the same lock. ``assignment`` is empty as soon as a member's own clocks say that its lease is over.

**Stopped processes.** One that is stopped between calls is removed when its lease is over, and is
refused when it wakes up. One that is stopped while it holds the group's lock holds up the others,
which get ``DeadlineExceeded``, until it goes on or is killed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from penstock.errors import InvalidOption
from penstock.log.deadlines import within
from penstock.log.group_file import Change, GroupFile
from penstock.log.group_member import Member
from penstock.log.group_state import (
    GroupMember,
    GroupState,
    Offsets,
    TopicPartition,
    checked_topics,
    fence,
    joined,
)
from penstock.log.names import check_name
from penstock.log.offsets import OffsetFile, check_offset
from penstock.scaling.assignment import AssignmentStrategy
from penstock.stores.base import PersistentBackingStore
from penstock.system import System

LEASE_SECONDS = 10.0
LEASE_SECONDS_MIN = 0.1
LEASE_SECONDS_MAX = 3_600.0
TIMEOUT_SECONDS = 30.0

_T = TypeVar("_T")


class GroupCoordinator:
    """One consumer group on a store. Any number of coordinators, here and elsewhere, may share it.

    ``store`` needs locks; ``offsets`` is where the committed offsets are when that is another one.
    A member that does not call ``heartbeat()`` for ``lease_seconds`` is taken for dead. No call
    takes longer than ``timeout`` seconds; after DeadlineExceeded, and after a cancelled call, the
    change may have happened or may still happen.
    """

    def __init__(
        self,
        store: PersistentBackingStore,
        group: str,
        *,
        system: System | None = None,
        lease_seconds: float = LEASE_SECONDS,
        timeout: float = TIMEOUT_SECONDS,
        offsets: PersistentBackingStore | None = None,
    ) -> None:
        if not LEASE_SECONDS_MIN <= lease_seconds <= LEASE_SECONDS_MAX:
            raise InvalidOption(
                f"lease_seconds is {lease_seconds}; it must be {LEASE_SECONDS_MIN:g} to "
                f"{LEASE_SECONDS_MAX:g}",
                option="lease_seconds",
            )
        self.group = group
        self.system = system or System()
        self._store = store
        self._offsets = offsets
        self._lease_ms = round(lease_seconds * 1_000)
        self._timeout = timeout
        self._file = GroupFile(store, group, self.system.clock, timeout)
        self._offset_files: dict[TopicPartition, OffsetFile] = {}

    async def join(
        self, topics: Mapping[str, int], *, strategy: AssignmentStrategy | str | None = None
    ) -> Member:
        """Become a member that reads these topics, given with their partition counts.

        All members use the strategy of the first one, STICKY unless it said otherwise; asking for
        another raises InvalidOption. If the call is cancelled, a member may stay behind until its
        lease runs out.
        """
        wanted = checked_topics(topics)
        chosen = None if strategy is None else _strategy(strategy)
        name = f"{self.system.random.getrandbits(128):032x}"
        newcomer = GroupMember(
            lease_expires_ms=0,
            lease_ms=self._lease_ms,
            process=os.getpid(),
            host=os.uname().nodename,
            topics=wanted,
        )
        member = Member(self, name, self._lease_ms / 1_000)
        await member.begin(lambda state, now: joined(state, name, newcomer, chosen, now))
        return member

    async def describe(self) -> GroupState:
        """The group as it is now: generation, members, leases, owners."""
        return await self.off_loop(self._file.read, "read the group")

    async def check(self, member: str, generation: int, partition: tuple[str, int]) -> None:
        """Return if this member, of this generation, owns the partition; else raise Fenced.

        The answer may be old when it arrives. :meth:`commit` asks and acts at once.
        """
        state = await self.describe()
        fence(state, member, generation, [partition])

    async def commit(
        self, member: str, generation: int, offsets: Offsets
    ) -> dict[TopicPartition, int]:
        """Move offsets forward, durably, if all partitions are this member's; else Fenced.

        Nothing is written when one is refused. A crash may leave some partitions forward and others
        not. Offsets never go back; the answer says where each stands.
        """
        for offset in offsets.values():
            check_offset(offset)
        wanted = {TopicPartition(*one): offset for one, offset in offsets.items()}
        return await self.off_loop(
            lambda: self._commit(member, generation, wanted), "commit the offsets"
        )

    async def committed(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, int | None]:
        """Where the group goes on in each partition; None where nothing was committed yet."""
        wanted = [TopicPartition(*one) for one in partitions]
        return await self.off_loop(lambda: self._committed(wanted), "read the offsets")

    async def reset(self) -> None:
        """Remove all members, and damage of the group's file. Committed offsets stay."""
        await self.off_loop(self._file.reset, "reset the group")

    async def change(self, change: Change) -> GroupState:
        """Change the group under its lock; for members."""
        return await self.off_loop(lambda: self._file.change(change), "change the group")

    async def off_loop(self, job: Callable[[], _T], what: str) -> _T:
        """Run a blocking call in a thread, for at most the timeout."""
        return await within(self._timeout, asyncio.to_thread(job), what)

    def _commit(
        self, member: str, generation: int, wanted: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        with self._file.fenced(member, generation, wanted):
            now = self.system.clock.time_ms()
            return {
                one: self._offset_file(one).commit(offset, now) for one, offset in wanted.items()
            }

    def _committed(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        found = {one: self._offset_file(one).read() for one in wanted}
        return {one: None if at is None else at.offset for one, at in found.items()}

    def _offset_file(self, one: TopicPartition) -> OffsetFile:
        file = self._offset_files.get(one)
        if file is None:
            check_name("topic", one.topic)
            file = OffsetFile(self._store, self.group, one.topic, one.partition, self._offsets)
            self._offset_files[one] = file
        return file


def _strategy(name: AssignmentStrategy | str) -> AssignmentStrategy:
    try:
        return AssignmentStrategy(name)
    except ValueError:
        known = ", ".join(AssignmentStrategy)
        raise InvalidOption(
            f"there is no strategy {name!r}: use one of {known}", option="strategy"
        ) from None
