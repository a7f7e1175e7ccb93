"""Fills a log and dies, or opens one and tells what that took.

``python recoverer.py fill <path> <MiB> <fsync>`` ends without closing the log;
``python recoverer.py open <path>`` prints the seconds and the memory as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from penstock import FsyncPolicy, TopicConfig, WalMessageQueue
from tests.crash.slow_writer import resident_mib

RECORDS = 1_000
RECORD_BYTES = 1_024
NOT_SYNCED = TopicConfig(
    fsync=FsyncPolicy.TIMED, fsync_interval_ms=3_600_000, segment_bytes_max=4 << 30
)
"""The worst case: one open segment, nothing of it durable."""


async def fill(path: str, mebibytes: int, how: str) -> None:
    queue = WalMessageQueue(path, maintenance_interval=None)
    await queue.open()
    await queue.create_topic("orders", TopicConfig() if how == "durable" else NOT_SYNCED)
    values = [os.urandom(RECORD_BYTES) for _ in range(RECORDS)]
    for _ in range((mebibytes << 20) // (RECORDS * RECORD_BYTES)):
        await queue.publish_many("orders", values)
    os._exit(0)


async def recover(path: str) -> dict[str, float]:
    before = resident_mib()
    start = time.perf_counter()
    async with WalMessageQueue(path, maintenance_interval=None) as queue:
        last = await queue.publish("orders", b"next", durable=True)
        seconds = time.perf_counter() - start
        (report,) = await queue.recovery("orders")
    return {
        "seconds": seconds,
        "peak_mib": resident_mib() - before,
        "next_offset": last.offset,
        "bytes_checked": report.bytes_checked,
    }


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        asyncio.run(fill(sys.argv[2], int(sys.argv[3]), sys.argv[4]))
    else:
        print(json.dumps(asyncio.run(recover(sys.argv[2]))))
