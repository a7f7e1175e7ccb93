"""Nothing gets slower unnoticed: steps are counted, which no busy machine changes, and the twin is seen at work."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import guard, twin
from benchmarks.guarded import GUARDED
from benchmarks.twin_works import WORKS
from penstock import ResilientMessageBus
from penstock.log import columns
from penstock.scaling import Ring
from penstock.speedups import compiled

ROOT = Path(__file__).parent.parent
KEPT = guard.baseline("steps")
TIMES = guard.baseline("times")
SOURCE = ROOT / "src" / "penstock" / "_speedups.pyx"
WORTH = 0.85
"""Of the ratio that is kept, so much must be there: the count is the same each time, compilers and Pythons differ."""

needs_steps = pytest.mark.skipif(not KEPT, reason=guard.missing("steps") or "-")
needs_times = pytest.mark.skipif(not TIMES, reason=guard.missing("times") or "-")
needs_twin = pytest.mark.skipif(compiled is None, reason="penstock._speedups was not built")
needs_valgrind = pytest.mark.skipif(twin.valgrind() is None, reason="valgrind is not here")


def more_of(name, times):
    """The workload with so many times its work, told as if it were its usual work."""
    usual = GUARDED[name]
    return lambda clock, amount: usual(clock, amount * times)


@needs_steps
@pytest.mark.parametrize("name", GUARDED)
def test_a_workload_takes_no_more_steps_than_it_did(name):
    limit = KEPT[name] * guard.limit("steps", name)
    found = guard.steps_of(name, limit)
    assert found <= limit, f"{name} takes {found / KEPT[name]:.2f} times the steps that are kept"


@needs_times
@pytest.mark.parametrize("name", GUARDED)
def test_a_workload_takes_no_more_time_than_it_did_beside_a_loop_that_never_changes(name):
    limit = TIMES[name] * guard.limit("times", name)
    found = guard.time_of(name, limit)
    assert found <= limit, f"{name} takes {found / TIMES[name]:.2f} times the time that is kept"


@needs_steps
@pytest.mark.timeout(600)
def test_the_python_beside_the_compiled_twin_is_guarded_too():
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.guard"],
        cwd=ROOT, env={**os.environ, "PENSTOCK_SPEEDUPS": "0"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stdout + told.stderr


@needs_steps
@pytest.mark.parametrize("name", GUARDED)
def test_half_as_much_again_is_noticed(name, monkeypatch, capsys):
    monkeypatch.setitem(GUARDED, name, more_of(name, 1.5))
    monkeypatch.setattr(guard, "baseline", lambda _: {name: KEPT[name]})
    monkeypatch.setattr(guard, "ROUNDS_MAX", guard.ROUNDS_MIN)
    assert guard.slower("steps") == [name]
    assert "slower" in capsys.readouterr().out


@needs_steps
def test_an_extra_call_for_each_event_is_noticed(monkeypatch):
    usual = ResilientMessageBus.publish_nowait

    def wasteful(self, *arguments, **options):
        for number in range(10):
            str(number)
        return usual(self, *arguments, **options)

    monkeypatch.setattr(ResilientMessageBus, "publish_nowait", wasteful)
    limit = KEPT["bus"] * guard.limit("steps", "bus")
    assert guard.steps_of("bus", limit) > limit


@needs_twin
@pytest.mark.parametrize("name", guard.USES)
def test_a_workload_goes_through_the_parts_of_the_twin_that_it_did(name):
    assert guard.uses_of(name) >= guard.USES[name]


@needs_twin
def test_a_twin_that_is_lost_on_one_path_is_noticed(monkeypatch, capsys):
    monkeypatch.setattr(columns, "compiled", None)
    monkeypatch.setattr(guard, "USES", {"read": guard.USES["read"], "ring": guard.USES["ring"]})
    assert guard.lost() == ["read"]
    assert "no longer goes through records" in capsys.readouterr().out
    monkeypatch.setattr(Ring, "publish", lambda self, item: self.try_publish(item))
    assert guard.lost() == ["read", "ring"]


@needs_twin
@needs_valgrind
@pytest.mark.timeout(900)
def test_each_part_of_the_twin_saves_the_instructions_that_it_did():
    kept = {one.work: one.ratio for one in twin.read().counts}
    found = {one.work: one.ratio for one in twin.count().counts}
    assert found.keys() == kept.keys()
    less = {work: found[work] / kept[work] for work in kept if found[work] < WORTH * kept[work]}
    assert not less


def test_every_part_of_the_twin_is_counted_and_justified():
    parts = re.findall(r"^(?:cdef class|def) (\w+)", SOURCE.read_text(), re.MULTILINE)
    counted = {part.partition(".")[0] for work in WORKS for part in work.parts}
    assert set(parts) == counted
    assert [one.work for one in twin.read().counts] == [work.name for work in WORKS]
    assert all(one.ratio > 1 for one in twin.read().counts)
    decision = (ROOT / "docs" / "design" / "0012-the-compiled-twin.md").read_text()
    assert all(f"`{part}`" in decision for part in parts)


def test_the_page_of_the_twin_is_that_of_its_figures():
    assert (twin.FOLDER / "twin.md").read_text() == twin.markdown(twin.read())


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


def test_the_time_of_a_workload_is_the_least_of_rounds_that_go_on_while_it_looks_slow():
    cost = guard.Cost()
    work, loop = iter([9.0, 5.0, 7.0, 2.0]), iter([2.0, 1.0, 3.0, 4.0])
    assert guard.least(lambda: cost.measure(work.__next__, loop.__next__), good_enough=2.6) == 2.0
    rounds = iter([3.0] * guard.ROUNDS_MAX)
    assert guard.least(rounds.__next__, good_enough=2.6) == 3.0
    assert not list(rounds)


def test_everything_that_is_guarded_is_kept_for_both_builds():
    kept = guard.kept()
    pythons = {kind.rpartition("-")[0] for kind in kept}
    assert kept.keys() == {f"{one}-{build}" for one in pythons for build in ("compiled", "plain")}
    for kind, mine in kept.items():
        assert mine["steps"].keys() == mine["times"].keys() == GUARDED.keys(), kind
        assert mine["processor"]
    assert guard.USES.keys() <= GUARDED.keys()


def test_where_nothing_is_kept_it_says_so_and_does_not_pass(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(guard, "BASELINE", tmp_path / "guard.json")
    monkeypatch.setattr(guard, "USES", {})
    guard.BASELINE.write_text('{"cpython-2.7-plain": {}}')
    assert guard.main(["--time"]) == 2
    told = capsys.readouterr().out
    assert f"no steps are kept for {guard.kind_of_python()}, only for cpython-2.7-plain" in told
    assert "no times are kept" in told


def test_times_of_another_processor_are_not_compared(tmp_path, monkeypatch):
    kept = {guard.kind_of_python(): {"times": {"bus": 1.0}, "processor": "some other"}}
    monkeypatch.setattr(guard, "BASELINE", tmp_path / "guard.json")
    guard.BASELINE.write_text(json.dumps(kept))
    assert not guard.baseline("times")
    assert "are those of some other, this is" in guard.missing("times")
