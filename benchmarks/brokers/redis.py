"""Redis through Penstock, and through its bare client: the same records, server and promise.

``python -m benchmarks.brokers.redis`` measures it alone.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import redis.asyncio as bare

from benchmarks.brokers.common import (
    BLOCK,
    GROUP,
    PREPARED_BLOCKS,
    TOPIC,
    Work,
    cases_of,
    drain,
    measure,
    pump,
    some_keys,
    targets_of,
)
from benchmarks.brokers.starting import redis_server
from benchmarks.model import Case, Load, Sample, Scale, Workload

MEMBER = "reader"


def cases(scale: Scale) -> list[Case]:
    """Producing and consuming, each through both clients."""
    alone = {
        "produce": ("redis-py, a pipeline of 1,000 XADD", _produce_bare),
        "consume": ("redis-py, XREADGROUP of 1,000 and XACK", _consume_bare),
    }
    return cases_of("redis", scale, _run, alone)


def _run(folder: Path, load: Load, work: Work) -> Sample:
    with redis_server(folder) as server:
        return asyncio.run(work(server.url, load))


async def _produce_bare(url: str, load: Load) -> Sample:
    values, keys = load.values(), some_keys(load.batch)
    async with bare.Redis.from_url(url) as client:
        return await pump(load, lambda: _add(client, values, keys))


async def _add(client: bare.Redis, values: list[bytes], keys: list[bytes]) -> None:
    pipeline = client.pipeline(transaction=False)
    for key, value in zip(keys, values, strict=True):
        pipeline.xadd(TOPIC, {"k": key, "v": value})
    await pipeline.execute()


async def _consume_bare(url: str, load: Load) -> Sample:
    values, keys = load.values(), some_keys(load.batch)
    async with bare.Redis.from_url(url) as client:
        for _ in range(PREPARED_BLOCKS):
            await _add(client, values, keys)
        await client.xgroup_create(TOPIC, GROUP, "0")
        return await drain(load, partial(_read, client))


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

TARGETS = targets_of("redis", "Redis")

if __name__ == "__main__":
    measure(WORKLOAD, TARGETS)
