"""Segments whose every checksum is right, and that still do not belong where they stand."""

from typing import Any

import pytest

from penstock.errors import DamagedEntry, DamagedFile, DamageError
from penstock.log.columns import Columns
from penstock.log.frame import FRAME_BYTES, KIND_END, Draft, draft, seal
from penstock.log.index import Index, IndexRow
from penstock.log.names import SegmentName
from penstock.log.reader import PartitionReader
from penstock.log.sealed import checked_entries
from penstock.log.segment import END_BYTES, SegmentEnd, SegmentSource, SegmentStart
from penstock.stores.memory import MemoryStore
from tests.log.strategies import (
    FOLDER,
    KEYS,
    Machine,
    copy_of,
    flip,
    machine,
    segment_paths,
    values_draft,
)

HEAD = f"{FOLDER}/head"
LOG_ID = b"0123456789abcdef"
SMALL: dict[str, Any] = {"segment_bytes_max": 256}


def rolled(count: int) -> tuple[Machine, bytes]:
    """A log with a record in each segment, and the head as it was after the first record."""
    one = machine(**SMALL)
    one.append(b"0" * 300)
    before = one.disk.content(HEAD)
    for number in range(1, count):
        one.append(b"%d" % number * 300)
    return one, before


def forged(*entries: Draft, base: int = 0, previous: int = 0, timestamp: int = 0) -> bytes:
    """The bytes of a file with these entries, each chained to the one before."""
    data = b""
    for entry in entries:
        buffers, _, previous = seal(entry, base, 0, previous, timestamp)
        data += b"".join(bytes(one) for one in buffers)
        base += entry.offset_span
    return data


def stored(*entries: Draft) -> SegmentSource:
    """A source of such a file."""
    store = MemoryStore()
    source = SegmentSource(SegmentName(0), store, KEYS.log(SegmentName(0)))
    store.write(source.key, forged(*entries))
    return source


START = SegmentStart(LOG_ID, KEYS.partition, 0, KEYS.topic).draft()
BAD_END = draft(0, [bytes(END_BYTES - FRAME_BYTES + 1)], 0, kind=KIND_END)
"""One byte longer than a footer is."""


def test_a_segment_that_is_missing_behind_a_head_that_is_behind_is_named():
    one, before = rolled(3)
    paths = segment_paths(one.disk)
    two = machine(copy_of(one.disk, {HEAD: before, paths[1]: None}), **SMALL)
    with pytest.raises(DamagedFile, match="is missing") as caught:
        two.log.attach()
    assert caught.value.file == KEYS.log(SegmentName(1))


def test_an_entry_behind_the_end_of_a_sealed_segment_is_damage():
    one, before = rolled(3)
    first = segment_paths(one.disk)[0]
    source, *_ = one.reader.segments()
    entry = list(source.entries(0, source.size()))[1]
    content = one.disk.content(first)
    again = content[entry.position : entry.position + entry.header.entry_bytes]
    two = machine(copy_of(one.disk, {HEAD: before, first: content + again}), **SMALL)
    with pytest.raises(DamagedEntry, match=r"repair\(\)"):
        two.log.attach()


@pytest.mark.parametrize(
    "start",
    [
        SegmentStart(LOG_ID, KEYS.partition + 1, 0, KEYS.topic),
        SegmentStart(LOG_ID, KEYS.partition, 0, "another"),
        SegmentStart(LOG_ID, KEYS.partition, 0, KEYS.topic),
    ],
    ids=["partition", "topic", "log"],
)
def test_a_next_segment_from_elsewhere_is_not_taken_in(start):
    """It chains to the one before, as only a forger would make it."""
    one, before = rolled(3)
    _, second, third = one.reader.segments()
    stamp = second.first_entry().timestamp
    link = second.read_end()[1]
    fake = forged(start.draft(), values_draft(b"evil"), base=2, previous=link, timestamp=stamp)
    path = f"/data/log/{third.key}"
    two = machine(copy_of(one.disk, {HEAD: before, path: fake}), **SMALL)
    report = two.log.attach()
    assert (report.next_offset, report.bytes_cut) == (2, len(fake))
    assert two.values() == [b"0" * 300, b"1" * 300]


def test_without_a_head_the_last_segment_with_a_start_counts():
    one, _ = rolled(3)
    last = segment_paths(one.disk)[-1]
    two = machine(copy_of(one.disk, {HEAD: None, last: b"torn"}), **SMALL)
    report = two.log.attach()
    assert (report.next_offset, report.head_lost) == (2, True)


# Reading


def test_an_end_entry_without_a_footer_is_damage_to_everybody():
    source = stored(START, values_draft(b"0"), BAD_END)
    reader = PartitionReader(source.store, KEYS)
    cursor = reader.cursor(0)
    entries = source.chunk(0, source.size())
    with pytest.raises(DamagedEntry, match="end entry"):
        cursor._move_behind(source, entries[-1])


def test_the_last_entry_of_a_segment_that_is_not_sealed_is_no_footer():
    """It has the size of one."""
    source = stored(START, draft(0, [bytes(END_BYTES - FRAME_BYTES)], 0))
    with pytest.raises(DamagedEntry, match="end entry"):
        source.read_end()


def test_a_segment_shorter_than_its_footer_is_cut_off():
    source = stored(START)
    source.store.write(source.key, b"short")
    with pytest.raises(DamageError, match="cut off"):
        source.read_end()


def test_a_sealed_segment_is_checked_from_its_start_to_its_end():
    end = SegmentEnd(0, 0, 0, 0, 0, 0).draft()
    for source in (stored(values_draft(b"0")), stored(START, end, values_draft(b"0"))):
        with pytest.raises(DamagedEntry, match="does not follow"):
            list(checked_entries(source))
    with pytest.raises(DamagedEntry, match="not sealed"):
        list(checked_entries(stored(START, values_draft(b"0"))))


def test_the_identity_of_a_log_is_not_told_by_a_segment_that_is_damaged():
    """Older segments can still be read."""
    one, _ = rolled(2)
    last = segment_paths(one.disk)[-1]
    two = machine(copy_of(one.disk, {last: flip(one.disk.content(last), 400)}), **SMALL)
    cursor = two.reader.cursor(0)
    (entry,) = cursor.fetch()
    assert entry.view().records(KEYS.topic, 0)[0].value == b"0" * 300


def indexed() -> Machine:
    """A sealed segment with three rows in its index, and one record in the next."""
    one = machine(segment_bytes_max=1)
    one.log.segment_bytes_max = 1 << 20
    for number in range(4):
        one.system.clock.jump(1_000)
        one.append(b"%d" % number * 70_000)
    one.log.segment_bytes_max = 1
    one.append(b"last")
    return one


def with_a_wrong_row(one: Machine) -> tuple[PartitionReader, list[IndexRow]]:
    """A reader, with an index whose first row points beside its entry."""
    source = one.reader.segments()[0]
    key = KEYS.index(source.name)
    rows = (Index.parse(one.store.read(key)) or Index()).rows
    assert len(rows) >= 3
    wrong = rows[0]._replace(position=rows[0].position + 1)
    one.store.write(key, Index([wrong, *rows[1:]]).pack())
    return one.reader, rows


def test_a_wrong_row_of_the_index_is_made_right_by_a_seek_to_its_offset():
    one = indexed()
    reader, rows = with_a_wrong_row(one)
    _, position, offset = reader.locate(rows[0].offset)
    assert (position, offset) == (rows[0].position, rows[0].offset)


def test_a_wrong_row_of_the_index_is_made_right_by_a_seek_to_its_time():
    one = indexed()
    reader, rows = with_a_wrong_row(one)
    assert reader.offset_at(rows[0].timestamp + 1) == rows[0].offset + 1


def test_only_so_many_indexes_are_kept(monkeypatch):
    monkeypatch.setattr("penstock.log.reader.INDEXES_KEPT_MAX", 2)
    one, _ = rolled(5)
    reader = one.reader
    for offset in range(5):
        reader.locate(offset)
    assert len(reader._indexes) <= 2


def test_a_head_that_was_damaged_for_a_moment_is_read_under_the_lock(monkeypatch):
    one, _ = rolled(2)
    reader = one.reader
    true = reader._head_file.look
    looks = iter([(None, True), true()])
    monkeypatch.setattr(reader._head_file, "look", looks.__next__)
    assert reader.head() == one.log.head


def test_columns_that_are_out_of_order_are_damage():
    """As only a wrong program could write them: deltas that go back."""
    from penstock.log.walk import Stretch, Walker

    batch = Columns([b"0", b"1"], None, None, None, [1, 0])
    flags, body = batch.encode()
    source = stored(START, draft(flags, body, 2, offset_span=2))
    steps = list(Walker(source, source.size()).steps())
    assert [one.reason for one in steps if isinstance(one, Stretch)] == ["columns"]


def test_a_footer_that_is_none_and_a_start_that_is_none_are_told():
    from penstock.log.inspection import inspect_segment

    cut = draft(0, [b"x"], 0, kind=1)
    for entries in ((START, values_draft(b"0"), BAD_END), (cut, values_draft(b"0"))):
        found = inspect_segment(KEYS, stored(*entries))
        assert {"start", "end"} & {one.kind for one in found.problems}


def test_a_footer_that_tells_something_else_is_told():
    from penstock.log.inspection import inspect_segment

    end = SegmentEnd(9, 0, 1, 0, 0, 0).draft()
    found = inspect_segment(KEYS, stored(START, values_draft(b"0"), end))
    assert "end" in {one.kind for one in found.problems}
