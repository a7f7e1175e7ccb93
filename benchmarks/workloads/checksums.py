"""What a checksum costs, with the call from Python: CRC-32C as the log uses it, and zlib's CRC-32."""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable
from functools import partial
from itertools import repeat
from pathlib import Path

from crc32c import crc32c

from benchmarks.model import Case, Sample, Scale, Workload

BUFFER_BYTES = (100, 1024, 64 * 1024)
BLOCK_BYTES = 1 << 20
"""The clock is read after so many bytes."""

Checksum = Callable[[bytes], int]


def cases(scale: Scale) -> list[Case]:
    """Both, for each size of the buffer."""
    return [
        _case(scale, size, *contender)
        for size in BUFFER_BYTES
        for contender in (
            ("zlib", "`zlib.crc32` of the standard library", zlib.crc32, True),
            ("crc32c", "`crc32c.crc32c`", crc32c, False),
        )
    ]


def _case(scale: Scale, size: int, name: str, what: str, checksum: Checksum, bound: bool) -> Case:
    run = partial(_run, size=size, checksum=checksum, seconds=scale.seconds)
    return Case("checksums", size, "buffer", name, what, run, unit="bytes/s", bound=bound)


def _run(_: Path, size: int, checksum: Checksum, seconds: float) -> Sample:
    data = random.Random(size).randbytes(size)
    block = BLOCK_BYTES // size
    calls = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or not calls:
        for _none in repeat(None, block):
            checksum(data)
        calls += block
    return Sample(calls * size / elapsed, {"µs per call": elapsed / calls * 1e6})


WORKLOAD = Workload(
    "checksums",
    "Checksums",
    "The checksum of one buffer that is in memory and in the processor's cache, over and over, "
    "with the call from Python.",
    cases,
)
