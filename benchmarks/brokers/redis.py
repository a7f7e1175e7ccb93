"""Redis through Penstock, and through its bare client: the same records, server and promise.

``python -m benchmarks.brokers.redis`` measures it alone.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import redis.asyncio as bare

from benchmarks.model import SCALES, Case, Load, Meter, Sample, Scale, Workload
from benchmarks.targets import Target
from penstock.transports import open_transport
from tests.transports.servers.redis import RedisServer

TOPIC, GROUP, MEMBER = "bench", "readers", "reader"
PAYLOAD_BYTES = 100
BLOCK = 1_000
IN_FLIGHT = 4
"""Calls that produce at the same time."""
PREPARED_BLOCKS = 200
"""Records that are there before they are consumed."""

Work = Callable[[str, Load], Coroutine[Any, Any, Sample]]


def cases(scale: Scale) -> list[Case]:
    """Producing and consuming, each through both clients."""
    load = Load.of(scale, PAYLOAD_BYTES, BLOCK)
    contenders: list[tuple[str, str, str, Work]] = [
        ("produce", "penstock", "1,000 records a call, acknowledged", _produce_penstock),
        ("produce", "bare", "redis-py, a pipeline of 1,000 XADD", _produce_bare),
        ("consume", "penstock", "batches, each committed", _consume_penstock),
        ("consume", "bare", "redis-py, XREADGROUP of 1,000 and XACK", _consume_bare),
    ]
    return [
        Case("redis", PAYLOAD_BYTES, point, name, what, partial(_run, load=load, work=work))
        for point, name, what, work in contenders
    ]


def _run(folder: Path, load: Load, work: Work) -> Sample:
    server = RedisServer(folder)
    server.start()
    try:
        return asyncio.run(work(server.url, load))
    finally:
        server.stop()


def _keys(count: int) -> list[bytes]:
    return [random.Random(number).randbytes(8) for number in range(count)]


async def _pump(load: Load, send: Callable[[], Awaitable[object]]) -> Sample:
    """Some calls at the same time, until the meter is full."""
    await send()
    meter = Meter(load)
    waiting: deque[asyncio.Future[object]] = deque()
    while meter.more():
        if len(waiting) == IN_FLIGHT:
            await waiting.popleft()
            meter.records += load.batch
        waiting.append(asyncio.ensure_future(send()))
    for one in waiting:
        await one
        meter.records += load.batch
    return meter.sample()


async def _produce_penstock(url: str, load: Load) -> Sample:
    values, keys = load.values(), _keys(load.batch)
    async with open_transport(url) as transport:
        await transport.create_topic(TOPIC, partitions=1)
        return await _pump(load, lambda: transport.produce(TOPIC, values, keys=keys))


async def _produce_bare(url: str, load: Load) -> Sample:
    values, keys = load.values(), _keys(load.batch)
    async with bare.Redis.from_url(url) as client:
        return await _pump(load, lambda: _add(client, values, keys))


async def _add(client: bare.Redis, values: list[bytes], keys: list[bytes]) -> None:
    pipeline = client.pipeline(transaction=False)
    for key, value in zip(keys, values, strict=True):
        pipeline.xadd(TOPIC, {"k": key, "v": value})
    await pipeline.execute()


async def _consume_penstock(url: str, load: Load) -> Sample:
    values, keys = load.values(), _keys(load.batch)
    async with open_transport(url) as transport:
        await transport.create_topic(TOPIC, partitions=1)
        for _ in range(PREPARED_BLOCKS):
            await transport.produce(TOPIC, values, keys=keys)
        async with transport.subscribe(TOPIC, GROUP) as consumer:
            await consumer.commit(await consumer.next_batch(records_max=BLOCK))
            meter = Meter(load)
            while meter.more() and meter.records < (PREPARED_BLOCKS - 10) * BLOCK:
                batch = await consumer.next_batch(records_max=BLOCK)
                await consumer.commit(batch)
                meter.records += len(batch)
            return meter.sample()


async def _consume_bare(url: str, load: Load) -> Sample:
    values, keys = load.values(), _keys(load.batch)
    async with bare.Redis.from_url(url) as client:
        for _ in range(PREPARED_BLOCKS):
            await _add(client, values, keys)
        await client.xgroup_create(TOPIC, GROUP, "0")
        await _read(client)
        meter = Meter(load)
        while meter.more() and meter.records < (PREPARED_BLOCKS - 10) * BLOCK:
            meter.records += await _read(client)
        return meter.sample()


async def _read(client: bare.Redis) -> int:
    found: Any = await client.xreadgroup(GROUP, MEMBER, {TOPIC: ">"}, count=BLOCK, block=1_000)
    ((_, records),) = found
    await client.xack(TOPIC, GROUP, *(number for number, _ in records))
    return len(records)


WORKLOAD = Workload(
    "redis",
    "Redis",
    "Records of 100 bytes with a key, in one partition, on a server of its own that syncs before it "
    "answers. Four calls of 1,000 records produce at the same time; one consumer takes 1,000 at a time "
    "and commits them before the next.",
    cases,
)

TARGETS = tuple(
    Target(f"Redis, {what}: times the bare client", f"redis/100/{what}/penstock", 0.8,
           f"redis/100/{what}/bare")
    for what in ("produce", "consume")
)  # fmt: skip


def main() -> None:
    """The medians of this workload, and how they compare."""
    scale = SCALES["default"]
    found: dict[str, list[float]] = {}
    for _ in range(scale.rounds):
        for case in cases(scale):
            with tempfile.TemporaryDirectory() as folder:
                found.setdefault(case.name, []).append(case.run(Path(folder)).value)
    rates = {name: median(values) for name, values in found.items()}
    for name, rate in rates.items():
        print(f"{name:32} {rate:12,.0f} records/s")
    for target in TARGETS:
        assert target.to is not None
        print(f"{target.title:48} {rates[target.of] / rates[target.to]:.2f} (goal {target.goal:g})")


if __name__ == "__main__":
    main()
