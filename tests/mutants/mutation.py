"""Mutation testing of the log: how many small changes of the code the tests notice.

``python -m tests.mutants.mutation --mutants 200 --seed 1`` tries as many, chosen by the seed, and prints the
rate and those that lived. It goes on where it was interrupted: what was tried is in ``build/mutants``.

Which tests reach a line is measured first, with coverage. Then all tests are collected once, and each
mutant has a forked process of its own, which runs the tests that reach its line, until one fails.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import coverage
import hypothesis
import hypothesis.configuration
import pytest

from tests.mutants.bug import ROOT, SOURCE
from tests.mutants.contexts import SECONDS
from tests.mutants.equivalent import is_equivalent
from tests.mutants.mutating import Mutant, MutatedModule, put_in

FOLDER = ROOT / "build" / "mutants"
PACKAGE = "penstock.log"
LEFT_OUT = (
    "conformance",
    "bitflips",
    "fuzz",
    "processes",
    "truncation",
    "hanging",
    "state_machine",
)
"""Files whose tests take long, or run what they test in processes that no mutant reaches."""
OTHERS = ("transports/test_embedded.py", "transports/test_embedded_groups.py")
SERVERS = {"postgres_dsn", "s3_url"}
TEST_SECONDS_MAX = 20.0
"""Tests that take longer are not tried against mutants."""
MUTANT_SECONDS_MAX = 60.0
"""How long the tests of one mutant may take by what was measured."""
TEST_HANG_SECONDS = 20
HANG_SECONDS = 150
MEMORY_MAX = 16 << 30
PROFILE = "mutants"

KILLED, LIVED, NOT_REACHED = "killed", "lived", "not reached"


class Result(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    outcome: str
    seconds: float


class Reach(NamedTuple):
    """Which tests reach which line, and how long each takes."""

    tests: Mapping[str, Mapping[int, list[str]]]
    seconds: Mapping[str, float]

    def of(self, mutant: Mutant) -> list[str]:
        """The tests for a mutant, the quick ones first; those of its own file may take longer."""
        stem = mutant.module.rpartition(".")[2]
        found = self.tests.get(mutant.module, {}).get(mutant.line, [])
        known = [one for one in set(found) if self.seconds.get(one, 99.0) <= TEST_SECONDS_MAX]
        own = f"/test_{stem}.py::"
        known.sort(key=lambda one: (self.seconds[one] * (0.2 if own in one else 1.0), one))
        chosen: list[str] = []
        total = 0.0
        for one in known:
            total += self.seconds[one]
            if chosen and total > MUTANT_SECONDS_MAX:
                break
            chosen.append(one)
        return chosen


def modules() -> dict[str, MutatedModule]:
    """The files of the log, by the names of their modules."""
    paths = sorted((SOURCE / PACKAGE.replace(".", "/")).glob("*.py"))
    names = [f"{PACKAGE}.{path.stem}" for path in paths]
    return {
        name: MutatedModule(path, name)
        for name, path in zip(names, paths, strict=True)
        if path.stem != "__init__"
    }


def test_files() -> list[str]:
    """The tests that are tried."""
    inside = sorted((ROOT / "tests" / "log").glob("test_*.py"))
    wanted = [path for path in inside if not any(word in path.name for word in LEFT_OUT)]
    return [str(path) for path in wanted] + [f"{ROOT}/tests/{one}" for one in OTHERS]


def measure() -> None:
    """Find out which test reaches which line."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    settings = FOLDER / "reach.rc"
    settings.write_text(f"[run]\nbranch = True\nsource = {PACKAGE}\n")
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}"]
    command += [f"--data-file={FOLDER}/reach.coverage", "-m", "pytest", "-q", "-p", "no:xdist"]
    command += ["-p", "tests.mutants.contexts", "--timeout=600", *test_files()]
    place = {SECONDS: str(FOLDER / "reach.json"), "HYPOTHESIS_PROFILE": "quick"}
    subprocess.run(command, cwd=ROOT, env=os.environ | place, stdout=sys.stderr, check=False)


def read_reach() -> Reach:
    """What was measured; it is measured when it is not there."""
    if not (FOLDER / "reach.json").exists():
        measure()
    data = coverage.CoverageData(str(FOLDER / "reach.coverage"))
    data.read()
    by_module = {name: data.contexts_by_lineno(str(one.path)) for name, one in modules().items()}
    return Reach(by_module, json.loads((FOLDER / "reach.json").read_text()))


class Trial:
    """A plugin of pytest: instead of the tests, the mutants are run."""

    def __init__(self, mutants: Sequence[Mutant], reach: Reach) -> None:
        self._mutants = mutants
        self._reach = reach
        self._modules = modules()
        self._failed = False
        self.results: list[Result] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Servers are not started for each mutant anew."""
        items[:] = [one for one in items if not SERVERS & set(getattr(one, "fixturenames", ()))]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try each mutant."""
        items = {item.nodeid: item for item in session.items}
        for number, mutant in enumerate(self._mutants, 1):
            tests = [items[one] for one in self._reach.of(mutant) if one in items]
            result = self._try(mutant, tests)
            self.results.append(result)
            _keep(result)
            print(
                f"{number}/{len(self._mutants)} {_shown(result)}", file=sys.__stderr__, flush=True
            )
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """In the forked process."""
        self._failed = self._failed or report.failed

    def _try(self, mutant: Mutant, tests: Sequence[pytest.Item]) -> Result:
        began = time.monotonic()
        if not tests:
            return Result(mutant, NOT_REACHED, 0.0)
        child = os.fork()
        if child == 0:
            self._run_in_child(mutant, tests)
        code = _ended(child)
        return Result(mutant, LIVED if code == 0 else KILLED, time.monotonic() - began)

    def _run_in_child(self, mutant: Mutant, tests: Sequence[pytest.Item]) -> None:
        code = 2
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            living = importlib.import_module(mutant.module)
            put_in(living, mutant, self._modules[mutant.module].code_of(mutant))
            for item, following in zip(tests, [*tests[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self._failed:
                    break
            code = int(self._failed)
        finally:
            os._exit(code)


def _ended(child: int) -> int:
    """How the process ended. One that hangs is killed, and what it left behind too."""
    handle = os.pidfd_open(child)
    try:
        select.select([handle], [], [], HANG_SECONDS)
    finally:
        os.close(handle)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _keep(result: Result) -> None:
    with (FOLDER / "results.jsonl").open("a") as file:
        line = {**result.mutant._asdict(), "outcome": result.outcome, "seconds": result.seconds}
        file.write(json.dumps(line) + "\n")


def known_results() -> dict[str, Result]:
    """What was tried before, by the name of the mutant; of one that was tried again, the last."""
    path = FOLDER / "results.jsonl"
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        fields = json.loads(line)
        outcome, seconds = fields.pop("outcome"), fields.pop("seconds")
        result = Result(Mutant(**fields), outcome, seconds)
        found[result.mutant.name] = result
    return found


def _shown(result: Result) -> str:
    mutant = result.mutant
    place = f"{mutant.module.rpartition('.')[2]}.py:{mutant.line} {mutant.function}"
    return f"{result.outcome} {result.seconds:.1f} s: {place}: {mutant.change}"


def chosen(count: int | None, seed: int) -> list[Mutant]:
    """So many mutants, chosen by the seed; all without a count."""
    every = [mutant for one in modules().values() for mutant in one.mutants()]
    wanted = [one for one in every if not is_equivalent(one, _text(one))]
    return wanted if count is None else Random(seed).sample(wanted, min(count, len(wanted)))


def _text(mutant: Mutant) -> str:
    path = modules_path(mutant.module)
    return path.read_text().splitlines()[mutant.line - 1].strip()


def modules_path(module: str) -> Path:
    """The file of a module."""
    return SOURCE / f"{module.replace('.', '/')}.py"


def run(count: int | None, seed: int, *, again: bool = False) -> list[Result]:
    """Try the mutants of a sample that were not tried yet; the results of all of it."""
    sample = chosen(count, seed)
    before = known_results()
    left = [one for one in sample if one.name not in before]
    if again:
        left += [one for one in sample if one.name in before and _lived(before[one.name])]
    if left:
        _try_all(left)
    after = known_results()
    return [after[one.name] for one in sample if one.name in after]


def _try_all(mutants: Sequence[Mutant]) -> None:
    hypothesis.settings.register_profile(
        PROFILE,
        deadline=None,
        max_examples=40,
        database=None,
        derandomize=True,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    os.environ["HYPOTHESIS_PROFILE"] = PROFILE
    trial = Trial(mutants, read_reach())
    with tempfile.TemporaryDirectory() as home:
        hypothesis.configuration.set_hypothesis_home_dir(home)
        options = [
            "-q",
            "-s",
            "-p",
            "no:xdist",
            "-p",
            "no:cacheprovider",
            f"--basetemp={home}/tests",
        ]
        options += [f"--timeout={TEST_HANG_SECONDS}", "-W", "ignore:Module already imported"]
        pytest.main([*options, *test_files()], plugins=[trial])


def _lived(result: Result) -> bool:
    return result.outcome != KILLED


def report(results: Sequence[Result]) -> Iterator[str]:
    """The rate, and those that lived."""
    counts = Counter(one.outcome for one in results)
    rate = counts[KILLED] / max(1, len(results))
    yield f"{len(results)} mutants: {dict(counts)}; {rate:.1%} killed"
    for one in results:
        if _lived(one):
            yield f"{_shown(one)}: {_text(one.mutant)}"


def main() -> int:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=None, help="how many; all without it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="also those that lived before")
    parser.add_argument("--measure", action="store_true", help="find anew which test reaches what")
    parser.add_argument("--anew", action="store_true", help="forget what was tried before")
    parser.add_argument("--json", action="store_true", help="the figures as the last line")
    arguments = parser.parse_args()
    if arguments.anew:
        (FOLDER / "results.jsonl").unlink(missing_ok=True)
    if arguments.measure:
        measure()
    results = run(arguments.mutants, arguments.seed, again=arguments.again)
    for line in report(results):
        print(line)
    if arguments.json:
        killed = sum(not _lived(one) for one in results)
        print(json.dumps({"mutants": len(results), "killed": killed}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
