"""The benchmark of metrics runs, and compares the same work with and without them."""

import pytest

from benchmarks import __main__ as program
from benchmarks.model import SCALES, LongRuns, Scale
from benchmarks.observe import TARGETS, metrics
from benchmarks.results import decode
from penstock import MessageBus, ResilientMessageBus

TINY = Scale(
    "quick",
    rounds=1,
    seconds=0.001,
    bytes_max=1,
    read_bytes=1,
    recovery_bytes=1,
    latency_messages=5,
    profile_seconds=0.02,
    settle=False,
    long=LongRuns(0.02, 0.05, 0.05, 0.02, 2_000, 100),
)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(SCALES, "quick", TINY)
    monkeypatch.setattr(metrics, "ROUNDS", 1)
    monkeypatch.setattr(metrics, "BLOCK", 200)


@pytest.mark.acceptance(126)
def test_every_way_to_a_handler_is_measured_and_judged(small, tmp_path):
    file = tmp_path / "observe.json"
    where = ["--json", str(file), "--dir", str(tmp_path)]
    program.main(["--suite", "observe", "--quick", *where])
    report = decode(file.read_bytes())
    assert report.failures == {}
    assert {one.contender for one in report.results} == {
        "queued",
        "burst",
        "waited",
        "commands",
        "hot",
    }
    assert {one.title for one in report.targets} == {one.title for one in TARGETS}
    assert all(target.goal == 5 and target.at_most for target in TARGETS)


@pytest.mark.acceptance(126)
@pytest.mark.parametrize("observed", [False, True])
async def test_only_the_observed_bus_measures(small, observed):
    made: list[MessageBus] = []

    def make():
        made.append(ResilientMessageBus())
        return made[-1]

    assert await metrics.seconds(make, metrics.queued, 2, observed=observed) >= 0
    [bus] = made
    assert (bus._dispatch.meters is not None) is observed
    if bus._dispatch.meters is not None:
        [durations] = bus._dispatch.meters.durations().values()
        assert durations.count == 3 * metrics.BLOCK
