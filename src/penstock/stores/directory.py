"""A directory of files: the store that the log is tuned for.

Each key is a file below the root. Files are 0600, directories 0700. Every call goes through
:class:`penstock.system.Files`, so tests can put a simulated disk underneath.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import NoReturn

from penstock.errors import Closed, DeadlineExceeded, InvalidOption, KeyNotFound, StoreFailed
from penstock.stores.base import (
    PersistentBackingStore,
    StoreCapabilities,
    StoreStatistics,
    check_key,
)
from penstock.stores.file_locks import FileLock, FileLocks, FolderLock, Seen
from penstock.stores.folders import Folders
from penstock.stores.handles import Handle, Handles
from penstock.system import Buffer, System, Watch

HANDLES_MAX = 4_096
"""A thousand partitions; who has more pays an ``open`` now and then, not memory of the kernel for all of them."""
HANDLES_SHARE = 4
"""Of the files that the process may have open, a store keeps one in so many at most: others need some too."""
TEMPORARY = ".tmp"
_MAY_NOT_WRITE = {errno.EACCES, errno.EPERM, errno.EROFS}
_REOPEN = "then open the log again; nothing that was acknowledged as durable is lost"
ADVICE = {
    errno.ENOSPC: f"free some space, {_REOPEN}",
    errno.EDQUOT: f"free some space or raise the quota, {_REOPEN}",
    errno.EIO: f"the disk fails: look at dmesg, move the log to another disk, {_REOPEN}",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EACCES: "give this user the right to write there",
    errno.EROFS: "the file system is mounted read-only",
}
"""What to do about a failed call, where a person can do something."""


def _handles_max() -> int:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        HANDLES_MAX
        if allowed == resource.RLIM_INFINITY
        else min(HANDLES_MAX, max(1, allowed // HANDLES_SHARE))
    )


class DirectoryStore(PersistentBackingStore):
    """Keys are files below ``path``, which is made when absent.

    Any number of processes may share the directory on a local file system. A value set with
    ``write`` is replaced by renaming, a value written with ``write_at`` is changed in place.
    At most ``handles_max`` files stay open: 4,096, or a quarter of what the process may open if that is less.
    Files whose names cannot be keys are somebody else's: they are neither listed nor touched.
    """

    capabilities = StoreCapabilities(log=True, shared=True, durable=True)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        system: System | None = None,
        handles_max: int | None = None,
    ) -> None:
        if handles_max is not None and handles_max < 1:
            raise InvalidOption(
                f"handles_max is {handles_max}: a store keeps at least one file open",
                option="handles_max",
            )
        self.path = os.path.abspath(os.fspath(path))
        self._system = system or System()
        self._files = self._system.files
        self._handles = Handles(_handles_max() if handles_max is None else handles_max)
        self._folders = Folders(self._files, self.path)
        self._locks = FileLocks(self._system, self._handles)
        self._closed = False
        self._reads = self._writes = self._syncs = self._deletes = 0
        self._bytes_read = self._bytes_written = 0
        try:
            self._folders.make(self.path)
        except OSError as cause:
            raise StoreFailed(
                f"cannot make the directory {self.path}: {cause.strerror or cause}. Name one that "
                "can be made or is there",
                errno=cause.errno,
            ) from cause

    def __repr__(self) -> str:
        return f"DirectoryStore({self.path!r})"

    def write(self, key: str, data: Buffer) -> None:
        target = self._path(key)
        folder, name = os.path.split(target)
        temporary = ""
        try:
            self._folders.make(folder)
            temporary, handle = self._open_temporary(folder, name)
            self._files.write(handle.descriptor, [data], 0)
            self._files.sync(handle.descriptor)
            self._files.rename(temporary, target)
            handle.close()
            self._folders.sync_names(folder)
        except OSError as cause:
            if temporary:
                with suppress(OSError):
                    self._files.unlink(temporary)
            self.fail("write", key, cause)
        self._forget(key)
        self._writes += 1
        self._bytes_written += len(data)

    def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if start < 0 or (length is not None and length < 0):
            raise InvalidOption(f"start and length are at least 0, not {start} and {length}")
        try:
            seen = self._current(key)
            available = max(0, seen.size - start)
            wanted = available if length is None else min(length, available)
            data = self._files.read(seen.handle.descriptor, wanted, start)
        except OSError as cause:
            self.fail("read", key, cause)
        self._reads += 1
        self._bytes_read += len(data)
        return data

    def delete(self, key: str) -> None:
        path = self._path(key)
        try:
            self._files.unlink(path)
            self._files.sync_directory(os.path.dirname(path))
        except (NotADirectoryError, IsADirectoryError):
            return
        except FileNotFoundError:
            self._finish_delete(key)
            return
        except OSError as cause:
            self.fail("delete", key, cause)
        self._forget(key)
        self._deletes += 1

    def list(self, prefix: str = "") -> list[str]:
        self._check_open()
        folder = prefix.rpartition("/")[0]
        if folder:
            self._folders.check(check_key(folder))
        try:
            return sorted(key for key in self._folders.keys_below(folder) if key.startswith(prefix))
        except OSError as cause:
            self.fail("list", prefix, cause)

    def folders(self, folder: str) -> Sequence[str]:
        self._check_open()
        self._folders.check(check_key(folder))
        try:
            return sorted(self._folders.names_in(folder))
        except OSError as cause:
            self.fail("list", folder, cause)

    def folders_alike(self, folder: str, name: str) -> Sequence[str]:
        self._check_open()
        self._folders.check(check_key(folder))
        try:
            return self._folders.names_alike(folder, name)
        except OSError as cause:
            self.fail("list", folder, cause)

    def remove_temporaries(self, prefix: str) -> int:
        self._check_open()
        folder, _, start = prefix.rpartition("/")
        path = f"{self.path}/{check_key(folder)}" if folder else self.path
        self._folders.check(folder)
        try:
            names = [name for name, _ in self._files.list_directory(path)]
        except (FileNotFoundError, NotADirectoryError):
            return 0
        except OSError as cause:
            self.fail("list", prefix, cause)
        left = [one for one in names if one.startswith(f".{start}") and one.endswith(TEMPORARY)]
        return sum(self._remove_if_dead(f"{path}/{name}") for name in left)

    def exists(self, key: str) -> bool:
        try:
            self._current(key)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return False
        except OSError as cause:
            self.fail("look at", key, cause)
        return True

    def size(self, key: str) -> int:
        try:
            return self._current(key).size
        except OSError as cause:
            self.fail("look at", key, cause)

    def write_at(self, key: str, position: int, buffers: Sequence[Buffer]) -> None:
        try:
            seen = self._current(key, create=True)
            seen.handle.check_writable()
            if not 0 <= position <= seen.size:
                raise InvalidOption(f"position {position} is outside 0..{seen.size} of {key}")
            self._files.write(seen.handle.descriptor, buffers, position)
        except OSError as cause:
            self._forget_all()
            self.fail("write", key, cause)
        written = sum(map(len, buffers))
        if position + written > seen.size:
            seen.size = position + written
        self._writes += 1
        self._bytes_written += written

    def truncate(self, key: str, size: int) -> None:
        try:
            seen = self._current(key)
            seen.handle.check_writable()
            if not 0 <= size <= seen.size:
                raise InvalidOption(f"size {size} is outside 0..{seen.size} of {key}")
            self._files.truncate(seen.handle.descriptor, size)
        except OSError as cause:
            self._forget_all()
            self.fail("truncate", key, cause)
        seen.size = size

    def sync(self, key: str) -> None:
        self._syncs += 1
        try:
            handle = self._current(key).handle
            self._files.sync(handle.descriptor)
            if not handle.name_synced:
                self._folders.sync_names(os.path.dirname(self._path(key)))
                handle.name_synced = True
        except OSError as cause:
            self.fail("sync", key, cause)

    def lock(self, key: str, timeout: float) -> AbstractContextManager[None]:
        return FileLock(self._locks, self, key, timeout)

    def lock_folder(self, key: str, timeout: float) -> AbstractContextManager[None]:
        return FolderLock(self._locks, self, key, timeout)

    def watch(self) -> Watch | None:
        return self._files.watch()

    def watch_key(self, watch: Watch, key: str) -> None:
        try:
            watch.add(self._path(key), key)
        except OSError as cause:
            self.fail("watch", key, cause)

    def statistics(self) -> StoreStatistics:
        return StoreStatistics(
            reads=self._reads,
            bytes_read=self._bytes_read,
            writes=self._writes,
            bytes_written=self._bytes_written,
            syncs=self._syncs,
            deletes=self._deletes,
        )

    def close(self) -> None:
        self._closed = True
        self._handles.clear()

    def abandon_after_fork(self) -> None:
        # Closing the child's copies does not release the parent's locks; keeping them would
        # hold those locks when the parent dies.
        self._locks.abandon()
        # A thread of the parent that held a handle is gone, but its reference is not: close.
        self._handles.abandon()
        self._closed = True

    # Handles

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the store at {self.path} is closed")

    def _path(self, key: str) -> str:
        self._check_open()
        self._folders.check(check_key(key).rpartition("/")[0])
        return f"{self.path}/{key}"

    def _current(self, key: str, *, create: bool = False) -> Seen:
        """A handle of the file that the key names now, and its size."""
        mine = self._locks.folder()
        if mine is not None and key in mine.known:
            return mine.known[key]
        handle = self._handles.get(key) or self.open_handle(key, create=create)
        size, links = self._files.status(handle.descriptor)
        if links == 0:
            # Deleted or replaced, perhaps by another process.
            self._handles.forget(key)
            handle = self.open_handle(key, create=create)
            size, links = self._files.status(handle.descriptor)
        seen = Seen(handle, size)
        if mine is not None and key.rpartition("/")[0] == mine.folder:
            mine.known[key] = seen
        return seen

    def _forget_all(self) -> None:
        if mine := self._locks.folder():
            mine.known.clear()

    def _forget(self, key: str) -> None:
        """The key names another file now, or none."""
        self._handles.forget(key)
        if mine := self._locks.folder():
            mine.known.pop(key, None)

    def open_handle(self, key: str, *, create: bool) -> Handle:
        """Open the file of a key, and keep it open for a while; OSError when that fails."""
        path = self._path(key)
        try:
            handle = self._open_file(path, create=create)
        except FileNotFoundError:
            if not create:
                raise
            self._folders.make(os.path.dirname(path))
            handle = self._open_file(path, create=True)
        return self._handles.keep(key, handle)

    def _open_file(self, path: str, *, create: bool) -> Handle:
        try:
            return Handle(self._files, self._files.open(path, create=create))
        except OSError as cause:
            if cause.errno not in _MAY_NOT_WRITE:
                raise
            # (The number alone: an error in a variable of its own call stays until it is collected.)
            refusal = cause.errno
        # A reader of a log that it may not write to.
        try:
            return Handle(self._files, self._files.open(path, write=False), refusal)
        except FileNotFoundError:
            if not create:
                raise FileNotFoundError(path) from None
        raise OSError(refusal, os.strerror(refusal), path)

    # Directories

    def _finish_delete(self, key: str) -> None:
        """Whoever removed the key may have died before that was synced."""
        try:
            self._files.sync_directory(os.path.dirname(self._path(key)))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as cause:
            self.fail("delete", key, cause)

    def _open_temporary(self, folder: str, name: str) -> tuple[str, Handle]:
        """A new file for a value on its way. Its lock says that the writer lives."""
        while True:
            number = self._system.random.getrandbits(64)
            path = f"{folder}/.{name[:100]}-{number:016x}{TEMPORARY}"
            handle = Handle(self._files, self._files.open(path, create=True))
            locked = self._files.try_lock(handle.descriptor)
            if locked and self._files.status(handle.descriptor).links:
                return path, handle
            # Taken for that of a dead writer, and removed, before it was locked.
            handle.close()

    def _remove_if_dead(self, path: str) -> bool:
        """Remove a temporary file whose lock is free: its writer is gone."""
        with suppress(OSError):
            handle = Handle(self._files, self._files.open(path))
            if self._files.try_lock(handle.descriptor):
                self._files.unlink(path)
                return True
        return False

    def fail(self, verb: str, key: str, cause: OSError) -> NoReturn:
        """Raise what the error of the system means for who called the store."""
        if isinstance(cause, DeadlineExceeded):  # a TimeoutError, and so an OSError
            raise cause
        if isinstance(cause, FileNotFoundError | NotADirectoryError | IsADirectoryError):
            raise KeyNotFound(f"no such key: {key}", key=key) from cause
        raise StoreFailed(
            f"cannot {verb} {key} in {self.path}: {cause.strerror or cause}{_advice(cause)}",
            key=key,
            operation=verb,
            errno=cause.errno,
        ) from cause


def _advice(cause: OSError) -> str:
    advice = ADVICE.get(cause.errno or 0)
    return f": {advice}" if advice else ""
