"""A process that publishes to a slow disk and watches its own event loop and memory.

Run as ``python slow_writer.py <path> <seconds> <buffer bytes>``; prints what it saw as JSON. It says
``ready`` when the log is open, begins when it gets a line, says ``measured``, and closes the log
with the next line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from penstock import TopicConfig, WalMessageQueue
from penstock.errors import PenstockError

VALUE = bytes(64 * 1024)
TICK_SECONDS = 0.005
PUBLISHERS = 200


def resident_mib() -> float:
    """The highest so far."""
    with open("/proc/self/status") as status:
        line = next(one for one in status if one.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def queued_seconds() -> float:
    """How long this thread was ready to run and got no processor, so far: others had them."""
    with open("/proc/thread-self/schedstat") as status:
        return int(status.read().split()[1]) / 1e9


async def tick(late: list[float], own: list[float]) -> None:
    """How much later than it asked for is a task woken up? And how much without what others are to blame for?"""
    while True:
        queued = queued_seconds()
        due = time.perf_counter() + TICK_SECONDS
        await asyncio.sleep(TICK_SECONDS)
        late.append(time.perf_counter() - due)
        own.append(late[-1] - (queued_seconds() - queued))


def p99_ms(seconds: list[float]) -> float:
    return 1_000 * sorted(seconds)[int(len(seconds) * 0.99)]


async def publish(queue: WalMessageQueue, counts: dict[str, int]) -> None:
    while True:
        try:
            await queue.publish("orders", VALUE, timeout=2.0)
            counts["acknowledged"] += 1
        except PenstockError as error:
            name = type(error).__name__
            counts[name] = counts.get(name, 0) + 1


async def run(path: str, seconds: float, buffer_bytes: int) -> dict[str, object]:
    config = TopicConfig(
        buffer_bytes_max=buffer_bytes, batch_bytes_max=1 << 20, record_bytes_max=1 << 20
    )
    late: list[float] = []
    own: list[float] = []
    counts = {"acknowledged": 0}
    queue = WalMessageQueue(path, maintenance_interval=None)
    await queue.open()
    await queue.create_topic("orders", config)
    await queue.publish("orders", b"first")
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    before = resident_mib()
    ticking = asyncio.create_task(tick(late, own))
    tasks = [asyncio.create_task(publish(queue, counts)) for _ in range(PUBLISHERS)]
    await asyncio.sleep(seconds)
    for one in (ticking, *tasks):
        one.cancel()
    await asyncio.gather(ticking, *tasks, return_exceptions=True)
    grown = resident_mib() - before
    print("measured", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await queue.close(timeout=60)
    return {
        **counts,
        "ticks": len(late),
        "p99_ms": p99_ms(late),
        "p99_ms_without_waiting_for_a_processor": p99_ms(own),
        "max_ms": 1_000 * max(late),
        "grown_mib": grown,
    }


if __name__ == "__main__":
    found = asyncio.run(run(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
    print(json.dumps(found), flush=True)
