"""Opening a log after a crash: everything that is not known to be durable is read and checked."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from crc32c import crc32c

from benchmarks.model import Case, Load, Prepared, Sample, Scale, Workload
from benchmarks.publishers import NEVER_MS, TOPIC, fill
from penstock import FsyncPolicy, TopicConfig, WalMessageQueue

PAYLOAD_BYTES = 100
CHUNK_BYTES = 1 << 20
CONFIG = TopicConfig(fsync=FsyncPolicy.TIMED, fsync_interval_ms=NEVER_MS, segment_bytes_max=4 << 30)


def cases(scale: Scale) -> list[Case]:
    """A lost head, a clean restart, and the bound: reading and checking the same bytes."""
    records = scale.recovery_bytes // PAYLOAD_BYTES
    load = Load.of(scale, PAYLOAD_BYTES)
    log = Prepared("recovery", lambda folder: fill(folder, load, records, CONFIG))
    return [
        Case("recovery", PAYLOAD_BYTES, "restart", "raw", "read + CRC-32C of the segment",
             _read, "bytes/s", bound=True, prepared=log),
        Case("recovery", PAYLOAD_BYTES, "restart", "penstock",
             "open with the head lost: the whole segment is checked",
             _recover, "bytes/s", prepared=log),
        Case("recovery", PAYLOAD_BYTES, "restart", "penstock-clean",
             "open after a clean close: nothing to check",
             _reopen, "ms", prepared=log),
    ]  # fmt: skip


def _segment(folder: Path) -> Path:
    (path,) = folder.rglob("*.log")
    return path


def _read(folder: Path) -> Sample:
    path = _segment(folder)
    start = time.perf_counter()
    file = os.open(path, os.O_RDONLY)
    checksum = 0
    while data := os.read(file, CHUNK_BYTES):
        checksum = crc32c(data, checksum)
    os.close(file)
    return Sample(path.stat().st_size / (time.perf_counter() - start))


def _recover(folder: Path) -> Sample:
    for head in folder.rglob("head"):
        head.unlink()
    size = _segment(folder).stat().st_size
    seconds = asyncio.run(_open(folder, lost=True))
    return Sample(size / seconds, {"MiB": size / (1 << 20), "seconds": seconds})


def _reopen(folder: Path) -> Sample:
    return Sample(asyncio.run(_open(folder, lost=False)) * 1e3)


async def _open(folder: Path, *, lost: bool) -> float:
    async with WalMessageQueue(folder) as queue:
        start = time.perf_counter()
        (report,) = await queue.recovery(TOPIC)
        seconds = time.perf_counter() - start
    if report.head_lost is not lost or report.bytes_cut:
        raise RuntimeError(f"the recovery was not the one to measure: {report}")
    return seconds


WORKLOAD = Workload(
    "recovery",
    "Recovery",
    "A log in one segment whose head file is removed, so that opening it has to check every byte "
    "of it, and make it durable again: what was not synced must be written and synced once more.",
    cases,
)
