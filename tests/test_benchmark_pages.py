"""The one table, the plots and the page of costs are made from the committed figures, and from nothing else."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from benchmarks import before, hottest, pairs, plots, summary
from benchmarks.model import POINTS, SCALES
from benchmarks.results import Hotspot, Profile, Report, Result, decode, encode
from benchmarks.suites import SUITES

FOLDER = summary.FOLDER
REASONS = {
    r"`publish_many`.*(raw|SQLite|LMDB)": "One call at a time waits for threads, not for the disk",
    r"64 publishers.*raw": "One call at a time waits for threads, not for the disk",
    r"no sync: times LMDB": "LMDB without a sync",
    r"one by one, (syncs shared|a sync per 1,000)": "One by one",
    r"1,000 in a call.*: times (lmdb|rocksdb)": "Libraries, 1,000 in a call",
    r"times (kafka|postgres|redis|nats)": "Servers, at ten times their rate",
    r"Kafka, produce": "Kafka, produced",
    r"Kafka, consume": "Kafka, a commit for each batch",
    r"Pulsar, consume": "Pulsar, a commit for each batch",
    r"read as objects.*(LMDB|lmdb|rocksdb)": "Read as objects, beside libraries",
    r"`async for`": "`async for`, record by record",
    r"read as Arrow": "Arrow",
    r"ahead of (queue|pyee|blinker)": "Others inside a process",
    r"times (queue|`SimpleQueue`|pyee|blinker)": "Others inside a process",
    r"^(partitions|topics|groups|sizes|records) .* to ": "What grows more than linearly",
    r"hot topic, sync handler, with": "Three million events a second on a hot topic",
    r"watching the pressure": "Watching the pressure",
    r"two processes \(": "Two processes with auto-commit",
    r"^exactly once": "Exactly once, 10,000 in a batch",
    r"times the Parquet": "Spark's source and sink beside Parquet",
    r"NATS JetStream, published.*FastStream": "FastStream on NATS, published one by one",
    r"committed one by one.*FastStream": "FastStream on NATS and Kafka, committed one by one",
    r"metrics on, bursts": "Metrics on bursts",
    r"metrics on, (commands|`await publish`|`publish_and_wait`)": (
        "Metrics on commands, and on events that are waited for"
    ),
    r"published, consumed, committed": "Published, consumed and committed over several partitions",
    r"burst: times a queue": "Others inside a process",
}
"""Target → the section of misses.md that says why it is missed, where it is."""


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


@pytest.mark.parametrize("source", [f"{name}.json" for name in SUITES])
def test_every_missed_target_has_its_reason(source):
    headings = {
        line.removeprefix("## ")
        for line in (FOLDER / "misses.md").read_text().splitlines()
        if line.startswith("## ")
    }
    assert set(REASONS.values()) <= headings
    missed = [one.title for one in decode((FOLDER / source).read_bytes()).targets if not one.met]
    assert [one for one in missed if not any(re.search(word, one) for word in REASONS)] == []


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
    assert [(one.peer.contender, one.ratio) for one in summary.compared(rates)] == [
        ("sqlite", 3.0), ("raw", 0.5),
    ]  # fmt: skip
    times = [result("penstock", 5.0, "µs"), result("sqlite", 10.0, "µs")]
    assert [one.ratio for one in summary.compared(times)] == [2.0]


def test_equal_pairs_come_first_and_the_others_say_what_differs():
    found = summary.compared(
        [result(one, 10.0) for one in ("penstock-pipelined", "penstock", "sqlite", "kafka")]
    )
    told = [(one.ours.contender, one.peer.contender, one.differs) for one in found]
    assert told == [
        ("penstock-pipelined", "kafka", ""),
        ("penstock", "sqlite", ""),
        ("penstock-pipelined", "sqlite", "4 calls in flight, the peer has one"),
        ("penstock", "kafka", "one call at a time, the peer has 4 in flight"),
    ]


@pytest.mark.parametrize(
    ("group", "ours", "peer", "differs"),
    [
        ("read/100/read", "penstock-batches", "lmdb", ""),
        ("read/100/read", "penstock-arrow", "lmdb", "a table of Arrow, no objects"),
        ("spark_source/100/micro-batches", "penstock-two", "kafka", "two columns, the peer has seven"),
        ("on_redis/100/handle", "penstock-commit", "faststream", ""),
        ("on_nats/100/handle", "penstock-commit", "faststream-confirmed", ""),
        ("on_nats/100/handle", "penstock-commit", "faststream", pairs.AT_ONCE),
        ("on_kafka/100/handle", "penstock-commit", "faststream-confirmed", ""),
        ("on_kafka/100/handle", "penstock-commit", "faststream", pairs.WAITS),
        ("on_redis/100/publish", "penstock", "faststream", ""),
        ("on_nats/100/publish", "penstock", "faststream", pairs.WHOLE),
        ("processes/100/no-sync", "penstock-2", "lmdb-1", None),
        ("processes/100/no-sync", "penstock-2", "lmdb-2", ""),
        ("wake_up/idle", "plain", "queue-thread", None),
    ],
)  # fmt: skip
def test_pairs_that_promise_different_things_are_told(group, ours, peer, differs):
    assert pairs.difference(group, ours, peer) == differs


def test_every_rule_is_about_cases_that_there_are():
    """One that fits nothing any more would let an unequal pair pass as equal."""
    cases = [
        case for suite in SUITES.values() for one in suite.workloads
        for case in one.cases(SCALES["quick"])
    ]  # fmt: skip
    found = {
        next((rule for rule in pairs.RULES if rule.fits(ours.group, ours.contender, peer.contender)), None)
        for ours in cases if pairs.is_ours(ours.workload, ours.contender)
        for peer in cases
        if ours.group == peer.group and not pairs.is_ours(peer.workload, peer.contender)
    }  # fmt: skip
    assert set(pairs.RULES) <= found


def test_targets_of_frameworks_compare_equal_promises_where_records_are_committed_one_by_one():
    for target in SUITES["frameworks"].targets:
        if target.of.endswith("/penstock-commit"):
            group, _, ours = target.of.rpartition("/")
            assert target.to is not None
            assert pairs.difference(group, ours, target.to.rpartition("/")[2]) == "", target.title


def test_the_ring_and_the_table_of_spark_are_ours_and_only_real_bounds_are_limits():
    assert pairs.is_ours("ring", "ring-100")
    assert pairs.is_ours("spark_sink", "table")
    assert not pairs.is_ours("spark_source", "table")
    limits = ("raw", "raw-4", "raw-gathered", "deque", "bound")
    peers = ("faststream", "mp-queue", "queue-join", "queue", "simple-queue", "sqlite")
    assert all(map(pairs.is_limit, limits))
    assert not any(map(pairs.is_limit, peers))


def test_the_summary_of_another_folder_is_written_there(tmp_path, capsys):
    (tmp_path / "durable.json").write_bytes(
        encode(report([result("penstock", 30.0), result("sqlite", 10.0)]))
    )
    summary.main([str(tmp_path)])
    assert str(tmp_path) in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {
        "durable.json", "all.json", "all.md", "where-the-time-goes.md",
        "durable-durable_batches-100-sync-1000.svg",
    }  # fmt: skip


def test_the_table_has_best_and_median_of_both_and_the_promise():
    page = summary.markdown([report([result("penstock", 30.0), result("sqlite", 10.0)])])
    row = "| penstock | 30 /s | 30 /s | sqlite | 10 /s | 10 /s | 3.00 |  | "
    assert row + POINTS["sync-1000"] in page


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


def test_who_only_waits_has_no_table_of_costs():
    spots = [Hotspot(0.9, "selectors.py select", "(idle) x"), Hotspot(0.1, "console.py file", "x")]
    profile = Profile(title="a/b", thread="event loop", samples=100, hotspots=spots)
    page = hottest.markdown([report([], "bus", [profile])], {})
    assert hottest.SEEN_WAITING in page
    assert "| share |" not in page


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
        if source.stem not in {"all", "before", "twin"}:
            assert decode(encode(decode(source.read_bytes()))).results
    assert Path(FOLDER / "all.json").exists()
