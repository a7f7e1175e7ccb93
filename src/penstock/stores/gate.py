"""What every store has in common: its state, its counts, its locks and the checks of arguments."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.errors import Closed, DeadlineExceeded, Forked, InvalidOption, KeyNotFound, Poisoned
from penstock.stores.base import StoreStatistics, check_key
from penstock.system import Clock

_PART_OF_A_KEY = re.compile(r"[A-Za-z0-9._/-]*")


class Gate:
    """Says whether a store may be used, and counts what it did.

    Calls that raise count nothing. ``write`` and ``write_at`` count as writes; a ``delete`` counts
    when there was a value.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._mutex = threading.Lock()
        self._obstacle: Callable[[], Exception] | None = None
        self._poison: str | None = None
        self._reads = self._writes = self._syncs = self._deletes = 0
        self._bytes_read = self._bytes_written = 0

    @property
    def is_open(self) -> bool:
        """Whether the store may be used."""
        return self._obstacle is None

    def check(self) -> None:
        """Raise when the store was closed, or was opened before ``fork()``."""
        if self._obstacle is not None:
            raise self._obstacle()

    def check_write(self) -> None:
        """As :meth:`check`; raise also when an earlier failure makes every promise a lie."""
        self.check()
        if self._poison is not None:
            raise Poisoned(f"{self._name}: {self._poison}; close and reopen it", store=self._name)

    def close(self) -> bool:
        """Let nobody in any more; False when that was so already."""
        with self._mutex:
            if self._obstacle is not None:
                return False
            self._obstacle = lambda: Closed(f"{self._name} is closed")
            return True

    def abandon(self) -> None:
        """Let nobody in: this is a forked child."""
        self._mutex = threading.Lock()
        self._obstacle = lambda: Forked(
            f"{self._name} was opened before fork(): open a new one in the child"
        )

    def poison(self, reason: str) -> None:
        """Refuse writes and syncs from now on; the first reason is kept."""
        self._poison = self._poison or reason

    def count_read(self, size: int) -> None:
        with self._mutex:
            self._reads += 1
            self._bytes_read += size

    def count_write(self, size: int) -> None:
        with self._mutex:
            self._writes += 1
            self._bytes_written += size

    def count_sync(self) -> None:
        with self._mutex:
            self._syncs += 1

    def count_delete(self) -> None:
        with self._mutex:
            self._deletes += 1

    def statistics(self) -> StoreStatistics:
        with self._mutex:
            return StoreStatistics(
                reads=self._reads,
                bytes_read=self._bytes_read,
                writes=self._writes,
                bytes_written=self._bytes_written,
                syncs=self._syncs,
                deletes=self._deletes,
            )


class KeyLocks:
    """One lock for each key among the threads of this process; forgotten when nobody wants it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._entries: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def hold(self, key: str, timeout: float) -> Iterator[None]:
        """Hold the key's lock, or raise DeadlineExceeded."""
        lock = self._enter(key)
        try:
            if not lock.acquire(timeout=min(max(0.0, timeout), threading.TIMEOUT_MAX)):
                raise lock_timeout(key, timeout)
            try:
                yield
            finally:
                lock.release()
        finally:
            self._leave(key)

    def _enter(self, key: str) -> threading.Lock:
        with self._mutex:
            lock, users = self._entries.get(key) or (threading.Lock(), 0)
            self._entries[key] = (lock, users + 1)
            return lock

    def _leave(self, key: str) -> None:
        with self._mutex:
            lock, users = self._entries.pop(key)
            if users > 1:
                self._entries[key] = (lock, users - 1)


class Deadline:
    """The end of a wait on the monotonic clock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._end = clock.monotonic() + seconds

    def remaining(self) -> float:
        """Seconds left; negative when it has passed."""
        return self._end - self._clock.monotonic()


def lock_timeout(key: str, timeout: float) -> DeadlineExceeded:
    """The error of a lock that was not free in time."""
    return DeadlineExceeded(
        f"{key} was locked by another writer for {max(0.0, timeout):g} s; "
        "look for a process that is stopped or waits for its disk",
        key=key,
        seconds=timeout,
    )


def no_such_key(key: str) -> KeyNotFound:
    """The error of a key without a value."""
    return KeyNotFound(f"no such key: {key}", key=key)


def check_range(start: int, length: int | None) -> None:
    """Raise when a range to read is none."""
    if start < 0 or (length is not None and length < 0):
        raise InvalidOption(f"start and length are at least 0, not {start} and {length}")


def check_position(key: str, position: int, size: int) -> None:
    """Raise when the position lies outside the value."""
    if not 0 <= position <= size:
        raise InvalidOption(f"position {position} is outside 0..{size} of {key}")


def check_prefix(prefix: str) -> bool:
    """Whether any key can start with the prefix; raises InvalidName when its folder cannot be one.

    The folder in it is checked like a key; what follows may be any part of a name.
    """
    folder = prefix.rpartition("/")[0]
    if folder:
        check_key(folder)
    return _PART_OF_A_KEY.fullmatch(prefix) is not None
