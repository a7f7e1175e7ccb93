"""What a power cut, a kill and a failed sync leave on the simulated disk."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.system import Files
from penstock.testing.disk import SimulatedDisk, SyncPoint
from penstock.testing.disk_crash import sector_edges, tears

LOG = "/data/log"


def durable_file(content: bytes) -> tuple[SimulatedDisk, int]:
    disk = SimulatedDisk()
    disk.put(LOG, content)
    return disk, disk.open(LOG)


def contents_after_cut(disk: SimulatedDisk, limit: int = 2_000) -> set[bytes | None]:
    states = disk.crash_states(limit, Random(1))
    return {state.content(LOG) if state.exists(LOG) else None for state in states}


def test_the_disk_is_a_files():
    files: Files = SimulatedDisk()
    assert files.list_directory("/") == [("data", True)]


def test_without_pending_operations_there_is_one_state():
    disk, descriptor = durable_file(b"old")
    disk.write(descriptor, [b"new"], 0)
    disk.sync(descriptor)
    states = list(disk.crash_states(100))
    assert [state.content(LOG) for state in states] == [b"new"]
    assert states[0].describe() == []


def test_first_state_has_nothing_and_second_has_everything():
    disk, descriptor = durable_file(b"old")
    disk.write(descriptor, [b"n", b"ew!"], 0)
    nothing, everything, *_ = disk.crash_states(10)
    assert nothing.content(LOG) == b"old"
    assert everything.content(LOG) == b"new!"
    assert nothing.describe() == [f"lost: write 4 bytes at 0 of {LOG}"]


def test_a_small_write_is_torn_at_every_byte():
    disk, descriptor = durable_file(b"")
    disk.write(descriptor, [b"abcd"], 0)
    assert contents_after_cut(disk) == {b"", b"a", b"ab", b"abc", b"abcd", bytes(4)}


def test_pending_writes_are_kept_and_lost_independently():
    disk, descriptor = durable_file(b"....")
    for position in range(4):
        disk.write(descriptor, [b"x"], position)
    found = contents_after_cut(disk)
    wanted = {bytes(b"x."[number >> bit & 1] for bit in range(4)) for number in range(16)}
    assert wanted <= found


def test_each_of_many_pending_writes_is_once_the_only_one_lost_and_once_the_only_one_kept():
    disk, descriptor = durable_file(bytes(40))
    for position in range(40):
        disk.write(descriptor, [b"x"], position)
    counts = [content.count(b"x") for content in contents_after_cut(disk) if content]
    assert (counts.count(39), counts.count(1)) == (40, 40)


def test_a_lost_write_below_a_kept_one_leaves_zeros():
    disk, descriptor = durable_file(b"")
    disk.write(descriptor, [b"aa"], 0)
    disk.write(descriptor, [b"bb"], 2)
    assert b"\0\0bb" in contents_after_cut(disk)


def test_sectors_of_one_write_arrive_in_any_combination():
    disk, descriptor = durable_file(bytes(1_536))
    disk.write(descriptor, [b"x" * 1_536], 0)
    patterns = {
        tuple(content[sector : sector + 1] == b"x" for sector in (0, 512, 1_024))
        for content in contents_after_cut(disk)
        if content
    }
    assert len(patterns) == 8


@given(st.integers(0, 2_000), st.integers(1, 3_000), st.randoms(use_true_random=False))
def test_tears_lie_inside_the_write_and_sectors_on_edges(position, length, random):
    edges = sector_edges(position, length)
    assert all((position + edge) % 512 == 0 and 0 < edge < length for edge in edges)
    for outcome in tears(position, length, random):
        assert all(0 <= start < stop <= length for start, stop in outcome.slices)


def test_a_truncate_is_pending_until_sync():
    disk, descriptor = durable_file(b"abcdef")
    disk.truncate(descriptor, 2)
    disk.write(descriptor, [b"Z"], 2)
    assert contents_after_cut(disk) == {b"abcdef", b"ab", b"abZ", b"abZdef", b"ab\0"}
    disk.sync(descriptor)
    assert contents_after_cut(disk) == {b"abZ"}


def test_sync_of_a_file_does_not_save_its_name():
    disk = SimulatedDisk()
    descriptor = disk.open(LOG, create=True)
    disk.write(descriptor, [b"x"], 0)
    disk.sync(descriptor)
    assert contents_after_cut(disk) == {None, b"x"}
    disk.sync_directory("/data")
    assert contents_after_cut(disk) == {b"x"}


def test_sync_of_a_directory_does_not_save_the_data():
    disk = SimulatedDisk()
    descriptor = disk.open(LOG, create=True)
    disk.write(descriptor, [b"xy"], 0)
    disk.sync_directory("/data")
    assert contents_after_cut(disk) == {b"", b"x", b"xy", bytes(2)}


def test_a_directory_needs_the_sync_of_its_parent():
    disk = SimulatedDisk()
    disk.make_directory("/data/d")
    disk.sync(disk.open("/data/d/f", create=True))
    disk.sync_directory("/data/d")
    assert {tuple(state.files()) for state in disk.crash_states(100)} == {(), ("/data/d/f",)}
    disk.sync_directory("/data")
    assert [state.files() for state in disk.crash_states(100)] == [["/data/d/f"]]


def test_a_rename_is_old_or_new_and_never_both():
    disk = SimulatedDisk()
    disk.put("/data/a", b"A")
    disk.put("/data/b", b"B")
    disk.rename("/data/a", "/data/b")
    found = {
        tuple((path, state.content(path)) for path in state.files())
        for state in disk.crash_states(100)
    }
    assert found == {(("/data/a", b"A"), ("/data/b", b"B")), (("/data/b", b"A"),)}


def test_a_rename_between_directories_needs_both_synced():
    disk = SimulatedDisk(directories=["/x", "/y"])
    disk.put("/x/f", b"")
    disk.rename("/x/f", "/y/f")
    disk.sync_directory("/y")
    assert {tuple(state.files()) for state in disk.crash_states(9)} == {("/x/f",), ("/y/f",)}
    disk.sync_directory("/x")
    assert [state.files() for state in disk.crash_states(9)] == [["/y/f"]]


def test_a_durable_rename_makes_the_one_before_it_durable():
    disk = SimulatedDisk(directories=["/x", "/y"])
    disk.put("/x/f", b"")
    disk.rename("/x/f", "/y/f")
    disk.rename("/y/f", "/y/g")
    disk.sync_directory("/y")
    assert [state.files() for state in disk.crash_states(9)] == [["/y/g"]]


def test_a_file_that_was_made_and_removed_may_come_back():
    disk = SimulatedDisk(directories=["/data", "/other"])
    disk.close(disk.open(LOG, create=True))
    disk.unlink(LOG)
    disk.sync_directory("/other")
    assert contents_after_cut(disk) == {None, b""}


def test_names_are_reordered_but_changes_of_one_file_are_not():
    disk = SimulatedDisk()
    disk.put("/data/old", b"old")
    disk.rename("/data/old", "/data/middle")
    disk.rename("/data/middle", "/data/new")
    disk.open("/data/other", create=True)
    found = {tuple(state.files()) for state in disk.crash_states(500)}
    names = {("/data/old",), ("/data/middle",), ("/data/new",)}
    assert found == names | {tuple(sorted([*each, "/data/other"])) for each in names}


def test_a_removed_directory_does_not_take_along_what_was_moved_out():
    disk = SimulatedDisk(directories=["/d", "/e"])
    disk.put("/d/f", b"")
    disk.rename("/d/f", "/e/f")
    disk.remove_directory("/d")
    assert all(len(state.files()) == 1 for state in disk.crash_states(100))


def test_an_unlink_may_be_lost_and_the_content_comes_back():
    disk, descriptor = durable_file(b"alive")
    disk.close(descriptor)
    disk.unlink(LOG)
    assert contents_after_cut(disk) == {b"alive", None}
    disk.sync_directory("/data")
    assert contents_after_cut(disk) == {None}


def test_an_unlinked_file_is_readable_while_it_is_open():
    disk, descriptor = durable_file(b"alive")
    disk.unlink(LOG)
    disk.sync_directory("/data")
    assert disk.read(descriptor, 9, 0) == b"alive"
    assert disk.status(descriptor) == (5, 0)


def test_states_are_independent_of_each_other_and_of_the_disk():
    disk, descriptor = durable_file(b"old")
    disk.write(descriptor, [b"new"], 0)
    states = disk.crash_states(100)
    first, second = next(states), next(states)
    first.write(first.open(LOG), [b"1st"], 0)
    disk.write(descriptor, [b"later"], 0)
    disk.sync(descriptor)
    assert (first.content(LOG), second.content(LOG)) == (b"1st", b"new")
    assert all(state.content(LOG) != b"later" for state in states)


def test_the_same_seed_gives_the_same_states():
    disk, descriptor = durable_file(b"")
    for number in range(9):
        disk.write(descriptor, [bytes([number]) * 700], number * 700)
    runs = [[s.content(LOG) for s in disk.crash_states(300, Random(7))] for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(runs[0]) == 300


def test_a_crash_of_a_crash_state_goes_on():
    disk = SimulatedDisk()
    disk.open(LOG, create=True)
    state = list(disk.crash_states(2))[1]
    descriptor = state.open(LOG)
    state.write(descriptor, [b"x"], 0)
    state.open("/data/second", create=True)
    assert contents_after_cut(state) == {b"", b"x", b"\0"}


def test_kill_keeps_data_and_names_but_not_descriptors_and_locks():
    disk = SimulatedDisk()
    descriptor = disk.open(LOG, create=True)
    assert disk.try_lock(descriptor)
    disk.write(descriptor, [b"x"], 0)
    after = disk.kill()
    assert (after.content(LOG), after.open_descriptors()) == (b"x", {})
    assert after.try_lock(after.open(LOG))
    with pytest.raises(OSError, match="Bad file descriptor"):
        after.read(descriptor, 1, 0)
    assert contents_after_cut(after) == {None, b"", b"\0", b"x"}


def test_kill_leaves_a_disk_of_its_own():
    disk, descriptor = durable_file(b"old")
    disk.write(descriptor, [b"new"], 0)
    after = disk.kill()
    disk.sync(descriptor)
    assert b"old" in contents_after_cut(after)
    after.sync(after.open(LOG))
    assert contents_after_cut(after) == {b"new"}


def test_a_failed_sync_strands_the_data_for_good():
    disk, descriptor = durable_file(b"old")
    disk.write(descriptor, [b"new"], 0)
    disk.fail("sync")
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(descriptor)
    disk.sync(descriptor)
    assert disk.content(LOG) == b"new"
    assert {b"old", b"new"} <= contents_after_cut(disk)
    assert {b"old", b"new"} <= contents_after_cut(disk.kill())


def test_stranded_data_is_saved_when_it_is_written_again():
    disk, descriptor = durable_file(b"old")
    disk.write(descriptor, [b"new"], 0)
    disk.fail("sync")
    with pytest.raises(OSError):
        disk.sync(descriptor)
    disk.write(descriptor, [b"new"], 0)
    disk.sync(descriptor)
    assert contents_after_cut(disk) == {b"new"}


def test_stranded_data_vanishes_from_memory_under_pressure():
    disk, descriptor = durable_file(b"old")
    disk.write(descriptor, [b"new"], 0)
    disk.fail("sync")
    with pytest.raises(OSError):
        disk.sync(descriptor)
    disk.write(descriptor, [b"!"], 3)
    disk.drop_caches()
    assert disk.read(descriptor, 9, 0) == b"old!"


def test_a_failed_directory_sync_is_not_mended_by_a_second_one():
    disk = SimulatedDisk()
    disk.open(LOG, create=True)
    disk.fail("sync_directory")
    with pytest.raises(OSError):
        disk.sync_directory("/data")
    disk.sync_directory("/data")
    assert contents_after_cut(disk) == {None, b""}


def test_on_sync_stands_before_and_after_every_sync_also_a_failed_one():
    disk, descriptor = durable_file(b"")
    points: list[tuple[SyncPoint, int]] = []
    disk.on_sync(lambda point: points.append((point, len(list(disk.crash_states(99))))))
    disk.write(descriptor, [b"x"], 0)
    disk.sync(descriptor)
    disk.fail("sync_directory")
    with pytest.raises(OSError):
        disk.sync_directory("/data")
    assert points == [
        (SyncPoint("sync", LOG, done=False), 3),
        (SyncPoint("sync", LOG, done=True), 1),
        (SyncPoint("sync_directory", "/data", done=False), 1),
        (SyncPoint("sync_directory", "/data", done=True), 1),
    ]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 1_500), st.binary(min_size=1, max_size=800)),
        st.tuples(st.just("truncate"), st.integers(0, 1_500)),
        st.tuples(st.just("sync")),
    ),
    max_size=12,
)


@given(STEPS, st.integers(0, 99))
def test_the_last_good_sync_and_the_present_are_always_possible(steps, seed):
    """And whatever else is possible consists of bytes that were there, or zeros."""
    disk, descriptor = durable_file(b"")
    synced = b""
    for step, *arguments in steps:
        if step == "write":
            disk.write(descriptor, [arguments[1]], arguments[0])
        else:
            getattr(disk, step)(descriptor, *arguments)
        synced = disk.content(LOG) if step == "sync" else synced
    states = [state.content(LOG) for state in disk.crash_states(60, Random(seed))]
    assert states[0] == synced
    assert disk.content(LOG) in states[:2]
    known = {*synced, *(byte for step in steps if step[0] == "write" for byte in step[2]), 0}
    assert all(known.issuperset(content) for content in states)


def test_states_that_leave_the_same_disk_are_made_once():
    disk = SimulatedDisk()
    for name in ("one", "two"):
        descriptor = disk.open(f"/data/{name}", create=True)
        disk.write(descriptor, [b"abc"], 0)
        disk.write(descriptor, [b"def"], 3)
    states = list(disk.crash_states_once(500, Random(3)))
    made = [state for state in states if state is not None]
    seen = [tuple((path, state.content(path)) for path in state.files()) for state in made]
    assert len(seen) == len(set(seen))
    assert len(states) > 2 * len(made), "the bytes of a file without a name make no difference"
    assert (seen[0], seen[1]) == ((), (("/data/one", b"abcdef"), ("/data/two", b"abcdef")))
