"""A log without threads, so that the suite of buses runs on it in virtual time."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from penstock import ScalableMessageBus, WalMessageQueue
from penstock.bus.bus import MessageBus
from penstock.messages import marks_of
from penstock.stores.base import PersistentBackingStore
from penstock.system import System
from penstock.testing import InlineWorker, VirtualClock
from penstock.testing.bus_fixtures import Keyed, Ping, Pong, Table
from penstock.testing.clock import threads_work

BUSES_MAX = 2
"""What a test of the suite makes at most."""
QUIET_LOOKS, LOOKS_MAX = 10, 500
"""Looks at the threads, one after the other, that find them all asleep; how many looks there are."""


class InlineExecutor(ThreadPoolExecutor):
    """Runs what goes to a thread at once, in the thread that asks."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class DurableBus(ScalableMessageBus):
    """Does not drain when a test fails: in virtual time that would not end."""

    async def __aexit__(self, kind: object = None, *rest: object) -> None:
        await self.stop(drain=kind is None)


class PatientTable(Table):
    """For a log with threads of its own: lets them have time, until they all sleep.

    Or until they had their time: a client of another test may have left a thread that never sleeps long.
    """

    async def idle(self) -> None:
        quiet = 0
        with self.clock.held():
            for _ in range(LOOKS_MAX):
                await super().idle()
                await asyncio.sleep(0.002)
                quiet = 0 if threads_work() else quiet + 1
                if quiet == QUIET_LOOKS:
                    return


class DurableBuses:
    """Makes buses whose topics are all durable, each on a log of its own; the first has open topics."""

    def __init__(
        self,
        inner: type[MessageBus],
        make_store: Callable[[], PersistentBackingStore],
        executor: InlineExecutor | None = None,
    ) -> None:
        self._inner = inner
        self._make_store = make_store
        self._executor = executor
        self._queues: list[WalMessageQueue] = []
        self._unused: list[WalMessageQueue] = []

    async def __aenter__(self) -> Self:
        if self._executor is not None:
            asyncio.get_running_loop().set_default_executor(self._executor)
        self._unused = [await self._open() for _ in range(BUSES_MAX)]
        for kind in (Ping, Pong, Keyed):
            await self._unused[-1].create_topic(marks_of(kind).topic)
        return self

    async def _open(self) -> WalMessageQueue:
        clock = VirtualClock()
        system = System()
        if self._executor is not None:
            system = System(clock=clock, worker=lambda name: InlineWorker(name, clock=clock))
        queue = WalMessageQueue(self._make_store(), maintenance_interval=None, system=system)
        self._queues.append(queue)
        await queue.open()
        return queue

    def __call__(self, **options: Any) -> ScalableMessageBus:
        inner = self._inner(**options)
        return DurableBus(inner, log=self._unused.pop(), backpressure=False)

    async def __aexit__(self, *exc_info: object) -> None:
        for queue in self._queues:
            await queue.close()
            queue.store.close()
