"""What the parts of the queue suite share: how a queue is made, and how records are taken from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Sequence
from typing import Self, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from penstock import Record, Subscription, System, WalMessageQueue
from penstock.system import Job
from penstock.testing.clock import VirtualClock
from penstock.testing.worker import InlineWorker

MakeQueue = Callable[..., WalMessageQueue]
"""Takes the keyword arguments of :class:`WalMessageQueue`, but not the store."""

WAIT_SECONDS = 100.0
"""For what is about to happen: long, as nothing waits that long unless it fails."""

EXAMPLES = settings(
    deadline=None,
    database=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,  # each example uses names of its own
        HealthCheck.differing_executors,  # the suite is inherited by many classes
        HealthCheck.too_slow,
    ],
)
"""How the suite uses hypothesis."""

_Item = TypeVar("_Item")


class HeldWorker(InlineWorker):
    """Runs jobs in the thread that calls it: at once, or when the test says so."""

    held = False

    def submit(self, job: Job) -> None:
        super().submit(job)
        if not self.held:
            self.run()


class HeldSystem:
    """A machine whose clock and commit worker are in the hands of the test; the disk is real.

    ``async with make_queue(system=held.system) as queue, held`` lets go before the queue closes.
    """

    def __init__(self, *, held: bool) -> None:
        self.clock = VirtualClock()
        self.system = System(clock=self.clock, worker=self._start)
        self._held = held
        self._workers: list[HeldWorker] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._held = False
        for worker in self._workers:
            worker.held = False
        await self.commit()

    async def commit(self) -> None:
        """Let the commit workers do what is waiting, and the event loop what follows from it."""
        await settle()
        for worker in self._workers:
            worker.run()
        await settle()

    def _start(self, name: str) -> HeldWorker:
        worker = HeldWorker(name, clock=self.clock, immediate=False)
        worker.held = self._held
        self._workers.append(worker)
        return worker


def inline() -> HeldSystem:
    """Commits happen at once, in the thread of the test; time stands still."""
    return HeldSystem(held=False)


def held_back() -> HeldSystem:
    """Commits wait for ``commit()``; time stands still."""
    return HeldSystem(held=True)


async def settle() -> None:
    """Let all that is ready on the event loop run."""
    for _ in range(10):
        await asyncio.sleep(0)


async def take(source: AsyncIterable[_Item], count: int) -> list[_Item]:
    """The next items, then leave the iteration."""
    taken: list[_Item] = []
    if count:
        async with asyncio.timeout(WAIT_SECONDS):
            async for item in source:
                taken.append(item)
                if len(taken) == count:
                    break
    return taken


async def records_of(subscription: Subscription, count: int) -> list[Record]:
    """The next records of a subscription, then leave the iteration."""
    return await take(subscription, count)


async def values_of(subscription: Subscription, count: int) -> list[bytes | None]:
    """The values of the next records of a subscription."""
    return [record.value for record in await records_of(subscription, count)]


async def everything(queue: WalMessageQueue, topic: str) -> list[Record]:
    """All durable records of a topic, partition by partition."""
    async with asyncio.timeout(WAIT_SECONDS):
        return [record async for record in queue.replay(topic)]


def by_partition(records: Sequence[Record]) -> dict[int, list[Record]]:
    """The records of each partition, in order."""
    found: dict[int, list[Record]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(record)
    return found


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Values that tell their place."""
    return [b"%d" % number for number in range(start, start + count)]


class QueueFixtures:
    """The fixtures of the suite; ``make_queue`` is yours to define."""

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def make_queue(self) -> MakeQueue:
        """A callable that makes a queue on one place, empty at first; see the suite's text."""
        raise NotImplementedError("define the fixture make_queue in your subclass")
