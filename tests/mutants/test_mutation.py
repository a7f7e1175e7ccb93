"""Mutation testing: nine of ten small changes of the log are noticed by its tests."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.crash.rigs import seed_of
from tests.mutants.bug import ROOT
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.mutating import MutatedModule, put_in
from tests.mutants.mutation import TEST, figures_of, modules
from tests.scoreboard import amount

SECONDS_MAX = 14_400

PROGRAM = '''
def clamp(value: int, low: int = 0) -> int:
    """At least the low bound."""
    if value < low:
        return low
    return value


class Counter(dict):
    def __init__(self):
        super().__init__()
        self.count = 0

    @property
    def is_empty(self) -> bool | None:
        return not self.count

    def add(self, amount):
        assert amount > 0, f"not {amount + 1}"
        self.count += amount
        if amount > 9:
            raise ValueError(f"{amount} is more than {8 + 1}")
        return self.count
'''


@pytest.fixture
def program(tmp_path: Path) -> MutatedModule:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return MutatedModule(path, "program")


def test_what_is_changed_and_what_is_left_alone(program):
    found = {(one.function, one.change) for one in program.mutants()}
    assert found == {
        ("clamp", "Lt to LtE"),
        ("clamp", "Lt to GtE"),
        ("clamp", "return None"),
        ("Counter.__init__", "left out"),  # the call, and the count
        ("Counter.__init__", "0 to 1"),
        ("Counter.is_empty", "return None"),
        ("Counter.add", "to Sub"),
        ("Counter.add", "left out"),
        ("Counter.add", "Gt to GtE"),
        ("Counter.add", "Gt to LtE"),
        ("Counter.add", "9 to 10"),
        ("Counter.add", "return None"),
    }


def test_a_mutant_runs_in_the_place_of_the_function(program, monkeypatch):
    monkeypatch.syspath_prepend(program.path.parent)
    living = importlib.import_module("program")
    clamp, counter = living.clamp, living.Counter()
    chosen = {(one.function, one.change): one for one in program.mutants()}
    assert (clamp(1, 5), counter.is_empty) == (5, True)
    for place in (("clamp", "Lt to GtE"), ("Counter.is_empty", "return None")):
        put_in(living, chosen[place], program.code_of(chosen[place]))
    assert (clamp(1, 5), counter.is_empty) == (1, None)
    monkeypatch.delitem(sys.modules, "program")


def test_every_mutant_can_be_put_in(program, monkeypatch):
    """Also one that leaves out a call of super(), which takes a hidden variable with it."""
    monkeypatch.syspath_prepend(program.path.parent)
    living = importlib.import_module("program")
    for one in program.mutants():
        put_in(living, one, program.code_of(one))
    monkeypatch.delitem(sys.modules, "program")


def test_any_function_of_the_log_can_be_changed():
    every = [(one, mutant) for one in modules().values() for mutant in one.mutants()]
    assert len(every) > 5_000
    for module, mutant in Random(0).sample(every, 60):
        assert module.code_of(mutant).co_filename == str(module.path)


def test_what_is_said_to_make_no_difference_is_still_there():
    texts = {name.rpartition(".")[2]: one.path.read_text() for name, one in modules().items()}
    for one in EQUIVALENT:
        assert one.text in texts[one.function.partition(".")[0]], one


@pytest.mark.torture
@pytest.mark.timeout(SECONDS_MAX)
def test_nine_of_ten_mutants_of_the_log_are_killed(request, scored):
    count, seed = amount(23), seed_of(request)
    command = [sys.executable, "-m", "tests.mutants.mutation", "--measure", "--anew", "--json"]
    command += ["--mutants", str(count), "--seed", str(seed)]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    print(ended.stdout)
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["mutants"] == count
    assert request.node.nodeid == TEST
    scored(23, **figures_of(count, told["killed"], seed))
