"""What verify and repair find and tell where only damage or a race can have been at work."""

from typing import Any

import pytest

from penstock.errors import DamagedFile, UnsupportedFormat
from penstock.log import partition_check
from penstock.log.columns import Columns
from penstock.log.frame import KIND_START, draft
from penstock.log.head import Head
from penstock.log.index import Index, IndexRow
from penstock.log.inspection import VerifyReport, _Inspector, inspect_segment
from penstock.log.partition_check import PartitionCheck
from penstock.log.recovery import TailScanner
from penstock.log.repair import repair
from penstock.log.repair_partition import PartitionRepair, _Part, quarantine_file
from penstock.log.rewrite import SegmentWriter
from penstock.log.segment import SegmentEnd, SegmentSource, SegmentStart
from penstock.log.topic import TopicFile
from penstock.log.verify import check_topic
from penstock.log.walk import Stretch, Walker
from penstock.stores.memory import MemoryStore
from tests.log.small_log import KEYS, TOPIC, SmallLog
from tests.log.strategies import flip, values_draft
from tests.log.test_forged_segments import LOG_ID, START, forged, stored
from tests.log.test_small_promises import part

# Repair and what it finds


def test_a_copy_in_quarantine_never_takes_the_place_of_another():
    store = MemoryStore()
    names = []
    for data in (b"one", b"two", b"one", b"three"):
        store.write("file", data)
        names.append(quarantine_file(store, "file"))
    assert names == ["quarantine/file", "quarantine/file.1", "quarantine/file", "quarantine/file.2"]


def test_a_segment_with_nothing_in_it_is_dropped_by_repair():
    dropped: list[str] = []
    world = part(_drop=lambda source, reason: dropped.append(reason))
    assert not PartitionRepair._drop_empty(world, part(source=None))
    assert not PartitionRepair._drop_empty(world, part(source="file"))
    assert len(dropped) == 1


def test_a_description_of_a_newer_release_is_not_repaired(monkeypatch):
    log = SmallLog()

    def newer(self: TopicFile) -> Any:
        raise UnsupportedFormat("version 9", version=9)

    monkeypatch.setattr(TopicFile, "read", newer)
    with pytest.raises(UnsupportedFormat):
        repair(log.store, TOPIC)


def test_groups_without_an_offset_in_the_topic_are_no_subscribers_of_it():
    log = SmallLog()
    log.append((None, b"0"))
    log.subscribe("billing").commit(1, 0)
    log.store.write(f"groups/other/{TOPIC}-0.lock", b"")
    log.store.write("groups/other/another/0", b"")
    log.store.delete(log.topic.key)
    repair(log.store, TOPIC)
    assert set(TopicFile(log.store, TOPIC).read().subscribers) == {"billing"}


def test_records_that_are_kept_twice_keep_their_places():
    """Rewritten, and rewritten again: the offsets stand in the entry from the first time on."""
    batch = Columns([b"a", b"b", b"c", b"d"])
    flags, body = batch.encode()
    source = stored(START, draft(flags, body, 4))
    for places in ([0, 2, 3], [1, 2]):
        kept = SegmentWriter(SegmentStart(LOG_ID, 0, 1, TOPIC), 0, 0, 0)
        kept.keep_some(list(source.entries(0, source.size()))[1], places)
        data, _ = kept.finish(0)
        store = MemoryStore()
        store.write(source.key, data)
        source = SegmentSource(source.name, store, source.key)
    records = list(source.entries(0, source.size()))[1].view().records(TOPIC, 0)
    assert [(one.offset, one.value) for one in records] == [(2, b"c"), (3, b"d")]


def test_a_second_problem_of_an_index_is_told_once():
    log = SmallLog()
    log.append((None, b"0"))
    (source,) = log.reader().segments()
    found = inspect_segment(KEYS, source)
    inspector = part(_found=found, _keys=KEYS)
    _Inspector._tell_index(inspector, "first")
    _Inspector._tell_index(inspector, "second")
    assert sum(one.kind == "index" for one in found.problems) == 1


def test_entries_behind_the_end_and_rows_that_lie_are_told():
    end = SegmentEnd(1, 0, 1, len(forged(START, values_draft(b"0"))), 0, 0).draft()
    twice = inspect_segment(KEYS, stored(START, values_draft(b"0"), end, values_draft(b"1")))
    assert "chain" in {one.kind for one in twice.problems}


def test_a_walk_finds_the_next_entry_behind_any_damage():
    whole = forged(START, *(values_draft(b"%d" % number * 40) for number in range(5)))
    source = stored(START)
    first = len(forged(START))
    for bit in range(8 * first, 8 * (first + 60), 7):
        source.store.write(source.key, flip(whole, bit))
        steps = list(Walker(source, len(whole)).steps())
        assert any(isinstance(one, Stretch) for one in steps)
        assert sum(not isinstance(one, Stretch) for one in steps) >= 4


def test_an_entry_that_is_cut_off_cannot_follow():
    whole = forged(START, values_draft(b"0"))
    source = stored(START)
    source.store.write(source.key, whole)
    walker = Walker(source, len(whole))
    header = source.chunk(0, len(whole))[1].header
    position = len(forged(START))
    assert walker._may_follow(position, header)
    source.store.write(source.key, flip(whole, 8 * (len(whole) - 10)))
    assert not walker._may_follow(position, header)


# What verify and repair tell


def test_an_entry_of_a_newer_release_is_told(monkeypatch):
    log = SmallLog()
    log.append((None, b"0"))

    def newer(*_: object, **__: object) -> Any:
        raise UnsupportedFormat("version 9", version=9)

    monkeypatch.setattr(partition_check, "inspect_segment", newer)
    report = VerifyReport()
    check = PartitionCheck(log.store, KEYS, None, report)
    assert check._inspect(log.reader().segments()[0], None, 1) is None
    assert [one.kind for one in report.problems] == ["entry"]


def test_damage_of_the_tail_is_told_once(monkeypatch):
    log = SmallLog()
    log.append((None, b"0"))
    for reason, kind in (("missing", "missing"), ("chain", "entry")):

        def hurt(*_: object, reason: str = reason) -> Any:
            raise DamagedFile("hurt", file="file", reason=reason)

        monkeypatch.setattr(TailScanner, "find_end", hurt)
        report = VerifyReport()
        check = PartitionCheck(log.store, KEYS, None, report)
        check._scan_tail(None)
        check._scan_tail(None)
        assert [one.kind for one in report.problems] == [kind]


def test_a_head_that_does_not_fit_the_segment_before_it_is_told():
    report = VerifyReport()
    check = PartitionCheck(MemoryStore(), KEYS, None, report)
    last: Any = part(next_offset=5, link=1)
    check._inspect_open(Head(segment_base=5, durable_checksum=1), last)
    assert not report.problems
    check._inspect_open(Head(segment_base=5, durable_checksum=2), last)
    assert [one.kind for one in report.problems] == ["head"]


def test_rows_of_an_index_that_lie_are_told():
    log = SmallLog()
    log.append((None, b"0"))
    log.roll()
    log.append((None, b"1"))
    source = log.reader().segments()[0]
    entry = list(source.entries(0, source.size()))[1]
    true = IndexRow(0, entry.timestamp, entry.position)
    wrong = true._replace(offset=7), true._replace(position=entry.position + 1)
    for row, count in ((true, 0), (wrong[0], 1), (wrong[1], 1)):
        log.store.write(KEYS.index(source.name), Index([row]).pack())
        found = inspect_segment(KEYS, source)
        assert sum(one.kind == "index" for one in found.problems) == count


def test_a_start_entry_without_a_body_is_told():
    short = stored(draft(0, [b"x"], 0, kind=KIND_START))
    (entry,) = short.entries(0, short.size())
    told: list[str] = []
    world = part(_found=part(source=short), _tell=lambda kind, *_: told.append(kind))
    _Inspector._check_start(world, entry)
    assert told == ["start"]


def test_the_description_of_another_topic_is_told_by_its_name(monkeypatch):
    store = MemoryStore()
    monkeypatch.setattr(TopicFile, "read", lambda self: part(name="another"))
    problems: list[Any] = []
    check_topic(store, TOPIC, problems)
    assert "another" in problems[0].message


def test_a_tail_that_cannot_be_walked_is_hurt(monkeypatch):
    def hurt(*_: object) -> Any:
        raise DamagedFile("hurt")

    monkeypatch.setattr(TailScanner, "find_end", hurt)
    world = part(_keys=KEYS)
    assert PartitionRepair._tail_is_hurt(world, [], None, [], 0)
    assert PartitionRepair._tail_is_hurt(world, [stored(START)], None, [], 0)


def test_files_that_do_not_belong_to_the_partition_are_dropped():
    other = SegmentStart(LOG_ID, 0, 0, "another").draft()
    mine, foreign, empty = stored(START), stored(other), stored(values_draft(b"no start"))
    dropped: list[str] = []
    world = part(
        _keys=KEYS,
        _log_id=LOG_ID,
        _drop=lambda source, reason: dropped.append(reason),
    )
    world._foreign = lambda source: PartitionRepair._foreign(world, source)
    assert world._foreign(mine) is None
    assert world._foreign(empty) is None
    covered = _Part(0, mine, None, 9)
    parts = [covered, _Part(5, mine, None, 6), _Part(9, foreign, None, 12)]
    kept = PartitionRepair._without_strays(world, parts)
    # A part that is to be written anew stands where the foreign file stood.
    assert [(one.base, one.rewrite) for one in kept] == [(0, False), (9, True)]
    assert dropped == [
        "its offsets are in the segment before it already",
        "it belongs to another/0",
    ]
