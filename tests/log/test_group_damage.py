"""The file of a group that is damaged, too large, of another group or of a newer release; names and options that cannot be."""

import pytest
from crc32c import crc32c

from penstock.errors import (
    DamagedFile,
    Fenced,
    InvalidName,
    InvalidOption,
    LimitReached,
    NotSupported,
    UnsupportedFormat,
)
from penstock.log import group_file
from penstock.log.group_coordinator import GroupCoordinator
from penstock.log.group_state import GroupMember, joined
from penstock.log.names import group_state_key
from penstock.stores import DirectoryStore, MemoryStore, ObjectStore
from penstock.testing import SimulatedDisk, VirtualClock, simulated_system
from tests.log.group_world import KEY, TOPICS

# What cannot be


@pytest.mark.acceptance(75)
@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "x" * 201])
def test_group_names_are_checked(name):
    with pytest.raises(InvalidName):
        GroupCoordinator(MemoryStore(), name)


@pytest.mark.parametrize("seconds", [0, -1, 0.01, 4_000])
def test_leases_have_a_range(seconds):
    with pytest.raises(InvalidOption):
        GroupCoordinator(MemoryStore(), "billing", lease_seconds=seconds)


async def test_strategies_are_checked():
    coordinator = GroupCoordinator(MemoryStore(), "billing")
    with pytest.raises(InvalidOption, match="there is no strategy"):
        await coordinator.join(TOPICS, strategy="fastest")
    await coordinator.join(TOPICS, strategy="round_robin")
    with pytest.raises(InvalidOption, match="uses strategy round_robin"):
        await coordinator.join(TOPICS, strategy="sticky")


async def test_a_store_without_locks_has_no_groups(tmp_path):
    with ObjectStore(f"file://{tmp_path}") as objects:
        with pytest.raises(NotSupported):
            await GroupCoordinator(objects, "billing").join(TOPICS)


async def test_the_file_is_bounded(monkeypatch):
    store = MemoryStore()
    coordinator = GroupCoordinator(store, "billing")
    first = await coordinator.join(TOPICS)
    monkeypatch.setattr(group_file, "STATE_BYTES_MAX", store.size(KEY) + 20)
    with pytest.raises(LimitReached):
        await coordinator.join(TOPICS)
    assert await first.heartbeat() is None


# Damage


def test_the_bytes_of_the_file_stay_what_they_are():
    """Byte for byte as docs/format.md has it: another release reads it."""
    store = MemoryStore()
    member = GroupMember(
        lease_expires_ms=0, lease_ms=1_000, process=7, host="here", topics={"orders": 2}
    )
    file = group_file.GroupFile(store, "billing", VirtualClock(5_000), 1)
    state = file.change(lambda state, now: joined(state, "a", member, None, now))
    text = (
        b'{"group":"billing","generation":1,"strategy":"sticky","members":{"a":'
        b'{"lease_expires_ms":6000,"lease_ms":1000,"process":7,"host":"here",'
        b'"topics":{"orders":2},"assigned":{"orders":[0,1]},"owned":{"orders":[0,1]}}}}'
    )
    front = b"PGRP" + bytes([1, 0, 0, 0]) + len(text).to_bytes(4, "little")
    assert store.read(KEY) == front + crc32c(front + text).to_bytes(4, "little") + text
    assert group_file.GroupFile(store, "billing", VirtualClock(), 1).read() == state


async def test_every_flipped_bit_is_noticed_and_reported():
    store = MemoryStore()
    coordinator = GroupCoordinator(store, "billing")
    await coordinator.join(TOPICS)
    sound = store.read(KEY)
    reader = group_file.GroupFile(store, "billing", VirtualClock(), 1)
    for bit in range(len(sound) * 8):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        store.write(KEY, damaged)
        with pytest.raises(DamagedFile) as found:
            reader.read()
        assert found.value.file == KEY


async def test_every_cut_is_noticed():
    store = MemoryStore()
    await GroupCoordinator(store, "billing").join(TOPICS)
    sound = store.read(KEY)
    reader = group_file.GroupFile(store, "billing", VirtualClock(), 1)
    for length in range(len(sound)):
        store.write(KEY, sound[:length])
        with pytest.raises(DamagedFile):
            reader.read()


async def test_a_damaged_group_commits_nothing_and_goes_on_after_a_reset(coordinator, store):
    member = await coordinator.join(TOPICS)
    await member.commit({("orders", 0): 4})
    store.write(KEY, store.read(KEY)[:-1])
    for call in (
        member.heartbeat,
        lambda: member.commit({("orders", 0): 9}),
        lambda: coordinator.join(TOPICS),
        coordinator.describe,
    ):
        with pytest.raises(DamagedFile, match="reset"):
            await call()
    await coordinator.reset()
    with pytest.raises(Fenced):
        await member.commit({("orders", 0): 9})
    new = await coordinator.join(TOPICS)
    assert new.generation > member.generation
    assert await coordinator.committed([("orders", 0)]) == {("orders", 0): 4}


async def test_a_reset_of_a_sound_group_only_goes_forward(coordinator, clock):
    first = await coordinator.join(TOPICS)
    await coordinator.reset()
    clock.jump(-1_000_000)
    after = (await coordinator.describe()).generation
    await coordinator.reset()
    assert first.generation < after < (await coordinator.describe()).generation


async def test_the_file_of_another_group_is_not_this_ones():
    store = MemoryStore()
    await GroupCoordinator(store, "shipping").join(TOPICS)
    store.write(KEY, store.read(group_state_key("shipping")))
    with pytest.raises(DamagedFile, match="describes group 'shipping'"):
        await GroupCoordinator(store, "billing").describe()


async def test_a_newer_format_is_left_alone(monkeypatch):
    store = MemoryStore()
    coordinator = GroupCoordinator(store, "billing")
    monkeypatch.setattr(group_file, "VERSION", 2)
    await coordinator.join(TOPICS)
    monkeypatch.undo()
    with pytest.raises(UnsupportedFormat):
        await coordinator.describe()
    with pytest.raises(UnsupportedFormat):
        await coordinator.reset()


async def test_a_power_cut_at_any_sync_leaves_a_sound_group_and_its_offsets():
    """Joined and committed is what the disk has, whatever the cut takes."""
    disk = SimulatedDisk()
    system = simulated_system(disk=disk)
    store = DirectoryStore("/data/log", system=system)
    coordinator = GroupCoordinator(store, "billing", system=system)
    member = await coordinator.join(TOPICS)
    await member.commit({("orders", 0): 4})
    await coordinator.join(TOPICS)
    for cut in disk.crash_states(20):
        after = simulated_system(disk=cut)
        again = GroupCoordinator(DirectoryStore("/data/log", system=after), "billing", system=after)
        assert (await again.describe()).generation == 2
        assert await again.committed([("orders", 0)]) == {("orders", 0): 4}
