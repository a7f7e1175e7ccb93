"""The benchmark of the bus runs and tells all that is asked; what it shows can be seen to fail.

Nothing here asserts a speed: the figures are measured on a quiet machine, by `make bench`.
"""

import asyncio
import dataclasses
import gc
import random
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks.bus import chaos, growth, paced, processor
from benchmarks.bus.blocks import Ping, Tally
from benchmarks.bus.contenders import burst, publish_each, quiet, with_handler
from benchmarks.bus.stamped import pace, percentiles
from benchmarks.bus.targets import TARGETS
from benchmarks.model import SCALES, LongRuns, Scale
from benchmarks.report import markdown, write_page
from benchmarks.results import decode
from benchmarks.runner import selected
from benchmarks.suites import SUITES
from benchmarks.targets import Target, judge
from penstock import BreakerOptions, MessageBus, ResilientMessageBus, Retry, System
from penstock.testing import VirtualClock

BUS = SUITES["bus"]
COMMITTED = Path(__file__).parent.parent / "docs" / "benchmarks" / "bus.json"

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
def tiny(monkeypatch):
    monkeypatch.setitem(SCALES, "quick", TINY)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """One tiny run of everything."""
    folder = tmp_path_factory.mktemp("bus")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCALES, "quick", TINY)
        program.main(
            ["--suite", "bus", "--quick", "--json", str(folder / "bus.json"), "--dir", str(folder)]
        )
    return decode((folder / "bus.json").read_bytes())


def found(report):
    return {result.name: result for result in report.results}


# ---------------------------------------------------------------------------------- the suite


@pytest.mark.acceptance(127)
def test_every_workload_of_the_bus_runs_and_every_target_is_judged(report):
    assert report.failures == {}
    assert {result.workload for result in report.results} == {one.name for one in BUS.workloads}
    assert {one.title for one in report.targets} == {one.title for one in TARGETS}
    assert {one.title for one in report.profiles} == set(BUS.profiled)


def test_every_peer_is_measured_in_the_same_run(report):
    contenders = {result.contender.partition("-")[0] for result in report.results}
    assert contenders >= {"resilient", "plain", "queue", "hand", "bubus", "pyee", "blinker"}


def test_names_of_cases_are_unique_and_targets_name_cases():
    everything = [one for suite in SUITES.values() for one in suite.workloads]
    names = [one.name for group in selected(everything, SCALES["default"], None) for one in group]
    assert len(names) == len(set(names))
    assert {target.of for target in TARGETS} <= set(names)
    assert {target.to for target in TARGETS if target.to} <= set(names)
    assert set(BUS.profiled) <= set(names)


@pytest.mark.parametrize(
    ("name", "samples"), [("events/queued/", 2), ("chaos/failing/resilient", 1)]
)
def test_long_runs_are_measured_once_and_the_others_in_every_round(
    tmp_path, monkeypatch, name, samples
):
    monkeypatch.setitem(SCALES, "quick", dataclasses.replace(TINY, rounds=2))
    file = tmp_path / "bus.json"
    chosen = ["--suite", "bus", "--quick", "--only", name, "--json", str(file)]
    assert program.main([*chosen, "--dir", str(tmp_path)]) == 0
    report = decode(file.read_bytes())
    assert {len(result.samples) for result in report.results} == {samples}


@pytest.mark.acceptance(132)
def test_the_page_is_made_from_the_json_alone(tmp_path, tiny):
    file = tmp_path / "bus.json"
    chosen = ["--suite", "bus", "--quick", "--only", "unawaited/p", "--json", str(file)]
    program.main([*chosen, "--dir", str(tmp_path)])
    report = decode(file.read_bytes())
    page = write_page(file).read_text(encoding="utf-8")
    assert page == markdown(report, "bus")
    assert "--quick --suite bus --only unawaited/p --json docs/benchmarks/bus.json" in page
    assert "### Published without waiting, then handled" in page
    assert "bubus 1." in page, "versions of the peers are told"
    assert all(f"| {result.contender} |" in page for result in report.results)


def test_a_folder_takes_a_file_of_each_suite(tmp_path, tiny):
    program.main(
        ["--quick", "--only", "unawaited/queue", "--json", str(tmp_path), "--dir", str(tmp_path)]
    )
    assert (tmp_path / "bus.json").exists()
    assert not (tmp_path / "log.json").exists(), "no case of the log has that name"


def test_one_file_takes_one_suite(tmp_path):
    with pytest.raises(SystemExit):
        program.main(["--suite", "all", "--json", str(tmp_path / "x.json")])


@pytest.mark.acceptance(127)
@pytest.mark.parametrize(("goal", "code"), [(0.0, 0), (1e12, 3)])
def test_a_missed_target_fails_a_run_that_is_to_be_checked(tmp_path, tiny, monkeypatch, goal, code):
    name = "burst/unawaited/plain"
    suite = type(BUS)(**{**vars(BUS), "targets": (Target("events", name, goal),)})
    monkeypatch.setitem(SUITES, "bus", suite)
    chosen = ["--suite", "bus", "--quick", "--only", name, "--json", str(tmp_path / "bus.json")]
    assert program.main([*chosen, "--dir", str(tmp_path)]) == 0
    assert program.main([*chosen, "--dir", str(tmp_path), "--check"]) == code


def test_a_limit_is_met_from_below_and_may_be_about_a_note(report):
    results = report.results
    met, missed = judge(
        results,
        [
            Target("a", "paced/10000/plain", 1e12, at_most=True),
            Target("b", "paced/10000/plain", -1.0, at_most=True, note="p50 µs"),
        ],
    )
    assert (met.met, missed.met) == (True, False)
    assert missed.unit == "µs"
    assert missed.median == found(report)["paced/10000/plain"].notes["p50 µs"]


# --------------------------------------------------------------------------- what it must tell


@pytest.mark.acceptance(127)
def test_the_full_scale_holds_the_rate_for_thirty_seconds_awaited_and_unawaited():
    assert SCALES["full"].long.sustained_seconds >= 30
    assert paced.SUSTAINED_RATE >= 10_000
    names = {case.contender for case in paced.sustained_cases(SCALES["full"])}
    assert names == {"resilient", "resilient-unawaited"}
    goals = {target.of: target.goal for target in TARGETS}
    assert {goals[f"sustained/11000/{name}"] for name in names} == {10_000}


@pytest.mark.acceptance(129, 131)
def test_the_long_runs_are_as_long_as_was_asked():
    assert SCALES["default"].long.growth_events >= 1_000_000
    assert SCALES["full"].long.chaos_seconds >= 60
    assert chaos.SHARE == 0.2


def check_figures(report):
    """All that acceptance asks for is in the JSON."""
    results = found(report)
    for name in ("paced/10000/resilient", "wake_up/idle/resilient", "sustained/11000/resilient"):
        notes = results[name].notes
        assert 0 < notes["p50 µs"] <= notes["p95 µs"] <= notes["p99 µs"]
    assert results["paced/10000/resilient"].notes["publish p99 µs"] > 0
    slope = results["growth/slope/resilient"]
    assert slope.unit == "B/event"
    assert {"traced B/event", "events"} <= slope.notes.keys()
    line = results["processor/rates/resilient"]
    assert line.unit == "R²"
    assert 0 <= line.median <= 1
    assert [f"at {rate:,}/s %" in line.notes for rate in (0, 50_000, 100_000, 200_000)] == [
        True
    ] * 4
    for name in ("resilient", "resilient-slow", "resilient-breaker"):
        books = results[f"chaos/failing/{name}"].notes
        assert books["published"] == books["handled"] + books["dead letters"]
        assert books["failed calls"] > 0


@pytest.mark.acceptance(128, 129, 130, 131)
def test_a_run_tells_percentiles_slope_fit_and_books(report):
    check_figures(report)


@pytest.mark.acceptance(127, 128, 129, 130, 131, 132)
def test_the_committed_run_is_whole():
    report = decode(COMMITTED.read_bytes())
    assert report.failures == {}
    assert report.only is None
    assert {result.workload for result in report.results} == {one.name for one in BUS.workloads}
    assert {one.title for one in report.targets} == {one.title for one in TARGETS}
    check_figures(report)


# ----------------------------------------------------------------------------- how it measures


def test_percentiles_are_those_of_the_sorted_delays():
    delays = [1_000 * number for number in range(1, 101)]
    random.Random(1).shuffle(delays)
    assert percentiles(delays) == {"p50 µs": 51.0, "p95 µs": 96.0, "p99 µs": 100.0}
    assert percentiles([7_000])["p99 µs"] == 7.0


async def test_a_paced_publisher_publishes_as_many_as_are_due():
    published = 0

    async def publish():
        nonlocal published
        published += 1

    assert await pace(10_000, 0.02, publish) == published == 200


@pytest.mark.acceptance(130)
def test_the_fit_tells_a_line_from_a_curve():
    assert processor.fit(processor.RATES, [0.0, 10.0, 20.0, 40.0]) == pytest.approx(1)
    assert processor.fit(processor.RATES, [0.0, 1.0, 8.0, 90.0]) < 0.95


@pytest.mark.acceptance(129)
async def test_the_slope_sees_one_small_object_for_each_event():
    """A leak of an integer for each event, which is the least that a leak can be."""
    kept: list[int] = []

    async def leak(count):
        kept.extend(range(len(kept) + 1_000, len(kept) + 1_000 + count))

    async def tidy(count):
        pass

    _, leaked, _ = await growth._slopes(leak, 100_000)
    _, clean, _ = await growth._slopes(tidy, 100_000)
    assert leaked > 16
    assert clean < 1


def test_a_contender_that_loses_an_event_is_not_measured():
    tally = Tally()
    tally.handled = 9
    with pytest.raises(AssertionError, match="published 10, handled 9"):
        tally.check(10)


# ------------------------------------------------------------------------- what the bus must do


@pytest.mark.acceptance(129)
@pytest.mark.parametrize("kind", [MessageBus, ResilientMessageBus])
async def test_nothing_is_kept_of_events_that_were_handled(kind):
    async with with_handler(kind, Tally()) as bus:
        before = await blocks_after(bus, 4_000)
        assert await blocks_after(bus, 40_000) - before < 400


@pytest.mark.acceptance(129)
async def test_failures_keep_no_more_than_the_dead_letters_hold():
    async def fail(event):
        raise ValueError(event.number)

    async with ResilientMessageBus(retry=Retry(attempts=1), breaker=None) as bus:
        bus.on_error(lambda *_: None)
        bus.subscribe(Ping, fail)
        with quiet():
            before = await blocks_after(bus, 4_000)
            assert await blocks_after(bus, 12_000) - before < 400
        assert bus.dead_letters.statistics().letters == 1_000


async def blocks_after(bus, events):
    """How many blocks of memory are in use after so many more events."""
    for _ in range(events // 4_000):
        await publish_each(bus, 2_000)
        await burst(bus, 2_000)
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.acceptance(130)
async def test_an_idle_bus_leaves_the_loop_nothing_to_do():
    async with with_handler(ResilientMessageBus, Tally()) as bus:
        await publish_each(bus, 100)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert bus.statistics().timers == 0


@pytest.mark.acceptance(130)
@pytest.mark.parametrize("use", [publish_each, burst])
async def test_the_work_for_an_event_does_not_grow_with_their_number(use):
    """Counted in calls of functions, which no other process disturbs."""
    async with with_handler(ResilientMessageBus, Tally()) as bus:
        await use(bus, 1_000)
        few, many = await calls_of(use, bus, 1_000), await calls_of(use, bus, 8_000)
    # What is done once for a turn counts for more where there are few.
    assert many / 8_000 <= few / 1_000 * 1.05


async def calls_of(use, bus, events):
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        await use(bus, events)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.acceptance(131)
@pytest.mark.parametrize("breaker", [None, BreakerOptions(failures=None, failure_rate=0.9)])
async def test_sixty_seconds_of_random_failures_leave_balanced_books(breaker):
    clock, handler = VirtualClock(), chaos.Unreliable()
    system = System(clock=clock, random=random.Random(3))
    async with ResilientMessageBus(system=system, breaker=breaker) as bus:
        bus.on_error(lambda *_: None)
        bus.subscribe(Ping, handler.handle)
        published, retrying = 0, 0
        for _ in range(120):
            for _ in range(50):
                bus.publish_nowait(Ping(published))
                published += 1
                chaos.account(bus, published, handler)
            clock.advance(0.5)
            for _ in range(5):
                await asyncio.sleep(0)
                retrying = max(retrying, chaos.account(bus, published, handler))
        assert 0 < retrying < published
        while chaos.account(bus, published, handler):
            clock.advance(0.5)
            await asyncio.sleep(0)
        letters = bus.dead_letters.statistics()
        assert 0 < letters.added < published * 0.02, "three of three attempts failed"
        assert published == len(handler.done) + letters.added


@pytest.mark.acceptance(131)
async def test_an_event_that_is_lost_or_handled_twice_is_noticed():
    handler = chaos.Unreliable(chance=random.Random(2))
    async with ResilientMessageBus() as bus:
        with pytest.raises(AssertionError, match="published 1"):
            chaos.account(bus, 1, handler)
        handler.done.add(7)
        with pytest.raises(AssertionError, match="of the handler 1"):
            chaos.account(bus, 0, handler)
        with pytest.raises(AssertionError, match="twice"):
            await handler.handle(Ping(7))
