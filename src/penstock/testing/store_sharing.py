"""The third part of the store suite: two handles, and other processes that may be killed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest

from penstock.errors import DeadlineExceeded, KeyNotFound
from penstock.stores.base import PersistentBackingStore
from penstock.testing.store_fixtures import LOCK_SECONDS, MakeStore, StoreFixtures
from penstock.testing.store_values import in_threads, pattern

Task = Callable[[PersistentBackingStore, Connection], None]


class SharingConformance(StoreFixtures):
    """What holds between handles and processes on one place."""

    def test_another_handle_sees_whole_values(
        self, store: PersistentBackingStore, other: PersistentBackingStore
    ) -> None:
        store.write("a", b"one")
        assert other.read("a") == b"one"
        other.write("a", b"other")
        assert store.read("a") == b"other"
        assert store.size("a") == 5
        other.delete("a")
        assert not store.exists("a")
        with pytest.raises(KeyNotFound):
            store.read("a")
        assert store.list() == other.list() == []

    def test_another_handle_sees_writes_in_place(
        self, log_store: PersistentBackingStore, other: PersistentBackingStore
    ) -> None:
        log_store.write_at("a", 0, [b"12345"])
        assert other.read("a") == b"12345"
        other.write_at("a", 5, [b"678"])
        assert log_store.read("a", 4) == b"5678"
        log_store.truncate("a", 2)
        assert other.size("a") == 2
        other.write("a", b"replaced")
        log_store.write_at("a", 8, [b"!"])
        assert other.read("a") == b"replaced!"
        other.delete("a")
        log_store.write_at("a", 0, [b"new"])
        assert other.read("a") == b"new"

    def test_a_closed_handle_leaves_the_others_alone(
        self, store: PersistentBackingStore, make_store: MakeStore, other: PersistentBackingStore
    ) -> None:
        store.write("a", b"one")
        other.close()
        assert store.read("a") == b"one"
        with make_store() as third:
            assert third.read("a") == b"one"

    def test_everything_is_there_after_reopening(
        self, store: PersistentBackingStore, make_store: MakeStore
    ) -> None:
        if not store.capabilities.shared:
            pytest.skip(f"{type(store).__name__} is not shared")
        store.write("a", b"value")
        if store.capabilities.log:
            store.write_at("a", 5, [b"!"])
        expected = store.read("a")
        store.close()
        with make_store() as again:
            assert again.read("a") == expected

    def test_a_lock_keeps_other_handles_out(
        self, log_store: PersistentBackingStore, other: PersistentBackingStore
    ) -> None:
        with log_store.lock("a", 1), pytest.raises(DeadlineExceeded), other.lock("a", 0.05):
            pass
        with other.lock("a", 1), pytest.raises(DeadlineExceeded), log_store.lock("a", 0.05):
            pass

    def test_a_reader_at_another_handle_sees_old_or_new(
        self, store: PersistentBackingStore, other: PersistentBackingStore
    ) -> None:
        values = [pattern(100_000, 1), pattern(150_000, 2)]
        store.write("a", values[0])

        def work(number: int) -> None:
            for turn in range(20):
                if number:
                    assert other.read("a") in values
                else:
                    store.write("a", values[turn % 2])

        in_threads(2, work)

    # Processes

    def test_another_process_sees_the_values(
        self, store: PersistentBackingStore, make_store: MakeStore, other: PersistentBackingStore
    ) -> None:
        store.write("here", b"from here")
        with process(make_store, _answer) as (_, pipe):
            assert _received(pipe) == b"from here"
            assert store.read("there") == b"from there"

    def test_a_lock_keeps_other_processes_out(
        self,
        log_store: PersistentBackingStore,
        make_store: MakeStore,
        other: PersistentBackingStore,
    ) -> None:
        log_store.write("count", b"0")
        with process(make_store, _count) as (_, first), process(make_store, _count) as (_, second):
            assert _received(first) == _received(second) == b"done"
        assert log_store.read("count") == b"40"

    def test_a_killed_process_frees_its_lock(
        self,
        log_store: PersistentBackingStore,
        make_store: MakeStore,
        other: PersistentBackingStore,
    ) -> None:
        with process(make_store, _hold) as (child, pipe):
            assert _received(pipe) == b"held"
            with pytest.raises(DeadlineExceeded), log_store.lock("a", 0.05):
                pass
            child.kill()
            child.join()
            with log_store.lock("a", LOCK_SECONDS):
                assert log_store.read("a") == b"before the kill"


def _answer(store: PersistentBackingStore, pipe: Connection) -> None:
    store.write("there", b"from there")
    pipe.send_bytes(store.read("here"))


def _count(store: PersistentBackingStore, pipe: Connection) -> None:
    for _ in range(20):
        with store.lock("count", LOCK_SECONDS):
            store.write_at("count", 0, [b"%d" % (int(store.read("count")) + 1)])
    pipe.send_bytes(b"done")


def _hold(store: PersistentBackingStore, pipe: Connection) -> None:
    with store.lock("a", LOCK_SECONDS):
        store.write_at("a", 0, [b"before the kill"])
        pipe.send_bytes(b"held")
        pipe.recv_bytes()  # never comes: the process is killed here


def _run(make_store: MakeStore, task: Task, pipe: Connection) -> None:
    with make_store() as store:
        task(store, pipe)


def _received(pipe: Connection) -> bytes:
    assert pipe.poll(LOCK_SECONDS), "the other process did not answer"
    return pipe.recv_bytes()


@contextmanager
def process(make_store: MakeStore, task: Task) -> Iterator[tuple[BaseProcess, Connection]]:
    """Run the task on a handle of its own in a new process; killed when still there at the end."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=_run, args=(make_store, task, there), daemon=True)
    child.start()
    there.close()
    try:
        yield child, here
        here.close()
        child.join(LOCK_SECONDS)
    finally:
        child.kill()
        child.join()
        child.close()
        here.close()
