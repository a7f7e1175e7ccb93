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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from penstock.errors import InvalidOption
from penstock.log.deadlines import within
from penstock.log.group_file import GroupFile
from penstock.log.group_member import Member
from penstock.log.group_ports import Change, Coordinator, OwnWrite
from penstock.log.group_state import (
    GroupMember,
    GroupState,
    Offsets,
    Partitions,
    TopicPartition,
    checked_topics,
    fence,
    joined,
)
from penstock.log.names import check_name
from penstock.log.offsets import OffsetFile, check_offset
from penstock.log.side_by_side import OneByOne
from penstock.scaling.assignment import AssignmentStrategy
from penstock.stores.base import PersistentBackingStore
from penstock.system import System

LEASE_SECONDS = 10.0
LEASE_SECONDS_MIN = 0.1
LEASE_SECONDS_MAX = 3_600.0
TIMEOUT_SECONDS = 30.0

_T = TypeVar("_T")
Write = Callable[[Offsets], dict[TopicPartition, int]]
"""Moves offsets of a group forward, durably; for who holds the group's lock."""


class GroupCoordinator:
    """One consumer group on a store. Any number of coordinators, here and elsewhere, may share it.

    ``store`` needs locks; ``offsets`` is where the committed offsets are when that is another one.
    A member that does not call ``heartbeat()`` for ``lease_seconds`` is taken for dead. No call
    takes longer than ``timeout`` seconds; after DeadlineExceeded, and after a cancelled call, the
    change may have happened or may still happen.

    ``recover`` is called under the group's lock before a member reads where to go on: it finishes
    what a member that died had decided and not written yet. ``settle`` is called after it, without the lock, with
    the partitions: it returns when what was decided there is wholly done. ``on_change`` is called, on any
    thread, when this coordinator has moved partitions. ``helpers`` write the offsets of several
    partitions side by side.
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
        recover: Callable[[Write], None] | None = None,
        settle: Callable[[Partitions], None] | None = None,
        on_change: Callable[[], None] | None = None,
        helpers: OneByOne | None = None,
    ) -> None:
        self.group = group
        self.system = system or System()
        self._store = store
        self._offsets = offsets
        self._lease_ms = checked_lease_ms(lease_seconds)
        self._timeout = timeout
        self._recover = recover
        self._settle = settle
        self._helpers = helpers or OneByOne()
        self._file = GroupFile(store, group, self.system.clock, timeout, on_change)
        self._offset_files: dict[TopicPartition, OffsetFile] = {}

    async def join(
        self,
        topics: Mapping[str, int],
        *,
        strategy: AssignmentStrategy | str | None = None,
        name: str | None = None,
        guard: Callable[[], None] | None = None,
    ) -> Member:
        """Become a member that reads these topics, given with their partition counts.

        All members use the strategy of the first one, STICKY unless it said otherwise; asking for
        another raises InvalidOption. ``name`` is what the id begins with. ``guard`` is called under
        the group's lock; what it raises keeps the member out. If the call is cancelled, a member
        may stay behind until its lease runs out.
        """
        return await join_group(self, self._lease_ms, topics, strategy, name, guard)

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
        self,
        member: str,
        generation: int,
        offsets: Offsets,
        *,
        write: OwnWrite | None = None,
        backwards: bool = False,
    ) -> dict[TopicPartition, int]:
        """Move offsets forward, durably, if all partitions are this member's; else Fenced.

        Nothing is written when one is refused. A crash may leave some partitions forward and others
        not. Offsets never go back, unless the caller says so; the answer says where each stands.
        ``write`` is called between the check and the commit, as in :meth:`committing`. What it returns
        is called in the same thread once the offsets have moved and the group is let go; it must not raise.
        """
        for offset in offsets.values():
            check_offset(offset)

        def job() -> dict[TopicPartition, int]:
            with self._file.fenced(member, generation, offsets):
                ending = None if write is None else write()
                stands = self._reset(offsets) if backwards else self._write(offsets)
            if ending is not None:
                ending()
            return stands

        return await self.off_loop(job, "commit the offsets")

    @contextmanager
    def committing(self, member: str, generation: int, offsets: Offsets) -> Iterator[None]:
        """Hold the group while the owner of these partitions writes something of its own.

        Blocking: for a thread. Raises Fenced, before the body, unless all partitions are this
        member's. What the body makes durable is written by the owner: nobody joins, leaves or
        commits meanwhile. The offsets move when the body ends, and not when it raises. After a
        crash in between, ``recover`` has to finish it.
        """
        with self._file.fenced(member, generation, offsets):
            yield
            self._write(offsets)

    async def recovered(self, partitions: Iterable[TopicPartition]) -> None:
        """Return when nothing is left of those who died on the way; then offsets may be read."""
        what = "finish what a member left behind"
        if self._recover is not None:
            await self.off_loop(self._run_recovery, what)
        if self._settle is not None:
            await self.off_loop(partial(self._settle, frozenset(partitions)), what)

    def _run_recovery(self) -> None:
        assert self._recover is not None
        with self._file.locked():
            self._recover(self._write)

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

    def _write(self, offsets: Offsets) -> dict[TopicPartition, int]:
        now = self.system.clock.time_ms()
        wanted = {TopicPartition(*one): offset for one, offset in offsets.items()}
        jobs = [
            partial(self._offset_file(one).commit, offset, now) for one, offset in wanted.items()
        ]
        return dict(zip(wanted, self._helpers.run(jobs), strict=True))

    def _reset(self, offsets: Offsets) -> dict[TopicPartition, int]:
        now = self.system.clock.time_ms()
        wanted = {TopicPartition(*one): offset for one, offset in offsets.items()}
        self._helpers.run(
            [partial(self._offset_file(one).reset, offset, now) for one, offset in wanted.items()]
        )
        return wanted

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


async def join_group(
    coordinator: Coordinator,
    lease_ms: int,
    topics: Mapping[str, int],
    strategy: AssignmentStrategy | str | None = None,
    name: str | None = None,
    guard: Callable[[], None] | None = None,
) -> Member:
    """Become a member of whatever group the coordinator keeps; see ``GroupCoordinator.join``."""
    wanted = checked_topics(topics)
    chosen = None if strategy is None else checked_strategy(strategy)
    name = _new_id(coordinator.system, name)
    newcomer = GroupMember(
        lease_expires_ms=0,
        lease_ms=lease_ms,
        process=os.getpid(),
        host=os.uname().nodename,
        topics=wanted,
    )
    member = Member(coordinator, name, lease_ms / 1_000)

    def join(state: GroupState, now: int) -> GroupState:
        if guard is not None:
            guard()
        return joined(state, name, newcomer, chosen, now)

    await member.begin(join)
    return member


def _new_id(system: System, name: str | None) -> str:
    """Never used before: a member that was away must not be taken for one that came after."""
    number = f"{system.random.getrandbits(128):032x}"
    return number if name is None else f"{check_name('member', name)}-{number}"


def checked_lease_ms(lease_seconds: float) -> int:
    """The lease in milliseconds, or InvalidOption."""
    if not LEASE_SECONDS_MIN <= lease_seconds <= LEASE_SECONDS_MAX:
        raise InvalidOption(
            f"lease_seconds is {lease_seconds}; it must be {LEASE_SECONDS_MIN:g} to "
            f"{LEASE_SECONDS_MAX:g}",
            option="lease_seconds",
        )
    return round(lease_seconds * 1_000)


def checked_strategy(
    name: AssignmentStrategy | str, option: str = "strategy"
) -> AssignmentStrategy:
    """The strategy of this name; ``round-robin`` is ``round_robin``."""
    try:
        return AssignmentStrategy(str(name).replace("-", "_"))
    except ValueError:
        known = ", ".join(AssignmentStrategy)
        raise InvalidOption(
            f"there is no {option} {name!r}: use one of {known}", option=option
        ) from None
