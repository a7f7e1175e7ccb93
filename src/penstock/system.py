"""The machine that the log stands on: files, clock, randomness and workers.

Every disk call, every look at the clock, every random number and every background thread of
the log goes through one :class:`System`. Tests pass another one: a simulated disk that loses
what was not synced, a clock that stands still, a worker that runs its jobs at once.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import heapq
import itertools
import mmap
import os
import random
import stat
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

from penstock.inotify import InotifyWatch

Buffer = bytes | bytearray | memoryview

HELPERS_MAX = 8
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
BUFFERS_MAX = 1_024
"""What one vectored write takes (IOV_MAX of Linux)."""
SECOND_MS = 1_000
"""A second, in milliseconds."""


class FileStatus(NamedTuple):
    """Size and number of names of an open file; no name left means it was deleted or replaced."""

    size: int
    links: int


class Watch(Protocol):
    """Tells that a watched file was written, by this process or another."""

    def fileno(self) -> int:
        """A descriptor that turns readable when a watched file changed."""
        ...

    def add(self, path: str, name: str) -> None:
        """Watch one more file, under this name; it must exist."""
        ...

    def drain(self) -> set[str] | None:
        """The names of files that changed since the last call; None: any may have. Never blocks."""
        ...

    def close(self) -> None:
        """Stop watching."""
        ...


class Files(Protocol):
    """Every call that touches the disk. Paths are absolute; errors are ``OSError``."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
        """Open a regular file, never through a symbolic link; ``create`` makes it when absent."""
        ...

    def close(self, descriptor: int) -> None:
        """Close a descriptor; its locks are released."""
        ...

    def read(self, descriptor: int, length: int, position: int) -> bytes:
        """Read up to ``length`` bytes at ``position``; fewer only at the end of the file."""
        ...

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        """Write all of the buffers at ``position``, or raise; bytes may be left behind then."""
        ...

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut the file, or extend it with zeros."""
        ...

    def sync(self, descriptor: int) -> None:
        """Return when the file's bytes and its size are on the disk."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return when the directory's names are on the disk."""
        ...

    def status(self, descriptor: int) -> FileStatus:
        """Size and number of names."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Replace ``target`` by ``source``, atomically."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a name."""
        ...

    def make_directory(self, path: str) -> None:
        """Make one directory; raises ``FileExistsError`` when it is there."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def list_directory(self, path: str) -> list[tuple[str, bool]]:
        """Names in a directory with whether each is a directory, in any order."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a name is there."""
        ...

    def links(self, path: str) -> int:
        """How many names a directory has: two, and one for each directory in it; 1 where nobody counts."""
        ...

    def is_link(self, path: str) -> bool:
        """Whether a name is a symbolic link."""
        ...

    def try_lock(self, descriptor: int) -> bool:
        """Take the exclusive ``flock`` of the open file if it is free."""
        ...

    def unlock(self, descriptor: int) -> None:
        """Release the ``flock``."""
        ...

    def watch(self) -> Watch | None:
        """A new watch, or None where the system has none (callers poll instead)."""
        ...


class OsFiles:
    """The real disk."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
        # Opening a pipe that somebody put in the place of a file must not wait for its other end.
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path, flags | (os.O_CREAT if create else 0), FILE_MODE)
        if path != os.devnull and not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return descriptor

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def read(self, descriptor: int, length: int, position: int) -> bytes:
        data = os.pread(descriptor, length, position)
        if len(data) == length or not data:
            return data
        pieces = [data]
        total = len(data)
        while total < length and (piece := os.pread(descriptor, length - total, position + total)):
            pieces.append(piece)
            total += len(piece)
        return b"".join(pieces)

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        total = sum(map(len, buffers))
        if len(buffers) > BUFFERS_MAX:
            buffers = [b"".join(buffers)]
        written = os.pwritev(descriptor, buffers, position)
        if written == total:
            return
        rest = memoryview(b"".join(buffers))
        while written < total:
            more = os.pwrite(descriptor, rest[written:], position + written)
            if not more:
                # It took nothing and gave no reason: to ask again could go on for ever.
                raise OSError(errno.EIO, "the disk took none of the bytes that were left to write")
            written += more

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        try:
            os.fdatasync(descriptor)
        except OSError:
            # The page cache now shows bytes that are not on the disk, and calls them clean. On ext4
            # (Linux 6.18) even writing them again and a good sync does not save them. Once they
            # are dropped, everybody reads what the disk has, and writing works.
            with suppress(OSError):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            raise

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def status(self, descriptor: int) -> FileStatus:
        status = os.fstat(descriptor)
        return FileStatus(status.st_size, status.st_nlink)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_directory(self, path: str) -> None:
        os.mkdir(path, DIRECTORY_MODE)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def list_directory(self, path: str) -> list[tuple[str, bool]]:
        with os.scandir(path) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def links(self, path: str) -> int:
        return os.stat(path, follow_symlinks=False).st_nlink

    def is_link(self, path: str) -> bool:
        return os.path.islink(path)

    def try_lock(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    def watch(self) -> Watch | None:
        return InotifyWatch.start()


def map_shared(descriptor: int, length: int) -> mmap.mmap:
    """The first bytes of an open file as memory that all processes which map it share."""
    return mmap.mmap(descriptor, length)


_time_ns = time.time_ns


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Do not call. Does nothing when it was called or cancelled before."""
        ...


class Clock(Protocol):
    """Time. The wall clock may jump; the monotonic one never goes back."""

    def time_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        ...

    def call_after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call on the running event loop when that much time has passed."""
        ...


class OsClock:
    """The real clock."""

    def time_ms(self) -> int:
        return _time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def call_after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)


Job = Callable[[], None]


class Worker(Protocol):
    """Runs jobs one after the other: on a thread of its own, or on the event loop."""

    def submit(self, job: Job) -> None:
        """Run the job soon, after those submitted before; thread-safe. A job must not raise."""
        ...

    def submit_after(self, seconds: float, job: Job) -> None:
        """Run the job when that much time has passed; thread-safe."""
        ...

    def run_now(self, job: Job) -> bool:
        """Run the job in this call, if jobs run in this thread and none waits; False when it did not."""
        ...

    def run_all(self, jobs: Sequence[Job]) -> None:
        """Run the jobs, side by side if that helps, and return when all are done.

        Only the job at hand calls it. If one of the jobs raises, so does this.
        """
        ...

    def close(self) -> None:
        """Finish the submitted jobs, drop the delayed ones, stop."""
        ...


def _do_unless_taken(job: Job, outcome: Future[None]) -> None:
    """Run the job, unless it was taken from the helpers; its outcome tells when it is done."""
    if not outcome.set_running_or_notify_cancel():
        return
    try:
        job()
    except BaseException as error:
        outcome.set_exception(error)
    else:
        outcome.set_result(None)


class Helpers:
    """Threads that run jobs side by side, started when there is more than one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads: ThreadPoolExecutor | None = None

    def run_all(self, jobs: Sequence[Job]) -> None:
        """Run the first job here and the others beside it; as :meth:`Worker.run_all`."""
        if len(jobs) < 2:
            for job in jobs:
                job()
            return
        # Not the futures of the pool: it keeps a call for which it could start no thread, gives out no
        # future of it, and makes it when it has a thread.
        others = [(job, Future[None]()) for job in jobs[1:]]
        submitted = False
        try:
            submitted = self._submit(others)
            jobs[0]()
            for job, outcome in others:
                if not submitted and outcome.cancel():
                    job()
                else:
                    outcome.result()
        finally:
            # Whatever happens here, none of them is at work behind it, or begins later.
            wait([one for _, one in others if submitted or not one.cancel()])

    def _submit(self, jobs: Sequence[tuple[Job, Future[None]]]) -> bool:
        """Hand the jobs to the helpers; False when there is no thread to be had, and this one does what is left."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(HELPERS_MAX, f"{self._name}-helper")
        try:
            for job, outcome in jobs:
                self._threads.submit(_do_unless_taken, job, outcome)
        except RuntimeError:
            return False
        return True

    def close(self) -> None:
        """Wait for those at work, and let them go."""
        if self._threads is not None:
            self._threads.shutdown()


class _Delayed(NamedTuple):
    """A job for later."""

    due: float
    ticket: int
    """Of two that are due at once, the one that was submitted first has the smaller one."""
    job: Job


class ThreadWorker:
    """One thread that sleeps until there is a job."""

    def __init__(self, name: str) -> None:
        self._inbox: SimpleQueue[Job | _Delayed | None] = SimpleQueue()
        """Jobs for now, jobs for later, and None when it is to stop."""
        self._delayed: list[_Delayed] = []
        self._ticket = itertools.count()
        self._closing = False
        self._helpers = Helpers(name)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._inbox.put(job)

    def submit_after(self, seconds: float, job: Job) -> None:
        self._inbox.put(_Delayed(time.monotonic() + seconds, next(self._ticket), job))

    def run_now(self, job: Job) -> bool:
        return False

    def run_all(self, jobs: Sequence[Job]) -> None:
        self._helpers.run_all(jobs)

    def close(self) -> None:
        self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._helpers.close()

    def _run(self) -> None:
        while not (self._closing and self._inbox.empty()):
            job = self._next()
            if isinstance(job, _Delayed):
                heapq.heappush(self._delayed, job)
            elif job is None:
                self._closing = True
            else:
                job()

    def _next(self) -> Job | _Delayed | None:
        while self._delayed:
            left = self._delayed[0].due - time.monotonic()
            if left <= 0:
                return heapq.heappop(self._delayed).job
            with suppress(Empty):
                return self._inbox.get(timeout=left)
        return self._inbox.get()


MEMORY_INFO = "/proc/meminfo"
CGROUP = "/sys/fs/cgroup"


def os_memory_bytes(memory_info: str = MEMORY_INFO, cgroup: str = CGROUP) -> int:
    """Bytes of memory that this process could still take without swapping; an estimate.

    The least of what the kernel says is available and what the limit of the process's control group
    (a container) leaves, as far as they can be read.
    """
    found = [_memory_available(memory_info), _memory_left(cgroup)]
    known = [size for size in found if size is not None]
    if known:
        return max(0, min(known))
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _memory_available(path: str) -> int | None:
    for line in _text_of(path).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1_024
    return None


def _memory_left(cgroup: str) -> int | None:
    most, used = (_text_of(f"{cgroup}/memory.{name}").strip() for name in ("max", "current"))
    return int(most) - int(used) if most.isdigit() and used.isdigit() else None


def _text_of(path: str) -> str:
    """The text of a small file of the kernel, empty when it is not there."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""


@dataclass(frozen=True)
class System:
    """Everything outside the process that the log touches; pass another one to test."""

    files: Files = field(default_factory=OsFiles)
    clock: Clock = field(default_factory=OsClock)
    random: random.Random = field(default_factory=random.SystemRandom)
    worker: Callable[[str], Worker] = ThreadWorker
    memory_bytes: Callable[[], int] = os_memory_bytes
    """Bytes of memory that could still be taken."""
