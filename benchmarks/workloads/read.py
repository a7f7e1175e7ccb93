"""Reading back: as objects and as Arrow, checksums verified, from the page cache."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

from crc32c import crc32c

from benchmarks.model import BATCH, Case, Load, Prepared, Sample, Scale, Workload
from benchmarks.peers import lmdb, sqlite
from benchmarks.publishers import TOPIC, fill
from penstock import WalMessageQueue

CHUNK_BYTES = 1 << 20
LARGE_BATCH = 10_000


def cases(scale: Scale) -> list[Case]:
    """Penstock's ways to read, the bound and the peers, for each payload."""
    return [case for size in scale.payloads for case in _cases(Load.of(scale, size), scale)]


def _cases(load: Load, scale: Scale) -> list[Case]:
    records = max(1, scale.read_bytes // load.payload_bytes // LARGE_BATCH) * LARGE_BATCH
    case = partial(Case, "read", load.payload_bytes, "read")
    log = _prepared(fill, "log", load, records)
    wide = _prepared(fill, "wide", Load.of(scale, load.payload_bytes, LARGE_BATCH), records)
    return [
        case("raw", "read + CRC-32C of the log's files, nothing decoded",
             lambda at: _timed(_read_raw, at, records), prepared=log, bound=True),
        case("raw-kept", "the same, and the bytes are kept, as a table keeps them",
             lambda at: _timed(_read_and_keep, at, records), prepared=log),
        case("penstock-for", "subscription, async for each record",
             lambda at: _penstock(_each, at, records), prepared=log),
        case("penstock-batches", "subscription, batches of objects",
             lambda at: _penstock(_batches, at, records), prepared=log),
        case("penstock-replay", "replay, async for each record",
             lambda at: _penstock(_replay, at, records), prepared=log),
        case("penstock-arrow", f"read_arrow, written {BATCH:,} per call",
             lambda at: _penstock(_arrow, at, records), prepared=log),
        case("penstock-arrow-wide", f"read_arrow, written {LARGE_BATCH:,} per call",
             lambda at: _penstock(_arrow, at, records), prepared=wide),
        case("sqlite", "SELECT id, value, fetchmany (no checksums)",
             lambda at: _timed(sqlite.read, at, records),
             prepared=_prepared(sqlite.fill, "sqlite", load, records)),
        case("lmdb", "cursor over keys and values (no checksums)",
             lambda at: _timed(lmdb.read, at, records),
             prepared=_prepared(lmdb.fill, "lmdb", load, records)),
    ]  # fmt: skip


def _prepared(build: Callable[..., None], name: str, load: Load, records: int) -> Prepared:
    return Prepared(
        f"read-{name}-{load.payload_bytes}", lambda folder: build(folder, load, records)
    )


def read_batches(folder: Path, records: int) -> Sample:
    """All records of a log, in batches of objects."""
    return _penstock(_batches, folder, records)


def _rate(found: int, records: int, seconds: float) -> Sample:
    if found != records:
        raise RuntimeError(f"{found} records were read, {records} were written")
    return Sample(records / seconds)


def _timed(read: Callable[..., int], folder: Path, records: int) -> Sample:
    start = time.perf_counter()
    found = read(folder, records) if read in (_read_raw, _read_and_keep) else read(folder)
    return _rate(found, records, time.perf_counter() - start)


def _read_raw(folder: Path, records: int) -> int:
    for _ in _checked(folder):
        pass
    return records


def _read_and_keep(folder: Path, records: int) -> int:
    kept = list(_checked(folder))
    return records if kept else 0


def _checked(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.rglob("*.log")):
        file = os.open(path, os.O_RDONLY)
        checksum = 0
        while data := os.read(file, CHUNK_BYTES):
            checksum = crc32c(data, checksum)
            yield data
        os.close(file)


Reading = Callable[[WalMessageQueue, int], Awaitable[int]]


def _penstock(reading: Reading, folder: Path, records: int) -> Sample:
    return asyncio.run(_measured(reading, folder, records))


async def _measured(reading: Reading, folder: Path, records: int) -> Sample:
    async with WalMessageQueue(folder) as queue:
        await queue.create_topic(TOPIC)
        import_module("pyarrow.compute")  # a process imports it once, however much it reads
        start = time.perf_counter()
        found = await reading(queue, records)
        return _rate(found, records, time.perf_counter() - start)


async def _each(queue: WalMessageQueue, records: int) -> int:
    count = 0
    async with queue.subscribe(TOPIC, _fresh_name()) as subscription:
        async for _ in subscription:
            count += 1
            if count == records:
                break
    return count


async def _batches(queue: WalMessageQueue, records: int) -> int:
    count = 0
    async with queue.subscribe(TOPIC, _fresh_name()) as subscription:
        async for batch in subscription.batches():
            count += len(batch)
            if count >= records:
                break
    return count


async def _replay(queue: WalMessageQueue, _: int) -> int:
    count = 0
    async for _record in queue.replay(TOPIC):
        count += 1
    return count


async def _arrow(queue: WalMessageQueue, _: int) -> int:
    return int((await queue.read_arrow(TOPIC)).num_rows)


def _fresh_name() -> str:
    return f"reader-{time.monotonic_ns()}"


WORKLOAD = Workload(
    "read",
    "Read back",
    "A log of durable records is opened and read from its start to its end. Penstock checks "
    "every checksum and the chain from entry to entry.",
    cases,
)
