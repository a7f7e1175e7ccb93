"""The benchmark of growth measures each dimension with time, memory, handles and recovery."""

import dataclasses
from functools import partial

import pytest

from benchmarks.growth import workloads
from benchmarks.growth.workloads import DIMENSIONS, FIGURES, Shared
from benchmarks.model import POINTS, SCALES, Missing, Sample
from benchmarks.runner import Runner, selected
from benchmarks.suites import SUITES
from benchmarks.targets import judge

GROWTH = SUITES["growth"]
TINY = dataclasses.replace(SCALES["quick"], rounds=1, settle=False)
SMALL = {"records": 1_000, "topics": 2, "groups": 2, "tasks": 2, "partitions": 2}


def test_all_that_is_asked_for_is_measured_at_the_full_scale():
    sizes = {one.name: one.of(SCALES["full"]) for one in DIMENSIONS}
    assert sizes["records"] == tuple(10**power for power in range(4, 9))
    wanted = {"partitions": 512, "topics": 10_000, "groups": 1_000, "sizes": 1 << 20, "tasks": 64}
    assert {name: sizes[name][-1] for name in wanted} == wanted
    assert {name: sizes[name][0] for name in wanted} == {**dict.fromkeys(wanted, 1), "sizes": 16}
    assert sizes["processes"] == (1, 2, 3, 4)


def test_targets_and_points_are_known():
    groups = selected(GROWTH.workloads, SCALES["full"], None)
    cases = {one.name: one for group in groups for one in group}
    assert {case.point for case in cases.values()} <= POINTS.keys()
    for target in GROWTH.targets:
        assert target.to is not None
        assert {target.of, target.to} <= cases.keys()
        assert target.at_most
        assert not cases[target.to].once


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ["records", "topics", "groups", "tasks"])
def test_a_dimension_gives_every_figure(tmp_path, name):
    [dimension] = [one for one in DIMENSIONS if one.name == name]
    small = dataclasses.replace(dimension, sizes=(SMALL[name],))
    runner = Runner(tmp_path, TINY)
    found = {one.point: one for one in runner.measure(workloads.cases(TINY, small))}
    assert runner.failures == {}
    assert found.keys() == {f"grow-{figure}" for figure in (*dimension.steps, *FIGURES)}
    assert all(one.median > 0 for one in found.values())
    assert found["grow-handles"].median < 100


def test_one_run_gives_every_figure_of_a_round(tmp_path):
    runs = []

    def run(_):
        runs.append(1)
        return {"publish": 1.0, "memory": 2.0}

    shared = Shared(run)
    assert [shared.take(tmp_path, name).value for name in ("memory", "publish")] == [2.0, 1.0]
    assert len(runs) == 1
    shared.take(tmp_path, "memory")
    assert len(runs) == 2


def test_a_size_for_which_there_is_no_room_is_left_out(tmp_path):
    with pytest.raises(Missing, match="GiB left"):
        workloads._check_room(tmp_path, 1 << 60)
    with pytest.raises(Missing, match="ulimit"):
        workloads._check_handles(1 << 40)


def fake(value, _):
    return Sample(value)


@pytest.mark.parametrize(("power", "met"), [(1.0, True), (1.5, False)])
def test_what_grows_faster_than_linear_misses_its_target(tmp_path, power, met):
    """Seconds of n records that are n or n ** 1.5."""
    [dimension] = [one for one in DIMENSIONS if one.name == "records"]
    cases = [
        dataclasses.replace(
            one,
            run=partial(fake, int(one.contender) ** (power - 1)),
        )
        for one in workloads.cases(SCALES["full"], dimension)
        if one.point == "grow-publish"
    ]
    results = Runner(tmp_path, TINY).measure(cases)
    judged = judge(results, GROWTH.targets)
    assert [one.met for one in judged] == [met] * len(dimension.judged)
