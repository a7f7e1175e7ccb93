"""The store seam: where segments, heads, offsets and topic descriptions live.

A store is a flat map from keys to bytes. The first half of the methods (``write`` … ``exists``)
is all that sealed segments and subscribers' offsets need. The second half (``write_at`` …
``lock``) is what an append-only log and its heads need on top; a store that cannot do it says so
in its :class:`StoreCapabilities`, and asking for it raises
:class:`~penstock.errors.NotSupported`.

Stores are blocking and thread-safe. The log calls them from its own threads, never from the
event loop; asyncio code that uses a store directly does so through ``asyncio.to_thread``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from penstock.errors import InvalidName, NotSupported
from penstock.system import Buffer, Watch

KEY_LENGTH_MAX = 1_024
KEYS_KNOWN_MAX = 2_048
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,219}")


@dataclass(frozen=True, slots=True)
class StoreCapabilities:
    """What a store can do beyond whole values."""

    log: bool
    """``write_at``, ``truncate``, ``sync`` and ``lock`` work: a whole queue can run on it."""
    shared: bool
    """Several processes may use it at the same time."""
    durable: bool
    """What ``write`` or ``sync`` returned from survives a crash of the machine."""


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counts since the store was opened."""

    reads: int
    bytes_read: int
    writes: int
    bytes_written: int
    syncs: int
    deletes: int


class PersistentBackingStore(ABC):
    """A flat map from keys to bytes that survives the process. See the module's text.

    Keys are ``/``-separated names of letters, digits, ``.``, ``_`` and ``-``. A failing disk or
    database raises :class:`~penstock.errors.StoreFailed` with the cause chained.
    """

    capabilities: StoreCapabilities

    @abstractmethod
    def write(self, key: str, data: Buffer) -> None:
        """Set the whole value, atomically: after a crash it is the old value or this one.

        When the call returns the value is durable.
        """

    @abstractmethod
    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """The bytes from ``start``, at most ``length`` of them (all when None).

        Fewer bytes come back only at the end of the value. Raises ``KeyNotFound``.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the value; a key that is not there is no error. Durable on return."""

    @abstractmethod
    def list(self, prefix: str = "") -> list[str]:
        """All keys that start with the prefix, sorted."""

    def folders(self, folder: str) -> Sequence[str]:
        """The names of the folders in a folder, sorted: the first parts of the keys below it that have more.

        A store that need not go through all keys for it overrides this.
        """
        rest = [key.removeprefix(f"{folder}/") for key in self.list(f"{folder}/")]
        return sorted({part for part, more, _ in (key.partition("/") for key in rest) if more})

    def folders_alike(self, folder: str, name: str) -> Sequence[str]:
        """Those of the folders in a folder whose names differ from this one by case alone, sorted.

        A store that need not look at all names for it overrides this.
        """
        folded = name.casefold()
        found = self.folders(folder)
        return [one for one in found if one != name and one.casefold() == folded]

    @abstractmethod
    def exists(self, key: str) -> bool:
        """Whether the key has a value."""

    @abstractmethod
    def size(self, key: str) -> int:
        """Length of the value in bytes. Raises ``KeyNotFound``."""

    @abstractmethod
    def statistics(self) -> StoreStatistics:
        """Counts since the store was opened."""

    @abstractmethod
    def close(self) -> None:
        """Release everything. Idempotent. What was not synced may be lost in a power cut."""

    def write_at(self, key: str, position: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers one after the other at ``position``, making the value when absent.

        The position is at most the present size; bytes already there are overwritten, bytes
        beyond stay. The bytes are visible to other readers at once, survive a crash of this
        process, and are durable after ``sync``. If the call raises, any part may be written.
        """
        raise self._cannot("write_at")

    def truncate(self, key: str, size: int) -> None:
        """Cut the value to ``size`` bytes; it is at least that long. Durable after ``sync``."""
        raise self._cannot("truncate")

    def sync(self, key: str) -> None:
        """Return when all that was written to the key, by any process, survives a power cut.

        If it raises, what was written since the last good sync must be taken as lost.
        """
        raise self._cannot("sync")

    def lock(self, key: str, timeout: float) -> AbstractContextManager[None]:
        """Hold the key's exclusive lock, among all threads and processes.

        The key is made (empty) when absent. The lock is advisory, is not re-entrant, and is
        released when its holder dies. Raises ``DeadlineExceeded`` after ``timeout`` seconds.
        """
        raise self._cannot("lock")

    def lock_folder(self, key: str, timeout: float) -> AbstractContextManager[None]:
        """As :meth:`lock`; while it is held, only this thread changes what is in the key's folder.

        A store need not look again and again then what others did there. It may look all the same.
        A thread holds one such lock at a time.
        """
        return self.lock(key, timeout)

    def watch(self) -> Watch | None:
        """A watch for :meth:`watch_key`, or None where changes have to be polled for."""
        return None

    def watch_key(self, watch: Watch, key: str) -> None:
        """Let the watch name the key when it is written by any process; the key must exist."""
        raise self._cannot("watch_key")

    def remove_temporaries(self, prefix: str) -> int:
        """Remove what writers of keys with this prefix left when they died; returns how many.

        Only what no key names and no live writer uses; most stores leave nothing behind.
        """
        return 0

    def abandon_after_fork(self) -> None:
        """Called in a forked child: let go of what is shared with the parent, touch nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _cannot(self, operation: str) -> NotSupported:
        return NotSupported(
            f"{type(self).__name__} cannot {operation}: use it for sealed segments (tier=...) and "
            "offsets (offsets=...), and keep open segments in a store with the log capability",
            store=type(self).__name__,
            operation=operation,
        )


def check_key(key: str) -> str:
    """The key itself, or InvalidName: no traversal, no empty part, no odd characters."""
    if _is_key(key):
        return key
    raise InvalidName(
        f"not a store key: {str(key)[:80]!r}. Use parts of letters, digits, '.', '_' and '-' "
        f"(first one a letter, digit or '_'), joined by '/', at most {KEY_LENGTH_MAX} characters",
        name=key,
    )


def is_key_part(name: str) -> bool:
    """Whether a key can have this between two slashes. A file with another name is somebody else's."""
    return _SEGMENT.fullmatch(name) is not None


def _is_key(key: object) -> bool:
    return isinstance(key, str) and len(key) <= KEY_LENGTH_MAX and _has_good_parts(key)


@lru_cache(KEYS_KNOWN_MAX)
def _has_good_parts(key: str) -> bool:
    return all(map(_SEGMENT.fullmatch, key.split("/")))
