"""A store in the memory of the process: for tests, and for queues that may be forgotten."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from penstock.stores.base import (
    PersistentBackingStore,
    StoreCapabilities,
    StoreStatistics,
    check_key,
)
from penstock.stores.gate import (
    Gate,
    KeyLocks,
    check_position,
    check_prefix,
    check_range,
    no_such_key,
)
from penstock.system import Buffer


class MemoryStore(PersistentBackingStore):
    """Keys and values in a dictionary.

    Nothing survives the process or :meth:`close`; ``sync`` returns at once. Several queues of one
    process may share one instance. The size has no bound of its own: retention bounds a queue.
    """

    capabilities = StoreCapabilities(log=True, shared=False, durable=False)

    def __init__(self) -> None:
        self._gate = Gate(repr(self))
        self._mutex = threading.Lock()
        self._locks = KeyLocks()
        self._values: dict[str, bytearray] = {}

    def __repr__(self) -> str:
        return "MemoryStore()"

    def write(self, key: str, data: Buffer) -> None:
        check_key(key)
        with self._mutex:
            self._gate.check()
            self._values[key] = bytearray(data)
        self._gate.count_write(len(data))

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        check_range(start, length)
        check_key(key)
        with self._mutex:
            value = self._value(key)
            end = len(value) if length is None else start + length
            # The view saves a copy: a slice of a bytearray is one already.
            with memoryview(value) as view:
                data = bytes(view[start:end])
        self._gate.count_read(len(data))
        return data

    def delete(self, key: str) -> None:
        check_key(key)
        with self._mutex:
            self._gate.check()
            removed = self._values.pop(key, None)
        if removed is not None:
            self._gate.count_delete()

    def list(self, prefix: str = "") -> list[str]:
        possible = check_prefix(prefix)
        with self._mutex:
            self._gate.check()
            return sorted(key for key in self._values if possible and key.startswith(prefix))

    def exists(self, key: str) -> bool:
        check_key(key)
        with self._mutex:
            self._gate.check()
            return key in self._values

    def size(self, key: str) -> int:
        check_key(key)
        with self._mutex:
            return len(self._value(key))

    def write_at(self, key: str, position: int, buffers: Sequence[Buffer]) -> None:
        check_key(key)
        data = b"".join(buffers)
        with self._mutex:
            self._gate.check()
            value = self._values.get(key, bytearray())
            check_position(key, position, len(value))
            value[position : position + len(data)] = data
            self._values[key] = value
        self._gate.count_write(len(data))

    def truncate(self, key: str, size: int) -> None:
        check_key(key)
        with self._mutex:
            value = self._value(key)
            check_position(key, size, len(value))
            del value[size:]

    def sync(self, key: str) -> None:
        check_key(key)
        with self._mutex:
            self._value(key)
            self._gate.count_sync()

    def lock(self, key: str, timeout: float) -> AbstractContextManager[None]:
        check_key(key)
        self._gate.check()
        return self._hold(key, timeout)

    @contextmanager
    def _hold(self, key: str, timeout: float) -> Iterator[None]:
        with self._locks.hold(key, timeout):
            with self._mutex:
                self._gate.check()
                self._values.setdefault(key, bytearray())
            yield

    def statistics(self) -> StoreStatistics:
        return self._gate.statistics()

    def close(self) -> None:
        if self._gate.close():
            with self._mutex:
                self._values.clear()

    def abandon_after_fork(self) -> None:
        # Another thread may have held the lock when the parent forked.
        self._mutex = threading.Lock()
        self._gate.abandon()

    def _value(self, key: str) -> bytearray:
        """The value, for who holds the mutex."""
        self._gate.check()
        value = self._values.get(key)
        if value is None:
            raise no_such_key(key)
        return value
