"""Retention: what goes, what stays, and that nothing which is still needed ever goes."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import OffsetOutOfRange
from penstock.log.compaction import Compactor
from penstock.log.names import SegmentName, offset_key
from penstock.log.retention import (
    CLOCK_SLACK_MS,
    Reason,
    RetentionClock,
    find_needs,
    plan_retention,
    retention_info,
)
from penstock.log.retention import retain as retain_partition
from penstock.log.tiering import move_sealed
from penstock.log.topic import Retention, TopicConfig, WhenFull
from penstock.stores.directory import DirectoryStore
from penstock.stores.memory import MemoryStore
from penstock.testing.clock import VirtualClock
from penstock.testing.disk import SimulatedDisk
from tests.log.small_log import (
    HOUR_MS,
    KEYS,
    SmallLog,
    crash_states,
    file_names,
    keep_for_ever,
    log_key,
    on_disk,
    read_all,
)

DAY_MS = 24 * HOUR_MS
DAY_SECONDS = 24 * 3600


def plan(log, retention=None, now_ms=None):
    state = log.state
    needs = find_needs(log.store, state, 0)
    now = log.clock.time_ms() if now_ms is None else now_ms
    return plan_retention(log.reader(), retention or state.config.retention, needs, now)


def retain(log, retention=None, now_ms=None):
    if retention is not None:
        log.topic.change_config(retention=retention)
    now = log.clock.time_ms() if now_ms is None else now_ms
    return retain_partition(log.reader(), log.store, log.tier, now)


def info(log, retention):
    needs = find_needs(log.store, log.state, 0)
    return retention_info(log.reader(), retention, needs, log.clock.time_ms())


# ------------------------------------------------------------------------------------ by time


@pytest.mark.acceptance(48)
def test_segments_older_than_a_day_go_by_default():
    log = SmallLog()
    log.append_segments(3)
    log.clock.advance(DAY_SECONDS)
    log.append_segments(2)
    assert retain(log) == 0, "the youngest record of each segment counts"
    log.clock.advance(1)
    made = plan(log)
    assert [one.reason for one in made.removals] == [Reason.AGE] * 3
    assert retain(log) == 3
    assert log.bases() == [3, 4]
    assert [offset for offset, _, _ in log.stored()] == [3, 4]
    with pytest.raises(OffsetOutOfRange):
        log.stored(2)


def test_the_last_segment_stays_however_old():
    log = SmallLog()
    log.append((None, b"only"))
    log.clock.advance(10 * DAY_SECONDS)
    assert retain(log) == 0
    assert log.stored() == [(0, None, b"only")]


def test_a_sealed_last_segment_stays_so_that_the_end_is_never_forgotten():
    """A crash right after a roll leaves the sealed segment alone; it holds the next offset."""
    log = SmallLog()
    log.append_segments(2)
    log.store.delete(log_key(1))
    log.store.delete(KEYS.head)
    log.open()
    log.clock.advance(10 * DAY_SECONDS)
    assert log.head().segment_base == 1
    assert log.bases() == [0]
    assert retain(log) == 0
    log.store.delete(KEYS.head)
    log.open()
    assert log.append((None, b"next")) == 1


def test_a_forward_jump_of_the_clock_deletes_nothing_young():
    log = SmallLog()
    clock = RetentionClock(log.clock)
    log.append_segments(3)
    log.clock.jump(10 * 365 * DAY_MS)
    assert clock.now_ms() == log.clock.time_ms() - 10 * 365 * DAY_MS + CLOCK_SLACK_MS
    assert retain(log, now_ms=clock.now_ms()) == 0
    log.clock.advance(DAY_SECONDS)
    assert retain(log, now_ms=clock.now_ms()) == 2


def test_a_clock_that_goes_back_deletes_nothing_early():
    log = SmallLog()
    log.clock.jump(DAY_MS)
    clock = RetentionClock(log.clock)
    log.append_segments(3)
    log.clock.jump(-DAY_MS)
    log.append_segments(1)
    log.clock.advance(DAY_SECONDS + 1)
    assert clock.now_ms() == log.clock.time_ms()
    assert retain(log, now_ms=clock.now_ms()) == 0, "they look a day younger, so they stay"
    log.clock.advance(DAY_SECONDS)
    assert retain(log, now_ms=clock.now_ms()) == 3


# ------------------------------------------------------------------------------------ by size


@pytest.mark.acceptance(49)
@pytest.mark.parametrize("when_full", WhenFull)
def test_the_size_stays_below_the_limit_and_one_segment(tmp_path, when_full):
    limit, segment = 10_000_000, 1_000_000
    store = DirectoryStore(tmp_path)
    log = SmallLog(store)
    files = log.subscribe("billing")
    retention = Retention(bytes_max=limit, when_full=when_full)
    held = info(log, retention)
    for _ in range(50):
        files.commit(log.head().next_offset, 0)
        log.roll()
        log.append((None, bytes(segment)))
        retain(log, retention)
        held = info(log, retention)
        assert held.bytes <= limit + 2 * segment
        assert not held.full
    assert held.sealed_bytes > limit - 2 * segment, "no more than needed is removed"


@pytest.mark.acceptance(49)
def test_at_the_limit_a_topic_can_reject_instead_of_deleting():
    log = SmallLog()
    subscriber = log.subscribe("billing")
    retention = Retention(bytes_max=700, when_full=WhenFull.REJECT, protect_subscribers=False)
    log.append_segments(4, b"x" * 200)
    assert retain(log, retention) == 0
    held = info(log, retention)
    assert held.full
    assert held.blocked_by
    assert "billing" in held.blocked_by
    subscriber.commit(3, 0)
    assert retain(log, retention) == 3 - 1, "only as many as it takes"
    assert not info(log, retention).full


def test_without_a_subscriber_a_rejecting_topic_keeps_everything():
    log = SmallLog()
    retention = Retention(bytes_max=1, when_full=WhenFull.REJECT)
    log.append_segments(3)
    assert retain(log, retention) == 0
    assert info(log, retention).full


def test_size_removes_the_oldest_even_if_a_subscriber_needs_them_when_the_topic_says_so():
    log = SmallLog()
    log.subscribe("slow")
    log.append_segments(4)
    retention = Retention(bytes_max=1, protect_subscribers=False)
    assert [one.reason for one in plan(log, retention).removals] == [Reason.SIZE] * 3


# -------------------------------------------------------------------------- by acknowledgement


@pytest.mark.acceptance(50)
def test_what_every_subscriber_acknowledged_goes_at_once():
    log = SmallLog()
    fast, slow = log.subscribe("fast"), log.subscribe("slow")
    retention = Retention(age_ms_max=None, bytes_max=None, acknowledged=True)
    log.append_segments(5)
    fast.commit(5, 0)
    assert retain(log, retention) == 0
    blocked = plan(log, retention).blocked
    assert blocked
    assert blocked.subscriber == "slow"
    slow.commit(3, 0)
    assert [one.reason for one in plan(log, retention).removals] == [Reason.ACKNOWLEDGED] * 3
    assert retain(log, retention) == 3
    assert log.bases() == [3, 4]


@pytest.mark.acceptance(50)
def test_a_half_acknowledged_segment_stays():
    log = SmallLog()
    subscriber = log.subscribe("billing")
    log.append((None, b"1"), (None, b"2"))
    log.append_segments(1)
    subscriber.commit(1, 0)
    assert retain(log, Retention(acknowledged=True)) == 0


def test_without_subscribers_nothing_counts_as_acknowledged():
    log = SmallLog()
    log.append_segments(3)
    assert retain(log, Retention(acknowledged=True)) == 0


# ------------------------------------------------------------------- what subscribers need


@pytest.mark.acceptance(47)
def test_a_lagging_subscriber_blocks_deletion_across_a_restart(tmp_path):
    log = SmallLog(DirectoryStore(tmp_path))
    log.subscribe("fast").commit(4, 0)
    log.append_segments(5)
    slow = log.subscribe("slow")
    slow.commit(2, 0)
    retention = Retention(age_ms_max=1, bytes_max=1)
    log.clock.advance(DAY_SECONDS)
    log.log.close()
    again = SmallLog(DirectoryStore(tmp_path), clock=log.clock)
    made = plan(again, retention)
    assert [one.source.name.base for one in made.removals] == [0, 1]
    assert made.blocked
    assert made.blocked.subscriber == "slow"
    assert retain(again, retention) == 2
    assert [offset for offset, _, _ in again.stored(2)] == [2, 3, 4]
    again.topic.remove_subscriber("slow")
    assert retain(again, retention) == 2, "it is forgotten, and the other one consumed these"


@pytest.mark.acceptance(47)
def test_a_subscriber_that_never_committed_needs_everything_from_its_start():
    log = SmallLog()
    log.append_segments(4)
    log.topic.add_subscriber("new", {0: 1})
    assert find_needs(log.store, log.state, 0).lowest == 1
    assert [one.source.name.base for one in plan(log, Retention(bytes_max=1)).removals] == [0]


def test_a_damaged_offset_file_keeps_everything_and_is_reported():
    log = SmallLog()
    log.subscribe("billing").commit(3, 0)
    log.append_segments(4)
    log.store.write_at(offset_key("billing", "orders", 0), 0, [b"\xff" * 1024])
    needs = find_needs(log.store, log.state, 0)
    assert needs.lowest == 0
    assert [str(one.fields["file"]) for one in needs.unreadable] == [
        "groups/billing/orders-0.offset"
    ]
    assert retain(log, Retention(age_ms_max=1, bytes_max=1, acknowledged=True)) == 0


# --------------------------------------------------------------------------- files and crashes


def test_a_damaged_segment_is_not_removed_but_named():
    log = SmallLog()
    log.append_segments(3)
    log.store.truncate(log_key(0), log.store.size(log_key(0)) - 1)
    made = plan(log, Retention(bytes_max=1))
    assert made.removals == ()
    assert made.blocked
    assert "damage" in made.blocked.by


def test_every_file_of_a_segment_goes_and_leftovers_too():
    log = SmallLog()
    log.append_segments(3)
    older = log.store.read(log_key(0))
    log.store.write(log_key(0, 1), older)
    log.store.write(KEYS.index(SegmentName(0)), b"")
    log.store.write(KEYS.index(SegmentName(77)), b"left by a crash")
    log.clock.advance(2 * DAY_SECONDS)
    retain(log)
    assert file_names(log.store) == ["00000000000000000002.log"]
    assert file_names(log.store, ".index") == []


def test_retention_waits_while_another_process_is_at_work():
    log = SmallLog()
    log.append_segments(3)
    log.clock.advance(2 * DAY_SECONDS)
    with log.store.lock(KEYS.maintenance, 0):
        assert retain(log) == 0
    assert retain(log) == 2


def test_segments_in_the_tier_go_too():
    log = SmallLog(tier=MemoryStore())
    log.append_segments(4)
    move_sealed(log.store, KEYS, log.tier, keep_local=1)
    log.clock.advance(2 * DAY_SECONDS)
    assert retain(log) == 3
    assert file_names(log.tier) == []
    assert log.bases() == [3]


def test_information_for_people():
    log = SmallLog()
    log.append_segments(3)
    held = info(log, Retention())
    assert (held.segments, held.earliest_offset, held.full) == (3, 0, False)
    assert held.oldest_timestamp == log.clock.time_ms()
    assert held.bytes == sum(one.size() for one in log.reader().segments())
    assert SmallLog().reader().segments() == []
    assert info(SmallLog(), Retention()).oldest_timestamp is None


def test_a_power_cut_between_removals_leaves_a_valid_log():
    disk = SimulatedDisk()
    log = SmallLog(on_disk(disk))
    log.append_segments(5)
    log.clock.advance(2 * DAY_SECONDS)
    states, _ = crash_states(disk)
    assert retain(log) == 4
    assert len(states) > 4
    for state in states:
        after = SmallLog(on_disk(state), clock=log.clock)
        offsets = [offset for offset, _, _ in after.stored()]
        assert offsets == list(range(offsets[0], 5))
        retain(after)
        assert after.bases() == [4]
        assert after.append((None, b"next")) == 5


def test_a_power_cut_never_brings_an_older_rewrite_back():
    disk = SimulatedDisk()
    log = SmallLog(on_disk(disk))
    log.append((b"a", b"old"), (b"a", b"new"))
    log.append_segments(1)
    old = log.store.read(log_key(0))
    Compactor(log.store, KEYS).run(log.clock.time_ms())
    log.store.write(log_key(0), old)
    log.clock.advance(2 * DAY_SECONDS)
    states, _ = crash_states(disk)
    assert retain(log) == 1
    for state in states:
        after = SmallLog(on_disk(state), clock=log.clock)
        assert after.stored() in ([(1, b"a", b"new"), (2, None, b"v")], [(2, None, b"v")])


# ----------------------------------------------------------------------------- any sequence

STEPS = st.one_of(
    st.tuples(st.just("append"), st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=4)),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("pass"), st.integers(1, 3)),
    st.tuples(st.just("commit"), st.integers(0, 40)),
    st.tuples(st.just("retain"), st.none()),
    st.tuples(st.just("compact"), st.none()),
    st.tuples(st.just("tier"), st.integers(0, 2)),
    st.tuples(st.just("reopen"), st.none()),
)  # fmt: skip


class Model:
    """What every reader must find, said in the plainest way."""

    def __init__(self):
        self.rows = {}
        self.next = 0
        self.committed = 0

    def append(self, rows):
        for row in rows:
            self.rows[self.next] = row
            self.next += 1

    def newest(self):
        return {key: offset for offset, (key, _) in sorted(self.rows.items())}


@pytest.mark.acceptance(47, 51)
@given(st.lists(STEPS, min_size=3, max_size=25), st.booleans())
def test_any_sequence_of_upkeep_equals_a_model(steps, acknowledged):
    clock = VirtualClock()
    log = SmallLog(tier=MemoryStore(), clock=clock, config=TopicConfig(retention=keep_for_ever()))
    subscriber = log.subscribe("billing")
    retention = Retention(age_ms_max=2 * HOUR_MS, bytes_max=600, acknowledged=acknowledged)
    model = Model()
    for step, argument in steps:
        if step == "append":
            rows = [
                (
                    b"k%d" % key if key else None,
                    None if empty and key else b"%d" % (model.next + at),
                )
                for at, (key, empty) in enumerate(argument)
            ]
            assert log.append(*rows) == model.next
            model.append(rows)
        elif step == "roll":
            log.roll()
        elif step == "pass":
            clock.advance(argument * 3600)
        elif step == "commit":
            model.committed = max(model.committed, min(argument, model.next))
            subscriber.commit(model.committed, 0)
        elif step == "retain":
            retain(log, retention)
        elif step == "compact":
            Compactor(log.store, KEYS, log.tier).run(clock.time_ms())
        elif step == "tier":
            move_sealed(log.store, KEYS, log.tier, keep_local=argument)
        else:
            log.log.close()
            log.open()
        check_against_model(log, model)


def check_against_model(log, model):
    earliest = log.reader().earliest()
    stored = log.stored()
    newest = model.newest()
    assert log.head().next_offset == model.next
    assert earliest <= model.committed or earliest == 0, "a record that is still needed is gone"
    found = {offset: (key, value) for offset, key, value in stored}
    assert list(found) == sorted(found)
    for offset, row in model.rows.items():
        if offset in found:
            assert found[offset] == row, "an offset changed its record"
        elif offset >= earliest:
            key, value = row
            assert key is not None, "only a record with a key may be compacted away"
            assert newest[key] > offset or value is None


def test_reading_by_time_skips_what_is_gone():
    log = SmallLog()
    log.append_segments(3)
    log.clock.advance(2 * DAY_SECONDS)
    log.append_segments(1)
    moment = log.clock.time_ms()
    retain(log)
    assert log.reader().offset_at(moment) == 3
    assert datetime.fromtimestamp(moment / 1000, UTC).year == 2026
    assert read_all(log.reader(), 3) == [(3, None, b"v")]
