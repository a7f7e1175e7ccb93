"""NATS JetStream through Penstock, and through its bare client: the same records, server and promise.

``python -m benchmarks.brokers.nats`` measures it alone.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.brokers.common import (
    BLOCK,
    GROUP,
    TOPIC,
    Work,
    cases_of,
    drain,
    fill,
    measure,
    pump,
    some_keys,
    targets_of,
)
from benchmarks.brokers.starting import nats_server
from benchmarks.model import Case, Load, Sample, Scale, Workload

SUBJECT, STREAM = f"penstock.{TOPIC}.0", f"penstock_{TOPIC}_0"


def cases(scale: Scale) -> list[Case]:
    """Producing and consuming, each through both clients."""
    bare = {
        "produce": ("nats-py, 1,000 publish_async and their acks", _produce_bare),
        "consume": ("nats-py, fetch of 1,000, the last one acks all", _consume_bare),
    }
    return cases_of("nats", scale, _run, bare)


def _run(folder: Path, load: Load, work: Work) -> Sample:
    with nats_server(folder) as server:
        return asyncio.run(work(server.url, load))


async def _produce_bare(url: str, load: Load) -> Sample:
    values = load.values()
    headers = [{"Key": key.decode()} for key in some_keys(load.batch)]
    client = await nats.connect(url)
    stream = client.jetstream()
    await stream.add_stream(name=STREAM, subjects=[SUBJECT])

    async def send() -> None:
        acks = [
            await stream.publish_async(SUBJECT, value, headers=header)
            for value, header in zip(values, headers, strict=True)
        ]
        await asyncio.gather(*acks)

    try:
        return await pump(load, send)
    finally:
        await client.close()


async def _consume_bare(url: str, load: Load) -> Sample:
    await fill(url, load)
    client = await nats.connect(url)
    config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=-1)
    durable = await client.jetstream().pull_subscribe(SUBJECT, GROUP, config=config)

    async def take() -> int:
        messages = await durable.fetch(BLOCK)
        await messages[-1].ack_sync()
        return len(messages)

    try:
        return await drain(load, take)
    finally:
        await client.close()


WORKLOAD = Workload(
    "nats",
    "NATS JetStream",
    "Records of 100 bytes with a key, in one partition, on a server of its own as it comes: it syncs "
    "its files every two minutes. Four calls of 1,000 records produce at the same time; one consumer "
    "takes what there is, 1,000 at most, and commits it before the next.",
    cases,
)
TARGETS = targets_of("nats", "NATS")

if __name__ == "__main__":
    measure(WORKLOAD, TARGETS)
