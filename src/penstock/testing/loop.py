"""An event loop whose order and time come from a seed: it looks for schedules in which a program fails.

Of the tasks that could go on, it lets any go on. Jobs of threads begin and end whenever they like.
Time passes when nobody has anything to do. So a program sees orders that a real loop shows once in a
million runs, and a seed repeats each of them.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial
from random import Random
from typing import Any

LATENCIES = (0.0, 0.0, 0.0005, 0.002, 0.02)
"""How long, in seconds, a job of a thread waits for its turn, and how long it takes."""
STEPS_MAX = 1_000_000
TURNS_MAX = 1_000


class Stuck(AssertionError):
    """Nobody can go on and no timer is left, or nobody gets anywhere."""


class ScheduledLoop(asyncio.BaseEventLoop):
    """No sockets, no threads: only tasks, timers and jobs. One seed is one schedule."""

    # What BaseEventLoop has, and its stub does not say
    _ready: deque[asyncio.Handle]
    _closed: bool
    _check_closed: Callable[[], None]

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = Random(seed)  # noqa: S311 - repeatable, not secret
        self.steps = 0
        self.in_job = False
        """Whether a job runs, which on a real machine would be in a thread."""
        self.before_step: Callable[[], None] | None = None
        self.problems: list[str] = []
        """What nobody heard of: errors of callbacks, and of tasks that are forgotten."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_number = 0
        self._readers: dict[int, Callable[[], object]] = {}
        self._now = 0.0
        self.set_exception_handler(self._note)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        # asyncio.all_tasks() looks at the tasks of all loops that there ever were.
        task = super().create_task(coro, **options)
        self._tasks.append(task)
        return task

    # What BaseEventLoop does as well, but with an eye on other threads and on a real clock

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *arguments: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if self._closed:
            self._check_closed()
        handle = asyncio.Handle(callback, arguments, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *arguments: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if self._closed:
            self._check_closed()
        timer = asyncio.TimerHandle(when, callback, arguments, self, context)
        self._timer_number += 1
        # Timers of the same moment fire in the order in which they were set.
        heapq.heappush(self._timers, (when, self._timer_number, timer))
        return timer

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *arguments: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *arguments, context=context)

    # Time

    def time(self) -> float:
        return self._now

    def pass_time(self, seconds: float) -> None:
        """Let time pass while a job blocks its thread."""
        self._now += max(0.0, seconds)

    def latency(self) -> float:
        """How long something outside of the loop takes this time."""
        return LATENCIES[int(self.random.random() * len(LATENCIES))]

    # What a real loop does with descriptors

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., object], *arguments: Any
    ) -> None:
        """Call it when the number turns readable, of which :meth:`turn_readable` tells."""
        self._readers[fd] = partial(callback, *arguments)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def turn_readable(self, fd: int) -> None:
        """Call the reader of a number, if there is one then, a while later."""
        self.call_later(self.latency(), self._read, fd)

    def _read(self, fd: int) -> None:
        if reader := self._readers.get(fd):
            reader()

    # What a real loop does with threads

    def wake_nobody(self) -> None:
        """There is no other thread whose call would have to wake this one."""

    def run_in_executor(  # type: ignore[override]
        self, executor: object, function: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        """Run it on the loop, a while later; what came of it is heard another while later.

        As with threads, a job that is cancelled before it began does not run; later it does.
        """
        future = self.create_future()
        self.call_later(self.latency(), self._work, future, function, arguments)
        return future

    def _work(
        self, future: asyncio.Future[Any], function: Callable[..., Any], arguments: Any
    ) -> None:
        if future.cancelled():
            return
        try:
            told: Callable[[Any], None] = future.set_result
            answer = self.run_job(function, *arguments)
        except Exception as error:
            told, answer = future.set_exception, error
        self.call_later(self.latency(), self._tell, future, told, answer)

    def run_job(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run what a thread would."""
        was, self.in_job = self.in_job, True
        try:
            return function(*arguments)
        finally:
            self.in_job = was

    @staticmethod
    def _tell(future: asyncio.Future[Any], told: Callable[[Any], None], answer: Any) -> None:
        if not future.cancelled():
            told(answer)

    # Turns

    async def calm(self) -> None:
        """Let those end that are about to, without any time passing."""
        for _ in range(TURNS_MAX):
            if not self._ready:
                return
            await asyncio.sleep(0)

    def take_turn(self) -> None:
        """Let one task or callback go on."""
        if self.before_step is not None:
            self.before_step()
        if not self._ready:
            self._to_the_next_timer()
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Stuck(f"no end after {STEPS_MAX:,} steps: {self.waiting()}")
        handle = self._chosen()
        if not handle._cancelled:
            handle._run()

    def _chosen(self) -> asyncio.Handle:
        """A task in any order; plain callbacks keep theirs, which loops promise."""
        ready = self._ready
        if len(ready) > 1:
            at = int(self.random.random() * len(ready))
            chosen: Any = ready[at]
            if at and isinstance(getattr(chosen._callback, "__self__", None), asyncio.Task):
                del ready[at]
                return chosen  # type: ignore[no-any-return]
        return ready.popleft()

    def _to_the_next_timer(self) -> None:
        timers, ready = self._timers, self._ready
        while not ready:
            if not timers:
                raise Stuck(f"everybody waits: {self.waiting()}")
            when, _, timer = heapq.heappop(timers)
            if timer._cancelled:
                continue
            self._now = max(self._now, when)
            ready.append(timer)
        while timers and timers[0][0] <= self._now:
            timer = heapq.heappop(timers)[2]
            if not timer._cancelled:
                ready.append(timer)

    # The names by which BaseEventLoop calls these.
    _run_once = take_turn
    _write_to_self = wake_nobody

    # What went wrong

    def living(self) -> list[asyncio.Task[Any]]:
        """The tasks that have not ended."""
        return [task for task in self._tasks if not task.done()]

    def waiting(self) -> str:
        """Who has not ended, and where each of them waits."""
        return "; ".join(sorted(map(_place, self.living()))) or "no task is left"

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.problems.append(f"{context['message']}: {error!r}" if error else context["message"])


def _place(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    where = f"{frames[-1].f_code.co_qualname} line {frames[-1].f_lineno}" if frames else "its end"
    return f"{task.get_name()} at {where}"
