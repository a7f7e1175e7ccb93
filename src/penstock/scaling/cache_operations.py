"""Operations on a store: those of one key one after the other, at most so many at the same time.

An operation that was begun is done, also when nobody waits for it any more: a thread that writes
cannot be called back, so the cache has to hear how it ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, TypeVar

from penstock.errors import BufferFull
from penstock.scaling.cache_policies import Key

Result = TypeVar("Result")


class Turnstile:
    """Lets at most so many in at the same time; the others wait in line."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._line: deque[asyncio.Future[None]] = deque()
        self.inside = 0

    async def enter(self) -> None:
        """Return when there is a place. Cancelled in the line, none was taken."""
        if self.inside < self._places:
            self.inside += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was let in at the same moment
                self.leave()
            raise

    def leave(self) -> None:
        """Give the place to the next in line."""
        self.inside -= 1
        self._let_in()

    def resize(self, places: int) -> None:
        """So many places from now on; who is inside stays."""
        self._places = places
        self._let_in()

    def _let_in(self) -> None:
        while self._line and self.inside < self._places:
            turn = self._line.popleft()
            if not turn.done():
                self.inside += 1
                turn.set_result(None)


class KeyedOperations(Generic[Key]):
    """Runs operations as tasks of their own. Belongs to one event loop."""

    def __init__(self, concurrent_max: int, depth_max: int) -> None:
        self._gate = Turnstile(concurrent_max)
        self._depth_max = depth_max
        self._tasks: set[asyncio.Task[Any]] = set()
        self._newest: dict[Key, asyncio.Task[Any]] = {}
        self._alone: asyncio.Task[Any] | None = None

    @property
    def depth(self) -> int:
        """Operations that wait or run."""
        return len(self._tasks)

    @property
    def running(self) -> int:
        """Operations that run."""
        return self._gate.inside

    @property
    def utilisation(self) -> float:
        """The share of the depth that is in use; more than 1 after it was lowered."""
        return len(self._tasks) / self._depth_max

    def start(self, key: Key, work: Callable[[], Awaitable[Result]]) -> asyncio.Task[Result]:
        """Begin an operation on a key, behind those that were begun before on this key.

        Raises BufferFull when too many wait already; nothing was begun then.
        """
        before = {task for task in (self._newest.get(key), self._alone) if task is not None}
        task = self._begin(before, work)
        self._newest[key] = task
        task.add_done_callback(partial(self._forget, key))
        return task

    def start_alone(self, work: Callable[[], Awaitable[Result]]) -> asyncio.Task[Result]:
        """Begin an operation on all keys, behind all that were begun and before all that come."""
        self._alone = task = self._begin(set(self._tasks), work)
        return task

    def resize(self, concurrent_max: int, depth_max: int) -> None:
        """Put other limits in force. What was begun is done, however many there are."""
        self._depth_max = depth_max
        self._gate.resize(concurrent_max)

    async def drain(self) -> None:
        """Return when all that was begun is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(
        self, before: set[asyncio.Task[Any]], work: Callable[[], Awaitable[Result]]
    ) -> asyncio.Task[Result]:
        if len(self._tasks) >= self._depth_max:
            raise BufferFull(
                f"{len(self._tasks)} operations wait for the store already; nothing was done",
                limit=self._depth_max,
            )
        task = asyncio.get_running_loop().create_task(self._run(before, work))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def _run(
        self, before: set[asyncio.Task[Any]], work: Callable[[], Awaitable[Result]]
    ) -> Result:
        if before:
            await asyncio.wait(before)
        await self._gate.enter()
        try:
            return await work()
        finally:
            self._gate.leave()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if self._alone is task:
            self._alone = None
        if not task.cancelled():
            task.exception()  # it may be that nobody waits any more

    def _forget(self, key: Key, task: asyncio.Task[Any]) -> None:
        if self._newest.get(key) is task:
            del self._newest[key]
