"""How much memory it takes, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path

from benchmarks.child import Child, gate
from benchmarks.model import BATCH, Case, Load, Prepared, Sample, Scale, Workload
from benchmarks.publishers import (
    NO_SYNC,
    TOPIC,
    fill,
    opened,
)
from penstock import Receipt

PAYLOAD_BYTES = 100
IN_FLIGHT = 4
WINDOW = 32


def cases(scale: Scale) -> list[Case]:
    """Publishing and reading."""
    records = scale.read_bytes // PAYLOAD_BYTES // BATCH * BATCH
    load = Load.of(scale, PAYLOAD_BYTES)
    log = Prepared("memory", lambda folder: fill(folder, load, records))
    return [
        _case("publish-many", "publish_many of 1,000, four calls in flight", records),
        _case("publish-nowait", "publish_nowait, up to 33,000 records ahead", records),
        _case("read", "subscription, batches of objects", records, log),
    ]


def _case(name: str, what: str, records: int, prepared: Prepared | None = None) -> Case:
    run = partial(_run, name=name, count=records)
    return Case(
        "memory", PAYLOAD_BYTES, "peak", f"penstock-{name}", what, run,
        unit="MiB", prepared=prepared,
    )  # fmt: skip


def _run(folder: Path, name: str, count: int) -> Sample:
    child = Child(job, folder=str(folder), name=name, count=count)
    child.wait_ready()
    child.go()
    peak, idle = child.result()
    return Sample((peak - idle) / 1024, {"idle MiB": idle / 1024})


def job(folder: str, name: str, count: int) -> tuple[int, int]:
    """In the child: peak and idle memory, in KiB."""
    gate()
    idle = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of starting up
    asyncio.run(JOBS[name](Path(folder), count))
    return status("VmHWM"), idle


def status(field: str) -> int:
    """A line of what the system tells of this process, in KiB."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{os.getpid()}/status").read_text())
    assert found is not None
    return int(found[1])


def _fresh() -> list[bytes]:
    """A block of records of its own: what waits and what is cached takes real memory."""
    return [os.urandom(PAYLOAD_BYTES) for _ in range(BATCH)]


async def _publish_many(folder: Path, count: int) -> None:
    async with opened(folder, NO_SYNC) as queue:
        for _ in range(count // BATCH // IN_FLIGHT):
            await asyncio.gather(*(queue.publish_many(TOPIC, _fresh()) for _ in range(IN_FLIGHT)))


async def _publish_nowait(folder: Path, count: int) -> None:
    receipts: deque[Receipt] = deque()
    async with opened(folder, NO_SYNC) as queue:
        for _ in range(count // BATCH):
            receipts.append([queue.publish_nowait(TOPIC, value) for value in _fresh()][-1])
            if len(receipts) > WINDOW:
                await receipts.popleft().wait()


async def _consume(folder: Path, count: int) -> None:
    name = f"memory-{os.getpid()}"
    async with opened(folder, NO_SYNC) as queue, queue.subscribe(TOPIC, name) as subscription:
        async for batch in subscription.batches():
            count -= len(batch)
            if count <= 0:
                break


JOBS: dict[str, Callable[[Path, int], Coroutine[None, None, None]]] = {
    "publish-many": _publish_many,
    "publish-nowait": _publish_nowait,
    "read": _consume,
}

WORKLOAD = Workload(
    "memory",
    "Memory",
    "Peak of resident memory in a process that does nothing else, over what it uses when idle.",
    cases,
)
