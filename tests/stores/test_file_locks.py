"""Locks of a directory store: who holds one, what is known meanwhile, and who is let in when it ends in a hurry."""

import errno
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count

import pytest

from penstock import system
from penstock.errors import DeadlineExceeded, InvalidOption, StoreFailed
from penstock.log.refusals import let_go
from penstock.stores import DirectoryStore, directory, file_locks, handles
from penstock.testing.worker import simulated_system
from tests.stores.test_directory import KEYS, fill, make

PLACES_OF_SIGNALS = {one.__file__ for one in (directory, file_locks, handles, system)}


def test_what_only_one_thread_changes_is_looked_at_once():
    disk, store = make()
    fill(store)
    before = disk.calls["status"]
    with store.lock_folder("topic/head", 1):
        for number in range(1, 5):
            store.write_at(KEYS[0], number, [b"y"])
            store.sync(KEYS[0])
            assert store.size(KEYS[0]) == number + 1
        store.truncate(KEYS[0], 2)
        assert store.read(KEYS[0]) == b"xy"
        with pytest.raises(InvalidOption, match=r"outside 0\.\.2"):
            store.write_at(KEYS[0], 3, [b"z"])
    assert disk.calls["status"] == before + 2
    store.read(KEYS[0])
    assert disk.calls["status"] == before + 3


def test_a_lock_that_is_forgotten_is_let_go():
    _, store = make()
    for lock in (store.lock, store.lock_folder):
        held = lock("topic/head", 1)
        held.__enter__()
        with pytest.raises(DeadlineExceeded), store.lock("topic/head", 0):
            raise AssertionError("two have it")
        del held
        with store.lock("topic/head", 0):
            assert not store._locks.folders, "nobody is trusted any more"


def test_a_lock_that_a_signal_interrupts_is_let_go(monkeypatch):
    _, store = make()

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(file_locks, "HeldFolder", interrupted)
        with pytest.raises(KeyboardInterrupt), store.lock_folder("topic/head", 1):
            raise AssertionError("it is not held")
    with store.lock_folder("topic/head", 0):
        pass


@pytest.mark.parametrize("kind", ["lock", "lock_folder"])
@pytest.mark.parametrize("cause", [KeyboardInterrupt(), OSError(errno.EIO, "the disk is gone")])
def test_what_fails_right_behind_the_lock_of_a_file_keeps_no_other_store_out(
    monkeypatch, kind, cause
):
    disk, store = make()
    other = DirectoryStore("/data/store", system=simulated_system(disk=disk))

    def failing(_):
        raise cause

    with monkeypatch.context() as patched:
        patched.setattr(disk, "status", failing)
        with pytest.raises((KeyboardInterrupt, StoreFailed)), getattr(store, kind)("topic/head", 1):
            raise AssertionError("it is not held")
    for one in (other, store):
        with one.lock("topic/head", 0):
            pass


class Signal:
    """A profile of the interpreter, which is told of every place where a signal may come: here it comes to one of them."""

    def __init__(self, place):
        self._left = place
        self.came = False

    def __call__(self, frame, event, _):
        """A call in Python that begins, or one in C that has ended; an error here unsets the profile."""
        code = frame.f_code
        if event not in ("call", "c_return") or code.co_name == "__del__":
            return
        if code.co_filename in PLACES_OF_SIGNALS:
            self._left -= 1
            if self._left < 0:
                self.came = True
                raise KeyboardInterrupt


def interrupted_at(place, lock):
    """Lock and let go, with a signal at this place; whether there is one."""
    signal = Signal(place)
    try:
        sys.setprofile(signal)
        with suppress(DeadlineExceeded), lock("topic/head", 1):
            pass
    except KeyboardInterrupt as interruption:
        let_go(interruption)
    finally:
        sys.setprofile(None)
    return signal.came


@pytest.mark.parametrize("kind", ["lock", "lock_folder"])
def test_wherever_a_signal_comes_nothing_stays_locked(tmp_path, kind):
    store, other = DirectoryStore(tmp_path), DirectoryStore(tmp_path)
    for one in (store, other):
        with one.lock("topic/head", 1):
            pass
    for place in count():
        if not interrupted_at(place, getattr(store, kind)):
            break
        assert not store._locks.mutex("topic/head").locked(), place
        assert not store._locks.folders, place
        with other.lock("topic/head", 0):
            pass
    assert place > 20, "so many places there are at least"


def test_a_signal_to_who_waits_for_a_lock_takes_nothing_from_who_has_it(tmp_path):
    store = DirectoryStore(tmp_path)
    with store.lock("topic/head", 1):
        for place in count():
            if not interrupted_at(place, lambda key, _: store.lock(key, 0)):
                break
            assert store._locks.mutex("topic/head").locked(), place
    assert place > 5, "so many places there are at least"


def test_a_forked_child_does_not_unlock_what_its_parent_holds(tmp_path):
    """The file that is locked was closed for others, so the child finds it in the lock alone."""
    store = DirectoryStore(tmp_path, handles_max=1)
    other = DirectoryStore(tmp_path)
    held = store.lock("topic/head", 1)
    with held:
        store.write_at(KEYS[0], 0, [b"x"])
        if (child := os.fork()) == 0:
            store.abandon_after_fork()
            held.__exit__(None, None, None)
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(DeadlineExceeded), other.lock("topic/head", 0):
            raise AssertionError("two have it")
    with other.lock("topic/head", 0):
        pass


def test_a_forked_child_keeps_nothing_locked_when_its_parent_is_gone(tmp_path):
    """The parent locks and dies while its child, which knows of the lock, lives on."""
    told, tell = os.pipe()
    ended, end = os.pipe()
    if (parent := os.fork()) == 0:
        store = DirectoryStore(tmp_path, handles_max=1)
        held = store.lock("topic/head", 1)
        held.__enter__()
        store.write_at(KEYS[0], 0, [b"x"])
        if os.fork() == 0:
            store.abandon_after_fork()
            os.write(tell, b"x")
            os.close(end)
            os.read(ended, 1)
        os._exit(0)
    os.waitpid(parent, 0)
    os.read(told, 1)
    try:
        with DirectoryStore(tmp_path).lock("topic/head", 0):
            pass
    finally:
        for one in (told, tell, ended, end):
            os.close(one)


def test_what_is_removed_or_replaced_meanwhile_is_looked_at_anew():
    _, store = make()
    fill(store)
    with store.lock_folder("topic/head", 1):
        assert store.size(KEYS[0]) == 1
        store.write(KEYS[0], b"another value")
        assert store.read(KEYS[0]) == b"another value"
        store.delete(KEYS[0])
        assert not store.exists(KEYS[0])
        store.write_at(KEYS[0], 0, [b"anew"])
        assert store.read(KEYS[0]) == b"anew"


def test_other_threads_and_other_folders_are_not_meant():
    disk, store = make()
    fill(store, [*KEYS, "other/0.log"])
    other = DirectoryStore("/data/store", system=simulated_system(disk=disk))
    with store.lock_folder("topic/head", 1), ThreadPoolExecutor(1) as thread:
        for key in (KEYS[0], "other/0.log"):
            assert store.size(key) == 1
            other.write_at(key, 1, [b"more"])
        assert store.size("other/0.log") == 5
        assert thread.submit(store.size, KEYS[0]).result() == 5
        assert store.size(KEYS[0]) == 1, "this thread said that nobody else would"
    assert store.size(KEYS[0]) == 5


@pytest.mark.parametrize("call", ["write", "truncate"])
def test_after_a_failure_it_looks_again(call):
    disk, store = make()
    fill(store)
    with store.lock_folder("topic/head", 1):
        store.write_at(KEYS[0], 1, [b"yz"])
        before = disk.calls["status"]
        disk.fail(call, errno.EIO)
        with pytest.raises(StoreFailed):
            store.write_at(KEYS[0], 3, [b"z"]) if call == "write" else store.truncate(KEYS[0], 1)
        store.size(KEYS[0])
        assert disk.calls["status"] == before + 1


def test_a_lock_file_that_was_replaced_is_locked_anew():
    disk, store = make()
    with store.lock("topic/head", 1):
        pass
    other = DirectoryStore("/data/store", system=simulated_system(disk=disk))
    other.delete("topic/head")
    with other.lock("topic/head", 1), pytest.raises(DeadlineExceeded):
        with store.lock("topic/head", 0):
            raise AssertionError("two have it")
    with store.lock("topic/head", 1), pytest.raises(DeadlineExceeded):
        with other.lock("topic/head", 0):
            raise AssertionError("two have it")


def test_a_lock_of_a_file_that_is_gone_is_not_waited_for():
    """Given one who holds the lock of a deleted file, then the lock of the new file is free, and theirs stays theirs."""
    disk, store = make()
    with store.lock("topic/head", 1):
        pass
    other = DirectoryStore("/data/store", system=simulated_system(disk=disk))
    with other.lock("topic/head", 0):
        before = disk.calls["unlock"]
        other.delete("topic/head")
        with store.lock("topic/head", 1):
            assert disk.calls["unlock"] == before, "nothing was released that was not held"
            assert disk.exists("/data/store/topic/head")


def test_a_lock_that_cannot_be_released_is_released_by_closing_its_file():
    disk, store = make()
    disk.fail("unlock", errno.EIO)
    with store.lock("topic/head", 1):
        pass
    other = DirectoryStore("/data/store", system=simulated_system(disk=disk))
    with other.lock("topic/head", 0):
        pass
