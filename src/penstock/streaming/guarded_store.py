"""The store behind the checkpoints' cache: what it has is never lost to a write that knows less.

Several processes may commit to one store, and each has a memory of its own. So a write looks at what the
store has, under a lock where the store has locks, and is refused when that is ahead. A store
without locks (objects) leaves a moment between the look and the write: there the lease of the
group alone keeps two processes from committing to one partition.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from penstock.errors import Fenced, KeyNotFound
from penstock.stores.base import PersistentBackingStore
from penstock.streaming.checkpoint import StreamCheckpoint, damaged, decode_checkpoint

LOCK_TIMEOUT_SECONDS = 10.0
LOCKS = "checkpoint-locks"
MARK = b"1"
"""What stands in the file of the lock once there was a checkpoint."""


class StoreIsAhead(Exception):
    """The store has something that the write did not know of. Nothing was written."""

    def __init__(self, both: StreamCheckpoint) -> None:
        super().__init__("the store is ahead")
        self.both = both
        """What the store has, together with what was to be written."""


class GuardedStore:
    """The calls of a cache to a store of checkpoints; blocking."""

    def __init__(self, store: PersistentBackingStore) -> None:
        self._store = store
        self.resets: dict[str, StreamCheckpoint] = {}
        """Checkpoints that are written whatever the store has, by name."""
        self._marked: set[str] = set()

    def read(self, key: str) -> bytes:
        """The whole value. Raises KeyNotFound, and DamagedFile when it is not sound."""
        try:
            data = self._store.read(key)
        except KeyNotFound:
            if self._was_written(key):
                raise damaged(key, "it is missing") from None
            raise
        decode_checkpoint(data, key)  # here, as here its name is known
        return data

    def list(self, prefix: str) -> list[str]:
        """All names that start with the prefix, in order; also of those that were lost."""
        marks = self._store.list(f"{LOCKS}/{prefix}") if self._store.capabilities.log else []
        marked = [mark.removeprefix(f"{LOCKS}/") for mark in marks]
        written = {key for key in marked if self._was_written(key)}
        return sorted(written.union(self._store.list(prefix)))

    def delete(self, key: str) -> None:
        """Remove a checkpoint, and before it its lock: a mark without a checkpoint is a loss."""
        self._marked.discard(key)
        if self._store.capabilities.log:
            self._store.delete(f"{LOCKS}/{key}")
        self._store.delete(key)

    def write(self, key: str, data: bytes) -> None:
        """Set a checkpoint, durably. Raises StoreIsAhead, Fenced, and DamagedFile."""
        wanted = decode_checkpoint(data, key)
        if self.resets.get(key) == wanted:
            self._store.write(key, data)
            self._mark(key)
            return
        with self._locked(key):
            self._check(key, wanted)
            self._store.write(key, data)
            self._mark(key)

    def _mark(self, key: str) -> None:
        """Note beside the lock that there is a checkpoint; when it is gone, it was lost."""
        if key in self._marked or not self._store.capabilities.log:
            return
        if not self._was_written(key):
            self._store.write_at(f"{LOCKS}/{key}", 0, [MARK])
            self._store.sync(f"{LOCKS}/{key}")
        self._marked.add(key)

    def _was_written(self, key: str) -> bool:
        if not self._store.capabilities.log:
            return False
        try:
            return self._store.size(f"{LOCKS}/{key}") > 0
        except KeyNotFound:
            return False

    def _check(self, key: str, wanted: StreamCheckpoint) -> None:
        try:
            present = decode_checkpoint(self.read(key), key)
        except KeyNotFound:
            return
        check_generation(key, wanted.generation, present)
        if not present.says_no_more_than(wanted):
            raise StoreIsAhead(wanted.joined(present))

    def _locked(self, key: str) -> AbstractContextManager[None]:
        if not self._store.capabilities.log:
            return nullcontext()
        return self._store.lock(f"{LOCKS}/{key}", LOCK_TIMEOUT_SECONDS)


def check_generation(key: str, generation: int, present: StreamCheckpoint) -> None:
    """Refuse a commit of an older generation than that of the last one."""
    if generation < present.generation:
        raise Fenced(
            f"{key} was committed by generation {present.generation} of the group; generation "
            f"{generation} commits no more",
            generation=generation,
            current=present.generation,
        )
