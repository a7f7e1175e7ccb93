"""Penstock as a contender: the ways to publish, each until the meter is full."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from benchmarks.model import Load, Meter, Sample
from penstock import FsyncPolicy, Receipt, TopicConfig, WalMessageQueue

TOPIC = "bench"
NEVER_MS = 3_600_000
CommitOn = Literal["thread", "loop"]

EVERY_MESSAGE = TopicConfig(fsync=FsyncPolicy.EVERY_MESSAGE)
EVERY_100 = TopicConfig(fsync=FsyncPolicy.EVERY_N_MESSAGES)
EVERY_1000 = TopicConfig(fsync=FsyncPolicy.EVERY_N_MESSAGES, fsync_messages=1_000)
TIMED = TopicConfig(fsync=FsyncPolicy.TIMED)
NO_SYNC = TopicConfig(fsync=FsyncPolicy.TIMED, fsync_interval_ms=NEVER_MS)


@asynccontextmanager
async def opened(
    folder: Path, config: TopicConfig, commit_on: CommitOn = "thread"
) -> AsyncIterator[WalMessageQueue]:
    """A queue with the topic open."""
    async with WalMessageQueue(folder, commit_on=commit_on) as queue:
        await queue.create_topic(TOPIC, config)
        yield queue


def publish_many(
    folder: Path,
    load: Load,
    config: TopicConfig,
    *,
    in_flight: int = 1,
    flush: bool = False,
    commit_on: CommitOn = "thread",
) -> Sample:
    """``publish_many`` of a block, awaited; ``in_flight`` calls at the same time."""
    return asyncio.run(_publish_many(folder, load, config, in_flight, flush, commit_on))


async def _publish_many(
    folder: Path, load: Load, config: TopicConfig, in_flight: int, flush: bool, commit_on: CommitOn
) -> Sample:
    values = load.values()
    async with opened(folder, config, commit_on) as queue:
        await queue.publish_many(TOPIC, values)
        watch = _Watch(queue, load)

        async def publisher() -> None:
            while watch.meter.more():
                watch.meter.records += len(values)
                await queue.publish_many(TOPIC, values)

        await _together(publisher, in_flight)
        return await watch.sample(flush)


def publish_nowait(
    folder: Path,
    load: Load,
    config: TopicConfig,
    *,
    window: int = 32,
    flush: bool = False,
    commit_on: CommitOn = "thread",
) -> Sample:
    """``publish_nowait`` of single records in a loop, at most ``window`` blocks ahead."""
    return asyncio.run(_publish_nowait(folder, load, config, window, flush, commit_on))


async def _publish_nowait(
    folder: Path, load: Load, config: TopicConfig, window: int, flush: bool, commit_on: CommitOn
) -> Sample:
    values = load.values()
    async with opened(folder, config, commit_on) as queue:
        await queue.publish_many(TOPIC, values)
        publish = queue.publish_nowait
        receipts: deque[Receipt] = deque()
        watch = _Watch(queue, load)
        while watch.meter.more():
            receipt = None
            for value in values:
                receipt = publish(TOPIC, value)
            assert receipt is not None
            receipts.append(receipt)
            watch.meter.records += len(values)
            if len(receipts) > window:
                await receipts.popleft().wait()
        for receipt in receipts:
            await receipt.wait()
        return await watch.sample(flush)


def publish(
    folder: Path,
    load: Load,
    config: TopicConfig,
    *,
    publishers: int,
    commit_on: CommitOn = "thread",
) -> Sample:
    """Awaited ``publish`` of single records by a number of tasks."""
    return asyncio.run(_publish(folder, load, config, publishers, commit_on))


async def _publish(
    folder: Path, load: Load, config: TopicConfig, publishers: int, commit_on: CommitOn
) -> Sample:
    value = load.values()[0]
    async with opened(folder, config, commit_on) as queue:
        await queue.publish(TOPIC, value)
        watch = _Watch(queue, load)

        async def publisher() -> None:
            while watch.meter.more():
                watch.meter.records += 1
                await queue.publish(TOPIC, value)

        await _together(publisher, publishers)
        return await watch.sample(flush=False)


async def _together(publisher: Callable[[], Awaitable[None]], count: int) -> None:
    if count == 1:
        await publisher()
    else:
        await asyncio.gather(*(publisher() for _ in range(count)))


class _Watch:
    """The meter, and how many records shared a sync."""

    def __init__(self, queue: WalMessageQueue, load: Load) -> None:
        self._queue = queue
        self._syncs = queue.statistics().store.syncs
        self.meter = Meter(load)

    async def sample(self, flush: bool) -> Sample:
        if flush:
            await self._queue.flush()
        sample = self.meter.sample()
        syncs = self._queue.statistics().store.syncs - self._syncs
        shared = {"records per sync": self.meter.records / syncs} if syncs else {}
        return Sample(sample.value, shared)


def fill(folder: Path, load: Load, records: int, config: TopicConfig = NO_SYNC) -> None:
    """A log to read from, all of it durable."""
    asyncio.run(_fill(folder, load, records, config))


async def _fill(folder: Path, load: Load, records: int, config: TopicConfig) -> None:
    values = load.values()
    async with opened(folder, config) as queue:
        for _ in range(records // len(values)):
            await queue.publish_many(TOPIC, values)
