"""Pulsar through Penstock, and through its bare client: the same records, broker and promise.

``python -m benchmarks.brokers.pulsar`` measures it alone.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pulsar  # type: ignore[import-untyped]

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
from benchmarks.brokers.starting import pulsar_server
from benchmarks.model import Case, Load, Sample, Scale, Workload

NAME = f"persistent://public/default/{TOPIC}-partition-0"


def cases(scale: Scale) -> list[Case]:
    """Producing and consuming, each through both clients."""
    bare = {
        "produce": ("pulsar-client, 1,000 send_async and their callbacks", _produce_bare),
        "consume": ("pulsar-client, receive() of 1,000, the last one acks all", _consume_bare),
    }
    return cases_of("pulsar", scale, _run, bare)


def _run(folder: Path, load: Load, work: Work) -> Sample:
    with pulsar_server(folder) as server:
        return asyncio.run(work(server.url, load))


def _client(url: str) -> Any:
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    return pulsar.Client(f"pulsar://{urlsplit(url).netloc}", logger=quiet)


async def _produce_bare(url: str, load: Load) -> Sample:
    values = load.values()
    keys = [key.decode() for key in some_keys(load.batch)]
    client = _client(url)
    producer = client.create_producer(
        NAME,
        batching_enabled=True,
        batching_max_messages=BLOCK,
        batching_max_publish_delay_ms=1,
        max_pending_messages=100_000,
    )
    loop = asyncio.get_running_loop()

    async def send() -> None:
        acks: list[pulsar.MessageId] = []
        done = asyncio.Event()

        def acknowledged(result: pulsar.Result, message: pulsar.MessageId) -> None:
            assert result == pulsar.Result.Ok
            acks.append(message)
            if len(acks) == load.batch:
                loop.call_soon_threadsafe(done.set)

        def send_all() -> None:
            for value, key in zip(values, keys, strict=True):
                producer.send_async(value, acknowledged, partition_key=key)

        await asyncio.to_thread(send_all)
        await done.wait()

    try:
        return await pump(load, send)
    finally:
        client.close()


async def _consume_bare(url: str, load: Load) -> Sample:
    await fill(url, load)
    client = _client(url)
    earliest = pulsar.InitialPosition.Earliest
    consumer = client.subscribe(NAME, GROUP, initial_position=earliest)

    def receive() -> int:
        message = None
        for _ in range(BLOCK):
            message = consumer.receive()
            message.data()
            message.partition_key()
        consumer.acknowledge_cumulative(message)
        return BLOCK

    async def take() -> int:
        return await asyncio.to_thread(receive)

    try:
        return await drain(load, take)
    finally:
        client.close()


WORKLOAD = Workload(
    "pulsar",
    "Pulsar",
    "Records of 100 bytes with a key, in one partition, on a broker of its own with one bookie, which syncs "
    "its journal. Four calls of 1,000 records produce at the same time; one consumer takes what there is, "
    "1,000 at most, and commits it before the next. The bare client tells the broker of what is consumed "
    "later, and does not wait for an answer.",
    cases,
)
TARGETS = targets_of("pulsar", "Pulsar")

if __name__ == "__main__":
    measure(WORKLOAD, TARGETS)
