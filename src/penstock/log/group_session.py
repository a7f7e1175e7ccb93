"""A member that keeps itself in its group: heartbeats, hand-over, joining again after it was removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from penstock.bus.timers import Timers
from penstock.errors import DeadlineExceeded, Fenced, PenstockError
from penstock.log.group_member import Member
from penstock.log.group_ports import Bells, Coordinator, OwnWrite
from penstock.log.group_state import Offsets, Partitions, TopicPartition
from penstock.scaling.assignment import AssignmentStrategy
from penstock.system import Timer

ATTEMPTS_MAX = 100
"""How often a commit is tried anew because the group has a new generation."""


class Reader(Protocol):
    """Who reads the partitions of a member. All calls come from one task, but for ``revoke``."""

    async def take(self) -> None:
        """Read what the member has now, from the committed offsets; read nothing else."""

    async def revoke(self, partitions: Partitions) -> None:
        """Finish what was delivered of these; returns when they may be given away."""

    def released(self, partitions: Partitions) -> None:
        """From now on these are not the member's."""

    def removed(self) -> None:
        """From now on nothing is the member's: the group went on without it."""

    def failed(self, error: Exception | None) -> None:
        """The group could not be asked. It is tried again; None says that it worked."""

    def revoke_failed(self, error: Exception) -> None:
        """``revoke`` raised this."""


class GroupSession:
    """Keeps a member alive from :meth:`start` to :meth:`stop`. Lives on one event loop.

    It renews the lease three times in its length, looks at once when the bell of the group rings,
    gives away what others wait for after ``release_seconds`` at the latest, and joins again, as
    another member, when it was removed.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        bells: Bells,
        reader: Reader,
        *,
        release_seconds: float,
        strategy: AssignmentStrategy | None = None,
        name: str | None = None,
        guard: Callable[[], None] | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._bells = bells
        self._reader = reader
        self._release_seconds = release_seconds
        self._strategy = strategy
        self._name = name
        self._guard = guard
        self._timers = Timers(coordinator.system.clock)
        self._topics: Mapping[str, int] = {}
        self._member: Member | None = None
        self._wake = asyncio.Event()
        self._beat_is_due = False
        self._timer: Timer | None = None
        self._task: asyncio.Task[None] | None = None
        self._handing_over: dict[Partitions, asyncio.Task[None]] = {}

    @property
    def member(self) -> Member:
        """The member as it is now; another one after it was removed and joined again."""
        assert self._member is not None, "start() joins first"
        return self._member

    async def start(self, topics: Mapping[str, int]) -> None:
        """Join, let the reader take what there is, and stay a member."""
        self._topics = topics
        await self._join()
        # From here on: what the reader takes may take long, and the lease does not wait for it.
        self._arm()
        self._bells.follow(self._coordinator.group, self._wake.set)
        try:
            await self._reader.take()
        except BaseException:
            await self.stop()
            raise
        # Something may have changed between joining and listening.
        self._wake.set()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Leave the group. What fails then is settled by the lease."""
        self._bells.forget(self._coordinator.group, self._wake.set)
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._handing_over.values(), *([self._task] if self._task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._member is not None:
            await self._member.leave()

    async def commit(
        self,
        offsets: Offsets,
        *,
        write: OwnWrite | None = None,
        backwards: bool = False,
    ) -> dict[TopicPartition, int]:
        """Commit, in whatever generation the group is; Fenced when something is not the member's.

        A partition stays the member's through any number of generations until the member releases
        it or is removed, so being behind the group's generation is no reason to refuse.
        """
        member = self.member
        for _ in range(ATTEMPTS_MAX):
            try:
                return await member.commit(offsets, write=write, backwards=backwards)
            except Fenced as refused:
                # It shows at once what became of the member.
                self._wake.set()
                if refused.reason != "generation":
                    raise
            await member.look()
        return await member.commit(offsets, write=write, backwards=backwards)

    async def recovered(self, partitions: Partitions) -> None:
        """Return when what is committed is all that was decided; before offsets are read."""
        await self._coordinator.recovered(partitions)

    def renew(self) -> None:
        """Renew the lease soon, before it is due: it seems to be over."""
        self._due()

    async def resubscribe(self, topics: Mapping[str, int]) -> None:
        """Read other topics, or more partitions."""
        self._topics = topics
        await self.member.resubscribe(topics)
        self._wake.set()

    # In the background

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._turn()
            except Exception as error:
                # Of any kind: a member that stops asking would lose its part without a word.
                self._reader.failed(error)
            else:
                self._reader.failed(None)

    async def _turn(self) -> None:
        due, self._beat_is_due = self._beat_is_due, False
        try:
            await (self.member.heartbeat() if due else self.member.look())
        except Fenced:
            self._reader.removed()
            await self._join()
        finally:
            if due:
                self._arm()
        await self._reader.take()
        self._hand_over()

    async def _join(self) -> None:
        self._member = await self._coordinator.join(
            self._topics, strategy=self._strategy, name=self._name, guard=self._guard
        )

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        seconds = self.member.heartbeat_seconds
        self._timer = self._coordinator.system.clock.call_after(seconds, self._due)

    def _due(self) -> None:
        self._beat_is_due = True
        self._wake.set()

    def _hand_over(self) -> None:
        """Begin to give away what others wait for, where that has not begun yet."""
        begun: Partitions = frozenset().union(*self._handing_over)
        if fresh := self.member.releasing - begun:
            self._handing_over[fresh] = asyncio.create_task(self._give(self.member, fresh))

    async def _give(self, member: Member, partitions: Partitions) -> None:
        try:
            await self._finished(partitions)
            if member is self._member:
                # Looked at once: what is to be given away may change while the release waits.
                given = partitions & member.releasing
                self._reader.released(given)
                await member.release(given)
        except Fenced:
            # All of it is gone; the next look tells.
            pass
        except PenstockError as error:
            self._reader.failed(error)
        finally:
            del self._handing_over[partitions]
            self._wake.set()

    async def _finished(self, partitions: Partitions) -> None:
        """Return when the reader is done with them, or its time is up, or it failed."""
        try:
            async with self._timers.deadline(self._release_seconds, "finish what was delivered"):
                await self._reader.revoke(partitions)
        except (DeadlineExceeded, Fenced):
            # They are given away all the same; a commit that comes later is refused.
            return
        except Exception as error:
            self._reader.revoke_failed(error)
