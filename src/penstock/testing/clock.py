"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

NANOSECONDS = 1_000_000_000
START_MS = 1_767_225_600_000
"""1 January 2026, UTC."""
LOOK_AGAIN_SECONDS = 0.005
"""How long to wait, in real time, for work outside of the loop: threads, sockets, processes."""
TASKS = "/proc/self/task"
TURNS_UNSEEN = 50
"""Turns of a loop that does not tell whether it has something to do."""

Result = TypeVar("Result")


class VirtualTimer:
    """A call that is due when the clock gets there. Implements :class:`penstock.system.Timer`."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    """Implements :class:`penstock.system.Clock`. Only :meth:`advance` and sleeping move it."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self._passed = 0
        self._wall = start_ms * 1_000_000
        self._timers: list[tuple[int, int, VirtualTimer]] = []
        self._tickets = itertools.count()
        self._listeners: list[Callable[[], None]] = []
        self._holders = 0

    def time_ms(self) -> int:
        return (self._wall + self._passed) // 1_000_000

    def monotonic(self) -> float:
        return self._passed / NANOSECONDS

    def sleep(self, seconds: float) -> None:
        self.advance(max(0.0, seconds))

    def advance(self, seconds: float) -> None:
        """Let time pass. It halts at each timer that falls due, in order, and runs it."""
        if seconds < 0:
            raise ValueError("time does not go back; jump() moves the wall clock")
        target = self._passed + round(seconds * NANOSECONDS)
        while self._timers and self._timers[0][0] <= target:
            due, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                self._move(due)
                timer.callback()
        self._move(target)

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock forward, or back; the monotonic clock does not notice."""
        self._wall += milliseconds * 1_000_000

    def call_after(self, seconds: float, callback: Callable[[], None]) -> VirtualTimer:
        """Run the callback when the clock gets there."""
        due = self._passed + round(max(0.0, seconds) * NANOSECONDS)
        timer = VirtualTimer(callback)
        heapq.heappush(self._timers, (due, next(self._tickets), timer))
        return timer

    def advance_to_next(self) -> bool:
        """Let time pass until the next timer, and run all that fall due then; False without any."""
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return False
        self.advance((self._timers[0][0] - self._passed) / NANOSECONDS)
        return True

    async def run_until(self, awaitable: Awaitable[Result], *, patience: float = 0.0) -> Result:
        """Await something; time passes, timer by timer, while the event loop has nothing to do.

        What runs in threads or waits for a socket is not seen. ``patience`` is how long, in real
        seconds, the loop has to be idle before time passes, and on Linux the other threads are
        asleep then; without timers it just waits.
        """
        task = asyncio.ensure_future(awaitable)
        rank = next(_ranks)
        try:
            while not await self._ends_soon(task, patience, rank):
                if not self.advance_to_next():
                    await asyncio.wait({task}, timeout=LOOK_AGAIN_SECONDS)
        finally:
            if not task.done():
                task.cancel()
        return await task

    async def _ends_soon(self, task: asyncio.Future[Any], patience: float, rank: int) -> bool:
        """Let all run that is ready; whether that ends the task."""
        await until_idle(rank)
        waits = patience > 0 or self._holders > 0
        while waits and not task.done():
            await asyncio.wait({task}, timeout=patience or LOOK_AGAIN_SECONDS)
            await until_idle(rank)
            # On a busy machine a thread may wait for a processor for longer than that.
            waits = self._holders > 0 or (patience > 0 and threads_work())
        return task.done()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Meanwhile :meth:`run_until` lets no time pass: somebody waits in real time."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1

    def on_advance(self, callback: Callable[[], None]) -> None:
        """Run the callback every time the clock has moved."""
        self._listeners.append(callback)

    def _move(self, moment: int) -> None:
        if moment > self._passed:  # a timer may itself have slept past this moment
            self._passed = moment
            for listener in self._listeners:
                listener()


def threads_work() -> bool:
    """Whether another thread of this process runs, or waits for a processor or a disk."""
    mine = str(threading.get_native_id())
    for one in os.listdir(TASKS) if os.path.isdir(TASKS) else ():
        with suppress(OSError):
            if one != mine and Path(TASKS, one, "stat").read_text().rpartition(") ")[2][:1] in "RD":
                return True
    return False


_ranks = itertools.count()
_looking: dict[int, list[int]] = {}
"""Who looks at each loop, by its identity. For who came first, those who came later are work."""


async def until_idle(rank: int | None = None) -> None:
    """Return when nothing on the running loop is ready, but for the caller. Takes no time."""
    loop = asyncio.get_running_loop()
    ready = getattr(loop, "_ready", None)
    if ready is None:
        for _ in range(TURNS_UNSEEN):
            await asyncio.sleep(0)
        return
    mine = next(_ranks) if rank is None else rank
    ranks = _looking.setdefault(id(loop), [])
    ranks.append(mine)
    try:
        await asyncio.sleep(0)
        while len(ready) > sum(other < mine for other in ranks):  # noqa: ASYNC110 - no time passes
            await asyncio.sleep(0)
    finally:
        ranks.remove(mine)
        if not ranks:
            del _looking[id(loop)]
