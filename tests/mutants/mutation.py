"""Mutation testing of the log: how many small changes of the code the tests notice.

``python -m tests.mutants.mutation --mutants 200 --seed 1`` tries as many, chosen by the seed, and prints the
rate and those that lived. It goes on where it was interrupted: what was tried is in ``build/mutants``.

Which tests reach a line is measured first, with coverage; some files at a time, and without tests that the last
measurement found to take too long. Then ``trial.py`` runs for each mutant the tests that
reach its line, until one fails. All of it is the Python: a mutant is not seen where a compiled twin runs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any, NamedTuple

import coverage
import hypothesis
import hypothesis.configuration
import pytest

from tests.mutants.bug import ROOT, SOURCE
from tests.mutants.catching import SWITCH
from tests.mutants.contexts import SECONDS
from tests.mutants.equivalent import is_equivalent
from tests.mutants.mutating import Mutant, MutatedModule
from tests.mutants.trial import Result, Trial
from tests.scoreboard import Scores, amount, form_of

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
OTHERS = (
    "bus/test_event_log.py",
    "bus/test_event_log_failures.py",
    "bus/test_event_log_redelivery.py",
    "log/test_queue_conformance.py::TestMemory",
    "transports/test_embedded.py",
    "transports/test_embedded_groups.py",
    "transports/test_embedded_conformance.py::TestMemory",
    "transports/test_embedded_repartition.py",
)
TEST_SECONDS_MAX = 10.0
"""Tests that take more of the processor's time are not tried against mutants."""
SLOW_SECONDS = 1.0
MUTANT_SECONDS_MAX = 300.0
"""How much of it the tests of one mutant may take by what was measured, without --budget."""
TEST_HANG_SECONDS = 30
PROFILE = "mutants"
WORKERS = 2
NOTICED_MIN = 0.90
TEST = "tests/mutants/test_mutation.py::test_nine_of_ten_mutants_of_the_log_are_killed"
"""The test that does the same: its figure is the one that stands on the scoreboard."""


class Reach(NamedTuple):
    """Which tests reach which line, and how long each takes."""

    tests: Mapping[str, Mapping[int, list[str]]]
    seconds: Mapping[str, float]
    budget: float = MUTANT_SECONDS_MAX

    def of(self, mutant: Mutant) -> list[str]:
        """The tests for a mutant: those of its own file, then of all others in turn; slow ones at the end."""
        stem = mutant.module.rpartition(".")[2]
        found = self.tests.get(mutant.module, {}).get(mutant.line, [])
        known = [one for one in set(found) if self.seconds.get(one, 99.0) <= TEST_SECONDS_MAX]
        known.sort(key=lambda one: (self.seconds[one], one))
        ranks: Counter[str] = Counter()
        ranked: list[tuple[bool, bool, int, str]] = []
        for one in known:
            file = one.partition("::")[0]
            ranks[file] += 1
            slow, other = self.seconds[one] > SLOW_SECONDS, not file.endswith(f"/test_{stem}.py")
            ranked.append((slow, other, ranks[file], one))
        return list(self._within_budget(one for *_, one in sorted(ranked)))

    def _within_budget(self, tests: Iterable[str]) -> Iterator[str]:
        total = 0.0
        for one in tests:
            total += self.seconds[one]
            if total > self.budget and total > self.seconds[one]:
                return
            yield one


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


def measure(workers: int) -> None:
    """Find out which test reaches which line."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "reach.rc").write_text(f"[run]\nbranch = True\nsource = {PACKAGE}\n")
    slow = {name: one for name, one in _known_seconds().items() if one > TEST_SECONDS_MAX}
    files = test_files()
    shares = [_measuring(number, files[number::workers], [*slow]) for number in range(workers)]
    for share in shares:
        share.wait()
    reached = coverage.CoverageData(str(FOLDER / "reach.coverage"))
    reached.erase()
    seconds = slow
    for number in range(workers):
        part = coverage.CoverageData(str(FOLDER / f"reach-{number}.coverage"))
        part.read()
        reached.update(part)
        seconds |= json.loads((FOLDER / f"reach-{number}.json").read_text())
    reached.write()
    (FOLDER / "reach.json").write_text(json.dumps(seconds))


def _measuring(number: int, files: Sequence[str], slow: Sequence[str]) -> subprocess.Popen[bytes]:
    """The measurement of some files, at work."""
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={FOLDER}/reach.rc"]
    command += [f"--data-file={FOLDER}/reach-{number}.coverage", "-m", "pytest", "-q"]
    command += ["-p", "no:xdist", "-p", "tests.mutants.contexts", "--timeout=600"]
    command += [f"--deselect={name}" for name in slow]
    place = {SECONDS: str(FOLDER / f"reach-{number}.json"), "HYPOTHESIS_PROFILE": "quick"}
    around = os.environ | place | {SWITCH: "0"}
    return subprocess.Popen([*command, *files], cwd=ROOT, env=around, stdout=sys.stderr)


def _known_seconds() -> dict[str, float]:
    path = FOLDER / "reach.json"
    found: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    return found


def read_reach(budget: float) -> Reach:
    """What was measured."""
    data = coverage.CoverageData(str(FOLDER / "reach.coverage"))
    data.read()
    by_module = {name: data.contexts_by_lineno(str(one.path)) for name, one in modules().items()}
    return Reach(by_module, _known_seconds(), budget)


def _keep(result: Result) -> None:
    line = result.mutant._asdict() | result._asdict()
    del line["mutant"]
    with (FOLDER / "results.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(_shown(result), file=sys.__stderr__, flush=True)


def known_results() -> dict[str, Result]:
    """What was tried before, by the name of the mutant; of one that was tried again, the last."""
    path = FOLDER / "results.jsonl"
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        fields = json.loads(line)
        mutant = Mutant(**{name: fields.pop(name) for name in Mutant._fields})
        result = Result(mutant, **fields)
        found[result.mutant.name] = result
    return found


def _shown(result: Result) -> str:
    mutant = result.mutant
    place = f"{mutant.module.rpartition('.')[2]}.py:{mutant.line} {mutant.function}"
    return f"{result.outcome} {result.seconds:.1f} s: {place}: {mutant.change}"


def chosen(count: int | None, seed: int, only: Sequence[str] = ()) -> list[Mutant]:
    """So many mutants, chosen by the seed; all without a count. Those of some functions, if they are named."""
    every = [mutant for one in modules().values() for mutant in one.mutants()]
    wanted = [one for one in every if not is_equivalent(one, _text(one))]
    if only:
        wanted = [one for one in wanted if f"{one.module}.{one.function}".endswith(tuple(only))]
    return wanted if count is None else Random(seed).sample(wanted, min(count, len(wanted)))


def _text(mutant: Mutant) -> str:
    return _lines(mutant.module)[mutant.line - 1].strip()


@cache
def _lines(module: str) -> list[str]:
    return (SOURCE / f"{module.replace('.', '/')}.py").read_text().splitlines()


def run(sample: Sequence[Mutant], *, again: bool, workers: int, budget: float) -> list[Result]:
    """Try the mutants of a sample that were not tried yet; the results of all of it."""
    before = known_results()
    left = [one for one in sample if one.name not in before]
    if again:
        left += [one for one in sample if one.name in before and not before[one.name].noticed]
    if left:
        _try_all(left, workers, budget)
    after = known_results()
    return [after[one.name] for one in sample if one.name in after]


def _try_all(mutants: Sequence[Mutant], workers: int, budget: float) -> None:
    assert "penstock" not in sys.modules, "the switch of the compiled twin comes first"
    os.environ[SWITCH] = "0"
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
    # Tests take longer here than they did when they were measured, and a hanging one has its own limit.
    hang_seconds = 3 * TEST_HANG_SECONDS + 2 * budget
    trial = Trial(mutants, read_reach(budget).of, modules(), _keep, workers, hang_seconds)
    with tempfile.TemporaryDirectory() as home:
        hypothesis.configuration.set_hypothesis_home_dir(home)
        options = ["-q", "-s", "-p", "no:xdist", "-p", "no:cacheprovider"]
        options += [f"--timeout={TEST_HANG_SECONDS}", "-W", "ignore:Module already imported"]
        pytest.main([*options, *test_files()], plugins=[trial])


def report(results: Sequence[Result], seed: int) -> Iterator[str]:
    """The rate, and those that lived."""
    counts = Counter(one.outcome for one in results)
    rate = sum(one.noticed for one in results) / max(1, len(results))
    yield f"{len(results)} mutants, seed {seed}: {dict(counts)}; {rate:.1%} noticed"
    for one in results:
        if not one.noticed:
            yield f"{_shown(one)}: {_text(one.mutant)}"


def figures_of(tried: int, noticed: int, seed: int) -> dict[str, Any]:
    """What the scoreboard is told: nine of ten have to be noticed."""
    return {
        "tried": tried,
        "bad": max(0, math.ceil(NOTICED_MIN * tried) - noticed),
        "seed": seed,
        "mutants_noticed_in_all": noticed,
        "mutants_noticed_percent": 100 * noticed / max(1, tried),
    }


def main() -> int:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=None, help="how many; all without it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=(), help="functions, such as index.Index.find")
    parser.add_argument("--again", action="store_true", help="also those that lived before")
    parser.add_argument("--measure", action="store_true", help="find anew which test reaches what")
    parser.add_argument("--anew", action="store_true", help="forget what was tried before")
    parser.add_argument("--workers", type=int, default=WORKERS, help="how many at a time")
    parser.add_argument("--budget", type=float, default=MUTANT_SECONDS_MAX, help="seconds for each")
    parser.add_argument("--json", action="store_true", help="the figures as the last line")
    arguments = parser.parse_args()
    if arguments.anew:
        (FOLDER / "results.jsonl").unlink(missing_ok=True)
    if arguments.measure or not (FOLDER / "reach.json").exists():
        measure(arguments.workers)
    sample = chosen(arguments.mutants, arguments.seed, arguments.only)
    work = {"again": arguments.again, "workers": arguments.workers, "budget": arguments.budget}
    results = run(sample, **work)
    for line in report(results, arguments.seed):
        print(line)
    killed = sum(one.noticed for one in results)
    if arguments.json:
        print(json.dumps({"mutants": len(results), "killed": killed}))
    elif not arguments.only and len(results) >= amount(23):
        scored = Scores(TEST, form_of(long=True))
        scored(23, **figures_of(len(results), killed, arguments.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
