"""Committed offsets: forward only, durable when acknowledged, damage is said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DamagedFile, InvalidOption, StoreFailed
from penstock.log.offsets import OffsetFile
from penstock.stores.memory import MemoryStore
from penstock.testing.disk import SimulatedDisk
from tests.log.strategies import ROOT, Machine, flip, machine

OFFSETS = st.integers(0, (1 << 63) - 1)


def file_on(one: Machine, group: str = "billing") -> OffsetFile:
    return OffsetFile(one.store, group, "orders", 0)


PATH = f"{ROOT}/groups/billing/orders-0.offset"


@pytest.mark.acceptance(45)
def test_committing_nine_and_then_three_leaves_nine_after_a_restart():
    one = machine()
    assert file_on(one).commit(9, 1_000) == 9
    assert file_on(one).commit(3, 2_000) == 9
    two = machine(one.disk.kill())
    assert file_on(two).read() == (9, 1_000, 0)
    (cut,) = list(one.disk.crash_states(1))
    assert file_on(machine(cut)).read() == (9, 1_000, 0)


@given(st.lists(OFFSETS, min_size=1, max_size=8))
def test_any_row_of_commits_leaves_the_highest(offsets):
    store = MemoryStore()
    for number, offset in enumerate(offsets):
        file = OffsetFile(store, "billing", "orders", 0)
        assert file.commit(offset, number) == max(offsets[: number + 1])
    found = OffsetFile(store, "billing", "orders", 0).read()
    assert found is not None
    assert found.offset == max(offsets)


@pytest.mark.acceptance(45)
def test_subscribers_and_partitions_are_independent():
    one = machine()
    for group in ("billing", "shipping"):
        for topic in ("orders", "invoices"):
            for partition in (0, 1, 10):
                OffsetFile(one.store, group, topic, partition).commit(len(group) + partition, 5)
    for group in ("billing", "shipping"):
        for topic in ("orders", "invoices"):
            for partition in (0, 1, 10):
                found = OffsetFile(one.store, group, topic, partition).read()
                assert found == (len(group) + partition, 5, 0)
    assert len(one.store.list("groups/")) == 12


def test_two_processes_with_one_subscriber_only_move_forward():
    disk = SimulatedDisk()
    one, two = file_on(machine(disk, seed=1)), file_on(machine(disk, seed=2))
    for offset in range(10):
        assert (one, two)[offset % 2].commit(offset, offset) == offset
        assert (two, one)[offset % 2].commit(max(0, offset - 3), offset) == offset


def test_nothing_committed_is_none_and_not_zero():
    one = machine()
    assert file_on(one).read() is None
    with one.store.lock(file_on(one).key, 1):  # makes an empty file
        assert file_on(one).read() is None


@pytest.mark.acceptance(45)
@pytest.mark.parametrize("commits", [[7], [3, 7], [1, 2, 3]])
def test_a_damaged_slot_is_reported_and_two_are_refused(commits):
    one = machine()
    for offset in commits:
        file_on(one).commit(offset, offset)
    content = one.disk.content(PATH)
    newest = max(2, len(commits) + 1) % 2
    one.disk.put(PATH, flip(content, (newest * 512 + 20) * 8))
    older = commits[-2:][0]
    assert file_on(one).read() == (older, older, 1)
    one.disk.put(PATH, flip(flip(content, 20 * 8), (512 + 20) * 8))
    with pytest.raises(DamagedFile, match="Seek the subscriber") as caught:
        file_on(one).read()
    assert caught.value.file == "groups/billing/orders-0.offset"
    with pytest.raises(DamagedFile):
        file_on(one).commit(99, 1)


def test_a_reset_mends_a_damaged_file_and_may_go_back():
    one = machine()
    file_on(one).commit(9, 1)
    one.disk.put(PATH, b"\xff" * 1_024)
    file_on(one).reset(4, 2)
    assert file_on(one).read() == (4, 2, 0)
    file_on(one).reset(2, 3)
    assert file_on(one).read() == (2, 3, 0)
    assert file_on(one).commit(3, 4) == 3


def test_a_reset_of_a_damaged_file_is_atomic():
    """A crash in the middle leaves the damage or the new offset, never nothing."""
    one = machine()
    file_on(one).commit(9, 1)
    one.disk.put(PATH, b"\xff" * 1_024)
    seen: set[object] = set()

    def look(point) -> None:
        for state in one.disk.crash_states(40):
            try:
                found = file_on(machine(state)).read()
            except DamagedFile:
                seen.add("damaged")
            else:
                seen.add(found and found.offset)

    one.disk.on_sync(look)
    file_on(one).reset(4, 2)
    assert seen == {"damaged", 4}


@pytest.mark.parametrize("offset", [-1, 1 << 63])
def test_an_offset_out_of_range_is_refused(offset):
    with pytest.raises(InvalidOption):
        file_on(machine()).commit(offset, 1)
    with pytest.raises(InvalidOption):
        file_on(machine()).reset(offset, 1)


@pytest.mark.parametrize("first", [True, False])
def test_a_commit_whose_sync_failed_is_not_acknowledged_by_the_next_try(first):
    """The page cache shows it, the disk does not: it is written and synced again."""
    one = machine()
    file = file_on(one)
    if not first:
        file.commit(5, 1)
        file.commit(6, 1)
    one.disk.fail("sync")
    with pytest.raises(StoreFailed):
        file.commit(9, 2)
    assert file.commit(9, 3) == 9
    for state in one.disk.crash_states(50):
        found = file_on(machine(state)).read()
        assert found is not None
        assert found.offset == 9


def test_a_commit_of_a_process_that_died_before_its_sync_is_made_durable_by_the_next():
    one = machine()
    file = file_on(one)
    file.commit(5, 1)
    one.disk.fail("sync")
    with pytest.raises(StoreFailed):
        file.commit(9, 2)
    two = machine(one.disk.kill())
    assert file_on(two).commit(7, 3) == 9
    for state in two.disk.crash_states(50):
        found = file_on(machine(state)).read()
        assert found is not None
        assert found.offset == 9


def test_a_power_cut_in_the_first_commit_is_no_damage():
    one = machine()
    states: list[SimulatedDisk] = []
    one.disk.on_sync(lambda point: states.extend(one.disk.crash_states(60)))
    file_on(one).commit(9, 1)
    offsets = [file_on(machine(state)).read() for state in states]
    assert {found and found.offset for found in offsets} == {None, 9}
