"""Everything of the bus that happens later: one heap, one timer of the clock.

A hundred thousand pending calls cost a heap entry each and no CPU. All of them stand on the clock
that the bus was given, so a test decides what time it is.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock.bus.drive import carry_on
from penstock.errors import DeadlineExceeded, InvalidOption, PenstockError
from penstock.system import Clock, Timer

Result = TypeVar("Result")

SLEEP_MAX_SECONDS = 3_600.0
"""The loop's timer is set again at least this often: very long waits overflow some selectors."""

TICK_SECONDS = 1e-6
"""A call is due this much early: a sum of floats may lie just above what the clock can show."""


class PendingCall:
    """A call that is due later."""

    __slots__ = ("callback", "timers")

    def __init__(self, timers: Timers, callback: Callable[[], None]) -> None:
        self.timers = timers
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Do not call. Does nothing when it was called or cancelled before."""
        if self.callback is not None:
            self.callback = None
            self.timers.forget()


class Timers:
    """Calls that are due later, in order. Belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._heap: list[tuple[float, int, PendingCall]] = []
        self._ticket = itertools.count()
        self._cancelled = 0
        self._armed: Timer | None = None
        self._armed_for = float("inf")
        self._deadlines: set[Deadline] = set()
        self._nobody_waits: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def call_after(self, seconds: float, callback: Callable[[], None]) -> PendingCall:
        """Call when that much time has passed."""
        due = self.clock.monotonic() + max(0.0, seconds)
        call = PendingCall(self, callback)
        heapq.heappush(self._heap, (due, next(self._ticket), call))
        if due < self._armed_for:
            self._arm()
        return call

    async def sleep(self, seconds: float) -> None:
        """Wait that long on the clock of the bus."""
        done = asyncio.get_running_loop().create_future()
        call = self.call_after(seconds, lambda: _resolve(done))
        try:
            await done
        finally:
            call.cancel()

    def deadline(self, seconds: float | None, action: str) -> Deadline:
        """A block that is cancelled after that much time and then raises DeadlineExceeded."""
        return Deadline(self, seconds, action)

    async def interrupt(self, error: PenstockError) -> None:
        """End all blocks with a deadline now, with this error, and wait until they have ended."""
        for deadline in list(self._deadlines):
            deadline.interrupt(error)
        while self._deadlines:
            self._nobody_waits = asyncio.get_running_loop().create_future()
            await self._nobody_waits

    def enter(self, deadline: Deadline) -> None:
        """A block with a deadline begins."""
        self._deadlines.add(deadline)

    def leave(self, deadline: Deadline) -> None:
        """A block with a deadline has ended."""
        self._deadlines.discard(deadline)
        if self._nobody_waits is not None and not self._deadlines:
            _resolve(self._nobody_waits)

    def forget(self) -> None:
        """One more entry is cancelled; when most are, the heap is made anew without them."""
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def close(self) -> None:
        """Drop all calls."""
        for _, _, call in self._heap:
            call.callback = None
        self._heap.clear()
        self._cancelled = 0
        self._disarm()

    def _run_due(self) -> None:
        self._disarm()
        now = self.clock.monotonic() + TICK_SECONDS
        while self._heap and self._heap[0][0] <= now:
            call = heapq.heappop(self._heap)[2]
            callback, call.callback = call.callback, None
            if callback is None:
                self._cancelled -= 1
            else:
                self._call(callback)
        self._arm()

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a timer of the bus raised", "exception": error}
            )

    def _arm(self) -> None:
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        if not self._heap or self._heap[0][0] >= self._armed_for:
            return
        self._disarm()
        self._armed_for = self._heap[0][0]
        wait = min(self._armed_for - self.clock.monotonic(), SLEEP_MAX_SECONDS)
        self._armed = self.clock.call_after(max(0.0, wait), self._run_due)

    def _disarm(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
        self._armed = None
        self._armed_for = float("inf")


def check_timeout(seconds: float | None) -> None:
    """Refuse a timeout that lies in the past."""
    if seconds is not None and not seconds >= 0:
        raise InvalidOption(f"a timeout of {seconds} s: use 0 or more", option="timeout")


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Deadline:
    """Cancels the task that is inside when the time is up; see :meth:`Timers.deadline`.

    Like ``asyncio.timeout``, but on the clock of the bus. Code that swallows its cancellation is
    waited for. A cancellation from outside stays a cancellation.
    """

    def __init__(self, timers: Timers, seconds: float | None, action: str) -> None:
        check_timeout(seconds)
        self._timers = timers
        self._seconds = seconds
        self._action = action
        self.expired = False
        """Whether the time was up before the block ended."""
        self._used = 0.0
        """Seconds that had passed when the timer was set."""
        self._interruption: PenstockError | None = None
        self._call: PendingCall | None = None

    async def over(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """What the coroutine returns; one that never waits for anything needs no timer.

        Its first step is made without one: nobody could cancel it meanwhile.
        """
        now = self._timers.clock.monotonic
        began = now()
        try:
            yielded = coroutine.send(None)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        self._used = now() - began
        async with self:
            return await carry_on(coroutine, yielded)

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._timers.enter(self)
        if self._seconds is not None:
            self._call = self._timers.call_after(self._seconds - self._used, self._expire)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._timers.leave(self)
        if self._call is not None:
            self._call.cancel()
        if not self.expired and self._interruption is None:
            return
        if self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self._reason() from error

    def _reason(self) -> PenstockError:
        if self._interruption is not None:
            return self._interruption.again()
        return DeadlineExceeded(
            f"could not {self._action} within {self._seconds:g} s", seconds=self._seconds
        )

    def interrupt(self, error: PenstockError) -> None:
        """End the block now, with this error."""
        if not self.expired and self._interruption is None:
            self._interruption = error
            self._task.cancel()

    def _expire(self) -> None:
        if self._interruption is None:
            self.expired = True
            self._task.cancel()
