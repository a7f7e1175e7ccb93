"""A stage of a ring: what it has passed, and what must have passed before it."""

from __future__ import annotations

from collections.abc import Callable

from penstock.scaling.sequence import Parking, Sequence, lowest
from penstock.scaling.waiting import WaitStrategy, wait_on_loop
from penstock.system import Clock


class Stage:
    """One gate of the ring: a consumer, or a group of consumers that share.

    ``upstream`` is the barrier: the producer's cursor, or the sequences of the stages that must
    have passed an entry first.
    """

    __slots__ = ("closed", "name", "sequence", "upstream")

    def __init__(self, name: str, upstream: tuple[Parking, ...]) -> None:
        self.name = name
        self.sequence = Sequence()
        self.upstream = upstream
        self.closed = False

    def available(self) -> int:
        """The position before which everything may be read."""
        upstream = self.upstream
        return upstream[0].value if len(upstream) == 1 else lowest(upstream, 0)

    def slowest(self) -> Parking:
        """The sequence to wait for."""
        return min(self.upstream, key=lambda sequence: sequence.value)

    def replace(self, gone: Parking, upstream: tuple[Parking, ...]) -> None:
        """Depend on what a removed stage depended on."""
        if gone in self.upstream:
            kept = [one for one in self.upstream if one is not gone]
            self.upstream = tuple(dict.fromkeys((*kept, *upstream)))


class Waiting:
    """A wait for a condition, by thread or by task, with a deadline."""

    __slots__ = ("clock", "strategy")

    def __init__(self, strategy: WaitStrategy, clock: Clock) -> None:
        self.strategy = strategy
        self.clock = clock

    def until(
        self, ready: Callable[[], bool], slowest: Callable[[], Parking], timeout: float
    ) -> bool:
        """Block the thread until ``ready()``; False when the time is over first."""
        deadline = self.clock.monotonic() + timeout
        while not ready():
            if self.clock.monotonic() >= deadline:
                return False
            self.strategy.wait(slowest(), ready, deadline, self.clock)
        return True

    async def until_on_loop(
        self, ready: Callable[[], bool], slowest: Callable[[], Parking], timeout: float
    ) -> bool:
        """Suspend the task until ``ready()``; False when the time is over first."""
        deadline = self.clock.monotonic() + timeout
        while not ready():
            if self.clock.monotonic() >= deadline:
                return False
            await wait_on_loop(slowest(), ready, deadline, self.clock)
        return True
