"""The benchmark of streaming runs, and tells all that is asked. Nothing here asserts a speed."""

from benchmarks import __main__ as program
from benchmarks.model import SCALES, Scale
from benchmarks.results import decode
from benchmarks.runner import selected
from benchmarks.streaming.targets import TARGETS
from benchmarks.suites import SUITES

STREAMING = SUITES["streaming"]
TINY = Scale(
    "quick",
    rounds=1,
    seconds=0.001,
    bytes_max=1_000,
    read_bytes=1,
    recovery_bytes=1,
    latency_messages=5,
    profile_seconds=0.02,
    settle=False,
)


def test_every_workload_of_streaming_runs_and_every_target_is_judged(tmp_path, monkeypatch):
    monkeypatch.setitem(SCALES, "quick", TINY)
    file = tmp_path / "streaming.json"
    program.main(["--suite", "streaming", "--quick", "--json", str(file), "--dir", str(tmp_path)])
    report = decode(file.read_bytes())
    assert report.failures == {}
    names = {result.workload for result in report.results}
    assert names == {one.name for one in STREAMING.workloads}
    assert {one.title for one in report.targets} == {one.title for one in TARGETS}
    assert {one.title for one in report.profiles} == set(STREAMING.profiled)


def test_targets_and_profiles_name_cases():
    groups = selected(STREAMING.workloads, SCALES["default"], None)
    names = [one.name for group in groups for one in group]
    assert len(names) == len(set(names))
    assert {target.of for target in TARGETS} <= set(names)
    assert {target.to for target in TARGETS if target.to} <= set(names)
    assert set(STREAMING.profiled) <= set(names)
