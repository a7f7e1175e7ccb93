"""NATS JetStream through Penstock, and through its bare client: the same records, server and promise.

``python -m benchmarks.brokers.nats`` measures it alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.brokers.common import BLOCK, PAYLOAD_BYTES, measure, pump, some_keys, targets_of
from benchmarks.model import Case, Load, Meter, Sample, Scale, Workload
from penstock.transports import open_transport
from tests.transports.servers.nats import NatsServer

TOPIC, GROUP = "bench", "readers"
SUBJECT, STREAM = f"penstock.{TOPIC}.0", f"penstock_{TOPIC}_0"
PREPARED_BLOCKS = 100
"""Records that are there before they are consumed."""

Work = Callable[[str, Load], Coroutine[Any, Any, Sample]]


def cases(scale: Scale) -> list[Case]:
    """Producing and consuming, each through both clients."""
    load = Load.of(scale, PAYLOAD_BYTES, BLOCK)
    contenders: list[tuple[str, str, str, Work]] = [
        ("produce", "penstock", "1,000 records a call, acknowledged", _produce_penstock),
        ("produce", "bare", "nats-py, 1,000 publish_async and their acks", _produce_bare),
        ("consume", "penstock", "batches, each committed", _consume_penstock),
        ("consume", "bare", "nats-py, fetch of 1,000, the last one acks all", _consume_bare),
    ]
    return [
        Case("nats", PAYLOAD_BYTES, point, name, what, partial(_run, load=load, work=work))
        for point, name, what, work in contenders
    ]


def _run(folder: Path, load: Load, work: Work) -> Sample:
    server = NatsServer(folder)
    server.start()
    try:
        return asyncio.run(work(server.url, load))
    finally:
        server.stop()


async def _produce_penstock(url: str, load: Load) -> Sample:
    values, keys = load.values(), some_keys(load.batch)
    async with open_transport(url) as transport:
        await transport.create_topic(TOPIC, partitions=1)
        return await pump(load, lambda: transport.produce(TOPIC, values, keys=keys))


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


async def _fill(url: str, load: Load) -> None:
    values, keys = load.values(), some_keys(load.batch)
    async with open_transport(url) as transport:
        await transport.create_topic(TOPIC, partitions=1)
        for _ in range(PREPARED_BLOCKS):
            await transport.produce(TOPIC, values, keys=keys)


async def _consume_penstock(url: str, load: Load) -> Sample:
    await _fill(url, load)
    async with (
        open_transport(url) as transport,
        transport.subscribe(TOPIC, GROUP) as consumer,
    ):
        await consumer.commit(await consumer.next_batch(records_max=BLOCK))
        meter = Meter(load)
        while meter.more() and meter.records < (PREPARED_BLOCKS - 10) * BLOCK:
            batch = await consumer.next_batch(records_max=BLOCK)
            await consumer.commit(batch)
            meter.records += len(batch)
        return meter.sample()


async def _consume_bare(url: str, load: Load) -> Sample:
    await _fill(url, load)
    client = await nats.connect(url)
    config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=-1)
    durable = await client.jetstream().pull_subscribe(SUBJECT, GROUP, config=config)
    try:
        await (await durable.fetch(BLOCK))[-1].ack_sync()
        meter = Meter(load)
        while meter.more() and meter.records < (PREPARED_BLOCKS - 10) * BLOCK:
            messages = await durable.fetch(BLOCK)
            await messages[-1].ack_sync()
            meter.records += len(messages)
        return meter.sample()
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
