"""Nothing gets slower unnoticed: the steps of each workload are counted, which no busy machine changes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import guard
from penstock import ResilientMessageBus

ROOT = Path(__file__).parent.parent
KEPT = guard.baseline("steps")
NO_BASELINE = f"no counts are kept for {guard.kind_of_python()}: python -m benchmarks.guard --write"


def more_of(name, times):
    """The workload with so many times its work, told as if it were its usual work."""
    usual = guard.GUARDED[name]
    return lambda clock, amount: usual(clock, amount * times)


@pytest.mark.skipif(not KEPT, reason=NO_BASELINE)
@pytest.mark.parametrize("name", guard.STEADY)
def test_a_workload_takes_no_more_steps_than_it_did(name):
    limit = KEPT[name] * guard.LIMIT
    found = guard.steps_of(name, limit)
    assert found <= limit, f"{name} takes {found / KEPT[name]:.2f} times the steps that are kept"


@pytest.mark.timeout(180)
def test_the_python_beside_the_compiled_twin_is_guarded_too():
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.guard"],
        cwd=ROOT, env={**os.environ, "PENSTOCK_SPEEDUPS": "0"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.mark.skipif(not KEPT, reason=NO_BASELINE)
@pytest.mark.parametrize("name", guard.STEADY)
def test_half_as_much_again_is_noticed(name, monkeypatch, capsys):
    monkeypatch.setitem(guard.GUARDED, name, more_of(name, 1.5))
    monkeypatch.setattr(guard, "baseline", lambda _: {name: KEPT[name]})
    assert guard.main([]) == 1
    assert name in capsys.readouterr().out


def test_an_extra_call_for_each_event_is_noticed(monkeypatch):
    if not KEPT:
        pytest.skip(NO_BASELINE)
    usual = ResilientMessageBus.publish_nowait

    def wasteful(self, *arguments, **options):
        for number in range(40):
            str(number)
        return usual(self, *arguments, **options)

    monkeypatch.setattr(ResilientMessageBus, "publish_nowait", wasteful)
    assert guard.steps_of("bus") > KEPT["bus"] * guard.LIMIT


def test_counting_ends_with_its_block_and_sees_threads():
    before = sys.gettrace()
    steps = guard.Steps()
    with steps.counting():
        sum(number for number in range(100))
    inside = steps.count
    assert inside > 300
    assert sys.gettrace() is before
    sum(number for number in range(100))
    assert steps.count == inside


def test_the_time_of_a_workload_is_the_least_of_rounds_that_go_on_while_it_looks_slow(monkeypatch):
    monkeypatch.setattr(guard, "reference", lambda: 1.0)
    noisy = iter([9.0, 5.0, 7.0, 2.0])
    assert guard.cost_of(lambda: next(noisy), good_enough=2.6).ratio == 2.0
    slow = guard.cost_of(lambda: 3.0, good_enough=2.6)
    assert (slow.ratio, slow.rounds) == (3.0, guard.ROUNDS_MAX)


def test_there_are_counts_for_the_pythons_that_are_measured():
    assert set(KEPT) in (set(), set(guard.STEADY))
    assert guard.BASELINE.exists()
