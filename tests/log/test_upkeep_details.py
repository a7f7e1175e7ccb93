"""Details of upkeep that nothing else would show: gaps and what they say, strays, and stale heads."""

import pytest

from penstock import WalMessageQueue
from penstock.errors import InvalidOption
from penstock.log.batch import split
from penstock.log.checks import check_columns
from penstock.log.columns import Columns
from penstock.log.frame import KIND_GAP, draft
from penstock.log.inspection import inspect_segment
from penstock.log.names import SegmentName
from penstock.log.repair_partition import rebuild_index
from penstock.log.rewrite import GAP_LOST, SegmentWriter
from penstock.log.segment import SegmentSource, SegmentStart
from penstock.log.verify import verify
from penstock.stores.memory import MemoryStore
from tests.log.small_log import KEYS, SmallLog
from tests.log.strategies import copy_of, machine, segment_paths, values_draft
from tests.log.test_forged_segments import HEAD, LOG_ID, SMALL, START, forged, rolled, stored


def gap(span: int, flags: int):
    return draft(flags, [], 0, offset_span=span, kind=KIND_GAP)


@pytest.mark.parametrize(("flags", "lost"), [(0, []), (GAP_LOST, [(1, 4)])])
def test_a_gap_says_whether_its_records_are_lost(flags, lost):
    found = inspect_segment(KEYS, stored(START, values_draft(b"0"), gap(3, flags)))
    assert found.lost == lost


@pytest.mark.parametrize("flags", [0, GAP_LOST])
def test_a_gap_that_is_taken_over_keeps_what_it_says(flags):
    source = stored(START, values_draft(b"0"), gap(3, flags), values_draft(b"4"))
    writer = SegmentWriter(SegmentStart(LOG_ID, 0, 1, KEYS.topic), 0, 0, 0)
    for entry in list(source.entries(0, source.size()))[1:]:
        writer.keep(entry)
    data, _ = writer.finish(0)
    name = SegmentName(0, 1)
    store = MemoryStore()
    store.write(KEYS.log(name), data)
    found = inspect_segment(KEYS, SegmentSource(name, store, KEYS.log(name)))
    assert (found.lost, found.records) == ([(1, 4)] if flags else [], 2)


def test_an_index_that_needs_no_rows_is_removed():
    log = SmallLog()
    log.append((b"key", b"value"))
    (source,) = log.reader().segments()
    log.store.write(KEYS.index(source.name), b"stale")
    rebuild_index(KEYS, source, source.size())
    assert not log.store.exists(KEYS.index(source.name))


def test_folders_that_are_no_partitions_are_passed_over():
    log = SmallLog()
    log.append((b"key", b"value"))
    for folder in ("xy", "99999"):
        log.store.write(f"topics/{KEYS.topic}/{folder}/stray", b"")
    assert verify(log.store).partitions == 1


def test_a_batch_of_two_is_split_when_it_is_too_large():
    pieces = list(split(Columns([b"a" * 600, b"b" * 600]), 100, 1_000))
    assert [list(piece.values) for piece in pieces] == [[b"a" * 600], [b"b" * 600]]
    whole = list(split(Columns([b"a", b"b"]), 100, 1_000))
    assert [len(piece) for piece in whole] == [2]


@pytest.mark.parametrize("wrong", [-(1 << 63) - 1, 1 << 63])
def test_one_timestamp_out_of_range_is_enough(wrong):
    check_columns(Columns([b"a", b"b"], None, [0, 1]))
    with pytest.raises(InvalidOption):
        check_columns(Columns([b"a", b"b"], None, [0, wrong]))


def test_recovery_goes_on_from_a_stale_head_over_several_segments():
    one, before = rolled(4)
    two = machine(copy_of(one.disk, {HEAD: before}), **SMALL)
    report = two.log.attach()
    assert (report.next_offset, report.bytes_cut, report.clean) == (4, 0, True)
    assert len(two.values()) == 4


async def test_a_wait_needs_a_number_of_seconds(tmp_path):
    async with WalMessageQueue(tmp_path / "log") as queue:
        await queue.create_topic("orders")
        with pytest.raises(InvalidOption):
            await queue.repartition("orders", 2, timeout=-1)


def test_what_is_forged_reads_as_it_was_made():
    source = stored(START, values_draft(b"0", b"1"), values_draft(b"2"))
    entries = list(source.entries(0, source.size()))
    assert [one.header.base_offset for one in entries] == [0, 0, 2]
    assert len(forged(START)) == entries[1].position


def test_a_lost_head_is_made_anew_when_retention_took_the_first_segments():
    one, _ = rolled(4)
    first = segment_paths(one.disk)[0]
    two = machine(copy_of(one.disk, {HEAD: None, first: None}), **SMALL)
    report = two.log.attach()
    assert (report.next_offset, report.head_lost, report.bytes_cut) == (4, True, 0)
    assert len(two.values(1)) == 3


def test_a_sound_index_is_used_and_not_written_again():
    one = machine()
    for number in range(4):
        one.append(b"%d" % number * 70_000)
    one.log.segment_bytes_max = 1
    one.append(b"last")
    one.reader.locate(3)
    before = one.store.statistics().writes
    _, position, offset = one.reader.locate(3)
    assert (offset, position > 0) == (3, True)
    assert one.store.statistics().writes == before


def test_every_log_has_an_identity_of_its_own():
    found = set()
    for seed in (1, 2):
        one = machine(seed=seed, segment_bytes_max=256)
        for _ in range(2):
            one.append(b"x" * 300)
        starts = [SegmentStart.parse(each.first_entry()) for each in one.reader.segments()]
        assert len({start.log_id for start in starts}) == 1
        found.add(starts[0].log_id)
    assert len(found) == 2
    assert bytes(16) not in found
