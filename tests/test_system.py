"""The machine that the log stands on: files, memory, clock and worker as the operating system has them."""

import asyncio
import ctypes
import errno
import mmap
import os
import threading
from functools import partial
from itertools import count

import pytest

from penstock.system import BUFFERS_MAX, Helpers, Job, OsClock, OsFiles, ThreadWorker, map_shared

CONTENT = b"0123456789"
SECONDS_MAX = 60
"""For a thread that should be done at once."""


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "file"
    made.write_bytes(CONTENT)
    return made


@pytest.fixture
def descriptor(path):
    files = OsFiles()
    opened = files.open(str(path))
    yield opened
    files.close(opened)


# Files


@pytest.mark.parametrize(("length", "position"), [(10, 0), (11, 0), (100, 4), (5, 10), (5, 99)])
def test_a_read_ends_with_the_file(descriptor, length, position):
    assert OsFiles().read(descriptor, length, position) == CONTENT[position : position + length]


@pytest.mark.parametrize(("length", "position"), [(10, 0), (7, 2), (100, 4)])
def test_a_disk_that_gives_a_few_bytes_at_a_time_is_asked_again(
    descriptor, monkeypatch, length, position
):
    plain = os.pread
    monkeypatch.setattr(os, "pread", lambda file, most, at: plain(file, min(most, 3), at))
    assert OsFiles().read(descriptor, length, position) == CONTENT[position : position + length]


def test_more_buffers_than_the_kernel_takes_at_once_are_written(descriptor, path):
    buffers = [b"%d," % number for number in range(BUFFERS_MAX + 1)]
    OsFiles().write(descriptor, buffers, 3)
    assert path.read_bytes() == CONTENT[:3] + b"".join(buffers)


def test_what_is_no_file_is_refused_and_not_left_open(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file") as caught:
        OsFiles().open(str(pipe))
    assert caught.value.errno == errno.EINVAL
    assert str(pipe) not in open_paths()


def open_paths():
    """What this process has open."""
    with os.scandir("/proc/self/fd") as found:
        return {os.path.realpath(one.path) for one in found}


def test_a_folder_with_something_in_it_is_not_removed(tmp_path, path):
    files = OsFiles()
    with pytest.raises(OSError, match="not empty") as caught:
        files.remove_directory(str(tmp_path))
    assert caught.value.errno == errno.ENOTEMPTY
    path.unlink()
    files.remove_directory(str(tmp_path))
    assert not tmp_path.exists()


def test_a_failed_sync_tells_its_own_reason():
    """A pipe can be neither synced (EINVAL) nor dropped from memory (ESPIPE)."""
    ends = os.pipe()
    try:
        with pytest.raises(OSError, match="Invalid") as caught:
            OsFiles().sync(ends[1])
        assert caught.value.errno == errno.EINVAL
    finally:
        for end in ends:
            os.close(end)


def pages_in_memory(descriptor):
    """How many pages of the file the kernel keeps in memory; to ask brings none there."""
    with mmap.mmap(descriptor, 0) as memory:
        found = (ctypes.c_ubyte * -(-len(memory) // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(memory)
        place = ctypes.c_void_p(ctypes.addressof(start))
        assert not ctypes.CDLL(None).mincore(place, ctypes.c_size_t(len(memory)), found)
        del start
    return sum(one & 1 for one in found)


def test_what_could_not_be_synced_is_not_kept_in_memory(descriptor, monkeypatch):
    """The kernel calls such pages clean: whoever reads them would be told what the disk does not have."""
    os.fdatasync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    if pages_in_memory(descriptor):
        pytest.skip("this file system is nowhere but in memory")
    assert os.pread(descriptor, 100, 0) == CONTENT
    assert pages_in_memory(descriptor) == 1
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="gone"):
        OsFiles().sync(descriptor)
    assert pages_in_memory(descriptor) == 0


def fail(_):
    raise OSError(errno.EIO, "the disk is gone")


def test_memory_of_a_file_is_shared_by_all_who_map_it(descriptor, path):
    with map_shared(descriptor, 4) as one, map_shared(descriptor, len(CONTENT)) as other:
        assert (len(one), other[:]) == (4, CONTENT)
        one[1:3] = b"ab"
        assert other[:] == b"0ab3456789"
    assert path.read_bytes() == b"0ab3456789"


# The clock


async def test_the_clock_calls_when_the_time_has_come_and_not_when_it_is_cancelled():
    clock, called, rang = OsClock(), [], asyncio.Event()
    in_an_hour = clock.call_after(3_600, lambda: called.append("in an hour"))
    clock.call_after(0, lambda: called.append("cancelled")).cancel()
    clock.call_after(0, rang.set)
    await rang.wait()
    in_an_hour.cancel()
    assert called == []


# The worker


@pytest.fixture
def worker():
    made = ThreadWorker("diligent")
    yield made
    made.close()


def threads_of_workers():
    return [one.name for one in threading.enumerate() if one.name.startswith("diligent")]


def test_jobs_run_in_order_and_all_before_it_is_closed(worker):
    seen: list[int] = []
    for number in range(100):
        worker.submit(partial(seen.append, number))
    worker.close()
    assert seen == list(range(100))
    assert threads_of_workers() == []


def test_a_job_that_is_due_runs_before_one_that_is_not(worker):
    """Given one that is due in an hour, then a later one that is due at once is not kept behind it."""
    seen, done = [], threading.Event()
    worker.submit_after(3_600, lambda: seen.append("in an hour"))
    worker.submit_after(0, done.set)
    assert done.wait(SECONDS_MAX)
    worker.close()
    assert seen == [], "the delayed ones are dropped"


def test_jobs_run_side_by_side_and_are_waited_for(worker):
    """They meet: no one of them gets on before the others are there."""
    meeting, done = threading.Barrier(3), threading.Event()
    seen: list[str] = []

    def meet(name: str) -> None:
        meeting.wait(SECONDS_MAX)
        seen.append(name)

    def all_of_them() -> None:
        worker.run_all([partial(meet, name) for name in "abc"])
        seen.append("all")
        done.set()

    worker.submit(all_of_them)
    assert done.wait(SECONDS_MAX)
    assert set(seen[:3]) == set("abc")
    assert seen[3:] == ["all"]
    worker.close()
    assert threads_of_workers() == [], "the helpers are gone as well"


def test_one_job_needs_no_other_thread(worker):
    seen: list[int] = []
    worker.run_all([lambda: seen.append(threading.get_ident())])
    worker.run_all([])
    assert seen == [threading.get_ident()]
    assert threads_of_workers() == ["diligent"]


def test_jobs_that_get_no_thread_are_done_here_and_not_later(worker, monkeypatch):
    """The pool keeps a call for which it could start no thread, and makes it when it has one."""
    seen: list[str] = []
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", no_thread)
        worker.run_all([partial(seen.append, name) for name in "abc"])
    assert seen == ["a", "b", "c"]
    worker.run_all([partial(seen.append, name) for name in "de"])
    worker.close()
    assert sorted(seen) == list("abcde")


def no_thread(*_):
    raise RuntimeError("can't start new thread")


def test_a_job_that_a_helper_found_without_a_thread_of_its_own_is_waited_for(monkeypatch):
    """Given threads for one helper alone, it also takes the call for which there was none."""
    helpers = Helpers("busy")
    seen: list[bool] = []
    refused, begun, returned = threading.Event(), threading.Event(), threading.Event()
    start, starts = threading.Thread.start, count(1)

    def start_one(thread: threading.Thread) -> None:
        if next(starts) > 1:
            refused.set()
            no_thread()
        start(thread)

    def last() -> None:
        begun.set()
        seen.append(returned.wait(0.05))

    monkeypatch.setattr(threading.Thread, "start", start_one)
    helpers.run_all(
        [
            lambda: seen.append(begun.wait(SECONDS_MAX)),
            lambda: seen.append(refused.wait(SECONDS_MAX)),
            last,
        ]
    )
    returned.set()
    helpers.close()
    assert sorted(seen) == [False, True, True], "it had not returned when the last one ended"


def test_what_no_helper_has_begun_is_not_begun_behind_a_failure(monkeypatch):
    """Given no thread, and a first job that fails, the others are not done: neither here nor later."""
    helpers = Helpers("idle")
    seen: list[str] = []
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(OSError, match="gone"):
            helpers.run_all([partial(fail, None), partial(seen.append, "a")])
    helpers.run_all([partial(seen.append, name) for name in "bc"])
    helpers.close()
    assert sorted(seen) == ["b", "c"]


@pytest.mark.parametrize("failing", [0, 1])
def test_the_failure_of_one_job_is_told(worker, failing):
    jobs: list[Job] = [lambda: None, lambda: None]
    jobs[failing] = partial(fail, None)
    with pytest.raises(OSError, match="gone"):
        worker.run_all(jobs)


def test_a_job_may_close_its_worker(worker):
    """It cannot wait for itself. What was submitted before is still done, and the thread ends."""
    seen, submitted = [], threading.Event()
    threads = [one for one in threading.enumerate() if one.name == "diligent"]

    def close() -> None:
        submitted.wait(SECONDS_MAX)
        worker.close()
        seen.append("closed")

    worker.submit(close)
    worker.submit(lambda: seen.append("after"))
    submitted.set()
    for one in threads:
        one.join(SECONDS_MAX)
    assert seen == ["closed", "after"]
    assert threads_of_workers() == []
