"""Tombstones in key compaction: how long they stay, and for whom."""

import pytest

from penstock.log.compaction import Compactor
from penstock.testing.disk import SimulatedDisk
from tests.log.small_log import DAY_SECONDS, HOUR_MS, KEYS, SmallLog, compact, crash_states, on_disk

# --------------------------------------------------------------------------------- tombstones


def test_a_tombstone_stays_a_day_and_then_goes_with_its_key():
    log = SmallLog()
    compactor = Compactor(log.store, KEYS)
    log.append((b"a", b"1"), (b"b", b"1"))
    log.append((b"a", None))
    log.append_segments(1)
    compactor.run(log.clock.time_ms())
    assert [offset for offset, _, _ in log.stored()] == [1, 2, 3]
    log.clock.advance(DAY_SECONDS)
    assert not compactor.is_due(log.clock.time_ms())
    log.clock.advance(1)
    assert compactor.is_due(log.clock.time_ms())
    compactor.run(log.clock.time_ms())
    assert [offset for offset, _, _ in log.stored()] == [1, 3]
    assert not compactor.is_due(log.clock.time_ms())


def test_the_age_of_tombstones_can_be_the_topics_retention():
    log = SmallLog()
    log.append((b"a", None))
    log.append_segments(1)
    log.clock.advance(2 * 3600)
    compact(log, tombstone_age_ms=3 * HOUR_MS)
    assert len(log.stored()) == 2
    compact(log, tombstone_age_ms=HOUR_MS)
    assert len(log.stored()) == 1


def test_a_tombstone_that_was_overwritten_goes_at_once():
    log = SmallLog()
    log.append((b"a", None))
    log.roll()
    log.append((b"a", b"back"))
    compact(log)
    assert log.stored() == [(1, b"a", b"back")]


def test_a_power_cut_never_brings_back_what_a_tombstone_removed():
    disk = SimulatedDisk()
    log = SmallLog(on_disk(disk))
    for number in range(3):
        log.append((b"a", b"%d" % number), (b"b", b"%d" % number))
        log.roll()
    log.append((b"a", None))
    log.append_segments(1)
    log.clock.advance(2 * DAY_SECONDS)
    states, _ = crash_states(disk)
    compact(log)
    after = {b"a": 6, b"b": 5}
    assert [row for row in log.stored() if row[1]] == [(5, b"b", b"2")]
    for state in states:
        opened = SmallLog(on_disk(state), clock=log.clock)
        newest = {key: offset for offset, key, _ in opened.stored() if key}
        assert newest in (after, {b"b": 5}), "an old value came back"
        compact(opened)
        assert [row for row in opened.stored() if row[1]] == [(5, b"b", b"2")]


# ------------------------------------------------------------------------------------- bounds


def test_a_segment_too_large_to_rewrite_keeps_its_values_and_their_tombstones(monkeypatch):
    log = SmallLog()
    log.append((b"a", b"x" * 5000))
    log.roll()
    log.append((b"a", None))
    log.append_segments(1)
    log.clock.advance(2 * DAY_SECONDS)
    monkeypatch.setattr("penstock.log.compaction.HELD_SEGMENT_BYTES_MAX", 4000)
    compact(log)
    assert [offset for offset, _, _ in log.stored()] == [0, 1, 2]


# -------------------------------------------------------------------------------- subscribers


def with_old_tombstone():
    """A value at 0 and its tombstone at 1, both sealed and old."""
    log = SmallLog()
    log.append((b"a", b"0"))
    log.append((b"a", None))
    log.roll()
    log.append((None, b"2"))
    log.clock.advance(2 * DAY_SECONDS)
    return log


@pytest.mark.parametrize(("consumed", "goes"), [(0, False), (1, False), (2, True)])
def test_a_tombstone_waits_for_every_subscriber(consumed, goes):
    log = with_old_tombstone()
    log.subscribe("quick", 3)
    log.subscribe("slow", consumed)
    compact(log)
    expected = [(2, None, b"2")] if goes else [(1, b"a", None), (2, None, b"2")]
    assert log.stored() == expected


def test_a_tombstone_goes_when_the_last_subscriber_has_consumed_it():
    log = with_old_tombstone()
    offsets = log.subscribe("slow", 1)
    now = log.clock.time_ms()
    compactor = Compactor(log.store, KEYS)
    compactor.run(now)
    assert not compactor.is_due(now), "nothing has changed since"
    offsets.commit(2, now)
    assert compactor.is_due(now)
    compactor.run(now)
    assert log.stored() == [(2, None, b"2")]
    assert not compactor.is_due(now)
