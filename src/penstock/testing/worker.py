"""A worker without a thread, and a whole machine without a disk, a clock or chance."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from penstock.system import Job, System
from penstock.testing.clock import VirtualClock
from penstock.testing.disk import SimulatedDisk


class InlineWorker:
    """Implements :class:`penstock.system.Worker` in the thread that calls it.

    A submitted job runs at once, or (``immediate=False``) in :meth:`run`. A job that is submitted
    by a running job runs after it. Delayed jobs run when the clock is advanced. ``run_all`` keeps
    the order, or takes a random one when it is given a source of randomness.
    """

    def __init__(
        self,
        name: str = "inline",
        *,
        clock: VirtualClock | None = None,
        immediate: bool = True,
        random: Random | None = None,
    ) -> None:
        self.name = name
        self._clock = clock or VirtualClock()
        self._immediate = immediate
        self._random = random
        self._queue: deque[Job] = deque()
        self._running = False
        self._closed = False

    @property
    def waiting(self) -> int:
        """Submitted jobs that did not run yet."""
        return len(self._queue)

    def submit(self, job: Job) -> None:
        if self._closed:
            return
        self._queue.append(job)
        if self._immediate:
            self.run()

    def submit_after(self, seconds: float, job: Job) -> None:
        self._clock.call_after(seconds, lambda: self.submit(job))

    def run_now(self, job: Job) -> bool:
        return False

    def run(self, limit: int | None = None) -> int:
        """Run what is waiting, at most ``limit`` jobs, and return how many ran."""
        if self._running:
            return 0
        self._running = True
        try:
            return self._drain(limit)
        finally:
            self._running = False

    def run_all(self, jobs: Sequence[Job]) -> None:
        failures: list[BaseException] = []
        for job in self._ordered(jobs):
            try:
                job()
            except BaseException as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def close(self) -> None:
        self.run()
        self._closed = True

    def _drain(self, limit: int | None) -> int:
        count = 0
        while self._queue and (limit is None or count < limit):
            self._queue.popleft()()
            count += 1
        return count

    def _ordered(self, jobs: Sequence[Job]) -> Sequence[Job]:
        return self._random.sample(jobs, len(jobs)) if self._random else jobs


@dataclass(frozen=True)
class SimulatedSystem(System):
    """A :class:`penstock.system.System` whose parts are all in the hands of the test."""

    files: SimulatedDisk = field(default_factory=SimulatedDisk)
    clock: VirtualClock = field(default_factory=VirtualClock)
    workers: list[InlineWorker] = field(default_factory=list)
    """Every worker that was made, oldest first."""


def simulated_system(
    seed: int = 0,
    *,
    disk: SimulatedDisk | None = None,
    clock: VirtualClock | None = None,
    immediate: bool = True,
) -> SimulatedSystem:
    """A machine that does the same thing for the same seed, every time.

    Pass ``disk`` to restart on what a crash left, ``clock`` to let time go on across the restart.
    With ``immediate=False`` the workers wait for ``system.workers[0].run()``.
    """
    clock = clock or VirtualClock()
    order = Random(f"order of {seed}")  # noqa: S311 - repeatable, not secret
    workers: list[InlineWorker] = []

    def start_worker(name: str) -> InlineWorker:
        workers.append(InlineWorker(name, clock=clock, immediate=immediate, random=order))
        return workers[-1]

    return SimulatedSystem(
        files=disk or SimulatedDisk(),
        clock=clock,
        random=Random(seed),  # noqa: S311 - repeatable, not secret
        worker=start_worker,
        workers=workers,
    )
