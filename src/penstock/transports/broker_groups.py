"""What the groups of all brokers share that share out no partitions themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from penstock.log.group_coordinator import checked_lease_ms, join_group
from penstock.log.group_member import Member
from penstock.log.group_ports import Coordinator
from penstock.log.group_state import TopicPartition
from penstock.scaling.assignment import AssignmentStrategy
from penstock.system import Clock, System, Timer

Listener = Callable[[], None]


class BrokerClock:
    """The broker's wall clock, as far as it is known; all else is this machine's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = 0

    def set(self, time_ms: int) -> None:
        """The broker has just said so."""
        self._ahead_ms = time_ms - self._clock.time_ms()

    def time_ms(self) -> int:
        return self._clock.time_ms() + self._ahead_ms

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)

    def call_after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self._clock.call_after(seconds, callback)


class BrokerGroup(Coordinator):
    """One group that reads one topic. It is also the bell of that group; see ``Bells``.

    After an error, and after a cancelled call, the change may have happened; the next call finds out.
    """

    def __init__(self, topic: str, group: str, system: System, lease_seconds: float) -> None:
        self._clock = BrokerClock(system.clock)
        self._lease_ms = checked_lease_ms(lease_seconds)
        self._listeners: set[Listener] = set()
        self.system = replace(system, clock=self._clock)
        self.topic = topic
        self.group = group

    def follow(self, group: str, listener: Listener) -> None:
        """Call the listener when partitions of the group move."""
        self._listeners.add(listener)

    def forget(self, group: str, listener: Listener) -> None:
        """Call it no longer."""
        self._listeners.discard(listener)

    def _rang(self) -> None:
        for listener in list(self._listeners):
            listener()

    async def join(
        self,
        topics: Mapping[str, int],
        *,
        strategy: AssignmentStrategy | str | None = None,
        name: str | None = None,
        guard: Callable[[], None] | None = None,
    ) -> Member:
        """Become a member; see ``GroupCoordinator.join``."""
        return await join_group(self, self._lease_ms, topics, strategy, name, guard)

    async def recovered(self, partitions: Iterable[TopicPartition]) -> None:
        """Nobody leaves anything behind: a commit is one call of the broker."""
