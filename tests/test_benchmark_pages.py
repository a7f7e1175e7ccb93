"""The one table, the plots and the page of costs are made from the committed figures, and from nothing else."""

import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from benchmarks import before, hottest, plots, summary
from benchmarks.results import Hotspot, Profile, Report, Result, decode, encode

FOLDER = summary.FOLDER


def result(contender, median, unit="records/s", name="durable_batches/100/sync-1000"):
    return Result(
        name=f"{name}/{contender}", workload=name.partition("/")[0], payload_bytes=100,
        point="sync-1000", contender=contender, what="", unit=unit, bound=contender == "raw",
        samples=[median], best=median, median=median, to_bound=None, notes={},
    )  # fmt: skip


def report(results, suite="durable", profiles=()):
    machine = dict.fromkeys(("processor", "memory", "Python", "packages"), "some")
    return Report(
        suite=suite, scale="quick", rounds=1, started="now", seconds=1, machine=machine,
        results=results, targets=[], profiles=list(profiles), failures={},
    )  # fmt: skip


def test_the_committed_pages_and_pictures_are_those_of_the_committed_figures(tmp_path):
    for source in FOLDER.glob("*.json"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    written = summary.write(tmp_path)
    for path in written:
        assert (FOLDER / path.name).read_bytes() == path.read_bytes(), path.name
    pictures = {path.name for path in written if path.suffix == ".svg"}
    assert pictures == {path.name for path in FOLDER.glob("*.svg")}
    assert all(f"({name})" in (FOLDER / "all.md").read_text() for name in pictures)


def test_a_ratio_above_one_means_that_penstock_is_ahead():
    rates = [result("penstock", 30.0), result("sqlite", 10.0), result("raw", 60.0)]
    assert [(one.contender, ratio) for _, one, ratio in summary.compared(rates)] == [
        ("sqlite", 3.0), ("raw", 0.5),
    ]  # fmt: skip
    times = [result("penstock", 5.0, "µs"), result("sqlite", 10.0, "µs")]
    assert [ratio for _, _, ratio in summary.compared(times)] == [2.0]


def test_the_table_has_best_and_median_of_both_and_the_promise():
    page = summary.markdown([report([result("penstock", 30.0), result("sqlite", 10.0)])])
    row = "| penstock | 30 /s | 30 /s | sqlite | 10 /s | 10 /s | 3.00 | durable after every 1,000 records |"
    assert row in page


def test_growth_is_drawn_as_lines_over_the_sizes():
    name = "grow_records/grow-publish"
    found = [result(str(size), size / 10, "µs/record", name) for size in (10, 100, 1_000)]
    [(file, _, picture)] = summary.pictures(report(found, "growth"))
    assert file == "growth-grow_records-grow-publish.svg"
    assert picture.count("<circle") == 3


@pytest.mark.parametrize(
    "picture",
    [
        plots.bars("a < b", [("x", 1.0, True), ("y & z", 4.0, False)], str),
        plots.lines("a & b", [(1, 2.0), (10, 20.0), (100, 0.0)]),
        plots.lines("flat", [(1, 2.0), (10, 2.0)]),
    ],
)
def test_a_picture_is_valid(picture):
    assert ET.fromstring(picture).tag.endswith("svg")


def test_bars_are_as_long_as_their_values():
    tree = ET.fromstring(plots.bars("t", [("x", 1.0, True), ("y", 4.0, False)], str))
    y, x = (float(one.get("width") or 0) for one in tree.iter("{http://www.w3.org/2000/svg}rect"))
    assert y == pytest.approx(4 * x, rel=0.01)


def test_the_hottest_costs_leave_out_who_waits():
    spots = [
        Hotspot(0.6, "selectors.py select", "(idle) x"),
        Hotspot(0.2, "system.py sync", "os.fdatasync"),
        Hotspot(0.1, "console.py file", "the progress bar"),
        Hotspot(0.1, "new.py thing", "x"),
    ]
    profile = Profile(title="a/b", thread="commit thread", samples=100, hotspots=spots)
    [first, second] = hottest.costs([profile])
    assert (first[0], first[2]) == ("system.py sync", "commit thread")
    assert first[1] == pytest.approx(2 / 3)
    assert second[0] == "new.py thing"
    page = hottest.markdown([report([], "log", [profile])], {})
    assert hottest.DONE["system.py sync"] in page
    assert "nothing yet" in page
    assert "Before (" not in page


def test_what_a_profile_said_first_stands_beside_the_last():
    spot = Hotspot(1.0, "system.py sync", "os.fdatasync")
    measured = result("penstock", 30.0)
    profile = Profile(title=measured.name, thread="t", samples=10, hotspots=[spot])
    first = msgspec.structs.replace(report([measured], "log", [profile]), started="2026-11-15 x")
    [case] = before.cases_of(first)
    assert (case.median, case.costs) == (30.0, [("system.py sync", 1.0, "t")])
    last = report([result("penstock", 50.0)], "log", [profile])
    page = hottest.markdown([last], {case.title: case})
    assert f"`{measured.name}`: 50 /s" in page
    assert "Before (2026-11-15, quick scale): 30 /s; `system.py sync` 100%." in page


def test_old_and_new_json_are_read():
    for source in FOLDER.glob("*.json"):
        if source.stem not in {"all", "before"}:
            assert decode(encode(decode(source.read_bytes()))).results
    assert Path(FOLDER / "all.json").exists()
