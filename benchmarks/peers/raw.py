"""The disk's own limit: the bytes that Penstock would write, packed beforehand, written by hand."""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from crc32c import crc32c

from benchmarks.model import Load, Meter, Sample, drive
from penstock import FsyncPolicy, TopicConfig, WalMessageQueue

HEAD_BYTES = 1_024
"""Two slots, of which each commit writes one."""


@cache
def packed(payload_bytes: int, count: int) -> bytes:
    """The entry that Penstock writes for a block of records, byte for byte."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_packed(Path(folder), Load(payload_bytes, 0, 0, count)))


async def _packed(folder: Path, load: Load) -> bytes:
    config = TopicConfig(fsync=FsyncPolicy.TIMED, batch_records_max=load.batch)
    async with WalMessageQueue(folder, defaults=config) as queue:
        await queue.publish_many("bench", load.values())
        first = len(_segment(folder))
        await queue.publish_many("bench", load.values())
        return _segment(folder)[first:]


def _segment(folder: Path) -> bytes:
    (file,) = folder.rglob("*.log")
    return file.read_bytes()


def append(folder: Path, load: Load, *, sync: bool) -> Sample:
    """Write blocks one after the other, each followed by a sync or none at all."""
    return _append(folder, load, lambda file: os.fdatasync(file) if sync else None)


def append_timed(folder: Path, load: Load, interval: float = 1.0) -> Sample:
    """Write blocks, sync once per interval and at the end."""
    due = time.perf_counter() + interval

    def sync_when_due(file: int) -> None:
        nonlocal due
        if time.perf_counter() >= due:
            os.fdatasync(file)
            due += interval

    return _append(folder, load, sync_when_due, os.fdatasync)


def _append(
    folder: Path,
    load: Load,
    after_block: Callable[[int], None],
    at_end: Callable[[int], None] = lambda _: None,
) -> Sample:
    block = packed(load.payload_bytes, load.batch)
    file = _open(folder, "raw.log")

    def step() -> None:
        os.write(file, block)
        after_block(file)

    try:
        return drive(load, step, lambda: at_end(file))
    finally:
        os.close(file)


def append_gathered(folder: Path, load: Load) -> Sample:
    """Records one by one into a list, the list into bytes with a checksum, written and synced in the same thread.

    It is the least that a log in Python does with single records: no loop, no thread, no receipt, no head.
    """
    values = load.values()

    def gather() -> list[bytes]:
        gathered: list[bytes] = []
        put = gathered.append
        for value in values:
            put(value)
        return gathered

    return _append_joined(folder, load, gather, sync=True)


def append_joined(folder: Path, load: Load, *, sync: bool) -> Sample:
    """As :func:`append_gathered`, of records that come as a list: the least that a log does with a call of many."""
    values = load.values()
    return _append_joined(folder, load, lambda: values, sync=sync)


def append_committed(folder: Path, load: Load) -> Sample:
    """As :func:`append_joined`, with the calls of the system that a commit makes, and with nothing else.

    It is the least that a call of many costs in a log that other processes write to as well: its head is locked,
    looked at and moved.
    """
    values = load.values()
    file, head = _open(folder, "raw.log"), os.open(folder / "head", os.O_CREAT | os.O_RDWR, 0o600)
    os.write(head, bytes(HEAD_BYTES))

    def step() -> None:
        fcntl.flock(head, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.fstat(head)
        seen = os.pread(head, HEAD_BYTES, 0)
        os.fstat(file)
        _write_joined(file, values)
        os.fdatasync(file)
        os.pwrite(head, seen[: HEAD_BYTES // 2], 0)
        fcntl.flock(head, fcntl.LOCK_UN)

    try:
        return drive(load, step)
    finally:
        os.close(file)
        os.close(head)


def _append_joined(
    folder: Path, load: Load, gather: Callable[[], list[bytes]], *, sync: bool
) -> Sample:
    file = _open(folder, "raw.log")

    def step() -> None:
        _write_joined(file, gather())
        if sync:
            os.fdatasync(file)

    try:
        return drive(load, step)
    finally:
        os.close(file)


def _write_joined(file: int, values: list[bytes]) -> None:
    block = b"".join(values)
    os.writev(file, [crc32c(block).to_bytes(4, "little"), block])


def append_awaited(folder: Path, load: Load, *, tasks: int) -> Sample:
    """Tasks that each wait for their record; all of them share a write and a sync in the loop's own thread.

    It is the least that tasks cost which wait for the disk: no queue, columns, checksum, head or deadline.
    """
    return asyncio.run(_append_awaited(folder, load, tasks))


async def _append_awaited(folder: Path, load: Load, tasks: int) -> Sample:
    loop = asyncio.get_running_loop()
    block = packed(load.payload_bytes, 1)
    file = _open(folder, "raw.log")
    waiting: list[asyncio.Future[None]] = []
    meter = Meter(load)

    def commit() -> None:
        os.write(file, block * len(waiting))
        os.fdatasync(file)
        for future in waiting:
            future.set_result(None)
        waiting.clear()

    async def publisher() -> None:
        while meter.more():
            meter.records += 1
            future = loop.create_future()
            if not waiting:
                loop.call_soon(commit)
            waiting.append(future)
            await future

    try:
        await asyncio.gather(*(publisher() for _ in range(tasks)))
        return meter.sample()
    finally:
        os.close(file)


def append_locked(folder: Path, load: Load, *, sync: bool) -> Sample:
    """As :func:`append`, by several processes that take turns with ``flock``."""
    block = packed(load.payload_bytes, load.batch)
    file = _open(folder, "raw.log")

    def step() -> None:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.write(file, block)
        if sync:
            os.fdatasync(file)
        fcntl.flock(file, fcntl.LOCK_UN)

    try:
        return drive(load, step)
    finally:
        os.close(file)


def append_files(folder: Path, load: Load, *, files: int, sync: bool) -> Sample:
    """A block spread over several files, which are written and synced side by side."""
    block = packed(load.payload_bytes, load.batch // files)
    opened = [_open(folder, f"raw-{number}.log") for number in range(files)]

    def write(file: int) -> None:
        os.write(file, block)
        if sync:
            os.fdatasync(file)

    with ThreadPoolExecutor(files) as pool:
        try:
            return drive(load, lambda: list(pool.map(write, opened)))
        finally:
            for file in opened:
                os.close(file)


def append_latencies(folder: Path, payload_bytes: int, count: int, pause: float) -> list[float]:
    """Seconds that single writes with their syncs take, with pauses in between."""
    block = packed(payload_bytes, 1)
    file = _open(folder, "raw.log")
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        os.write(file, block)
        os.fdatasync(file)
        taken.append(time.perf_counter() - start)
        time.sleep(pause)
    os.close(file)
    return taken


def _open(folder: Path, name: str) -> int:
    return os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
