"""Opening after a crash: what is torn is cut and reported, what is damaged is refused and named."""

import pytest

from penstock.errors import DamagedEntry, DamagedFile, StoreFailed, UnsupportedFormat
from penstock.log.frame import seal
from penstock.log.names import SegmentName
from penstock.log.retention import Needs, plan_retention
from penstock.log.topic import Retention
from penstock.testing.disk import SimulatedDisk
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

FIRST = f"{FOLDER}/{0:020d}.log"
HEAD = f"{FOLDER}/head"


def appended(*values: bytes, sync: bool = True, **options) -> Machine:
    one = machine(**options)
    for value in values:
        one.append(value, sync=sync)
    return one


def test_a_clean_log_opens_without_reading_it():
    one = appended(*[b"x" * 1_000] * 20)
    one.log.close()
    two = machine(one.disk.kill())
    report = two.log.attach()
    assert report.clean
    assert (report.next_offset, report.bytes_checked, report.bytes_cut) == (20, 0, 0)
    assert (report.topic, report.partition) == ("orders", 0)
    assert two.store.statistics().bytes_read < 4_000


def test_without_its_head_the_last_segment_is_read_to_be_checked_and_to_be_written_again():
    """Twice, that is: not a third time to look at its first entry."""
    one = appended(*[b"x" * 1_000] * 20)
    one.log.close()
    disk = one.disk.kill()
    disk.unlink(HEAD)
    two = machine(disk)
    report = two.log.attach()
    assert report.next_offset == 20
    assert report.bytes_checked > 20_000
    assert two.store.statistics().bytes_read < report.bytes_checked * 2.5


def test_records_that_were_only_written_survive_the_process_and_become_durable():
    one = appended(b"0", b"1", sync=False)
    two = machine(one.disk.kill())
    assert two.values() == []
    report = two.log.attach()
    assert (report.next_offset, report.clean) == (2, True)
    assert report.bytes_checked > 0
    (only,) = two.disk.crash_states(20)
    assert machine(only).values() == [b"0", b"1"]


@pytest.mark.acceptance(46, 56)
def test_a_power_cut_in_the_very_first_append_leaves_a_log_that_opens():
    """Found by the simulation: a torn first entry was taken for damage."""
    one = machine()
    one.log.attach()
    states: list[SimulatedDisk] = []
    one.disk.on_sync(lambda point: states.extend(one.disk.crash_states(60)))
    one.append(b"0")
    assert len(states) > 60
    for state in states:
        two = machine(state)
        two.log.attach()
        assert two.values() in ([], [b"0"])
        assert two.append(b"next") == len(two.values()) - 1


def test_a_power_cut_in_the_first_append_after_a_roll_leaves_a_log_that_opens():
    one = appended(b"0" * 300, segment_bytes_max=256)
    states: list[SimulatedDisk] = []
    one.disk.on_sync(lambda point: states.extend(one.disk.crash_states(60)))
    one.append(b"1")
    for state in states:
        two = machine(state)
        two.log.attach()
        assert two.values() in ([b"0" * 300], [b"0" * 300, b"1"])


def test_a_roll_that_died_before_its_sync_is_made_durable_by_the_next_open():
    """Given a footer that only the page cache has, its segment is synced before anything builds on it."""
    one = appended(b"0" * 300, segment_bytes_max=256)
    one.append(b"1" * 300, sync=False)
    one.disk.fail("sync", path="*.log")
    with pytest.raises(StoreFailed):
        one.append(b"2")
    two = machine(one.disk.kill(), segment_bytes_max=256)
    two.log.attach()
    assert two.append(b"2") == 2
    for state in two.disk.crash_states(60):
        three = machine(state)
        three.log.attach()
        assert three.values() == [b"0" * 300, b"1" * 300, b"2"]


def test_time_does_not_go_back_after_a_lost_tail():
    """The last durable entry is older than the lost one, and younger than the clock now."""
    one = machine()
    first = one.log.append([values_draft(b"0")], sync=True).timestamp
    one.system.clock.jump(60_000)
    one.append(b"lost", sync=False)
    for state in one.disk.crash_states(40):
        two = machine(state)
        two.system.clock.jump(-(10**9))
        two.log.attach()
        assert two.log.append([values_draft(b"1")], sync=True).timestamp >= first
        two.disk.delete(HEAD)
        assert machine(two.disk.kill()).log.attach().head_lost


def test_damage_to_durable_records_is_named_with_the_way_out():
    one = appended(b"0", b"1", b"2")
    disk = copy_of(one.disk, {HEAD: None})
    (source,) = one.reader.segments()
    position = [entry.position for entry in source.entries(0, source.size())][2]
    disk.flip_bit(FIRST, 8 * (position + 75))
    before = disk.content(FIRST)
    two = machine(disk)
    with pytest.raises(DamagedEntry, match=r"repair\(\)") as caught:
        two.log.attach()
    assert caught.value.file == KEYS.log(SegmentName(0))
    assert caught.value.position == position
    assert caught.value.offset == 1
    assert caught.value.durable_offset == 2
    assert disk.content(FIRST) == before


def test_a_missing_segment_is_named():
    one = appended(*[b"%d" % number * 300 for number in range(4)], segment_bytes_max=256)
    paths = segment_paths(one.disk)
    two = machine(copy_of(one.disk, {paths[-1]: None}))
    with pytest.raises(DamagedFile, match="Put it back") as caught:
        two.log.attach()
    assert caught.value.file == paths[-1].removeprefix("/data/log/")


def test_a_newer_format_is_refused_and_never_cut():
    one = appended(b"0", sync=False)
    content = bytearray(one.disk.content(FIRST))
    from crc32c import crc32c

    start = bytes(content).rfind(b"PNSK")
    content[start + 4] = 2
    head = bytes(content[start - 4 : start + 64])
    content[start + 64 : start + 68] = crc32c(head).to_bytes(4, "little")
    disk = copy_of(one.disk, {FIRST: bytes(content)})
    with pytest.raises(UnsupportedFormat, match="version 2"):
        machine(disk).log.attach()
    assert disk.content(FIRST) == bytes(content)


def test_a_value_that_looks_like_a_log_does_not_confuse_recovery():
    """Given a torn tail whose value holds entries of another log that claim more, it is cut."""
    other = machine(seed=99)
    for number in range(50):
        other.append(b"%d" % number)
    posing = other.disk.content(FIRST)
    one = appended(b"0")
    one.append(posing, sync=False)
    whole = one.disk.content(FIRST)
    start = whole.index(posing)
    for cut in (len(whole) - 1, start + len(posing) // 2, start + 300):
        two = machine(copy_of(one.disk, {FIRST: whole[:cut]}))
        report = two.log.attach()
        assert report.next_offset == 1
        assert report.bytes_cut > 0
        assert two.values() == [b"0"]
    torn = copy_of(one.disk, {FIRST: flip(whole, 8 * (start + 10))})
    two = machine(torn)
    assert two.log.attach().next_offset == 1


def test_an_entry_that_repeats_is_not_taken_twice():
    """The bytes of the last entry once more behind it: the chain and the offset do not fit."""
    one = appended(b"0", b"1")
    content = one.disk.content(FIRST)
    (source,) = one.reader.segments()
    last = [entry.position for entry in source.entries(0, source.size())][-1]
    two = machine(copy_of(one.disk, {FIRST: content + content[last:]}))
    assert two.log.attach().bytes_cut == len(content) - last
    assert two.values() == [b"0", b"1"]


def test_an_entry_with_the_right_offset_and_the_wrong_chain_is_cut():
    one = appended(b"0")
    forged = b"".join(seal(values_draft(b"forged"), 1, 1, 12345, 1 << 60)[0])
    two = machine(copy_of(one.disk, {FIRST: one.disk.content(FIRST) + forged}))
    assert two.log.attach().bytes_cut == len(forged)
    assert two.values() == [b"0"]


def test_segments_behind_a_torn_one_go_only_when_nothing_in_them_was_durable():
    """A stray file behind the end is removed and reported; a real one is never."""
    one = appended(b"0")
    stray = f"{FOLDER}/{7:020d}.log"
    two = machine(copy_of(one.disk, {stray: b"not a segment"}))
    report = two.log.attach()
    assert report.bytes_cut == len(b"not a segment")
    assert stray not in two.disk.files()
    assert two.values() == [b"0"]


def test_a_crash_between_the_steps_of_a_cut_is_mended_by_the_next_open():
    one = appended(b"0")
    for number in range(6):
        one.append(b"%d" % number * 300, sync=False)
    torn = one.disk.kill()
    torn.truncate_file(FIRST, len(torn.content(FIRST)) - 5)
    expected = machine(torn.kill())
    expected.log.attach()
    values = expected.values()
    states: list[SimulatedDisk] = []
    two = machine(torn)
    torn.on_sync(lambda point: states.extend(torn.crash_states(20)))
    two.log.attach()
    for state in states:
        three = machine(state)
        three.log.attach()
        assert three.values() == values[: len(three.values())]
        assert three.values()[:1] == [b"0"]


def test_an_attached_process_takes_in_what_others_left_unsynced():
    """Opening makes the records that a live process has only written durable."""
    disk = SimulatedDisk()
    one = machine(disk, seed=1)
    one.append(b"0", sync=False)
    two = machine(disk, seed=2)
    two.log.attach()
    assert two.values() == [b"0"]
    assert one.append(b"1") == 1
    assert two.append(b"2") == 2
    assert one.values() == [b"0", b"1", b"2"]


def test_the_log_id_is_the_same_in_every_segment_whoever_wrote_it():
    """Given two processes that open an empty partition, the second to write asks the first's file."""
    disk = SimulatedDisk()
    one, two = (machine(disk, seed=seed, segment_bytes_max=256) for seed in (1, 2))
    one.log.attach()
    two.log.attach()
    for number in range(6):
        (one, two)[number % 2].append(b"%d" % number * 300)
    assert len(machine(disk.kill()).values()) == 6
    disk.delete(HEAD)
    assert machine(disk.kill()).log.attach().next_offset == 6


def test_a_process_that_opened_before_the_first_record_adopts_what_a_dead_one_left():
    disk = SimulatedDisk()
    one, two = machine(disk, seed=1), machine(disk, seed=2)
    one.log.attach()
    two.log.attach()
    disk.fail("write", path="*head")
    with pytest.raises(StoreFailed):
        one.append(b"dead")
    disk.heal()
    assert two.append(b"live") in (0, 1)
    assert two.values()[-1] == b"live"


def test_the_last_segment_with_something_durable_is_never_removed():
    """Found by the simulation: with the new segment and both slots of the head torn away,
    offsets started anew at 0, below what subscribers had committed."""
    one = appended(b"0" * 300, segment_bytes_max=256)
    one.append(b"1", sync=False)
    limit = Retention(age_ms_max=None, bytes_max=1)
    assert len(segment_paths(one.disk)) == 2
    plan = plan_retention(one.reader, limit, Needs(), 0)
    assert plan.removals == ()
    one.log.sync()
    plan = plan_retention(one.reader, limit, Needs(), 0)
    assert [removal.next_offset for removal in plan.removals] == [1]
