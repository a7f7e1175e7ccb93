"""Commits on the event loop's own thread: nobody is woken, and the loop stands still for the disk."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Literal, get_args

from penstock.errors import InvalidOption, UsageError
from penstock.log.refusals import let_go
from penstock.log.waiting import call_soon, runs_here
from penstock.system import Helpers, Job, System, Worker

CLOSE_POLL_SECONDS = 1.0

CommitOn = Literal["thread", "loop"]
"""Which thread writes and syncs what is published: one of the queue's own, or the event loop's."""


def check_commit_on(chosen: CommitOn) -> CommitOn:
    """InvalidOption unless there is such a choice."""
    if chosen not in get_args(CommitOn):
        raise InvalidOption(
            f"commit_on is {chosen!r}; it is 'thread' (a slow disk never stops the event loop) or "
            "'loop' (no thread is woken, and the loop waits for the disk)",
            option="commit_on",
        )
    return chosen


def worker_on(
    chosen: CommitOn, name: str, system: System, loop: asyncio.AbstractEventLoop
) -> Worker:
    """The worker that commits where it was chosen."""
    return LoopWorker(name, loop) if chosen == "loop" else system.worker(name)


def _do(job: Job) -> None:
    try:
        job()
    except BaseException as interruption:
        # A lock that a signal came before would be held for as long as somebody keeps the error.
        let_go(interruption)
        raise


class LoopWorker:
    """Runs jobs on the event loop, in their order, behind what is ready to run when they are submitted.

    So one commit has all records of a turn of the loop, and its publishers go on in the next one. A loop
    that was closed runs no more jobs: UsageError.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._helpers = Helpers(name)
        self._timers: set[asyncio.TimerHandle] = set()
        self._closed = threading.Event()
        self._jobs: deque[Job] = deque()
        """Those that were submitted and have not ended; from any thread."""
        self._failed: Job | None = None
        """The last one that ended in an error; it runs twice."""

    def submit(self, job: Job) -> None:
        self._jobs.append(job)
        self._soon(self._run)

    def run_now(self, job: Job) -> bool:
        if self._jobs or self._closed.is_set() or not runs_here(self._loop):
            return False
        _do(job)
        return True

    def submit_after(self, seconds: float, job: Job) -> None:
        self._soon(partial(self._start_timer, seconds, job))

    def run_all(self, jobs: Sequence[Job]) -> None:
        self._helpers.run_all(jobs)

    def close(self) -> None:
        if runs_here(self._loop):
            self._loop.call_soon(self._stop)
            return
        call_soon(self._loop, self._stop)
        while self._loop.is_running() and not self._closed.wait(CLOSE_POLL_SECONDS):
            pass
        self._closed.set()
        self._helpers.close()

    def _soon(self, call: Job) -> None:
        if self._closed.is_set():
            return
        if runs_here(self._loop):
            self._loop.call_soon(call)
        elif self._loop.is_closed():
            raise UsageError(
                "the event loop that commits has ended: open a queue on the one that runs"
            )
        else:
            call_soon(self._loop, call)

    def _run(self) -> None:
        try:
            # All that are there: a signal may have come between a job and its callback.
            for _ in range(len(self._jobs)):
                # Asked here, as it may have been closed since the job was submitted.
                if not self._closed.is_set():
                    _do(self._jobs[0])
                self._jobs.popleft()
        except BaseException:
            self._run_again()
            raise

    def _run_again(self) -> None:
        """A signal may have come before the first job began: it has another try, which harms none that had begun."""
        self._loop.call_soon(self._run)
        if self._jobs and self._jobs[0] is self._failed:
            self._jobs.popleft()
        self._failed = self._jobs[0] if self._jobs else None

    def _start_timer(self, seconds: float, job: Job) -> None:
        if self._closed.is_set():
            return

        def ring() -> None:
            self._jobs.append(job)
            self._timers.discard(timer)
            self._run()

        timer = self._loop.call_later(seconds, ring)
        self._timers.add(timer)

    def _stop(self) -> None:
        """On the loop, behind all that was submitted before."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._closed.set()
        self._helpers.close()
