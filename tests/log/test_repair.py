"""repair(): all sound records stay at their offsets, the rest is named, the log goes on."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DamageError, UnknownTopic
from penstock.log.compaction import Compactor
from penstock.log.head import HeadFile
from penstock.log.inspection import LostRange
from penstock.log.names import topic_key
from penstock.log.repair import repair
from penstock.log.rewrite import rewrite_segment
from penstock.log.tiering import move_sealed
from penstock.log.topic import TopicFile
from penstock.log.verify import verify
from penstock.stores.directory import DirectoryStore
from penstock.stores.memory import MemoryStore
from penstock.testing.disk import SimulatedDisk
from tests.log.mending import ROWS, STEPS, check_mended, contents, mend, without
from tests.log.small_log import KEYS, TOPIC, SmallLog, crash_states, filled, flips, log_key, on_disk

# ---------------------------------------------------------------------------------- whole logs


def test_a_sound_log_is_left_alone():
    log = filled()
    before = contents(log.store)
    report = mend(log)
    assert (report.actions, report.lost, report.remaining) == ([], [], [])
    assert contents(log.store) == before


def test_repair_takes_a_path(tmp_path):
    log = filled(DirectoryStore(tmp_path))
    log.store.write(log_key(6), b"x" * 300)
    report = repair(tmp_path, TOPIC)
    assert report.lost == [LostRange(TOPIC, 0, 6, 9)]
    assert (tmp_path / "quarantine" / log_key(6)).read_bytes() == b"x" * 300
    with pytest.raises(UnknownTopic):
        repair(tmp_path, "other")


# -------------------------------------------------------------------------------- flipped bits


@pytest.mark.acceptance(56)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("base", [0, 6, 9])
def test_a_flipped_byte_of_a_segment_costs_its_entry_and_nothing_else(base, step):
    origin = filled()
    rows = origin.stored()
    key = log_key(base)
    sound = origin.store.read(key)
    (source,) = [one for one in origin.reader().segments() if one.name.base == base]
    entries = list(source.entries(0, len(sound)))
    for position, data in flips(sound, step):
        (hit,) = [e for e in entries if e.position <= position < e.position + e.header.entry_bytes]
        first, following = hit.header.base_offset, hit.header.next_offset
        log = filled()
        log.store.write(key, data)
        report = mend(log)
        lost = [LostRange(TOPIC, 0, first, following)] if first < following else []
        assert report.lost == lost, position
        assert report.remaining == []
        assert log.store.read(f"quarantine/{key}") == data
        check_mended(log, without(rows, first, following))


def test_a_damaged_segment_in_the_tier_is_mended_there():
    log = filled(tier=MemoryStore())
    rows = log.stored()
    move_sealed(log.store, KEYS, log.tier)
    data = bytearray(log.tier.read(log_key(0)))
    data[250] ^= 1
    log.tier.write(log_key(0), data)
    (lost,) = mend(log).lost
    assert log.tier.list("quarantine/") == [f"quarantine/{log_key(0)}"]
    check_mended(log, without(rows, lost.first_offset, lost.next_offset))


# ------------------------------------------------------------------- cut, missing, foreign files


@pytest.mark.parametrize("base", [0, 6, 9])
@pytest.mark.parametrize("size", [0, 1, 60, 131, 200, 300, 380])
def test_a_segment_that_was_cut_keeps_what_is_left(base, size):
    log = filled()
    rows = log.stored()
    data = log.store.read(log_key(base))[:size]
    log.store.write(log_key(base), data)
    following = {0: 6, 6: 9, 9: 12}[base]
    report = mend(log)
    kept = [row for row in rows if not base <= row[0] < following]
    (lost,) = report.lost or [LostRange(TOPIC, 0, following, following)]
    assert lost.next_offset == following
    kept = without(rows, lost.first_offset, lost.next_offset)
    check_mended(log, kept)


@pytest.mark.parametrize(("base", "following"), [(0, 6), (6, 9), (9, 12)])
def test_a_missing_segment_becomes_a_gap(base, following):
    log = filled()
    rows = log.stored()
    log.store.delete(log_key(base))
    assert mend(log).lost == [LostRange(TOPIC, 0, base, following)]
    check_mended(log, without(rows, base, following))


def test_everything_but_the_head_can_be_missing():
    log = filled()
    for base in (0, 6, 9):
        log.store.delete(log_key(base))
    report = mend(log)
    assert report.lost == [LostRange(TOPIC, 0, 0, 9), LostRange(TOPIC, 0, 9, 12)]
    check_mended(log, [])


def test_the_next_offset_is_never_below_what_a_subscriber_consumed():
    """The head and every segment are gone: the offsets are all that is left to tell."""
    log = filled()
    for key in (*map(log_key, (0, 6, 9)), KEYS.head):
        log.store.delete(key)
    mend(log)
    check_mended(log, [], next_offset=6)


def test_a_foreign_segment_goes_to_quarantine():
    log = filled()
    rows = log.stored()
    foreign = SmallLog()
    foreign.log._log_id = b"another log id.."
    foreign.append((None, b"x"), (None, b"y"), (None, b"z"))
    foreign.append_segments(1)
    data = foreign.store.read(log_key(0))
    log.store.write(log_key(0), data)
    assert mend(log).lost == [LostRange(TOPIC, 0, 0, 6)]
    assert log.store.read(f"quarantine/{log_key(0)}") == data
    check_mended(log, without(rows, 0, 6))


def test_a_segment_of_another_place_becomes_a_gap():
    log = filled()
    rows = log.stored()
    log.store.write(log_key(6), log.store.read(log_key(0)))
    assert mend(log).lost == [LostRange(TOPIC, 0, 6, 9)]
    check_mended(log, without(rows, 6, 9))


def test_a_repeated_entry_is_dropped_and_a_swapped_one_lost():
    log = filled()
    rows = log.stored()
    data = log.store.read(log_key(0))
    (source, *_) = log.reader().segments()
    start, first, second, third, end = [
        data[e.position : e.position + e.header.entry_bytes] for e in source.entries(0, len(data))
    ]
    log.store.write(log_key(0), b"".join([start, first, first, second, third, end]))
    assert mend(log).lost == []
    assert log.stored() == rows
    log = filled()
    log.store.write(log_key(0), b"".join([start, first, third, end]))
    assert mend(log).lost == [LostRange(TOPIC, 0, 2, 3)]
    check_mended(log, without(rows, 2, 3))


def test_a_value_that_is_itself_a_segment_does_not_confuse_repair():
    """The header before it is damaged, so the search goes through the value."""
    inner = filled().store.read(log_key(0))
    for bit in range(76 * 8):
        log = SmallLog()
        log.append((None, b"before"))
        log.append((None, inner))
        log.append((None, b"after"))
        log.append_segments(1)
        (source, *_) = log.reader().segments()
        entry = list(source.entries(0, source.size()))[2]
        data = bytearray(log.store.read(log_key(0)))
        data[entry.position + bit // 8] ^= 1 << bit % 8
        log.store.write(log_key(0), data)
        assert mend(log).lost == [LostRange(TOPIC, 0, 1, 2)]
        assert [value for _, _, value in log.stored()] == [b"before", b"after", b"v"]


def test_a_sound_copy_is_used_instead_of_a_damaged_segment():
    log = filled(tier=MemoryStore())
    rows = log.stored()
    data = log.store.read(log_key(0))
    log.tier.write(log_key(0), data)
    log.store.write(log_key(0), data[:-1])
    assert mend(log).lost == []
    check_mended(log, rows)
    log = filled()
    (source, *_) = log.reader().segments()
    rewrite_segment(KEYS, source, lambda entry: None)
    log.store.write(log_key(0), data)
    log.store.write(log_key(0, 1), b"\0" * 500)
    assert mend(log).lost == []
    check_mended(log, rows)


def test_a_compacted_log_can_be_repaired():
    log = filled()
    Compactor(log.store, KEYS).run(log.clock.time_ms())
    rows = log.stored()
    data = bytearray(log.store.read(log_key(0, 1)))
    data[150] ^= 8
    log.store.write(log_key(0, 1), data)
    for lost in mend(log).lost:
        rows = without(rows, lost.first_offset, lost.next_offset)
    check_mended(log, rows)


def test_lost_ranges_are_remembered_by_the_log():
    log = filled()
    log.store.delete(log_key(6))
    mend(log)
    assert verify(log.store).lost == [LostRange(TOPIC, 0, 6, 9)]
    Compactor(log.store, KEYS).run(log.clock.time_ms())
    assert verify(log.store).lost == [LostRange(TOPIC, 0, 6, 9)]


# --------------------------------------------------------------------- dry runs, live logs, crashes


def damaged(log):
    """Something of everything."""
    data = bytearray(log.store.read(log_key(0)))
    data[250] ^= 1
    log.store.write(log_key(0), data)
    log.store.delete(log_key(6))
    data = bytearray(log.store.read(log_key(9)))
    data[150] ^= 1
    log.store.write(log_key(9), data)
    log.store.write(topic_key(TOPIC), b"?")
    return log


def test_a_dry_run_tells_the_same_and_changes_nothing():
    log = damaged(filled())
    before = {key: log.store.read(key) for key in log.store.list()}
    told = mend(log, dry_run=True)
    assert before == {key: log.store.read(key) for key in log.store.list()}
    done = mend(log)
    assert told.actions == done.actions
    assert told.lost == done.lost
    assert len(done.lost) == 3


def test_a_writer_that_is_open_goes_on_behind_the_repaired_end():
    log = filled()
    log.open()
    data = bytearray(log.store.read(log_key(9)))
    data[150] ^= 1
    log.store.write(log_key(9), data)
    mend(log)
    assert log.append((None, b"next")) == ROWS
    assert verify(log.store).clean


def test_a_power_cut_during_repair_is_finished_by_the_next():
    disk = SimulatedDisk()
    log = damaged(filled(on_disk(disk)))
    states, random = crash_states(disk, 4)
    expected = mend(log)
    rows = log.stored()
    assert len(states) > 40
    for state in random.sample(states, 60):
        again = SmallLog.__new__(SmallLog)
        again.store, again.tier, again.clock, again.system = (
            on_disk(state),
            None,
            log.clock,
            log.system,
        )
        again.topic, again.rolls = TopicFile(again.store, TOPIC), False
        if random.random() < 0.5:
            # Opening a half repaired log is refused or does no harm.
            with suppress(DamageError):
                again.open()
        mend(again)
        check_mended(again, rows)
    assert expected.remaining == []


@given(st.data())
def test_whatever_happens_to_the_bytes_the_sound_records_are_saved(data):
    """Several files are damaged at once, in any way; what is read afterwards was written."""
    log = filled()
    rows, head = log.stored(), log.head()
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from([*map(log_key, (0, 6, 9)), KEYS.head]))
        content = bytearray(log.store.read(key)) if log.store.exists(key) else bytearray()
        size = len(content)
        start = data.draw(st.integers(0, size))
        length = data.draw(st.integers(0, 80))
        how = data.draw(st.sampled_from(["zero", "noise", "cut", "delete", "insert"]))
        if how == "delete":
            log.store.delete(key)
            continue
        if how == "cut":
            content = content[:start]
        elif how == "insert":
            content[start:start] = bytes(length)
        else:
            fill = (
                bytes(length)
                if how == "zero"
                else data.draw(st.binary(min_size=length, max_size=length))
            )
            content[start : start + length] = fill
        log.store.write(key, content)
    head_is_sound = HeadFile(log.store, KEYS.head).look()[0] == head
    report = mend(log)
    stored = log.stored()
    assert set(stored) <= set(rows), "a record was invented"
    assert [row[0] for row in stored] == sorted(row[0] for row in stored)
    lost = {offset for one in report.lost for offset in range(one.first_offset, one.next_offset)}
    missing = {row[0] for row in rows} - {row[0] for row in stored}
    assert missing >= {offset for offset in lost if offset < ROWS}
    if head_is_sound:
        earliest = log.reader().earliest()
        assert {offset for offset in missing if offset >= earliest} == lost, "lost in silence"
    assert all(problem.kind == "offset" for problem in report.remaining)
    assert verify(log.store).lost == report.lost
    log.open()
    assert log.append((None, b"next")) >= (ROWS if head_is_sound else 6)
    assert mend(log).actions == []
