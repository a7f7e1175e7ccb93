"""The parallel consumer beside a loop that handles one record after the other."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.model import Case, Sample, Scale, Workload
from penstock.streaming import ParallelConsumer

HANDLER_SECONDS = 0.001
KEYS = 1_000
BLOCK = 2_000
IN_FLIGHT = (100, 400)


@dataclass
class Record:
    """What the consumer needs to know of a record."""

    partition: int
    offset: int
    key: bytes
    value: bytes = b""


async def _handle(_: Record) -> None:
    await asyncio.sleep(HANDLER_SECONDS)


def cases(scale: Scale) -> list[Case]:
    """One after the other, and with many in flight."""
    several = [
        Case("parallel", 0, "slow-handler", f"in-flight-{count}", f"`ParallelConsumer`, {count} in flight",
             partial(_run, in_flight=count, seconds=scale.seconds))
        for count in IN_FLIGHT
    ]  # fmt: skip
    serial = Case("parallel", 0, "slow-handler", "serial", "`await handle(record)` in a loop",
                  partial(_run, in_flight=None, seconds=scale.seconds))  # fmt: skip
    return [serial, *several]


def _run(_: Path, in_flight: int | None, seconds: float) -> Sample:
    return asyncio.run(_serial(seconds) if in_flight is None else _parallel(in_flight, seconds))


async def _serial(seconds: float) -> Sample:
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        await _handle(Record(0, count, b""))
        count += 1
    return Sample(count / (time.perf_counter() - start))


async def _parallel(in_flight: int, seconds: float) -> Sample:
    async with ParallelConsumer(_handle, in_flight_max=in_flight) as consumer:
        consumer.assign(0, 0)
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            records = [Record(0, n, b"%d" % (n % KEYS)) for n in range(count, count + BLOCK)]
            await consumer.submit(records)
            count += BLOCK
        await consumer.drain()
        if consumer.positions()[0].offset != count:
            raise RuntimeError("not every record was handled")
        return Sample(count / (time.perf_counter() - start))


WORKLOAD = Workload(
    "parallel",
    "Many in flight",
    "The handler waits a millisecond, as one that asks a server would. Records have 1,000 keys, "
    "those of one key are handled in order.",
    cases,
)
