"""What is done at each size, in a process of its own: seconds of each step, memory, handles, recovery."""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import shutil
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks.child import gate
from benchmarks.model import BATCH, Load
from benchmarks.publishers import EVERY_MESSAGE, NEVER_MS, NO_SYNC, TOPIC, opened
from benchmarks.workloads.memory import status
from penstock import FsyncPolicy, Retention, TopicConfig, WalMessageQueue

PAYLOAD_BYTES = 100
IN_FLIGHT = 4
READ_SECONDS = 60
"""For one batch: what is not there must not be waited for for ever."""
PER_PARTITION = 200
PER_TOPIC = 10
PER_GROUP = 1_000
PER_TASK = 50
HANDLES_MAX = 65_536
KEPT = TopicConfig(
    fsync=FsyncPolicy.TIMED, fsync_interval_ms=NEVER_MS, retention=Retention(bytes_max=None)
)
"""As NO_SYNC; nothing goes before it was read, however much it is."""
OPEN_TOPICS = 2_000
"""An open topic holds about five handles, and a process may have so many."""
SEGMENT_BYTES = TopicConfig().segment_bytes_max
SIZED_BYTES = 16 << 20
"""Of records of each size; at least four of them."""

Work = Callable[[Path, int, "Watch"], Coroutine[None, None, None]]


class Watch:
    """The seconds of each step, and the most file handles that were seen."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.handles = 0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a step; what is open at its end is counted."""
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
        self.look()

    def look(self) -> None:
        """Count what is open now."""
        self.handles = max(self.handles, len(os.listdir("/proc/self/fd")))


def job(folder: str, dimension: str, size: int, recover: bool = True) -> dict[str, float]:
    """In the child: all figures of one size."""
    allow_handles()
    gate()
    watch, before = Watch(), len(os.listdir("/proc/self/fd"))
    idle = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of starting up
    asyncio.run(WORKS[dimension](Path(folder), size, watch))
    peak = status("VmHWM")
    return {
        **watch.seconds,
        "memory": max(0.1, (peak - idle) / 1024),
        "handles": max(1, watch.handles - before),
        "recovery": recovery_seconds(Path(folder)) if recover else 0.0,
    }


def allow_handles() -> int:
    """As many open files as are wanted, where that may be said, or as many as are allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        hard = max(hard, HANDLES_MAX)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def recovery_seconds(folder: Path) -> float:
    """How long it takes to open everything when the heads are lost: the worst that a crash can leave."""
    for head in folder.rglob("head"):
        head.unlink()
    return asyncio.run(_open_all(folder))


async def _open_all(folder: Path) -> float:
    start = time.perf_counter()
    async with WalMessageQueue(folder) as queue:
        found = await queue.topics()
    for first in range(0, len(found), OPEN_TOPICS):
        async with WalMessageQueue(folder) as queue:
            for topic in found[first : first + OPEN_TOPICS]:
                await queue.recovery(topic)
    return time.perf_counter() - start


async def records(folder: Path, size: int, watch: Watch) -> None:
    """Publish and read so many records; then their bytes alone, without a log."""
    async with opened(folder, KEPT) as queue:
        await _there_and_back(queue, size, PAYLOAD_BYTES, watch)
    bare = folder / "bare"
    bare.mkdir()
    os.sync()
    with watch.step("bare"):
        _write_bare(bare, size)
    shutil.rmtree(bare)


def _write_bare(folder: Path, size: int) -> None:
    """Values alone, as many in a write as four calls have; each file is as large as a segment, and is synced."""
    block = b"".join(Load(PAYLOAD_BYTES, 0, 0).values()) * IN_FLIGHT
    left = size * PAYLOAD_BYTES
    for number in itertools.count():
        with open(folder / str(number), "wb", buffering=0) as file:
            for _ in range(min(left, SEGMENT_BYTES) // len(block) + 1):
                left -= file.write(block[:left])
            os.fdatasync(file.fileno())
        if not left:
            return


async def sizes(folder: Path, size: int, watch: Watch) -> None:
    """Publish and read records of one size."""
    async with opened(folder, NO_SYNC) as queue:
        await _there_and_back(queue, max(4, SIZED_BYTES // size), size, watch)


async def partitions(folder: Path, size: int, watch: Watch) -> None:
    """As many records for each partition."""
    config = TopicConfig(fsync=FsyncPolicy.TIMED, partitions=size)
    async with opened(folder, config) as queue:
        await _there_and_back(queue, PER_PARTITION * size, PAYLOAD_BYTES, watch)


async def _there_and_back(queue: WalMessageQueue, count: int, size: int, watch: Watch) -> None:
    values = Load(size, 0, 0, min(BATCH, count, max(1, SIZED_BYTES // 4 // size))).values()
    with watch.step("publish"):
        waiting: set[asyncio.Task[object]] = set()
        for _ in range(count // len(values)):
            waiting.add(asyncio.ensure_future(_publish(queue, values)))
            if len(waiting) == IN_FLIGHT:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*waiting)
        await queue.flush()
    with watch.step("read"):
        await _read(queue, "reader", count // len(values) * len(values))


async def _publish(queue: WalMessageQueue, values: list[bytes]) -> object:
    return await queue.publish_many(TOPIC, values, timeout=600)


async def _read(queue: WalMessageQueue, name: str, count: int) -> None:
    async with queue.subscribe(TOPIC, name) as subscription:
        while count > 0:
            async with asyncio.timeout(READ_SECONDS):
                count -= len(await subscription.next_batch())


async def topics(folder: Path, size: int, watch: Watch) -> None:
    """Create topics, and publish a few records to each; so many are open at the same time."""
    with watch.step("publish"):
        for first in range(0, size, OPEN_TOPICS):
            async with WalMessageQueue(folder) as queue:
                await _fill_topics(queue, range(first, min(size, first + OPEN_TOPICS)))
                watch.look()


async def _fill_topics(queue: WalMessageQueue, numbers: range) -> None:
    values = Load(PAYLOAD_BYTES, 0, 0, PER_TOPIC).values()
    for number in numbers:
        await queue.create_topic(f"topic-{number}", NO_SYNC)
        await queue.publish_many(f"topic-{number}", values)
    await queue.flush(600)


async def groups(folder: Path, size: int, watch: Watch) -> None:
    """Every group reads the same records and commits; all of them stay open."""
    async with opened(folder, NO_SYNC) as queue, AsyncExitStack() as stack:
        await queue.publish_many(TOPIC, Load(PAYLOAD_BYTES, 0, 0, PER_GROUP).values())
        await queue.flush()
        with watch.step("read"):
            for number in range(size):
                one = await stack.enter_async_context(queue.subscribe(TOPIC, f"group-{number}"))
                left = PER_GROUP
                while left > 0:
                    left -= len(await one.next_batch())
                await one.commit()


async def tasks(folder: Path, size: int, watch: Watch) -> None:
    """Tasks that await each of their records, durable."""
    value = Load(PAYLOAD_BYTES, 0, 0, 1).values()[0]
    async with opened(folder, EVERY_MESSAGE) as queue:
        await queue.publish(TOPIC, value)

        async def publisher() -> None:
            for _ in range(PER_TASK):
                await queue.publish(TOPIC, value)

        with watch.step("publish"):
            await asyncio.gather(*(publisher() for _ in range(size)))


async def one_process(folder: Path, calls: int, watch: Watch) -> None:
    """One of several processes that publish to the same log, durably."""
    values = Load(PAYLOAD_BYTES, 0, 0).values()
    async with opened(folder, EVERY_MESSAGE) as queue:
        with watch.step("publish"):
            for _ in range(calls):
                await queue.publish_many(TOPIC, values)


WORKS: dict[str, Work] = {
    "records": records,
    "sizes": sizes,
    "partitions": partitions,
    "topics": topics,
    "groups": groups,
    "tasks": tasks,
    "processes": one_process,
}
