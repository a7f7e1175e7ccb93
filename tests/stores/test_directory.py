"""What only the directory store has: open files that come and go, temporary files, names."""

import errno
import resource
from contextlib import closing

import pytest

from penstock import WalMessageQueue
from penstock.errors import (
    InvalidName,
    InvalidOption,
    KeyNotFound,
    StoreFailed,
    UnknownTopic,
)
from penstock.log.deletion import delete_topic
from penstock.log.names import PartitionKeys
from penstock.log.sealed import remove_leftovers
from penstock.log.topic import TopicConfig, TopicFile
from penstock.stores import DirectoryStore, MemoryStore, directory
from penstock.stores.folders import FOLDERS_KNOWN_MAX, Folders
from penstock.system import OsFiles
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


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "free some space, then open the log again"),
        (errno.EIO, "dmesg"),
        (errno.EBUSY, ""),
    ],
)
def test_who_can_do_something_about_a_failure_is_told_what(code, advice):
    disk, store = make()
    disk.fail("open", code, path="*.tmp")
    with pytest.raises(StoreFailed, match="cannot write settings in") as caught:
        store.write("settings", b"x")
    assert caught.value.errno == code
    assert advice in str(caught.value)
    assert str(caught.value).endswith("lost") == bool(advice)


def test_maintenance_removes_them_with_the_other_leftovers():
    keys = PartitionKeys("orders", 0)
    disk = killed_while_writing(f"{keys.folder}/x")
    assert remove_leftovers(keys, [make(disk)[1], MemoryStore()]) == 1
    assert temporaries(disk, f"/data/store/{keys.folder}") == []


def test_a_process_that_may_open_few_files_keeps_some_for_others(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (8, 1_024))
    disk, store = make()
    fill(store)
    opened = disk.calls["open"]
    fill(store, KEYS[1:])
    assert disk.calls["open"] == opened
    store.read(KEYS[0])
    assert disk.calls["open"] == opened + 1


@pytest.mark.parametrize(
    ("allowed", "kept"), [(1, 1), (1_024, 256), (20_000, 4_096), (resource.RLIM_INFINITY, 4_096)]
)
def test_a_store_keeps_a_quarter_of_what_may_be_open_up_to_a_limit(monkeypatch, allowed, kept):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (allowed, allowed))
    assert directory._handles_max() == kept


def test_where_many_files_may_be_open_many_are(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1_024, 1_024))
    disk, store = make()
    keys = [f"topic/{number}.log" for number in range(256)]
    fill(store, keys)
    opened = disk.calls["open"]
    fill(store, keys)
    assert disk.calls["open"] == opened
    store.write_at("topic/more.log", 0, [b"x"])
    store.read(keys[0])
    assert disk.calls["open"] == opened + 2


@pytest.mark.parametrize("handles_max", [0, -1])
def test_no_open_file_at_all_is_refused(handles_max):
    with pytest.raises(InvalidOption, match="at least one"):
        make(handles_max=handles_max)


# Names


def test_files_of_others_are_neither_listed_nor_removed(tmp_path):
    store = DirectoryStore(tmp_path)
    store.write("topics/orders/topic.json", b"{}")
    others = [tmp_path / "topics/orders/~notes (old).txt", tmp_path / "topics/my notes/a.txt"]
    others[1].parent.mkdir()
    for one in others:
        one.write_text("mine")
    assert store.list() == store.list("topics/") == ["topics/orders/topic.json"]
    for key in store.list("topics/orders/"):
        store.delete(key)
    assert [one.read_text() for one in others] == ["mine", "mine"]
    store.close()


def test_a_hundred_topics_are_made_without_listing_the_others():
    disk, store = make()
    TopicFile(store, "first").create(TopicConfig(), 1)
    disk.journal.clear()
    for number in range(100):
        TopicFile(store, f"topic-{number}").create(TopicConfig(), 1)
    listed = [call.path for call in disk.journal if call.operation == "list_directory"]
    assert "/data/store/topics" not in listed
    with pytest.raises(InvalidName, match="only by case"):
        TopicFile(store, "Topic-7").create(TopicConfig(), 1)


def test_a_topic_that_another_process_made_is_seen_by_who_knows_all_others():
    disk, store = make()
    _, other = make(disk)
    for number in range(3):
        TopicFile(store, f"topic-{number}").create(TopicConfig(), 1)
        TopicFile(other, f"other-{number}").create(TopicConfig(), 1)
        with pytest.raises(InvalidName, match="only by case"):
            TopicFile(store, f"Other-{number}").create(TopicConfig(), 1)


async def test_a_topic_is_deleted_around_files_of_others(tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        await queue.publish("orders", b"x")
    other = tmp_path / "topics" / "orders" / "~notes (old).txt"
    other.write_text("mine")
    with DirectoryStore(tmp_path) as store:
        delete_topic(store, "orders")
        assert store.list("topics/") == []
        with pytest.raises(UnknownTopic):
            delete_topic(store, "orders")
    assert other.read_text() == "mine"


def test_of_very_many_folders_those_of_before_are_looked_at_again(tmp_path):
    """What is remembered has a limit. (That a folder became a link is only seen when it is looked at.)"""
    folders = Folders(OsFiles(), str(tmp_path))
    folders.check("one")
    (tmp_path / "one").symlink_to(tmp_path)
    for number in range(FOLDERS_KNOWN_MAX - 1):
        folders.check(f"{number}")
    folders.check("one")
    folders.check("one-too-many")
    with pytest.raises(StoreFailed, match="one is a symbolic link") as caught:
        folders.check("one")
    assert caught.value.errno == errno.ELOOP


# Calls that fail


def test_names_alike_that_cannot_be_listed_are_not_taken_for_none():
    disk, store = make()
    fill(store)
    disk.fail("list_directory", errno.EIO)
    with pytest.raises(StoreFailed, match="cannot list topic in /data/store"):
        store.folders_alike("topic", "x")


@pytest.mark.parametrize("call", ["list", "folders", "remove_temporaries"])
def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(call):
    disk, store = make()
    fill(store)
    disk.fail("list_directory", errno.EIO)
    with pytest.raises(StoreFailed, match="cannot list topic in /data/store") as caught:
        getattr(store, call)("topic")
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize(
    ("call", "key"),
    [("unlink", KEYS[0]), ("sync_directory", KEYS[0]), ("sync_directory", "topic/gone")],
)
def test_a_key_that_may_come_back_is_not_said_to_be_deleted(call, key):
    """Also one that somebody else removed, who may have died before that was synced."""
    disk, store = make()
    fill(store)
    disk.fail(call, errno.EIO)
    with pytest.raises(StoreFailed, match=f"cannot delete {key} in"):
        store.delete(key)
    store.delete(key)


@pytest.mark.parametrize("call", ["make_directory", "sync_directory"])
def test_a_root_that_cannot_be_made_is_not_left_behind(call):
    """After a failed sync only a name that is made again is sure to be saved by the next."""
    disk = simulated_system().files
    disk.fail(call, errno.ENOSPC)
    with pytest.raises(StoreFailed, match="cannot make the directory /data/store") as caught:
        make(disk)
    assert caught.value.errno == errno.ENOSPC
    assert not disk.exists("/data/store")
    make(disk)
    assert disk.exists("/data/store")


def test_a_key_that_is_not_there_cannot_be_watched(tmp_path):
    with DirectoryStore(tmp_path) as store:
        watch = store.watch()
        if watch is None:
            pytest.skip("this system has no watches")
        with closing(watch), pytest.raises(KeyNotFound, match="no such key: topic/none") as caught:
            store.watch_key(watch, "topic/none")
        assert caught.value.key == "topic/none"


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_what_may_not_be_written_is_read(code):
    disk, store = make()
    fill(store)
    _, reader = make(disk)
    disk.fail("open", code)
    assert reader.read(KEYS[0]) == b"x"
    with pytest.raises(StoreFailed, match="cannot write") as caught:
        reader.write_at(KEYS[0], 1, [b"y"])
    assert caught.value.errno == code


def test_where_nothing_may_be_written_a_new_key_is_refused_and_an_absent_one_is_absent():
    disk, store = make()
    fill(store)
    disk.fail("open", errno.EROFS)
    with pytest.raises(StoreFailed, match="mounted read-only") as caught:
        store.write_at("topic/new", 0, [b"x"])
    assert caught.value.errno == errno.EROFS
    disk.fail("open", errno.EROFS)
    with pytest.raises(KeyNotFound, match="no such key: topic/new"):
        store.read("topic/new")
