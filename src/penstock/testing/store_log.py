"""The second half of the store suite: what a log needs on top of whole values."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import product

import pytest

from penstock.errors import (
    DeadlineExceeded,
    InvalidName,
    InvalidOption,
    KeyNotFound,
    NotSupported,
)
from penstock.stores.base import PersistentBackingStore
from penstock.testing.store_fixtures import LOCK_SECONDS, MakeStore, StoreFixtures
from penstock.testing.store_machine import LogMachine, run_machine
from penstock.testing.store_values import BAD_KEYS, in_threads, pattern


def thirty_bytes(store: PersistentBackingStore, key: str) -> bytes:
    """Three writes in a row: a store that keeps pieces has seams at 10 and 20."""
    data = pattern(30)
    for start in (0, 10, 20):
        store.write_at(key, start, [data[start : start + 10]])
    return data


class LogConformance(StoreFixtures):
    """What a store with the log capability does, and how one without it says no."""

    state_examples = 20
    state_steps = 30

    def test_what_a_store_cannot_do_it_refuses(self, store: PersistentBackingStore) -> None:
        if store.capabilities.log:
            pytest.skip(f"{type(store).__name__} has the log capability")
        store.write("a", b"value")
        calls: list[Callable[[], object]] = [
            lambda: store.write_at("a", 0, [b""]),
            lambda: store.truncate("a", 0),
            lambda: store.sync("a"),
            lambda: store.lock("a", 1).__enter__(),
        ]
        for call in calls:
            with pytest.raises(NotSupported):
                call()
        assert store.watch() is None

    def test_write_at_makes_the_value(self, log_store: PersistentBackingStore) -> None:
        log_store.write_at("a/b", 0, [b"12", b"", b"345"])
        assert log_store.read("a/b") == b"12345"
        assert log_store.list() == ["a/b"]

    def test_write_at_of_nothing_makes_an_empty_value(
        self, log_store: PersistentBackingStore
    ) -> None:
        log_store.write_at("a", 0, [])
        log_store.write_at("b", 0, [b""])
        assert log_store.read("a") == log_store.read("b") == b""
        assert log_store.list() == ["a", "b"]

    def test_appends_follow_each_other(self, log_store: PersistentBackingStore) -> None:
        expected = b""
        for number in range(50):
            data = pattern(number * 37 % 400, number)
            log_store.write_at("a", len(expected), [data])
            expected += data
        assert log_store.read("a") == expected
        assert log_store.size("a") == len(expected)
        for start in range(0, len(expected), 997):
            assert log_store.read("a", start, 500) == expected[start : start + 500]

    def test_a_big_append(self, log_store: PersistentBackingStore) -> None:
        data = pattern(1_000_000)
        log_store.write_at("a", 0, [b"head"])
        log_store.write_at("a", 4, [data[:10], data[10:]])
        log_store.write_at("a", 1_000_004, [b"tail"])
        assert log_store.read("a") == b"head" + data + b"tail"

    def test_any_buffer_is_written_at(self, log_store: PersistentBackingStore) -> None:
        log_store.write_at("a", 0, [bytearray(b"12"), memoryview(b"34"), b"5"])
        assert log_store.read("a") == b"12345"

    def test_the_middle_is_overwritten(self, log_store: PersistentBackingStore) -> None:
        for position, length in product([0, 1, 9, 10, 11, 19, 25], [1, 9, 10, 11, 25, 40]):
            key = f"{position}/{length}"
            expected = bytearray(thirty_bytes(log_store, key))
            data = pattern(length, 100)
            log_store.write_at(key, position, [data])
            expected[position : position + length] = data
            assert log_store.read(key) == expected, key
            assert log_store.size(key) == len(expected), key
            log_store.write_at(key, len(expected), [b"more"])
            assert log_store.read(key) == expected + b"more", key

    def test_a_big_value_is_overwritten_in_the_middle(
        self, log_store: PersistentBackingStore
    ) -> None:
        expected = bytearray(pattern(300_000))
        log_store.write("a", bytes(expected))
        for position, length in [(65_530, 10), (1, 200_000), (299_999, 1), (65_536, 65_536)]:
            data = pattern(length, position % 251)
            log_store.write_at("a", position, [data])
            expected[position : position + length] = data
        assert log_store.read("a") == expected

    def test_a_position_outside_the_value_is_refused(
        self, log_store: PersistentBackingStore
    ) -> None:
        log_store.write_at("a", 0, [b"value"])
        for position, data in product([-1, 6, 1_000_000], [b"x", b""]):
            with pytest.raises(InvalidOption):
                log_store.write_at("a", position, [data])
            with pytest.raises(InvalidOption):
                log_store.truncate("a", position)
        assert log_store.read("a") == b"value"

    def test_the_first_write_starts_at_0(self, log_store: PersistentBackingStore) -> None:
        with pytest.raises(InvalidOption):
            log_store.write_at("a", 1, [b"x"])

    def test_truncate(self, log_store: PersistentBackingStore) -> None:
        for size in (0, 1, 9, 10, 11, 20, 29, 30):
            expected = thirty_bytes(log_store, key := f"cut-{size}")[:size]
            log_store.truncate(key, size)
            assert log_store.read(key) == expected, key
            assert log_store.size(key) == size
            assert log_store.exists(key)
            log_store.write_at(key, size, [b"new"])
            assert log_store.read(key) == expected + b"new", key

    def test_write_and_write_at_share_a_value(self, log_store: PersistentBackingStore) -> None:
        log_store.write("a", b"0123456789")
        log_store.write_at("a", 5, [b"abc"])
        assert log_store.read("a") == b"01234abc89"
        log_store.write("a", b"xyz")
        assert log_store.read("a") == b"xyz"
        log_store.write_at("a", 3, [b"!"])
        assert log_store.read("a") == b"xyz!"

    def test_sync(self, log_store: PersistentBackingStore) -> None:
        log_store.write_at("a", 0, [b"value"])
        log_store.sync("a")
        log_store.sync("a")
        assert log_store.read("a") == b"value"

    def test_an_absent_key_has_nothing_to_sync_or_cut(
        self, log_store: PersistentBackingStore
    ) -> None:
        for call in (log_store.sync, lambda key: log_store.truncate(key, 0)):
            with pytest.raises(KeyNotFound):
                call("absent")
        assert log_store.list() == []

    def test_a_bad_key_is_refused_by_the_logs_half(self, log_store: PersistentBackingStore) -> None:
        calls: list[Callable[[str], object]] = [
            lambda key: log_store.write_at(key, 0, [b""]),
            lambda key: log_store.truncate(key, 0),
            log_store.sync,
            lambda key: log_store.lock(key, 1).__enter__(),
        ]
        for key, call in product(BAD_KEYS, calls):
            with pytest.raises(InvalidName):
                call(key)
        assert log_store.list() == []

    def test_statistics_count_the_logs_half(self, log_store: PersistentBackingStore) -> None:
        log_store.write_at("a", 0, [b"123", b"45"])
        log_store.write_at("a", 5, [b"6"])
        log_store.sync("a")
        log_store.truncate("a", 2)
        with pytest.raises(InvalidOption):
            log_store.write_at("a", 3, [b"x"])
        counts = log_store.statistics()
        assert (counts.writes, counts.bytes_written, counts.syncs) == (2, 6, 1)

    # Locks

    def test_a_lock_makes_the_key(self, log_store: PersistentBackingStore) -> None:
        with log_store.lock("a/b", 1):
            assert log_store.read("a/b") == b""
        assert log_store.list() == ["a/b"]

    def test_a_lock_leaves_the_value_alone(self, log_store: PersistentBackingStore) -> None:
        log_store.write("a", b"value")
        with log_store.lock("a", 1):
            log_store.write_at("a", 5, [b"!"])
        assert log_store.read("a") == b"value!"

    def test_a_lock_is_released_by_an_error(self, log_store: PersistentBackingStore) -> None:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError), log_store.lock("a", 1):
                raise ZeroDivisionError

    def test_a_held_lock_is_waited_for_until_the_deadline(
        self, log_store: PersistentBackingStore
    ) -> None:
        with log_store.lock("a", 1):
            outcome: list[BaseException] = []

            def work() -> None:
                try:
                    with log_store.lock("a", 0.05):
                        pass
                except BaseException as failure:
                    outcome.append(failure)

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            assert [type(one) for one in outcome] == [DeadlineExceeded]
        with log_store.lock("a", 1):
            pass

    def test_locks_of_different_keys_are_independent(
        self, log_store: PersistentBackingStore
    ) -> None:
        with log_store.lock("a", 1), log_store.lock("b", 1), log_store.lock("c/d", 1):
            log_store.write_at("b", 0, [b"x"])

    def test_a_lock_keeps_other_threads_out(self, log_store: PersistentBackingStore) -> None:
        log_store.write("count", b"0")

        def work(_: int) -> None:
            for _ in range(8):
                with log_store.lock("count", LOCK_SECONDS):
                    count = int(log_store.read("count")) + 1
                    log_store.write_at("count", 0, [b"%d" % count])

        in_threads(4, work)
        assert log_store.read("count") == b"32"

    def test_threads_append_under_a_lock(self, log_store: PersistentBackingStore) -> None:
        def work(number: int) -> None:
            for _ in range(8):
                with log_store.lock("log", LOCK_SECONDS):
                    log_store.write_at("log", log_store.size("log"), [b"%d" % number * 9])

        in_threads(4, work)
        data = log_store.read("log")
        entries = [data[start : start + 9] for start in range(0, len(data), 9)]
        assert sorted(entries) == [b"%d" % number * 9 for number in range(4) for _ in range(8)]

    def test_threads_append_under_the_lock_of_a_folder(
        self, log_store: PersistentBackingStore
    ) -> None:
        log_store.write_at("a/log", 0, [b""])

        def work(number: int) -> None:
            for _ in range(8):
                with log_store.lock_folder("a/lock", LOCK_SECONDS):
                    log_store.write_at("a/log", log_store.size("a/log"), [b"%d" % number])
                    log_store.write_at("a/log", log_store.size("a/log"), [b"."])

        in_threads(4, work)
        pieces = log_store.read("a/log").split(b".")
        assert sorted(pieces) == sorted([b"", *[b"0", b"1", b"2", b"3"] * 8])

    def test_threads_write_different_parts_of_one_value(
        self, log_store: PersistentBackingStore
    ) -> None:
        log_store.write("a", bytes(400))

        def work(number: int) -> None:
            for turn in range(8):
                log_store.write_at("a", number * 100, [bytes([number * 10 + turn]) * 100])

        in_threads(4, work)
        assert log_store.read("a") == b"".join(bytes([n * 10 + 7]) * 100 for n in range(4))

    def test_any_sequence_equals_a_model_of_bytes(
        self, log_store: PersistentBackingStore, make_store: MakeStore
    ) -> None:
        run_machine(LogMachine, log_store, make_store, self.state_examples, self.state_steps)
