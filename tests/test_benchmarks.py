"""The benchmark runs, its JSON is whole, its page comes from the JSON, and its ratios are right.

Nothing here asserts a speed: the figures are measured on a quiet machine, by `make bench`.
"""

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import PEERS, attached
from benchmarks import __main__ as program
from benchmarks.attached import add_recording, add_stacks, java_sampled, python_sampled
from benchmarks.model import SCALES, Case, Load, Sample, Scale, drive
from benchmarks.peers import raw
from benchmarks.profile import Sampler, profile_all, profile_case, sampling
from benchmarks.report import amount, markdown, write_page
from benchmarks.results import decode, encode, ratio_to_bound, ratios
from benchmarks.runner import Runner, selected
from benchmarks.targets import TARGETS, Target, judge
from benchmarks.workloads import WORKLOADS, processes

FIGURES = sorted((Path(__file__).parent.parent / "docs" / "benchmarks").glob("*.json"))
FIGURES = [
    source for source in FIGURES if source.stem not in {"all", "before", "twin"}
]  # tests/test_benchmark_pages.py has them

TINY = Scale(
    "quick",
    rounds=1,
    seconds=0.005,
    bytes_max=1 << 20,
    read_bytes=1 << 20,
    recovery_bytes=1 << 20,
    latency_messages=3,
    payloads=(100,),
    side_payloads=(100,),
    profile_seconds=0.02,
    settle=False,
)


def case(contender: str, values: list[float], *, bound: bool = False, unit: str = "records/s"):
    found = iter(values)
    return Case(
        "publish_many",
        100,
        "no-sync",
        contender,
        "a fake",
        lambda _: Sample(next(found), {"records per sync": 7}),
        unit=unit,
        bound=bound,
    )


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(SCALES, "quick", TINY)


@pytest.mark.timeout(600)  # it syncs thousands of times; a busy disk takes its time
@pytest.mark.parametrize("rounds", [1, pytest.param(2, marks=pytest.mark.torture)])
def test_every_workload_runs_and_every_target_is_judged(tmp_path, monkeypatch, capsys, rounds):
    monkeypatch.setitem(SCALES, "quick", dataclasses.replace(TINY, rounds=rounds))
    file = tmp_path / "out" / "log.json"
    failed = program.main(["--quick", "--json", str(file), "--dir", str(tmp_path / "work")])
    report = decode(file.read_bytes())
    assert report.failures == {}
    assert failed == 0
    assert {result.workload for result in report.results} == {one.name for one in WORKLOADS}
    assert {target.title for target in report.targets} == {target.title for target in TARGETS}
    assert all(len(result.samples) == rounds for result in report.results)
    assert all(value > 0 for result in report.results for value in result.samples[:1])
    assert {profile.thread for profile in report.profiles} >= {"event loop", "commit thread"}
    assert not list((tmp_path / "work").iterdir()), "the run cleans up behind itself"
    assert "publish_many/100/sync-1000" in capsys.readouterr().out.replace("\n", "")


def test_something_is_counted_however_slow_the_machine_is():
    load = Load(payload_bytes=100, seconds=0.0, bytes_max=0)
    blocks = []
    assert drive(load, lambda: blocks.append(1)).value > 0
    assert len(blocks) == 2, "the first one is not counted"


def test_only_chooses_cases_by_name(tmp_path, tiny):
    file = tmp_path / "log.json"
    chosen = ["--quick", "--only", "publish_many/100/no-sync/sqlite", "--json", str(file)]
    assert program.main([*chosen, "--dir", str(tmp_path)]) == 0
    (result,) = decode(file.read_bytes()).results
    assert result.name == "publish_many/100/no-sync/sqlite"


def test_as_many_rounds_are_measured_as_were_asked_for(tmp_path, tiny, capsys):
    file = tmp_path / "log.json"
    chosen = ["--quick", "--only", "publish_many/100/no-sync/sqlite", "--json", str(file)]
    assert program.main([*chosen, "--dir", str(tmp_path), "--rounds", "3"]) == 0
    report = decode(file.read_bytes())
    assert (report.rounds, len(report.results[0].samples)) == (3, 3)
    with pytest.raises(SystemExit):
        program.main([*chosen, "--rounds", "0"])
    assert "at least one round" in capsys.readouterr().err


def test_a_name_that_fits_nothing_is_an_error(tmp_path, tiny, capsys):
    assert program.main(["--quick", "--only", "no such case", "--dir", str(tmp_path)]) == 2
    assert "no such case" in capsys.readouterr().out


def test_names_of_cases_are_unique_and_targets_name_cases():
    names = [one.name for group in selected(WORKLOADS, SCALES["default"], None) for one in group]
    assert len(names) == len(set(names))
    assert {target.of for target in TARGETS} <= set(names)
    assert {target.to for target in TARGETS if target.to} <= set(names)


def test_ratios_are_taken_round_by_round(tmp_path):
    runner = Runner(tmp_path, dataclasses.replace(TINY, rounds=3))
    results = runner.measure(
        [case("raw", [10.0, 100.0, 40.0], bound=True), case("penstock", [5.0, 20.0, 30.0])]
    )
    found = {result.contender: result for result in results}
    assert found["penstock"].samples == [5.0, 20.0, 30.0]
    assert (found["penstock"].best, found["penstock"].median) == (30.0, 20.0)
    assert found["penstock"].to_bound == 0.5  # of 0.5, 0.2 and 0.75
    assert found["raw"].to_bound == 1.0
    assert found["penstock"].notes == {"records per sync": 7}


def test_a_target_is_judged_by_the_median_of_the_rounds(tmp_path):
    runner = Runner(tmp_path, dataclasses.replace(TINY, rounds=3))
    results = runner.measure(
        [case("raw", [10.0, 100.0, 40.0], bound=True), case("penstock", [5.0, 20.0, 30.0])]
    )
    of, to = results[1].name, results[0].name
    met, missed, rate = judge(
        results, [Target("a", of, 0.5, to), Target("b", of, 0.51, to), Target("c", of, 20)]
    )
    assert (met.median, met.best, met.met) == (0.5, 0.3, True)
    assert (missed.median, missed.met) == (0.5, False)
    assert (rate.median, rate.best, rate.met) == (20.0, 30.0, True)


def test_of_a_time_the_least_is_the_best(tmp_path):
    runner = Runner(tmp_path, dataclasses.replace(TINY, rounds=2))
    (result,) = runner.measure([case("raw", [3.0, 2.0], unit="µs")])
    assert result.best == 2.0


def test_ratios_of_unequal_rounds_are_refused():
    with pytest.raises(ValueError, match="argument"):
        ratios([1.0, 2.0], [1.0, 2.0, 3.0])
    assert ratios([6.0], [1.0, 2.0, 3.0]) == [3.0]
    assert ratio_to_bound({"a": [1.0]}, "a", "") is None


def test_a_failing_case_is_named_and_the_others_are_measured(tmp_path):
    runner = Runner(tmp_path, TINY)
    results = runner.measure([case("broken", []), case("raw", [1.0, 2.0], bound=True)])
    assert [result.contender for result in results] == ["raw"]
    assert list(runner.failures) == ["publish_many/100/no-sync/broken"]


def test_the_page_is_made_from_the_json_alone(tmp_path, tiny):
    file = tmp_path / "log.json"
    program.main(["--quick", "--only", "awaited/100/sync-each", "--json", str(file)])
    report = decode(file.read_bytes())
    assert encode(report) == file.read_bytes()
    page = write_page(file).read_text(encoding="utf-8")
    assert page == markdown(report)
    for result in report.results:
        assert f"| {result.contender} |" in page
        assert amount(result.median, result.unit) in page
    assert report.machine["file system"] in page


def test_amounts_have_three_digits():
    assert amount(1_234_567, "records/s") == "1.23 M/s"
    assert amount(845, "records/s") == "845 /s"
    assert amount(512_345_678, "bytes/s") == "0.51 GB/s"
    assert amount(0.8123, "×") == "0.812 ×"
    assert amount(1234.4, "µs") == "1,234 µs"


def test_raw_writes_the_bytes_that_penstock_writes():
    block = raw.packed(100, 50)
    assert b"".join(Load(100, 0, 0, 50).values()) in block
    assert len(block) < 50 * 110 + 200


def busy():
    sum(range(1_000_000))


def functions_seen(sampler):
    """How often each function of the event loop was seen; the first samples may be from before it had anything to do."""
    spots = Counter(sampler.seen.get("event loop", {}))
    return Counter(function for _, function, _ in spots.elements())


def test_a_busy_function_is_seen_by_the_sampler():
    with sampling() as sampler:
        while "busy" not in (seen := functions_seen(sampler)) and seen.total() < 1_000:
            busy()
    assert "busy" in functions_seen(sampler)


def test_the_jobs_of_a_case_sample_themselves(tmp_path):
    scale = dataclasses.replace(TINY, seconds=0.3, bytes_max=1 << 30)
    [one] = [
        case for case in processes.WORKLOAD.cases(scale)
        if case.name == "processes/100/no-sync/penstock-1"
    ]  # fmt: skip
    threads = {found.thread for found in profile_case(one, tmp_path)}
    assert threads & {"commit thread of a child process", "event loop of a child process"}
    assert not list(tmp_path.iterdir())


def test_a_case_that_cannot_be_sampled_is_told_and_left_out(tmp_path, capsys):
    broken = case("penstock", [])
    assert profile_all({broken.name: broken}, tmp_path, [broken.name, "not/measured"]) == []
    assert f"not sampled: {broken.name}" in capsys.readouterr().err


STACKS = """\
process 7:"python3 -m benchmarks";main (benchmarks/__main__.py:9);wait (/usr/lib/py4j/socket.py:3) 2
process 7:"python3 -m benchmarks";process 8:"python3 -m pyspark.daemon";read (/src/penstock/spark/reader.py:40);sum (numpy/core.py) 5
process 7:"python3 -m benchmarks";process 8:"python3 -m pyspark.daemon";read (/src/penstock/spark/reader.py:40);sum (numpy/core.py) 1
process 7:"python3 -m benchmarks";process 8:"python3 -m pyspark.daemon" 3
"""


BUSY_CHILD = """\
import time

def busy():
    while time.process_time() < 3:
        pass

busy()
"""


def test_what_py_spy_has_seen_is_told_of_driver_and_workers():
    sampler = Sampler()
    add_stacks(STACKS, sampler)
    assert sampler.seen == {
        "driver": {("/usr/lib/py4j/socket.py", "wait", 3): 2},
        "Python worker": {("numpy/core.py", "sum", 0): 6},
    }


def test_what_the_recorder_of_java_has_seen_is_told_by_class_and_method():
    def event(kind, method):
        frame = {"method": {"type": {"name": kind}, "name": method}, "lineNumber": 4}
        return {"values": {"stackTrace": {"frames": [frame]}}}

    events = [event("org/apache/spark/Rows$Inner", "next")] * 2 + [event("java.util.Map", "get")]
    sampler = Sampler()
    add_recording(json.dumps({"recording": {"events": events}}), sampler)
    assert sampler.seen == {"Java": {("Rows.java", "next", 4): 2, ("Map.java", "get", 4): 1}}


@pytest.mark.skipif(not (PEERS / "bin" / "py-spy").exists(), reason="py-spy: make bench fetches it")
def test_py_spy_sees_a_child_process_at_work(tmp_path):
    child, sampler = tmp_path / "child.py", Sampler()
    child.write_text(BUSY_CHILD)
    with python_sampled(tmp_path, sampler):
        subprocess.run([sys.executable, child, "pyspark.daemon"], timeout=120, check=True)
    assert "busy" in {function for _, function, _ in sampler.seen["Python worker"]}


def test_no_other_java_is_looked_into_when_there_is_none_of_ours(tmp_path, monkeypatch):
    told: list[object] = []
    monkeypatch.setattr(attached, "_tell", lambda *command: told.append(command))
    monkeypatch.setattr(attached, "java_below", lambda _: 0)
    with pytest.raises(RuntimeError, match="session"), java_sampled(tmp_path, Sampler()):
        raise AssertionError("nothing is there to be looked into")
    assert told == []


@pytest.mark.parametrize("source", FIGURES, ids=lambda source: source.stem)
def test_the_committed_page_is_that_of_the_committed_json(source):
    page = source.with_suffix(".md").read_text(encoding="utf-8")
    assert page == markdown(decode(source.read_bytes()), source.stem)


def test_a_page_of_some_cases_names_its_own_file_and_how_to_repeat_it(tmp_path, tiny):
    file = tmp_path / "checksums.json"
    program.main(["--quick", "--only", "checksums/", "--json", str(file), "--dir", str(tmp_path)])
    page = write_page(file).read_text(encoding="utf-8")
    assert "[checksums.json](checksums.json)" in page
    assert "--quick --only checksums/ --json docs/benchmarks/checksums.json" in page
    assert "× zlib" in page
    assert "fdatasync" not in page
