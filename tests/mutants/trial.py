"""Runs mutants: pytest collects the tests once, and each mutant has a forked process of its own.

A test that fails with a mutant is run without it as well, once: one that fails there too, or that pytest cannot run
in a forked process, shows nothing and is not asked again.
"""

from __future__ import annotations

import importlib
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mutants.mutating import Mutant, MutatedModule, put_in

SERVERS = {"postgres_dsn", "s3_url"}
MEMORY_MAX = 16 << 30
CONTROL_SECONDS = 120
TEMPORARY = "PYTEST_DEBUG_TEMPROOT"
"""Where pytest makes the folders of tests; each process has its own."""

KILLED, HUNG, LIVED, NOT_REACHED = "killed", "hung", "lived", "not reached"
PASSED, FAILED, BROKEN = 0, 1, 3
"""How a process ends; the last one: the mutant could not be put in."""


class Result(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    outcome: str
    seconds: float
    by: str = ""
    """The test that failed."""

    @property
    def noticed(self) -> bool:
        """Whether a test failed or never ended."""
        return self.outcome in {KILLED, HUNG}


class Running(NamedTuple):
    """A mutant at work."""

    mutant: Mutant
    tests: Sequence[pytest.Item]
    child: int
    handle: int
    told: Path
    """The file that names the test which failed."""
    began: float


class Trial:
    """A plugin of pytest: instead of the tests, the mutants are run, some at a time."""

    def __init__(
        self,
        mutants: Sequence[Mutant],
        tests_of: Callable[[Mutant], Sequence[str]],
        modules: Mapping[str, MutatedModule],
        told: Callable[[Result], None],
        workers: int,
        hang_seconds: float,
    ) -> None:
        self._waiting = deque(mutants)
        self._tests_of = tests_of
        self._modules = modules
        self._told = told
        self._workers = workers
        self._hang_seconds = hang_seconds
        self._running: list[Running] = []
        self._sound: dict[str, bool] = {}
        self._failed: pytest.TestReport | None = None
        self._folder = Path()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Servers are not started for each mutant anew."""
        items[:] = [one for one in items if not SERVERS & set(getattr(one, "fixturenames", ()))]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try each mutant."""
        items = {item.nodeid: item for item in session.items}
        with tempfile.TemporaryDirectory(prefix="penstock-mutants-") as folder:
            self._folder = Path(folder)
            while self._waiting or self._running:
                while self._waiting and len(self._running) < self._workers:
                    self._start(self._waiting.popleft(), items)
                self._end_some()
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """In the forked process."""
        if report.failed:
            self._failed = self._failed or report

    def _start(self, mutant: Mutant, items: Mapping[str, pytest.Item]) -> None:
        wanted = [items[one] for one in self._tests_of(mutant) if one in items]
        tests = [one for one in wanted if self._sound.get(one.nodeid, True)]
        if tests:
            told = self._folder / f"{mutant.digest}-{mutant.number}-{time.monotonic_ns()}"
            child = self._fork(told, tests, mutant)
            running = Running(mutant, tests, child, os.pidfd_open(child), told, time.monotonic())
            self._running.append(running)
        else:
            self._told(Result(mutant, NOT_REACHED, 0.0))

    def _end_some(self) -> None:
        """Wait until a process ends or its time is up."""
        if not self._running:
            return
        left = min(one.began for one in self._running) + self._hang_seconds - time.monotonic()
        ended, _, _ = select.select([one.handle for one in self._running], [], [], max(left, 0.0))
        late = time.monotonic() - self._hang_seconds
        for one in list(self._running):
            if one.handle in ended or one.began <= late:
                self._running.remove(one)
                self._end(one)

    def _end(self, one: Running) -> None:
        code = _reaped(one.child, one.handle)
        assert code != BROKEN, f"{one.mutant} could not be put in"
        seconds = time.monotonic() - one.began
        by, _, reason = one.told.read_text().partition("\n") if one.told.exists() else ("", "", "")
        if code == PASSED:
            self._told(Result(one.mutant, LIVED, seconds))
        elif by and not self._is_sound(by, one.tests):
            # Nothing is known of the mutant yet: once more, without that test.
            self._waiting.appendleft(one.mutant)
        else:
            hung = code == -signal.SIGKILL or "Timeout (>" in reason
            self._told(Result(one.mutant, HUNG if hung else KILLED, seconds, by))

    def _is_sound(self, name: str, tests: Sequence[pytest.Item]) -> bool:
        """Whether the test passes without any mutant."""
        if name not in self._sound:
            only = [one for one in tests if one.nodeid == name]
            child = self._fork(self._folder / "control", only, None)
            handle = os.pidfd_open(child)
            select.select([handle], [], [], CONTROL_SECONDS)
            self._sound[name] = _reaped(child, handle) == PASSED
            if not self._sound[name]:
                print(f"{name} fails without a mutant: left out", file=sys.__stderr__, flush=True)
        return self._sound[name]

    def _fork(self, told: Path, tests: Sequence[pytest.Item], mutant: Mutant | None) -> int:
        child = os.fork()
        if child == 0:
            self._run_in_child(told, tests, mutant)
        return child

    def _run_in_child(
        self, told: Path, tests: Sequence[pytest.Item], mutant: Mutant | None
    ) -> None:
        code = BROKEN
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
            _silence()
            if mutant is not None:
                living = importlib.import_module(mutant.module)
                put_in(living, mutant, self._modules[mutant.module].code_of(mutant))
            code = FAILED
            with _own_folder(told.with_suffix(".d")):
                self._run_tests(tests)
            if self._failed is not None:
                told.write_text(f"{self._failed.nodeid}\n{self._failed.longrepr}")
            code = PASSED if self._failed is None else FAILED
        finally:
            os._exit(code)

    def _run_tests(self, tests: Sequence[pytest.Item]) -> None:
        """Until one fails."""
        for item, following in zip(tests, [*tests[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                break


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


@contextmanager
def _own_folder(folder: Path) -> Iterator[None]:
    """Tests of other processes have other folders."""
    folder.mkdir()
    os.environ[TEMPORARY] = str(folder)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _reaped(child: int, handle: int) -> int:
    """How the process ended. One that hangs is killed, and what it left behind too."""
    os.close(handle)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
