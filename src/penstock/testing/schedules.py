"""Run a program in one schedule after the other, on a loop whose order comes from a seed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from random import Random
from typing import Any, TypeVar

from penstock.system import Job, System, Timer
from penstock.testing.clock import START_MS
from penstock.testing.disk import SimulatedDisk
from penstock.testing.loop import ScheduledLoop, Stuck

Result = TypeVar("Result")
SECONDS_MAX = 24 * 3_600.0
"""Virtual seconds; a schedule that takes longer waits for something that does not come."""


LEFT_SECONDS = 5.0
"""How long tasks may go on after a scenario has ended, in virtual time, before they count as left behind."""
ENDING_SECONDS = 60.0
"""What is left of a run that failed has so long to end, in virtual time."""
PAUSES = (None, 0.0, 0.0, 0.001, 0.01)
STEPS_ABOUT = (10, 50, 250)
"""After how many steps somebody is cancelled, on average."""


class ScheduleFailed(AssertionError):
    """A schedule in which the program did not do what it should. ``seed`` repeats it."""

    def __init__(self, seed: int, cancel_at: int | None, why: str) -> None:
        self.seed = seed
        self.cancel_at = cancel_at
        at = "" if cancel_at is None else f", cancel_at={cancel_at}"
        super().__init__(f"{why} (seed={seed}{at})")


class SeededSchedule:
    """One run. A scenario gets it: ``async def scenario(schedule)``."""

    def __init__(self, seed: int, cancel_at: int | None = None) -> None:
        self.seed = seed
        self.steps = 0
        """How many steps of tasks and callbacks it took; known at the end."""
        self.loop = ScheduledLoop(seed)
        self.random: Random = self.loop.random
        """For what the scenario itself decides."""
        self.cancelled = 0
        """How many tasks were cancelled by the schedule."""
        self._victims: list[asyncio.Task[Any]] = []
        self._cancel_at = cancel_at
        if cancel_at is not None:
            self.loop.before_step = self._perhaps_cancel

    @cached_property
    def system(self) -> System:
        """A machine on this loop: virtual time, a simulated disk, workers without threads."""
        return self.machine(SimulatedDisk())

    def machine(self, disk: SimulatedDisk) -> System:
        """Another machine, or process, on this loop, with a disk that may be shared."""
        return System(
            files=disk,
            clock=LoopClock(self.loop),
            random=self.random,
            worker=lambda _: LoopWorker(self.loop),
        )

    def spawn(
        self, work: Coroutine[Any, Any, Result], *, victim: bool = False
    ) -> asyncio.Task[Result]:
        """Start a task. A ``victim`` may be cancelled by the schedule, wherever it waits."""
        task = self.loop.create_task(work)
        if victim:
            self._victims.append(task)
        return task

    async def pause(self) -> None:
        """Let others go first, or let some time pass; or neither."""
        seconds = PAUSES[int(self.random.random() * len(PAUSES))]
        if seconds is not None:
            await asyncio.sleep(seconds)

    def run(
        self,
        scenario: Callable[[SeededSchedule], Awaitable[Result]],
        seconds_max: float = SECONDS_MAX,
    ) -> Result:
        """Run it to its end. Nothing may be left behind: no task, no error that nobody heard of."""
        try:
            result = self.loop.run_until_complete(self._bounded(scenario, seconds_max))
            if left := self._left():
                raise ScheduleFailed(self.seed, self._cancel_at, left)
        except ScheduleFailed:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise ScheduleFailed(self.seed, self._cancel_at, why) from error
        finally:
            self._end()
        return result

    async def _bounded(
        self, scenario: Callable[[SeededSchedule], Awaitable[Result]], seconds_max: float
    ) -> Result:
        result = await scenario(self)
        if self.loop.time() > seconds_max:
            raise Stuck(f"it took {self.loop.time():,.0f} s of virtual time")
        await self.loop.calm()
        others = set(self.loop.living()) - {asyncio.current_task()}
        if others:
            # What was cancelled while it closed something still closes it, in the background.
            await asyncio.wait(others, timeout=LEFT_SECONDS)
        return result

    def _left(self) -> str:
        if self.loop.problems:
            return "; ".join(self.loop.problems)
        return f"tasks are left: {self.loop.waiting()}" if self.loop.living() else ""

    def _end(self) -> None:
        """Close the loop; what is left of a failed run is cancelled first."""
        self.loop.before_step = None
        self.steps, self.loop.steps = self.loop.steps, 0
        try:
            if tasks := self.loop.living():
                for task in tasks:
                    task.cancel()
                with suppress(Stuck):
                    self.loop.run_until_complete(asyncio.wait(tasks, timeout=ENDING_SECONDS))
        finally:
            for task in self.loop.living():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            self.loop.close()

    def _perhaps_cancel(self) -> None:
        if self.loop.steps == self._cancel_at:
            living = [task for task in self._victims if not task.done()]
            if living:
                self.random.choice(living).cancel()
                self.cancelled += 1


def run_schedule(
    scenario: Callable[[SeededSchedule], Awaitable[Result]],
    seed: int,
    *,
    cancel_at: int | None = None,
    seconds_max: float = SECONDS_MAX,
) -> Result:
    """Run a scenario in the schedule of a seed; ScheduleFailed when anything goes wrong in it.

    One of its victims, if it has any, is cancelled before the step ``cancel_at`` of the loop;
    unless that is given, every second seed chooses one, early or late. Times are virtual:
    ``seconds_max`` is how long all of it may take.
    """
    return SeededSchedule(seed, _chosen(seed) if cancel_at is None else cancel_at).run(
        scenario, seconds_max
    )


def run_schedules(
    scenario: Callable[[SeededSchedule], Awaitable[object]],
    seeds: Iterable[int],
    *,
    seconds_max: float = SECONDS_MAX,
) -> int:
    """Run a scenario in the schedule of each seed; how many there were. See :func:`run_schedule`."""
    count = 0
    for count, seed in enumerate(seeds, 1):  # noqa: B007 - the last one counts
        run_schedule(scenario, seed, seconds_max=seconds_max)
    return count


def _chosen(seed: int) -> int | None:
    """The step at which a schedule cancels, if it does."""
    if seed % 2 == 0:
        return None
    chance = Random(seed)  # noqa: S311 - repeatable, not secret
    return int(chance.expovariate(1 / chance.choice(STEPS_ABOUT)))


class LoopClock:
    """Implements :class:`penstock.system.Clock`: the time of a :class:`ScheduledLoop`."""

    def __init__(self, loop: ScheduledLoop) -> None:
        self._loop = loop

    def time_ms(self) -> int:
        return START_MS + int(self._loop.time() * 1_000)

    def monotonic(self) -> float:
        return self._loop.time()

    def sleep(self, seconds: float) -> None:
        self._loop.pass_time(seconds)

    def call_after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(seconds, callback)


class LoopWorker:
    """Implements :class:`penstock.system.Worker`: its jobs run on the loop, one by one, a while later."""

    def __init__(self, loop: ScheduledLoop) -> None:
        self._loop = loop
        self._jobs: deque[Job] = deque()
        self._busy = self._closed = False

    def submit(self, job: Job) -> None:
        if self._closed:
            return
        self._jobs.append(job)
        if self._busy:
            return
        if self._loop.in_job:
            # The thread that submits may wait for it, so it cannot wait for the loop.
            self._run()
        else:
            self._busy = True
            self._loop.call_later(self._loop.latency(), self._run)

    def submit_after(self, seconds: float, job: Job) -> None:
        self._loop.call_later(seconds, self.submit, job)

    def run_now(self, job: Job) -> bool:
        return False

    def run_all(self, jobs: Sequence[Job]) -> None:
        for job in self._loop.random.sample(jobs, len(jobs)):
            job()

    def close(self) -> None:
        self._run()
        self._closed = True

    def _run(self) -> None:
        """Run what is there. Jobs that these submit run after them."""
        self._busy = True
        while self._jobs:
            self._loop.run_job(self._jobs.popleft())
        self._busy = False
