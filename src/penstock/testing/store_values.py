"""The first half of the store suite: whole values, ranges, lists, names, counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from penstock.errors import Closed, InvalidName, InvalidOption, KeyNotFound
from penstock.stores.base import PersistentBackingStore, StoreStatistics
from penstock.testing.store_fixtures import MakeStore, StoreFixtures
from penstock.testing.store_machine import ValueMachine, run_machine

BIG_BYTES = 8 * 1024 * 1024

BAD_KEYS = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    ".hidden",
    "-option",
    "a\0b",
    "a\nb",
    "a b",
    "a\\b",
    "C:a",
    "a%2f..",
    "é",
    "a/\u202eb",
    "\ud800",
    "x" * 300,
    "/".join(["abc"] * 400),
]
GOOD_KEYS = ["a", "0", "_x", "A.b-c_d", "a/b/c/d/e/f", "x" * 220, "/".join(["part"] * 40)]


def pattern(size: int, seed: int = 0) -> bytes:
    """Bytes in which a piece in the wrong place shows."""
    step = bytes((index * 7 + seed) % 251 for index in range(251 * 16))
    return (step * (size // len(step) + 1))[:size]


class ValueConformance(StoreFixtures):
    """What every store does."""

    state_examples = 20
    state_steps = 30

    def test_folders_are_the_next_part_of_longer_keys(self, store: PersistentBackingStore) -> None:
        for key in ("topics/b/0/log", "topics/a/log", "topics/file", "other/c/log"):
            store.write(key, b"x")
        assert store.folders("topics") == ["a", "b"]
        assert store.folders("topics/b") == ["0"]
        assert store.folders("nothing") == []

    def test_folders_whose_names_differ_by_case_alone(self, store: PersistentBackingStore) -> None:
        for name in ("Orders", "other", "ORDERS"):
            assert name not in store.folders_alike("topics", name.casefold())
            store.write(f"topics/{name}/log", b"x")
        assert list(store.folders_alike("topics", "orders")) == ["ORDERS", "Orders"]
        assert list(store.folders_alike("topics", "Orders")) == ["ORDERS"]
        assert list(store.folders_alike("topics/Orders", "orders")) == []

    def test_a_value_is_read_back(self, store: PersistentBackingStore) -> None:
        store.write("a/b", b"value")
        assert store.read("a/b") == b"value"
        assert store.size("a/b") == 5
        assert store.exists("a/b")

    def test_a_read_gives_bytes(self, store: PersistentBackingStore) -> None:
        store.write("a", b"value")
        assert type(store.read("a")) is bytes
        assert type(store.read("a", 1, 2)) is bytes

    def test_any_buffer_is_written(self, store: PersistentBackingStore) -> None:
        for data in (b"bytes", bytearray(b"bytearray"), memoryview(b"memoryview")):
            store.write("a", data)
            assert store.read("a") == bytes(data)

    def test_a_later_change_of_the_buffer_changes_nothing(
        self, store: PersistentBackingStore
    ) -> None:
        data = bytearray(b"value")
        store.write("a", data)
        data[:] = b"other"
        assert store.read("a") == b"value"

    def test_an_empty_value_is_a_value(self, store: PersistentBackingStore) -> None:
        store.write("a", b"")
        assert store.exists("a")
        assert store.size("a") == 0
        assert store.read("a") == b""
        assert store.read("a", 0, 10) == b""
        assert store.read("a", 5) == b""
        assert store.list() == ["a"]

    def test_a_write_replaces_the_whole_value(self, store: PersistentBackingStore) -> None:
        for size in (100_000, 0, 1, 3, 100, 200_000, 5):
            store.write("a", pattern(size, size % 10))
            assert store.read("a") == pattern(size, size % 10)
            assert store.size("a") == size

    def test_a_range_is_read(self, store: PersistentBackingStore) -> None:
        store.write("a", b"0123456789")
        assert store.read("a", 3) == b"3456789"
        assert store.read("a", 3, 4) == b"3456"
        assert store.read("a", 0, 1) == b"0"
        assert store.read("a", 9, 1) == b"9"
        assert store.read("a", 3, 0) == b""

    def test_a_range_ends_with_the_value(self, store: PersistentBackingStore) -> None:
        store.write("a", b"0123456789")
        assert store.read("a", 8, 100) == b"89"
        assert store.read("a", 10, 1) == b""
        assert store.read("a", 10) == b""
        assert store.read("a", 999, 5) == b""
        assert store.read("a", 999) == b""

    def test_a_negative_range_is_refused(self, store: PersistentBackingStore) -> None:
        store.write("a", b"value")
        for start, length in [(-1, None), (-1, 2), (0, -1)]:
            with pytest.raises(InvalidOption):
                store.read("a", start, length)

    def test_a_big_value(self, store: PersistentBackingStore) -> None:
        data = pattern(BIG_BYTES)
        store.write("big", data)
        assert store.size("big") == BIG_BYTES
        assert store.read("big") == data
        for start in (0, 1, 65_535, 65_536, 65_537, BIG_BYTES // 2 - 3, BIG_BYTES - 10):
            assert store.read("big", start, 70_000) == data[start : start + 70_000]

    def test_an_absent_key(self, store: PersistentBackingStore) -> None:
        assert not store.exists("absent")
        for call in (store.read, store.size, lambda key: store.read(key, 3, 0)):
            with pytest.raises(KeyNotFound) as caught:
                call("absent")
            assert caught.value.key == "absent"

    def test_delete(self, store: PersistentBackingStore) -> None:
        store.write("a", pattern(200_000))
        store.write("b", b"stays")
        store.delete("a")
        assert not store.exists("a")
        assert store.list() == ["b"]
        with pytest.raises(KeyNotFound):
            store.read("a")

    def test_delete_of_an_absent_key_is_no_error(self, store: PersistentBackingStore) -> None:
        store.delete("absent")
        store.delete("absent/deeper")

    def test_a_deleted_key_can_be_written_again(self, store: PersistentBackingStore) -> None:
        store.write("a", pattern(200_000))
        store.delete("a")
        store.write("a", b"new")
        assert store.read("a") == b"new"

    def test_a_folder_is_no_key(self, store: PersistentBackingStore) -> None:
        store.write("folder/a", b"value")
        assert not store.exists("folder")
        for call in (store.read, store.size):
            with pytest.raises(KeyNotFound):
                call("folder")
        store.delete("folder")
        assert store.read("folder/a") == b"value"

    # Lists

    def test_an_empty_store_lists_nothing(self, store: PersistentBackingStore) -> None:
        assert store.list() == []
        assert store.list("any") == []
        assert store.list("any/thing/") == []

    def test_a_list_is_sorted(self, store: PersistentBackingStore) -> None:
        keys = ["b", "a/2", "a/10", "a-1", "a.b", "Z", "_", "a/1/x", "0"]
        for key in keys:
            store.write(key, b"")
        assert store.list() == sorted(keys)

    def test_a_prefix_may_end_anywhere(self, store: PersistentBackingStore) -> None:
        keys = ["topics/orders/0", "topics/orders/1", "topics/ord/0", "topicsx/0", "to"]
        for key in keys:
            store.write(key, b"")
        for prefix in ("t", "to", "topics", "topics/", "topics/or", "topics/orders/", "x", "to/"):
            expected = sorted(key for key in keys if key.startswith(prefix))
            assert store.list(prefix) == expected, prefix
        assert store.list("topics/orders/0") == ["topics/orders/0"]
        assert store.list("topics/orders/0/") == []

    def test_an_odd_prefix_matches_nothing_or_is_refused(
        self, store: PersistentBackingStore
    ) -> None:
        store.write("a", b"")
        for prefix in ("..", "../", "/", "/etc/", "a\0", "%", "_", "é", "\ud800", "a/../"):
            with suppress(InvalidName):
                assert store.list(prefix) == [], prefix

    # Names

    @pytest.mark.parametrize("name", ["write", "read", "delete", "exists", "size"])
    def test_a_bad_key_is_refused(self, store: PersistentBackingStore, name: str) -> None:
        arguments = [b""] if name == "write" else []
        for key in BAD_KEYS:
            with pytest.raises(InvalidName):
                getattr(store, name)(key, *arguments)
        assert store.list() == []

    def test_a_good_key_is_taken(self, store: PersistentBackingStore) -> None:
        for key in GOOD_KEYS:
            store.write(key, key.encode())
            assert store.read(key) == key.encode()
            assert store.list(key) == [key]
            store.delete(key)

    # The store itself

    def test_statistics_are_exact(self, store: PersistentBackingStore) -> None:
        assert store.statistics() == StoreStatistics(0, 0, 0, 0, 0, 0)
        store.write("a", b"12345")
        store.write("a", b"123")
        store.read("a")
        store.read("a", 1, 1)
        store.read("a", 9)
        with pytest.raises(KeyNotFound):
            store.read("absent")
        store.exists("a")
        store.size("a")
        store.list()
        store.delete("a")
        store.delete("a")
        assert store.statistics() == StoreStatistics(
            reads=3, bytes_read=4, writes=2, bytes_written=8, syncs=0, deletes=1
        )

    def test_a_closed_store_refuses_everything(self, make_store: MakeStore) -> None:
        store = make_store()
        store.write("a", b"value")
        store.close()
        store.close()
        calls: list[Callable[[], object]] = [
            lambda: store.write("a", b""),
            lambda: store.read("a"),
            lambda: store.delete("a"),
            store.list,
            lambda: store.exists("a"),
            lambda: store.size("a"),
        ]
        if store.capabilities.log:
            calls += [
                lambda: store.write_at("a", 0, [b""]),
                lambda: store.truncate("a", 0),
                lambda: store.sync("a"),
                lambda: store.lock("a", 1).__enter__(),
            ]
        for call in calls:
            with pytest.raises(Closed):
                call()

    def test_repr_names_the_store(self, store: PersistentBackingStore) -> None:
        assert type(store).__name__ in repr(store)

    # Threads

    def test_many_threads_write_many_keys(self, store: PersistentBackingStore) -> None:
        def write(number: int) -> None:
            for turn in range(5):
                store.write(f"own/{number}", pattern(1_000 + turn, number))
                store.write("common", pattern(70_000 + number, number))

        in_threads(4, write)
        assert store.list("own/") == [f"own/{number}" for number in range(4)]
        for number in range(4):
            assert store.read(f"own/{number}") == pattern(1_004, number)
        assert store.read("common") in [pattern(70_000 + number, number) for number in range(4)]

    def test_a_reader_sees_the_old_value_or_the_new_one(
        self, store: PersistentBackingStore
    ) -> None:
        values = [pattern(100_000, 1), pattern(150_000, 2)]
        store.write("a", values[0])
        done = threading.Event()

        def work(number: int) -> None:
            if number:
                while not done.is_set():
                    assert store.read("a") in values
                return
            try:
                for turn in range(20):
                    store.write("a", values[turn % 2])
            finally:
                done.set()

        in_threads(3, work)

    # Anything, against a model

    def test_any_sequence_equals_a_dictionary(
        self, store: PersistentBackingStore, make_store: MakeStore
    ) -> None:
        run_machine(ValueMachine, store, make_store, self.state_examples, self.state_steps)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run ``work(0)`` … in threads that start together; raise what any of them raised."""
    failures: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
