"""What only the directory store has: open files that come and go, temporary files, names."""

import pytest

from penstock.errors import StoreFailed
from penstock.log.names import PartitionKeys
from penstock.log.sealed import remove_leftovers
from penstock.stores import DirectoryStore, MemoryStore
from penstock.testing.worker import simulated_system

KEYS = [f"topic/{number}.log" for number in range(3)]


def make(disk=None, **options):
    system = simulated_system(disk=disk) if disk else simulated_system()
    return system.files, DirectoryStore("/data/store", system=system, **options)


def fill(store, keys=KEYS):
    for key in keys:
        store.write_at(key, 0, [b"x"])
        store.sync(key)


# Open files


def test_the_file_that_was_not_used_for_longest_is_closed_first():
    disk, store = make(handles_max=2)
    for key in KEYS[:2]:
        store.write_at(key, 0, [b"x"])
    store.read(KEYS[0])
    store.write_at(KEYS[2], 0, [b"x"])
    opened = disk.calls["open"]
    store.read(KEYS[0])
    assert disk.calls["open"] == opened
    store.read(KEYS[1])
    assert disk.calls["open"] == opened + 1


def test_files_that_are_only_read_do_not_cost_a_writer_its_directory_sync():
    disk, store = make(handles_max=4)
    fill(store)
    readable = [f"topic/{number}.old" for number in range(10)]
    for key in readable:
        store.write(key, b"x")
    before = disk.calls["sync_directory"]
    for key in readable:
        store.read(key)
    for key in KEYS:
        store.write_at(key, 1, [b"y"])
        store.sync(key)
    assert disk.calls["sync_directory"] == before


def test_more_writers_than_files_stay_correct():
    _, store = make(handles_max=2)
    fill(store)
    fill(store)
    assert [store.read(key) for key in KEYS] == [b"x"] * 3


@pytest.mark.parametrize("handles_max", [1, 2, 256])
def test_the_name_of_a_file_that_another_made_again_is_synced(handles_max):
    """Whoever made it died before it synced the name; the power cut comes after this sync."""
    disk, store = make(handles_max=handles_max)
    fill(store)
    _, other = make(disk)
    other.delete(KEYS[0])
    other.write_at(KEYS[0], 0, [b"new"])
    store.sync(KEYS[0])
    for after in disk.crash_states(20):
        assert make(after)[1].read(KEYS[0]) == b"new"


# Temporary files


def temporaries(disk, folder="/data/store/topic"):
    return [name for name, _ in disk.list_directory(folder) if name.endswith(".tmp")]


def killed_while_writing(key=KEYS[0]):
    """A disk with the temporary file of a writer that is gone."""
    disk, store = make()
    found = []
    disk.on_sync(lambda point: found.append(disk.kill()) if point.path.endswith(".tmp") else None)
    store.write(key, b"value")
    return found[0]


def test_the_temporary_file_of_a_dead_writer_is_removed():
    disk = killed_while_writing()
    _, store = make(disk)
    assert len(temporaries(disk)) == 1
    assert store.list() == []
    assert store.remove_temporaries("other/") == 0
    assert store.remove_temporaries("topic/x") == 0
    assert store.remove_temporaries("topic/") == 1
    assert temporaries(disk) == []
    assert store.remove_temporaries("topic/") == 0


def test_the_temporary_file_of_a_live_writer_is_not_removed():
    disk, store = make()
    _, other = make(disk)
    removed = []
    disk.on_sync(lambda point: removed.append(other.remove_temporaries("topic/")))
    store.write(KEYS[0], b"value")
    assert set(removed) == {0}
    assert other.read(KEYS[0]) == b"value"


def test_a_temporary_file_that_is_removed_before_it_is_locked_is_made_again(monkeypatch):
    disk, store = make()
    _, other = make(disk)
    try_lock = disk.try_lock
    removed = []

    def late(descriptor):
        monkeypatch.setattr(disk, "try_lock", try_lock)
        removed.append(other.remove_temporaries("topic/"))
        return try_lock(descriptor)

    monkeypatch.setattr(disk, "try_lock", late)
    store.write(KEYS[0], b"value")
    assert removed == [1]
    assert store.read(KEYS[0]) == b"value"
    assert temporaries(disk) == []


def test_a_file_that_cannot_be_opened_fails_the_write():
    disk, store = make()
    disk.fail("open", path="*.tmp")
    with pytest.raises(StoreFailed):
        store.write(KEYS[0], b"value")
    store.write(KEYS[0], b"value")


def test_maintenance_removes_them_with_the_other_leftovers():
    keys = PartitionKeys("orders", 0)
    disk = killed_while_writing(f"{keys.folder}/x")
    assert remove_leftovers(keys, [make(disk)[1], MemoryStore()]) == 1
    assert temporaries(disk, f"/data/store/{keys.folder}") == []
