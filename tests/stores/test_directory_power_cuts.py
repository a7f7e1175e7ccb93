"""What a directory promises is there after every power cut, names included; what was deleted stays away."""

from penstock.stores.directory import DirectoryStore
from penstock.testing.disk import SimulatedDisk
from penstock.testing.worker import simulated_system

ROOT = "/data/store"
STATES_MAX = 50


def store_on(disk: SimulatedDisk) -> DirectoryStore:
    return DirectoryStore(ROOT, system=simulated_system(disk=disk))


def after_cuts(disk: SimulatedDisk) -> list[dict[str, bytes]]:
    """The values in every disk that a power cut could leave."""
    stores = [store_on(state) for state in disk.crash_states(STATES_MAX)]
    return [{key: one.read(key) for key in one.list()} for one in stores]


def test_a_value_that_was_written_stays():
    disk = SimulatedDisk()
    store_on(disk).write("a/b/value", b"whole")
    assert all(found == {"a/b/value": b"whole"} for found in after_cuts(disk))


def test_a_value_that_was_replaced_is_the_new_one():
    disk = SimulatedDisk()
    store_on(disk).write("a/value", b"old")
    store_on(disk).write("a/value", b"newer")
    assert all(found == {"a/value": b"newer"} for found in after_cuts(disk))


def test_a_file_that_was_made_in_place_and_synced_stays():
    disk = SimulatedDisk()
    store = store_on(disk)
    store.write_at("a/b/file", 0, [b"one", b"two"])
    store.sync("a/b/file")
    assert all(found == {"a/b/file": b"onetwo"} for found in after_cuts(disk))


def test_a_value_that_was_deleted_does_not_come_back():
    disk = SimulatedDisk()
    store = store_on(disk)
    store.write("a/value", b"gone")
    store.write("a/other", b"stays")
    store.delete("a/value")
    assert all(found == {"a/other": b"stays"} for found in after_cuts(disk))


def test_a_power_cut_during_a_write_leaves_the_old_value_or_the_new_one():
    disk = SimulatedDisk()
    store = store_on(disk)
    store.write("a/value", b"old" * 300)
    found: list[dict[str, bytes]] = []
    disk.on_sync(lambda point: found.extend(after_cuts(disk)))
    store.write("a/value", b"newer" * 300)
    assert {one["a/value"] for one in found} == {b"old" * 300, b"newer" * 300}
