"""A disk in memory that forgets in a power cut what was not synced.

It behaves like a POSIX file system at its worst. Written bytes are safe after ``sync`` of the
file; a name is safe after ``sync_directory`` of its directory; all else may be kept, lost, torn
or reordered. :meth:`SimulatedDisk.crash_states` gives the disks that a power cut right now could
leave, :meth:`SimulatedDisk.kill` the one that the death of the process leaves, and
:meth:`SimulatedDisk.fail` makes calls fail.
"""

from __future__ import annotations

import errno
import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import NamedTuple

from penstock.system import Buffer, FileStatus, Watch
from penstock.testing.disk_contents import Contents
from penstock.testing.disk_crash import Plan, Snapshot, plans
from penstock.testing.disk_faults import Fault
from penstock.testing.disk_names import ROOT, failure
from penstock.testing.disk_pages import CachedFile, resize

JOURNAL_CALLS_MAX = 10_000
_DESCRIPTORS = itertools.count(1_000_000)
"""Never used twice, on no disk, and far from real ones: a mix-up is an error, no accident."""
CHANGING = frozenset(
    {
        "open",
        "write",
        "truncate",
        "sync",
        "sync_directory",
        "rename",
        "unlink",
        "make_directory",
        "remove_directory",
    }
)


class Call(NamedTuple):
    """A line of the journal; ``numbers`` are positions, lengths and sizes."""

    operation: str
    path: str
    numbers: tuple[int, ...]


class SyncPoint(NamedTuple):
    """Where an ``on_sync`` callback stands: before the sync, or (``done``) after it."""

    operation: str
    path: str
    done: bool


class _Opened(NamedTuple):
    node: int
    path: str
    write: bool


class SimulatedDisk:
    """Implements :class:`penstock.system.Files`. Thread-safe.

    ``capacity`` in bytes gives ENOSPC; it may be changed at any time. ``directories`` are there,
    durably, from the start. ``calls`` counts every call, ``journal`` has the last ones. A disk
    that came from :meth:`crash_states` tells in :meth:`describe` what the power cut did.
    """

    def __init__(
        self, *, capacity: int | None = None, directories: Iterable[str] = ("/data",)
    ) -> None:
        self.capacity = capacity
        self.calls: Counter[str] = Counter()
        self.journal: deque[Call] = deque(maxlen=JOURNAL_CALLS_MAX)
        self._lock = threading.RLock()
        self._contents = Contents({}, {ROOT: {}}, ROOT)
        self._descriptors: dict[int, _Opened] = {}
        self._locks: dict[int, int] = {}
        self._faults: list[Fault] = []
        self._sync_hooks: list[Callable[[SyncPoint], None]] = []
        self._call_hooks: list[Callable[[str, str], None]] = []
        self._origin: tuple[Snapshot, Plan] | None = None
        for path in directories:
            self._contents.put_directories(path)

    # The calls of penstock.system.Files

    def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
        with self._lock:
            self._begin("open", path)
            if create and self._contents.names.lookup(path) is None:
                self._contents.create(path)
            opened = _Opened(self._contents.regular(path), path, write)
            descriptor = next(_DESCRIPTORS)
            self._descriptors[descriptor] = opened
            return descriptor

    def close(self, descriptor: int) -> None:
        with self._lock:
            opened = self._opened(descriptor)
            self._release(descriptor, opened.node)
            del self._descriptors[descriptor]
            self._begin("close", opened.path)

    def read(self, descriptor: int, length: int, position: int) -> bytes:
        with self._lock:
            opened = self._opened(descriptor)
            self._begin("read", opened.path, numbers=(position, length))
            if position < 0 or length < 0:
                raise failure(errno.EINVAL, opened.path)
            return bytes(self._contents.file(opened.node).live[position : position + length])

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        with self._lock:
            opened = self._opened(descriptor)
            data = b"".join(buffers)
            fault = self._record("write", (opened.path,), (position, len(data)))
            if not opened.write:
                raise failure(errno.EBADF, opened.path)
            if position < 0:
                raise failure(errno.EINVAL, opened.path)
            room = fault.short if fault else self._room(opened.node, position, len(data))
            if data[:room]:
                self._contents.change(opened.node, opened.path, position, data[:room])
            if fault:
                raise fault.failure(opened.path)
            if room < len(data):
                raise failure(errno.ENOSPC, opened.path)

    def truncate(self, descriptor: int, size: int) -> None:
        with self._lock:
            opened = self._opened(descriptor)
            self._begin("truncate", opened.path, numbers=(size,))
            if size < 0 or not opened.write:
                raise failure(errno.EINVAL, opened.path)
            self._contents.change(opened.node, opened.path, size, None)

    def sync(self, descriptor: int) -> None:
        with self._lock:
            opened = self._opened(descriptor)
            file = self._contents.file(opened.node)
            self._sync("sync", opened.path, file.sync, file.strand)

    def sync_directory(self, path: str) -> None:
        with self._lock:
            names = self._contents.names
            folder = self._contents.folder(path)
            self._sync(
                "sync_directory", path, lambda: names.sync(folder), lambda: names.strand(folder)
            )
            self._contents.collect(self._open_nodes())

    def status(self, descriptor: int) -> FileStatus:
        with self._lock:
            opened = self._opened(descriptor)
            self._begin("status", opened.path)
            file = self._contents.file(opened.node)
            return FileStatus(len(file.live), file.links)

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            self._begin("rename", source, target)
            self._contents.rename(source, target)

    def unlink(self, path: str) -> None:
        with self._lock:
            self._begin("unlink", path)
            self._contents.unlink(path)

    def make_directory(self, path: str) -> None:
        with self._lock:
            self._begin("make_directory", path)
            self._contents.make_directory(path)

    def remove_directory(self, path: str) -> None:
        with self._lock:
            self._begin("remove_directory", path)
            self._contents.remove_directory(path)

    def list_directory(self, path: str) -> list[tuple[str, bool]]:
        with self._lock:
            self._begin("list_directory", path)
            return self._contents.entries(path)

    def exists(self, path: str) -> bool:
        with self._lock:
            self._begin("exists", path)
            try:
                self._contents.names.resolve(path)
            except OSError:
                return False
            return True

    def links(self, path: str) -> int:
        with self._lock:
            self._begin("links", path)
            return 2 + sum(is_directory for _, is_directory in self._contents.entries(path))

    def is_link(self, path: str) -> bool:
        return False  # this disk has none

    def try_lock(self, descriptor: int) -> bool:
        with self._lock:
            opened = self._opened(descriptor)
            self._begin("try_lock", opened.path)
            return self._locks.setdefault(opened.node, descriptor) == descriptor

    def unlock(self, descriptor: int) -> None:
        with self._lock:
            opened = self._opened(descriptor)
            self._begin("unlock", opened.path)
            self._release(descriptor, opened.node)

    def watch(self) -> Watch | None:
        with self._lock:
            self._begin("watch", "")
            return None

    # Crashes

    def crash_states(self, limit: int, random: Random | None = None) -> Iterator[SimulatedDisk]:
        """Disks that a power cut right now could leave: at most ``limit`` different ones.

        The first has nothing of what is pending, the second all of it. Without pending
        operations there is one. The states are of the moment of the call, not of the iteration.
        """
        _, chosen, make = self._crashes(limit, random, few_tears=False)
        return map(make, chosen)

    def crash_states_once(
        self, limit: int, random: Random | None = None
    ) -> Iterator[SimulatedDisk | None]:
        """Such states, but None for one with the very names and bytes of one before it.

        Operations that were kept or lost in another way often leave the same disk, which needs to
        be opened only once. At one moment, each write is torn in a few ways only. This makes
        hundreds of thousands of states affordable.
        """
        snapshot, chosen, make = self._crashes(limit, random, few_tears=True)
        return _once(snapshot, chosen, make)

    def kill(self) -> SimulatedDisk:
        """The disk after the death of every process: all that was written is still there.

        Descriptors and locks are gone. What was not synced is as unsafe as it was.
        """
        with self._lock:
            twin = SimulatedDisk._of(self._contents.clone(), self.capacity, None)
            twin._contents.collect(())
            return twin

    def drop_caches(self) -> None:
        """Forget the clean pages: bytes that a failed sync stranded can be read no more."""
        with self._lock:
            for file in self._contents.files.values():
                if isinstance(file, CachedFile):
                    file.evict()

    def describe(self) -> list[str]:
        """What became of each operation that was pending in the power cut before this disk."""
        return self._origin[0].describe(self._origin[1]) if self._origin else []

    # Faults and hooks

    def fail(
        self,
        operation: str,
        error: int = errno.EIO,
        *,
        at: int = 1,
        forever: bool = False,
        path: str = "*",
        short: int = 0,
    ) -> Fault:
        """Let the ``at``-th call from now, of those on a path like ``path``, raise ``OSError``.

        With ``forever`` all later ones fail as well. A failing write leaves the first ``short``
        bytes. A failing sync marks its pages clean: they are never saved unless written again.
        """
        fault = Fault(operation, error, at, forever, path, short)
        with self._lock:
            self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()

    def on_sync(self, callback: Callable[[SyncPoint], None]) -> None:
        """Call back before and after every ``sync`` and ``sync_directory``."""
        self._sync_hooks.append(callback)

    def on_call(self, callback: Callable[[str, str], None]) -> None:
        """Call back, with operation and path, before every call that may change something."""
        self._call_hooks.append(callback)

    # Looking and damaging; a damaged file counts as synced, with all that was pending in it

    def open_descriptors(self) -> dict[int, str]:
        """The descriptors that nobody closed, with the path each was opened by."""
        with self._lock:
            return {number: opened.path for number, opened in self._descriptors.items()}

    def files(self) -> list[str]:
        """The paths of all files, sorted."""
        with self._lock:
            return sorted(self._contents.walk())

    def content(self, path: str) -> bytes:
        """What a reader of the file sees."""
        with self._lock:
            return bytes(self._contents.file(self._contents.regular(path)).live)

    def put(self, path: str, content: bytes) -> None:
        """Make or replace a file, durably."""
        with self._lock:
            self._contents.put(path, content)

    def flip_bit(self, path: str, bit: int) -> None:
        """Turn one bit over; bit 0 is the lowest of the first byte."""
        content = bytearray(self.content(path))
        content[bit // 8] ^= 1 << bit % 8
        self.put(path, bytes(content))

    def truncate_file(self, path: str, size: int) -> None:
        """Cut the file, or extend it with zeros, durably."""
        content = bytearray(self.content(path))
        resize(content, size)
        self.put(path, bytes(content))

    def zero(self, path: str, start: int, length: int) -> None:
        """Overwrite a stretch inside the file with zeros, durably."""
        content = bytearray(self.content(path))
        stop = min(start + length, len(content))
        content[start:stop] = bytes(max(0, stop - start))
        self.put(path, bytes(content))

    def delete(self, path: str) -> None:
        """Remove the file's name, durably."""
        with self._lock:
            self._contents.delete(path)

    # Inside

    def _crashes(
        self, limit: int, random: Random | None, *, few_tears: bool
    ) -> tuple[Snapshot, Iterator[Plan], Callable[[Plan], SimulatedDisk]]:
        """The disk as it is now, plans for it, and how to make the disk of a plan."""
        with self._lock:
            contents, snapshot, capacity = self._contents, self._contents.snapshot(), self.capacity

        def make(plan: Plan) -> SimulatedDisk:
            return SimulatedDisk._of(contents.after(snapshot, plan), capacity, (snapshot, plan))

        chance = random or Random(0)  # noqa: S311 - repeatable, not secret
        return snapshot, plans(snapshot, limit, chance, few_tears=few_tears), make

    @classmethod
    def _of(
        cls, contents: Contents, capacity: int | None, origin: tuple[Snapshot, Plan] | None
    ) -> SimulatedDisk:
        disk = cls(capacity=capacity, directories=())
        disk._contents = contents
        disk._origin = origin
        return disk

    def _begin(self, operation: str, *paths: str, numbers: tuple[int, ...] = ()) -> None:
        if fault := self._record(operation, paths, numbers):
            raise fault.failure(paths[0])

    def _record(
        self, operation: str, paths: tuple[str, ...], numbers: tuple[int, ...]
    ) -> Fault | None:
        if operation in CHANGING:
            for hook in self._call_hooks:
                hook(operation, paths[0])
        self.calls[operation] += 1
        self.journal.append(Call(operation, " ".join(paths), numbers))
        if not self._faults:
            return None
        struck = [fault for fault in self._faults if fault.strikes(operation, paths)]
        return struck[0] if struck else None

    def _sync(
        self, operation: str, path: str, save: Callable[[], None], strand: Callable[[], None]
    ) -> None:
        self._notify(SyncPoint(operation, path, done=False))
        try:
            if fault := self._record(operation, (path,), ()):
                strand()
                raise fault.failure(path)
            save()
        finally:
            self._notify(SyncPoint(operation, path, done=True))

    def _notify(self, point: SyncPoint) -> None:
        for hook in self._sync_hooks:
            hook(point)

    def _opened(self, descriptor: int) -> _Opened:
        opened = self._descriptors.get(descriptor)
        if opened is None:
            raise failure(errno.EBADF, f"descriptor {descriptor}")
        return opened

    def _open_nodes(self) -> list[int]:
        return [opened.node for opened in self._descriptors.values()]

    def _release(self, descriptor: int, node: int) -> None:
        if self._locks.get(node) == descriptor:
            del self._locks[node]

    def _room(self, node: int, position: int, length: int) -> int:
        """How many of ``length`` bytes at ``position`` the capacity allows."""
        if self.capacity is None:
            return length
        free = max(0, self.capacity - self._contents.used(self._open_nodes()))
        return min(length, max(0, self._contents.size(node) + free - position))


def _once(
    snapshot: Snapshot, chosen: Iterable[Plan], make: Callable[[Plan], SimulatedDisk]
) -> Iterator[SimulatedDisk | None]:
    seen: set[object] = set()
    for plan in chosen:
        disk = snapshot.disk_after(plan)
        yield None if disk in seen else make(plan)
        seen.add(disk)
