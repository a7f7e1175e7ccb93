"""How long after ``publish`` is called a waiting subscriber has the record."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.child import Child, gate
from benchmarks.model import Case, Sample, Scale, Workload
from benchmarks.peers import raw
from benchmarks.publishers import EVERY_MESSAGE, TOPIC, opened
from penstock import Record, Subscription, WalMessageQueue

PAYLOAD_BYTES = 100
PAUSE_SECONDS = 0.002
IN_MEMORY = Path("/dev/shm")

Run = Callable[..., Sample]


def cases(scale: Scale) -> list[Case]:
    """On the disk, and where there is one on a file system in memory."""
    count = scale.latency_messages
    found = [
        _case("delivery", "raw", "write + fdatasync of one record", _raw, count, bound=True),
        _case("delivery", "penstock-ack", "publish until it returns", _acknowledged, count),
        _case("delivery", "penstock", "to a subscriber in the process", _inside, count),
        _case("delivery", "penstock-other", "to a subscriber in another process", _outside, count),
    ]
    if IN_MEMORY.is_dir():
        found += [
            _case("delivery-ram", "penstock", "to a subscriber in the process",
                  partial(_in_memory, _inside), count),
            _case("delivery-ram", "penstock-other", "to a subscriber in another process",
                  partial(_in_memory, _outside), count),
        ]  # fmt: skip
    return found


def _case(point: str, name: str, what: str, run: Run, count: int, bound: bool = False) -> Case:
    return Case(
        "tail", PAYLOAD_BYTES, point, name, what, partial(run, count=count),
        unit="µs", bound=bound,
    )  # fmt: skip


def _quantiles(seconds: Sequence[float]) -> Sample:
    ordered = sorted(seconds)
    late = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return Sample(ordered[len(ordered) // 2] * 1e6, {"p99 µs": late * 1e6})


def _raw(folder: Path, count: int) -> Sample:
    return _quantiles(raw.append_latencies(folder, PAYLOAD_BYTES, count, PAUSE_SECONDS))


def _acknowledged(folder: Path, count: int) -> Sample:
    return asyncio.run(_measure_acknowledged(folder, count))


async def _measure_acknowledged(folder: Path, count: int) -> Sample:
    async with opened(folder, EVERY_MESSAGE) as queue:
        await _publish(queue, 1)
        return _quantiles(await _publish(queue, count))


async def _publish(queue: WalMessageQueue, count: int) -> list[float]:
    """Publish records that carry the time; how long each took to return."""
    taken = []
    for _ in range(count):
        start = time.monotonic_ns()
        await queue.publish(TOPIC, start.to_bytes(8, "little").ljust(PAYLOAD_BYTES, b"."))
        taken.append((time.monotonic_ns() - start) / 1e9)
        await asyncio.sleep(PAUSE_SECONDS)
    return taken


async def _delays(subscription: Subscription, count: int) -> list[float]:
    records = aiter(subscription)
    return [await _delay(records) for _ in range(count)]


async def _delay(records: AsyncIterator[Record]) -> float:
    record = await anext(records)
    now = time.monotonic_ns()
    return (now - int.from_bytes((record.value or b"")[:8], "little")) / 1e9


def _inside(folder: Path, count: int) -> Sample:
    return asyncio.run(_measure_inside(folder, count))


async def _measure_inside(folder: Path, count: int) -> Sample:
    async with opened(folder, EVERY_MESSAGE) as queue:
        await _publish(queue, 1)
        async with queue.subscribe(TOPIC, "tail", start="latest") as subscription:
            reading = asyncio.create_task(_delays(subscription, count))
            await _publish(queue, count)
            return _quantiles(await asyncio.wait_for(reading, 30))


def _outside(folder: Path, count: int) -> Sample:
    return asyncio.run(_measure_outside(folder, count))


async def _measure_outside(folder: Path, count: int) -> Sample:
    async with opened(folder, EVERY_MESSAGE) as queue:
        await _publish(queue, 1)
        child = Child(job, folder=str(folder), count=count)
        await asyncio.to_thread(child.wait_ready)
        child.go()
        await asyncio.sleep(0.05)
        await _publish(queue, count)
        return _quantiles(await asyncio.to_thread(child.result))


def job(folder: str, count: int) -> list[float]:
    """In the child: subscribe, and note when each record comes."""
    return asyncio.run(_job(Path(folder), count))


async def _job(folder: Path, count: int) -> list[float]:
    async with (
        opened(folder, EVERY_MESSAGE) as queue,
        queue.subscribe(TOPIC, "tail", start="latest") as subscription,
    ):
        gate()
        return await _delays(subscription, count)


def _in_memory(run: Run, _: Path, count: int) -> Sample:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as other:
        return run(Path(other), count)


WORKLOAD = Workload(
    "tail",
    "Tail latency",
    f"One record every {PAUSE_SECONDS * 1000:.0f} ms under EVERY_MESSAGE; from the call of "
    "`publish` to the record in the hands of a waiting subscriber, median and 99th percentile.",
    cases,
)
