"""The benchmark of scale runs and tells all that is asked; what it shows can be seen to fail.

Nothing here asserts a speed: the figures are measured on a quiet machine, by `make bench`.
"""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks.model import SCALES, LongRuns, Scale
from benchmarks.pressure_tracking import TrackingCost
from benchmarks.report import markdown, write_page
from benchmarks.results import decode, encode
from benchmarks.runner import selected
from benchmarks.scale import hot, partitions, shared, sustained, tracking
from benchmarks.scale.books import (
    BURST,
    CHECKED_EVERY,
    Records,
    Tick,
    check,
    counting,
    counting_async,
    sent,
)
from benchmarks.scale.targets import TARGETS
from benchmarks.suites import SUITES
from penstock import MessageBus, ResilientMessageBus, ScalableMessageBus
from penstock.messages import marks_of
from penstock.pressure import BackpressureState

SCALE = SUITES["scale"]
COMMITTED = Path(__file__).parent.parent / "docs" / "benchmarks" / "scale.json"
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
    long=LongRuns(0.02, 0.05, 0.05, 0.02, 2_000, 100, 0.05),
)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """One tiny run of everything."""
    folder = tmp_path_factory.mktemp("scale")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCALES, "quick", TINY)
        patch.setattr(tracking, "ROUNDS", 1)
        where = ["--json", str(folder / "scale.json"), "--dir", str(folder)]
        program.main(["--suite", "scale", "--quick", *where])
    return decode((folder / "scale.json").read_bytes())


def found(report):
    return {result.name: result for result in report.results}


# ---------------------------------------------------------------------------------- the suite


@pytest.mark.acceptance(14, 101)
def test_every_workload_of_scale_runs_and_every_target_is_judged(report):
    assert report.failures == {}
    assert {result.workload for result in report.results} == {one.name for one in SCALE.workloads}
    assert {one.title for one in report.targets} == {one.title for one in TARGETS}
    assert {one.title for one in report.profiles} == set(SCALE.profiled)


def test_every_peer_is_measured_in_the_same_run(report):
    contenders = {result.contender for result in report.results}
    assert contenders >= {"resilient", "plain", "deque", "queue", "simple-queue", "zmq-inproc"}
    assert contenders >= {"mp-queue", "mp-queue-lists", "faster-fifo", "zmq-ipc", "penstock"}


def test_targets_and_profiles_name_cases():
    groups = selected(SCALE.workloads, SCALES["default"], None)
    names = [one.name for group in groups for one in group]
    assert len(names) == len(set(names))
    assert {target.of for target in TARGETS} <= set(names)
    assert {target.to for target in TARGETS if target.to} <= set(names)
    assert set(SCALE.profiled) <= set(names)


def test_the_page_is_made_from_the_json_alone(report, tmp_path):
    file = tmp_path / "scale.json"
    file.write_bytes(encode(report))
    page = write_page(file).read_text(encoding="utf-8")
    assert page == markdown(report, "scale")
    assert "--quick --suite scale --json docs/benchmarks/scale.json" in page
    assert "faster-fifo 1." in page, "versions of the peers are told"
    assert all(f"| {result.contender} |" in page for result in report.results)


# --------------------------------------------------------------------------- what it must tell


@pytest.mark.acceptance(14)
def test_the_full_scale_holds_a_million_for_ten_seconds():
    assert SCALES["full"].long.hot_seconds >= 10
    goals = {target.of: target.goal for target in TARGETS}
    assert goals["hot_sustained/sync-handler/resilient"] == 1_000_000
    assert goals["hot_sustained/async-handler/resilient"] == 500_000
    assert marks_of(Tick).hot_path


@pytest.mark.acceptance(101)
def test_watching_the_pressure_may_cost_a_twentieth():
    limits = {target.of: (target.goal, target.at_most) for target in TARGETS}
    assert limits["tracking/watched/monitor"] == (5, True)
    assert limits["tracking/watched/hot"] == (5, True)
    assert TrackingCost(1_000, 2.0, 2.1).share == pytest.approx(0.05)
    assert TrackingCost(1_000, 2.0, 2.1).nanoseconds_each == pytest.approx(100_000)


def check_figures(report):
    """All that acceptance asks for is in the JSON."""
    results = found(report)
    for kind in hot.HANDLERS:
        for bus in ("resilient", "plain"):
            notes = results[f"hot_sustained/{kind}-handler/{bus}"].notes
            assert notes["events"] >= BURST
            assert notes["slowest second /s"] > 0
            assert notes["seconds"] > 0
    assert results["tracking/watched/hot"].unit == "%"
    eight = results["scale_partitions/slow-handler/partitions-8"]
    assert eight.to_bound is not None
    for batch in shared.BATCHES:
        assert results[f"shared/100/batch-{batch}/penstock"].to_bound is not None


@pytest.mark.acceptance(14, 101)
def test_a_run_tells_rates_ratios_and_costs(report):
    check_figures(report)


@pytest.mark.acceptance(14, 101)
def test_the_committed_run_is_whole():
    report = decode(COMMITTED.read_bytes())
    assert report.failures == {}
    assert report.only is None
    assert {result.workload for result in report.results} == {one.name for one in SCALE.workloads}
    assert {one.title for one in report.targets} == {one.title for one in TARGETS}
    check_figures(report)


# ----------------------------------------------------------------------------- how it measures


@pytest.mark.acceptance(14)
@pytest.mark.parametrize("make", [counting, counting_async])
async def test_count_and_sum_at_the_handler_are_those_that_were_sent(make):
    handle, totals = make()
    async with ScalableMessageBus(MessageBus()) as bus:
        bus.subscribe(Tick, handle)
        for number in range(7, 107):
            bus.publish_nowait(Tick(number))
        await bus.settle()
    assert totals() == sent(7, 100) == (100, sum(range(7, 107)))


@pytest.mark.acceptance(14)
@pytest.mark.parametrize("came", [(9, 45), (10, 46), (11, 45)])
def test_what_is_lost_or_comes_twice_is_not_measured(came):
    check(sent(0, 10), (10, 45))
    with pytest.raises(AssertionError, match=r"sent 10 \(sum 45\), came"):
        check(sent(0, 10), came)


@pytest.mark.acceptance(14)
async def test_a_bus_that_loses_one_event_of_a_burst_fails_the_case():
    async def lossy(bus, first):
        for number in range(first, first + BURST - 1):
            bus.publish_nowait(Tick(number))
        await bus.settle()

    with pytest.raises(AssertionError, match="came 39999"):
        await hot.rate(hot.scalable(MessageBus, lossy), counting, 0.001)


@pytest.mark.parametrize("inner", [MessageBus, ResilientMessageBus])
async def test_a_burst_fits_the_ring_without_pressure(inner):
    async with ScalableMessageBus(inner()) as bus:
        bus.subscribe(Tick, lambda _: None)
        for number in range(BURST):
            bus.publish_nowait(Tick(number))
        assert bus.current_backpressure_state is BackpressureState.NORMAL
        await bus.settle()
        assert bus.lanes.hot[Tick].queue.fallbacks == 0


def test_the_slowest_second_is_found_wherever_it_is():
    quick, slow = 0.25, 0.5
    steady = sustained.slowest_second([quick] * 12)
    assert steady == pytest.approx(BURST * 4)
    dented = [quick] * 5 + [slow] * 2 + [quick] * 5
    assert sustained.slowest_second(dented) == pytest.approx(BURST * 2)
    assert sustained.slowest_second([quick]) == pytest.approx(BURST * 4)


def test_the_checksum_of_records_sees_their_order_however_they_are_cut():
    records = [bytes([number % 256]) * 3 for number in range(1_000)]
    whole, pieces, swapped = Records(), Records(), Records()
    whole.take(records)
    for start in range(0, 1_000, 37):
        pieces.take(records[start : start + 37])
    assert whole.totals() == pieces.totals()
    records[0], records[CHECKED_EVERY] = records[CHECKED_EVERY], records[0]
    swapped.take(records)
    assert swapped.totals() != whole.totals()


@pytest.mark.parametrize("name", list(shared.CONTENDERS))
def test_a_process_that_takes_less_than_was_sent_is_seen(tmp_path, name, monkeypatch):
    forgetful = partial(check, (-1, 0))
    monkeypatch.setattr(shared, "check", lambda _, came: forgetful(came))
    [case] = [
        one for one in shared.cases(TINY) if one.contender == name and one.point == "batch-100"
    ]
    with pytest.raises(AssertionError, match="sent -1"):
        case.run(tmp_path)


async def test_every_event_of_a_slow_topic_is_handled_once():
    sample = await partitions._measure(4, 20)
    assert sample.value > 0


def test_the_hot_path_is_measured_with_and_without_pressure(monkeypatch):
    asked = []

    async def seconds(bursts, *, backpressure):
        asked.append(backpressure)
        return 2.0 + 0.1 * backpressure

    monkeypatch.setattr(tracking, "ROUNDS", 2)
    monkeypatch.setattr(tracking, "_seconds", seconds)
    cost = asyncio.run(tracking._hot_cost(1))
    assert asked == [False, True, False, True]
    assert cost.share == pytest.approx(0.05)
