"""Sealed segments move to the tier and are read there; a crash never leaves less than one copy."""

import pytest

from penstock.errors import StoreFailed
from penstock.log.compaction import Compactor
from penstock.log.names import SegmentName
from penstock.log.sealed import maintenance
from penstock.log.tiering import move_sealed
from penstock.stores.memory import MemoryStore
from penstock.testing.disk import SimulatedDisk
from tests.log.small_log import KEYS, SmallLog, crash_states, file_names, log_key, on_disk


def move(log, **options):
    return move_sealed(log.store, KEYS, log.tier, **options)


def filled(store=None, tier=None):
    log = SmallLog(store, MemoryStore() if tier is None else tier)
    log.append_segments(5)
    return log


def test_sealed_segments_move_and_are_read_from_the_tier():
    log = filled()
    before = log.stored()
    report = move(log)
    assert report.segments_moved == 4
    assert report.bytes_moved == sum(log.tier.size(log_key(base)) for base in range(4))
    assert file_names(log.store) == ["00000000000000000004.log"]
    assert file_names(log.tier) == [f"{base:020d}.log" for base in range(4)]
    assert log.stored() == before
    assert log.append((None, b"next")) == 5
    log.open()
    assert log.report.clean
    assert move(log).segments_moved == 0


def test_the_newest_may_stay_local():
    log = filled()
    assert move(log, keep_local=3).segments_moved == 1
    assert move(log, keep_local=9).segments_moved == 0


def test_the_index_goes_along():
    log = SmallLog(tier=MemoryStore())
    for number in range(30):
        log.append((None, b"%d" % number + bytes(8000)))
    log.append_segments(1)
    assert file_names(log.store, ".index") == ["00000000000000000000.index"]
    index = log.store.read(KEYS.index(SegmentName(0)))
    move(log)
    assert file_names(log.store, ".index") == []
    assert log.tier.read(KEYS.index(SegmentName(0))) == index
    assert [offset for offset, _, _ in log.stored(25)] == [25, 26, 27, 28, 29, 30]


def test_a_damaged_segment_stays_and_is_reported():
    log = filled()
    data = bytearray(log.store.read(log_key(1)))
    data[len(data) // 2] ^= 4
    log.store.write(log_key(1), data)
    report = move(log)
    assert report.segments_moved == 3
    assert [damage.fields["file"] for damage in report.damage] == [log_key(1)]
    assert file_names(log.store) == ["00000000000000000001.log", "00000000000000000004.log"]


class LyingStore(MemoryStore):
    """Loses a bit of what it is given."""

    def write(self, key, data):
        changed = bytearray(data)
        changed[-1] ^= 1
        super().write(key, changed)


def test_a_tier_that_gives_back_other_bytes_loses_nothing():
    log = filled(tier=LyingStore())
    with pytest.raises(StoreFailed, match="other bytes"):
        move(log)
    assert len(file_names(log.store)) == 5
    assert len(log.stored()) == 5


def test_a_move_that_was_cut_off_is_finished():
    log = filled()
    log.tier.write(log_key(0), log.store.read(log_key(0)))
    assert move(log).segments_moved == 4
    assert file_names(log.store) == ["00000000000000000004.log"]


def test_a_reader_goes_on_in_the_tier():
    log = filled()
    cursor = log.reader().cursor(0)
    assert len(cursor.fetch(1)) == 1
    move(log)
    offsets = []
    while entries := cursor.fetch():
        offsets += [entry.header.base_offset for entry in entries]
    assert offsets == [1, 2, 3, 4]


def test_compaction_reaches_into_the_tier():
    log = SmallLog(tier=MemoryStore())
    for number in range(4):
        log.append((b"a", b"%d" % number))
        log.roll()
    log.append((b"b", b"end"))
    move(log, keep_local=1)
    Compactor(log.store, KEYS, log.tier).run(log.clock.time_ms())
    assert log.stored() == [(3, b"a", b"3"), (4, b"b", b"end")]
    assert file_names(log.tier) == [f"{base:020d}-1.log" for base in range(3)]


def test_tiering_waits_while_another_process_is_at_work():
    log = filled()
    with log.store.lock(KEYS.maintenance, 0):
        assert move(log).busy


def test_every_power_cut_leaves_a_good_copy_of_everything():
    """Both stores are on one disk, so that the order of writes and removals is seen as well."""
    disk = SimulatedDisk()
    log = filled(on_disk(disk), on_disk(disk, "/data/tier"))
    before = log.stored()
    states, _ = crash_states(disk)
    assert move(log).segments_moved == 4
    assert len(states) > 20
    for state in states:
        opened = SmallLog(on_disk(state), on_disk(state, "/data/tier"), clock=log.clock)
        assert opened.report.bytes_cut == 0
        assert opened.stored() == before
        assert not move(opened).damage
        assert file_names(opened.store) == ["00000000000000000004.log"]
        assert opened.stored() == before


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "unlink", "sync_directory"])
def test_any_call_that_fails_leaves_everything_readable(operation):
    for at in range(1, 12):
        disk = SimulatedDisk()
        log = filled(on_disk(disk), on_disk(disk, "/data/tier"))
        before = log.stored()
        fault = disk.fail(operation, at=at)
        if fails(log):
            assert fault.fired
        disk.heal()
        assert log.stored() == before
        move(log)
        assert log.stored() == before


def fails(log):
    try:
        move(log)
    except StoreFailed:
        return True
    return False


class SlowStore(MemoryStore):
    """Notes whether the maintenance lock is free while a segment is read to be checked."""

    def __init__(self):
        super().__init__()
        self.free = []

    def read(self, key, start=0, length=None):
        if key.endswith(".log") and length is None:
            with maintenance(self, KEYS) as held:
                self.free.append(held)
        return super().read(key, start, length)


def test_the_lock_is_held_for_one_segment_at_a_time():
    """Somebody who waits for it, such as a new subscriber, gets it between two segments."""
    log = filled(SlowStore())
    assert move(log).segments_moved == 4
    assert log.store.free == [True] * 4


class TakenStore(SlowStore):
    """Somebody else takes the lock between two segments, and keeps it."""

    lock_of_other = None

    def read(self, key, start=0, length=None):
        if key == log_key(2) and length is None:
            self.lock_of_other = self.lock(KEYS.maintenance, 0)
            self.lock_of_other.__enter__()
        return MemoryStore.read(self, key, start, length)


def test_a_round_ends_when_somebody_else_takes_the_lock():
    log = filled(TakenStore())
    report = move(log)
    assert (report.segments_moved, report.busy) == (2, True)
    log.store.lock_of_other.__exit__(None, None, None)
    assert len(log.stored()) == 5


class RewritingStore(SlowStore):
    """Compaction of another process replaces a segment between its check and its move."""

    def read(self, key, start=0, length=None):
        data = MemoryStore.read(self, key, start, length)
        if key == log_key(0) and length is None:
            self.write(log_key(0, 1), data)
            self.delete(key)
        return data


def test_a_segment_that_was_replaced_meanwhile_stays_for_the_next_round():
    log = filled(RewritingStore())
    assert move(log).segments_moved == 3
    assert "00000000000000000000.log" not in file_names(log.tier)
    assert "00000000000000000000-1.log" in file_names(log.store)


def test_a_segment_that_is_too_large_stays_and_is_named(monkeypatch):
    log = filled()
    log.append((None, bytes(5000)))
    log.append_segments(1)
    monkeypatch.setattr("penstock.log.tiering.HELD_SEGMENT_BYTES_MAX", 4000)
    report = move(log)
    assert report.segments_moved == 4
    assert report.too_large == (log_key(4),)
    assert len(log.stored()) == 7


class PieceStore(MemoryStore):
    """Notes how much is read at once."""

    largest = 0

    def read(self, key, start=0, length=None):
        data = super().read(key, start, length)
        self.largest = max(self.largest, len(data))
        return data


def test_what_was_moved_is_compared_piece_by_piece(monkeypatch):
    monkeypatch.setattr("penstock.log.tiering.PIECE_BYTES", 100)
    log = filled(tier=PieceStore())
    assert move(log).segments_moved == 4
    assert log.tier.largest == 100
