"""Several blocking jobs at once, as the disk syncs many files in little more time than one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from penstock.system import System, Worker

JOBS_MIN = 3
"""Fewer are run one after the other: waking helpers costs about as much."""

_T = TypeVar("_T")


class OneByOne:
    """One job after the other, in the thread of the caller."""

    def run(self, jobs: Sequence[Callable[[], _T]]) -> list[_T]:
        """What the jobs return, in order; raises what the first one raised, and stops there."""
        return [job() for job in jobs]


class SideBySide(OneByOne):
    """Helpers that are started when they are first needed. Thread-safe; one call at a time runs."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._worker: Worker | None = None
        self._one_at_a_time = threading.Lock()

    def run(self, jobs: Sequence[Callable[[], _T]]) -> list[_T]:
        """What the jobs return, in order. All have ended then; raises what the first one raised."""
        if len(jobs) < JOBS_MIN:
            return [job() for job in jobs]
        outcomes: list[_Outcome[_T]] = [_Outcome(job) for job in jobs]
        with self._one_at_a_time:
            if self._worker is None:
                self._worker = self._system.worker("penstock-groups")
            self._worker.run_all([outcome.settle for outcome in outcomes])
        return [outcome.get() for outcome in outcomes]

    def close(self) -> None:
        """Stop the helpers. Blocking; a later call starts others."""
        with self._one_at_a_time:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


class _Outcome(Generic[_T]):
    """A job that does not raise before it is asked for its result."""

    def __init__(self, job: Callable[[], _T]) -> None:
        self._job = job
        self._results: list[_T] = []
        self._error: BaseException | None = None

    def settle(self) -> None:
        try:
            self._results.append(self._job())
        except BaseException as error:
            self._error = error

    def get(self) -> _T:
        if self._error is not None:
            raise self._error
        return self._results[0]
