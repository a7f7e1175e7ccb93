"""Key compaction and rewriting: offsets stay, the newest of each key stays, nothing else is lost."""

import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DamagedEntry, DamagedFile
from penstock.log.codec import Codec
from penstock.log.columns import Columns
from penstock.log.compaction import Compactor
from penstock.log.frame import KIND_GAP, draft
from penstock.log.names import SegmentName
from penstock.log.places import fetch
from penstock.log.reader import PartitionReader
from penstock.log.rewrite import GAP_LOST, SPAN_MAX, SegmentWriter, rewrite_segment
from penstock.log.sealed import checked_entries
from penstock.log.segment import LINK_REPLACED, SegmentStart
from penstock.log.topic import TopicConfig
from penstock.stores.directory import DirectoryStore
from penstock.testing.disk import SimulatedDisk
from tests.log.dying import Killed
from tests.log.small_log import (
    KEYS,
    SmallLog,
    compact,
    crash_states,
    file_names,
    keep_for_ever,
    log_key,
    on_disk,
)


def filled(store=None):
    """Three keys over three sealed segments and the open one."""
    log = SmallLog(store)
    log.append((b"a", b"1"), (b"b", b"2"), (None, b"plain"))
    log.append((b"a", b"3"))
    log.roll()
    log.append((b"c", b"4"))
    log.append((b"b", b"5"), (b"b", b"6"), (b"c", b"7"))
    log.roll()
    log.append((b"a", b"8"))
    log.roll()
    log.append((b"c", b"9"))
    return log


# --------------------------------------------------------------------------------- what stays


@pytest.mark.acceptance(51)
def test_the_newest_record_of_each_key_stays_at_its_offset():
    log = filled()
    report = compact(log)
    assert log.stored() == [
        (2, None, b"plain"),
        (6, b"b", b"6"),
        (8, b"a", b"8"),
        (9, b"c", b"9"),
    ]
    assert (report.records_removed, report.segments_rewritten, report.keys) == (6, 2, 3)
    assert report.bytes_freed > 0
    assert log.append((None, b"next")) == 10


@pytest.mark.parametrize("start", range(11))
def test_reading_from_any_offset_finds_the_next_record_that_is_left(start):
    log = filled()
    before = log.stored()
    compact(log)
    kept = [row for row in before if row[0] in {2, 6, 8, 9}]
    assert log.stored(start) == [row for row in kept if row[0] >= start]


def test_a_second_round_finds_nothing():
    log = filled()
    compact(log)
    files = {name: log.store.read(f"{KEYS.folder}/{name}") for name in file_names(log.store)}
    again = compact(log)
    assert (again.records_removed, again.segments_rewritten) == (0, 0)
    assert files == {
        name: log.store.read(f"{KEYS.folder}/{name}") for name in file_names(log.store)
    }


def test_a_compactor_knows_when_there_is_nothing_to_do():
    log = filled()
    compactor = Compactor(log.store, KEYS)
    now = log.clock.time_ms()
    assert compactor.is_due(now)
    compactor.run(now)
    assert not compactor.is_due(now)
    log.append((b"a", b"more"))
    assert not compactor.is_due(now), "the open segment is not compacted"
    log.append_segments(1)
    assert compactor.is_due(now)


def test_keys_headers_times_and_codec_survive_a_rewrite():
    log = SmallLog()
    columns = Columns(
        [b"1", b"2", None, b"4"],
        [b"a", b"b", b"a", None],
        [10, 20, 30, 40],
        [None, {"h": b"1", "i": b""}, {"h": b"2"}, None],
    )
    flags, body = columns.encode()
    log.log.append([draft(flags, body, 4, codec=Codec.ZLIB)], sync=True)
    log.append_segments(1)
    before = [record for record in records_of(log) if record.offset != 0]
    compact(log)
    assert records_of(log) == before
    (entry,) = log.reader().cursor(1).fetch(1)
    assert entry.header.codec == Codec.ZLIB
    assert [record.timestamp for record in before[:3]] == [20, 30, 40]


def records_of(log):
    cursor = log.reader().cursor(0)
    found = []
    while records := fetch(cursor):
        found += records
    return found


# ------------------------------------------------------------------------------------- bounds


def test_keys_beyond_the_bound_are_left_alone():
    log = SmallLog()
    for number in range(3):
        log.append(*[(b"k%d" % key, b"%d" % number) for key in range(5)])
        log.roll()
    log.append((None, b"end"))
    report = compact(log, keys_max=2)
    assert report.keys_left_alone
    left = [key for _, key, _ in log.stored()]
    assert sorted(map(left.count, {b"k%d" % key for key in range(5)})) == [1, 1, 3, 3, 3]


def test_long_keys_are_told_apart():
    log = SmallLog()
    one, other = b"x" * 1000, b"x" * 999 + b"y"
    log.append((one, b"1"), (other, b"2"), (one, b"3"))
    log.append_segments(1)
    compact(log)
    assert [offset for offset, _, _ in log.stored()] == [1, 2, 3]


def test_damage_stops_a_round_before_it_changes_anything():
    log = filled()
    data = bytearray(log.store.read(log_key(4)))
    data[len(data) // 2] ^= 1
    log.store.write(log_key(4), data)
    before = file_names(log.store)
    with pytest.raises(DamagedEntry, match=r"00000000000000000004\.log"):
        compact(log)
    assert file_names(log.store) == before


def test_compaction_waits_while_another_process_is_at_work():
    log = filled()
    with log.store.lock(KEYS.maintenance, 0):
        assert compact(log).busy
    assert not compact(log).busy


# ------------------------------------------------------------------------------ rewritten files


def entries_of(log, base):
    (source,) = [one for one in log.reader().segments() if one.name.base == base]
    return source, list(checked_entries(source))


def test_the_chain_between_segments_still_holds_after_a_rewrite():
    log = filled()
    compact(log)
    segments = log.reader().segments()
    assert [one.name for one in segments] == [
        SegmentName(0, 1),
        SegmentName(4, 1),
        SegmentName(8),
        SegmentName(9),
    ]
    for before, source in pairwise(segments):
        assert source.first_entry().header.previous == before.read_end()[1]
    end = segments[0].read_end()[0]
    assert (end.records, end.first_offset, end.next_offset) == (1, 0, 4)
    assert end.flags == LINK_REPLACED


def test_gaps_are_merged_and_cover_every_offset():
    log = SmallLog()
    for _ in range(5):
        log.append((b"a", b"old"))
    log.append((b"b", b"kept"))
    log.roll()
    log.append((b"a", b"new"))
    compact(log)
    _, entries = entries_of(log, 0)
    gaps = [entry.header for entry in entries if entry.header.kind == KIND_GAP]
    assert [(gap.base_offset, gap.offset_span) for gap in gaps] == [(0, 5)]


def test_a_gap_longer_than_a_span_is_cut_in_pieces():
    writer = SegmentWriter(SegmentStart(b"i" * 16, 0, 1, "orders"), 0, 7, 5)
    writer.cover(2 * SPAN_MAX + 10, 5, GAP_LOST)
    log = SmallLog()
    data, _ = writer.finish(99)
    log.store.write(log_key(0, 1), data)
    source, entries = entries_of(log, 0)
    spans = [entry.header.offset_span for entry in entries if entry.header.kind == KIND_GAP]
    assert spans == [SPAN_MAX, SPAN_MAX, 10]
    assert source.read_end()[1] == 99


def test_an_index_is_written_with_a_rewritten_segment():
    log = SmallLog()
    for number in range(40):
        log.append((b"k%d" % (number % 30), bytes(8000)))
    log.append_segments(1)
    compact(log)
    assert file_names(log.store, ".index") == ["00000000000000000000-1.index"]
    assert [offset for offset, _, _ in log.stored(35)][:2] == [35, 36]


def test_what_a_crash_left_behind_is_cleared_away():
    log = filled()
    old = log.store.read(log_key(0))
    compact(log)
    log.store.write(log_key(0), old)
    assert len(log.stored()) == 4, "the rewritten segment counts"
    compact(log)
    assert file_names(log.store) == [
        "00000000000000000000-1.log",
        "00000000000000000004-1.log",
        "00000000000000000008.log",
        "00000000000000000009.log",
    ]


def test_a_reader_in_the_middle_of_a_segment_goes_on_in_the_rewritten_one():
    log = SmallLog()
    for number in range(20):
        log.append((b"k%d" % (number % 15), b"%d" % number))
    log.append_segments(1)
    cursor = log.reader().cursor(0)
    first = fetch(cursor, 400)
    compact(log)
    rest = [record.offset for record in iter_records(cursor)]
    assert first[-1].offset == 2
    assert rest == list(range(5, 21)), "3 and 4 were overwritten by later ones"


def iter_records(cursor):
    while records := fetch(cursor, 400):
        yield from records


def test_a_missing_segment_in_the_middle_is_an_error_and_no_endless_loop():
    log = filled()
    log.store.delete(log_key(4))
    with pytest.raises(DamagedFile, match="before 8 are in no segment") as caught:
        log.stored()
    assert caught.value.fields["reason"] == "missing"


# ------------------------------------------------------------------------------------- crashes


def test_every_power_cut_during_compaction_leaves_the_old_or_the_new_state():
    disk = SimulatedDisk()
    log = filled(on_disk(disk))
    before = log.stored()
    states, _ = crash_states(disk)
    compact(log)
    after = log.stored()
    assert len(states) > 8
    for state in states:
        opened = SmallLog(on_disk(state), clock=log.clock)
        assert opened.report.bytes_cut == 0
        stored = opened.stored()
        assert set(after) <= set(stored) <= set(before)
        assert opened.append((None, b"next")) == 10
        compact(opened)
        assert opened.stored()[:-1] == after


def test_a_head_that_was_never_synced_does_not_outlive_the_segment_that_it_speaks_of():
    """The writer dies between sealing and the sync of the head; compaction runs; the power goes."""
    disk = SimulatedDisk()
    log = SmallLog(on_disk(disk))
    log.append((b"a", b"1"), (b"a", b"2"))
    log.append((b"b", b"3"))

    def die(point):
        if point.path.endswith("/head") and not point.done:
            raise Killed

    disk.on_sync(die)
    log.roll()
    with pytest.raises(Killed):
        log.append((None, b"never"))
    left = disk.kill()
    survivor = SmallLog(on_disk(left), clock=log.clock)
    assert compact(survivor).records_removed == 1
    for state in left.crash_states(50):
        opened = SmallLog(on_disk(state), clock=log.clock)
        assert opened.stored() == [(1, b"a", b"2"), (2, b"b", b"3")]
        assert opened.append((None, b"next")) == 3


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=30))
def test_compaction_equals_a_dictionary(steps):
    log = SmallLog(config=TopicConfig(retention=keep_for_ever()))
    model = {}
    for offset, (key, kind) in enumerate(steps):
        if kind == 0:
            log.roll()
        value = b"%d" % offset
        log.append((b"k%d" % key, value))
        model[offset] = (b"k%d" % key, value)
    sealed_end = log.head().segment_base
    compact(log)
    newest = {key: at for at, (key, _) in model.items()}
    kept = [
        (at, key, value)
        for at, (key, value) in model.items()
        if at >= sealed_end or newest[key] == at
    ]
    assert log.stored() == kept


@pytest.mark.acceptance(51)
def test_compaction_beside_a_thread_that_appends_and_one_that_reads(tmp_path):
    """Offsets are stable and nothing is lost: the reader sees the newest of every key."""
    log = SmallLog(DirectoryStore(tmp_path))
    rounds, keys = 40, 5
    done = threading.Event()
    failures: list[BaseException] = []
    seen: dict[int, tuple[bytes | None, bytes | None]] = {}

    def read() -> None:
        cursor = PartitionReader(DirectoryStore(tmp_path), KEYS).cursor(0)
        try:
            while not done.is_set() or cursor.offset < rounds * keys:
                for record in fetch(cursor, 500):
                    seen[record.offset] = (record.key, record.value)
        except BaseException as failure:
            failures.append(failure)

    def run_compactions() -> None:
        store = DirectoryStore(tmp_path)
        compactor = Compactor(store, KEYS)
        try:
            while not done.is_set():
                compactor.run(log.clock.time_ms())
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=read), threading.Thread(target=run_compactions)]
    for thread in threads:
        thread.start()
    for number in range(rounds):
        rows = [(b"k%d" % key, b"%d" % number) for key in range(keys)]
        failures += [AssertionError(number)] if log.append(*rows) != number * keys else []
        log.roll()
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    last = (rounds - 1) * keys
    expected = {last + key: (b"k%d" % key, b"%d" % (rounds - 1)) for key in range(keys)}
    assert {offset: row for offset, row in seen.items() if offset >= last} == expected
    assert all(row == (b"k%d" % (at % keys), b"%d" % (at // keys)) for at, row in seen.items())
    log.append((None, b"end"))
    compact(log)
    assert [offset for offset, _, _ in log.stored()] == list(range(last, last + keys + 1))


def test_rewriting_with_nothing_left_out_keeps_every_record():
    log = filled()
    before = log.stored()
    (source, *_) = log.reader().segments()
    rewrite_segment(KEYS, source, lambda entry: None)
    assert log.stored() == before
