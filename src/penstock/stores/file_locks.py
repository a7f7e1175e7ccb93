"""Locks of a directory store: among the threads of a process by a mutex, among processes by ``flock``."""

from __future__ import annotations

import threading
from threading import get_ident
from typing import NoReturn, Protocol

from penstock.errors import DeadlineExceeded
from penstock.stores.handles import Handle, Handles
from penstock.system import System

LOCK_POLL_SECONDS_MIN = 0.0002
LOCK_POLL_SECONDS_MAX = 0.005


class Seen:
    """The file that a key names, and its size, when it was looked at."""

    __slots__ = ("handle", "size")

    def __init__(self, handle: Handle, size: int) -> None:
        self.handle = handle
        self.size = size


class Owner(Protocol):
    """The store whose keys are locked. A lock keeps it; the store does not keep its locks."""

    def open_handle(self, key: str, *, create: bool) -> Handle:
        """Open the file of a key."""
        ...

    def fail(self, verb: str, key: str, cause: OSError) -> NoReturn:
        """Raise what the error of the system means."""
        ...


class HeldFolder:
    """What is known of a folder while one thread alone changes what is in it."""

    __slots__ = ("folder", "known")

    def __init__(self, folder: str, known: dict[str, Seen]) -> None:
        self.folder = folder
        self.known = known


class FileLocks:
    """The locks of one store."""

    def __init__(
        self,
        system: System,
        handles: Handles,
    ) -> None:
        self._clock = system.clock
        self._files = system.files
        self._handles = handles
        self._making = threading.Lock()
        self._mutexes: dict[str, threading.Lock] = {}
        self.folders: dict[int, HeldFolder] = {}
        """The folder that a thread holds; one at a time."""
        self.life = object()
        """Another one in a forked child."""

    def folder(self) -> HeldFolder | None:
        """The folder that only this thread changes now."""
        return self.folders.get(get_ident()) if self.folders else None

    def mutex(self, key: str) -> threading.Lock:
        """The lock among the threads of this process."""
        found = self._mutexes.get(key)
        if found is None:
            with self._making:
                found = self._mutexes.setdefault(key, threading.Lock())
        return found

    def take(self, owner: Owner, key: str, deadline: float | None, timeout: float) -> Seen:
        """Lock the file of the key against other processes; for who holds the mutex."""
        try:
            return self._try(owner, key) or self._poll(owner, key, deadline, timeout)
        except OSError as cause:
            owner.fail("lock", key, cause)

    def deadline(self, timeout: float) -> float:
        """When the time is up that begins now."""
        return self._clock.monotonic() + timeout

    def let_go(self, key: str, handle: Handle) -> None:
        """Unlock the file."""
        try:
            self._files.unlock(handle.descriptor)
        except OSError:
            # Closing the file, when nobody holds the handle any more, releases the lock as well.
            self._handles.forget(key)

    def let_go_if_taken(self, key: str) -> None:
        """Unlock the file, if it is locked; for who holds the mutex and so is alone with it."""
        handle = self._handles.get(key)
        if handle is not None:
            self.let_go(key, handle)

    def late(self, key: str, timeout: float) -> DeadlineExceeded:
        """The error of a wait that was too long."""
        return DeadlineExceeded(
            f"{key} was locked by another writer for {timeout:g} s; "
            "look for a process that is stopped or waits for its disk",
            key=key,
            seconds=timeout,
        )

    def abandon(self) -> None:
        """In a forked child: a thread that is gone may have held any of them."""
        self._making = threading.Lock()
        self._mutexes = {}
        self.folders = {}
        self.life = object()

    def _poll(self, owner: Owner, key: str, deadline: float | None, timeout: float) -> Seen:
        deadline = self.deadline(timeout) if deadline is None else deadline
        pause = LOCK_POLL_SECONDS_MIN
        while self._clock.monotonic() < deadline:
            self._clock.sleep(pause)
            if (seen := self._try(owner, key)) is not None:
                return seen
            pause = min(pause * 1.5, LOCK_POLL_SECONDS_MAX)
        raise self.late(key, timeout)

    def _try(self, owner: Owner, key: str) -> Seen | None:
        handle = self._handles.get(key) or owner.open_handle(key, create=True)
        locked = self._files.try_lock(handle.descriptor)
        size, links = self._files.status(handle.descriptor)
        if links:
            return Seen(handle, size) if locked else None
        # Deleted or replaced: the lock of a file without a name keeps nobody out.
        self._handles.forget(key)
        if locked:
            self.let_go(key, handle)
        return None


class FileLock:
    """The lock of a key while it is held. An flock is per open file, which threads share: hence the mutex."""

    __slots__ = ("_handle", "_key", "_life", "_locks", "_mutex", "_owner", "_timeout")

    def __init__(self, locks: FileLocks, owner: Owner, key: str, timeout: float) -> None:
        self._locks = locks
        self._owner = owner
        self._key = key
        self._timeout = timeout
        self._handle: Handle | None = None

    def __enter__(self) -> None:
        self._take()

    def _take(self) -> Seen:
        locks, key, deadline = self._locks, self._key, None
        mutex = self._mutex = locks.mutex(key)
        taken: list[bool] = []
        try:
            # One call takes the mutex and notes it: a signal cannot come in between. Most are free:
            # the clock is looked at only when it is to be waited for.
            taken.extend(map(mutex.acquire, (False,)))
            if not any(taken):
                deadline = locks.deadline(self._timeout)
                taken.extend(map(mutex.acquire, (True,), (max(0.0, self._timeout),)))
            if not any(taken):
                raise locks.late(key, self._timeout)
            self._life = locks.life
            seen = locks.take(self._owner, key, deadline, self._timeout)
            self._handle = seen.handle
        except BaseException:
            # A signal, or an error of the system, may have come behind either lock.
            if any(taken):
                self._give_back()
            raise
        return seen

    def _give_back(self) -> None:
        try:
            self._locks.let_go_if_taken(self._key)
        finally:
            self._mutex.release()

    def __exit__(self, *exc_info: object) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            try:
                self._release(handle)
            except BaseException:
                # A signal may have come before it was unlocked. To do that twice changes nothing.
                self._release(handle)
                raise
            finally:
                self._mutex.release()

    def _release(self, handle: Handle) -> None:
        if self._life is self._locks.life:
            self._locks.let_go(self._key, handle)
        else:
            # A forked child shares the open file with its parent, whose lock it must not unlock.
            handle.close()

    def __del__(self) -> None:
        """Whoever forgets it while it is held lets go of the lock."""
        # One that a signal came to while it was made holds nothing.
        if getattr(self, "_handle", None) is not None:
            self.__exit__()


class FolderLock(FileLock):
    """The same, and the store looks at each key of the folder once, as nobody else changes what is in it."""

    __slots__ = ("_thread",)

    def __enter__(self) -> None:
        self._thread = get_ident()
        held = HeldFolder(self._key.rpartition("/")[0], {})
        held.known[self._key] = self._take()
        # Not the lock itself, which nobody could forget then.
        self._locks.folders[self._thread] = held

    def __exit__(self, *exc_info: object) -> None:
        if self._handle is not None:
            self._locks.folders.pop(self._thread, None)
            super().__exit__()
