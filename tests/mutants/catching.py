"""Runs tests against a copy of the source that has a seeded bug.

``python -m tests.mutants.catching NAME ...`` tells of each bug whether its tests caught it, a line of
JSON each. All that is not Penstock is imported once; each bug then has a forked process of its own, which
imports Penstock from the copy.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest

from tests.mutants.bug import ROOT, SOURCE, Bug
from tests.mutants.bugs import BUGS

PASSED, FAILED, ELSEWHERE = 0, 1, 90
"""How pytest ends; and how a process ends that ran another Penstock than the copy."""
TEST_SECONDS_MAX = 30
HANG_SECONDS = 3 * TEST_SECONDS_MAX
PROFILE = "bugs"
NO_BUG = "no bug"
SWITCH = "PENSTOCK_SPEEDUPS"
SHARED = ("asyncio", "crc32c", "hypothesis.stateful", "msgspec", "numpy")
"""What tests import anyway, and what takes longer than most of them."""
PLUGINS = (
    "_hypothesis_pytestplugin",
    "pytest_asyncio.plugin",
    "pytest_timeout",
    "penstock.testing.plugin",
)
"""All others stay away: some take longer to start than the tests, and every package of one is compiled anew."""
RIG = (
    Bug(
        "a change that nobody can see",
        "log/index.py",
        "INDEX_SPACING_BYTES = 64 * 1024",
        "INDEX_SPACING_BYTES = 65536",
        ("log/test_index.py::test_the_index_of_a_sealed_segment_is_completed_on_disk",),
    ),
    Bug(
        "a bug without its test",
        "log/index.py",
        "INDEX_SPACING_BYTES = 64 * 1024",
        "INDEX_SPACING_BYTES = 1",
        ("log/test_index.py::test_that_is_not_there",),
    ),
)
"""What must not count as caught."""
_TIMES = itertools.count(1)


class Verdict(NamedTuple):
    """What became of a bug."""

    name: str
    code: int
    """1: a test failed, so the bug was caught. Everything else is a miss."""
    seconds: float
    output: str

    @property
    def caught(self) -> bool:
        """Whether a test failed. One that could not be run shows nothing."""
        return self.code == FAILED


def run(names: Iterable[str], timeout: float) -> list[Verdict]:
    """The verdicts of a fresh process on these bugs, in their order."""
    command = [sys.executable, "-m", "tests.mutants.catching", *names]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [Verdict(**json.loads(line)) for line in ended.stdout.splitlines()]


@contextmanager
def copied_source() -> Iterator[Path]:
    """A copy of the source, with what Python compiled of it."""
    with tempfile.TemporaryDirectory(prefix="penstock-bugs-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE, copy)
        yield copy


def try_bug(copy: Path, bug: Bug) -> Verdict:
    """Whether its tests catch a bug; the copy is afterwards what it was."""
    with put_in(copy, bug):
        return try_tests(copy, bug.name, bug.tests)


@contextmanager
def put_in(copy: Path, bug: Bug) -> Iterator[None]:
    """Have the bug in the copy, in a file with a time of its own.

    Python takes what it compiled of a file of the same size and second for this one: it was another bug.
    """
    path = bug.path_in(copy)
    before, status = path.read_bytes(), path.stat()
    bug.put_in(copy)
    os.utime(path, (next(_TIMES),) * 2)
    try:
        yield
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def try_tests(copy: Path, name: str, tests: Sequence[str]) -> Verdict:
    """Run tests against the copy in a forked process."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            _run_in_child(copy, tests, output.fileno())
        status = _ended(child, HANG_SECONDS * len(tests))
        output.seek(0)
        text = output.read().decode(errors="replace")
    return Verdict(name, os.waitstatus_to_exitcode(status), time.monotonic() - began, text[-2000:])


def _ended(child: int, seconds: float) -> int:
    """How the process ended. One that hangs, also after its test was given up, is killed: a miss."""
    handle = os.pidfd_open(child)
    try:
        if not select.select([handle], [], [], seconds)[0]:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(handle)
    return os.waitpid(child, 0)[1]


def _run_in_child(copy: Path, tests: Sequence[str], output: int) -> None:
    code = ELSEWHERE
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(copy))
        os.environ["PYTHONPATH"] = str(copy)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        os.environ["HYPOTHESIS_PROFILE"] = PROFILE
        # A bug in Python is not seen where its compiled twin runs.
        os.environ[SWITCH] = "0"
        os.environ.pop("PENSTOCK_SCOREBOARD", None)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        options = ["-x", "-q", "-p", "no:cacheprovider"]
        options += [word for name in PLUGINS for word in ("-p", name)]
        options += [f"--timeout={TEST_SECONDS_MAX}", "--tb=short"]
        # hypothesis is imported before pytest starts here.
        options += ["-W", "ignore:Module already imported"]
        ended = pytest.main([*options, *(f"{ROOT}/tests/{one}" for one in tests)])
        found = sys.modules["penstock"].__file__ or ""
        code = int(ended) if found.startswith(str(copy)) else ELSEWHERE
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _tell(verdict: Verdict) -> None:
    print(json.dumps(verdict._asdict()), flush=True)


def main(names: Sequence[str]) -> int:
    """Try the bugs of these names; that of NO_BUG is to run all their tests on the source as it is."""
    assert "penstock" not in sys.modules, "the copy is to be imported, not what is installed"
    for module in SHARED:
        importlib.import_module(module)
    hypothesis.settings.register_profile(
        PROFILE,
        deadline=None,
        database=None,
        derandomize=True,
        # The first failure is enough: to make it smaller takes long.
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    bugs = {bug.name: bug for bug in (*BUGS, *RIG)}
    chosen = [bugs[name] for name in names if name != NO_BUG]
    with copied_source() as copy:
        if NO_BUG in names:
            tests = dict.fromkeys(one for bug in chosen for one in bug.tests)
            _tell(try_tests(copy, NO_BUG, list(tests)))
        for bug in chosen:
            _tell(try_bug(copy, bug))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
