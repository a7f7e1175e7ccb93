"""Peers that are servers: each on loopback, with a folder of its own, told to sync before it answers."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import nats
import pytest
import redis.asyncio
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.brokers.starting import kafka_server, nats_server, redis_server
from benchmarks.durable import postgres
from benchmarks.durable.client import STREAM, Client, ServerPeer, Take
from tests.servers import postgres_binaries
from tests.transports.servers import kafka as kafka_place
from tests.transports.servers.nats import binary as nats_binary
from tests.transports.servers.redis import binary as redis_binary

READ_SECONDS = 30.0
ALWAYS = "always: synced before it answers"
CONSUMER: dict[str, Any] = {
    "group.id": "readers",
    "enable.auto.commit": False,
    # For throughput: with the default it stops to fetch for a second whenever 100,000 records are waiting.
    "queued.min.messages": 1_000_000,
    "fetch.message.max.bytes": 8 << 20,
}


@asynccontextmanager
async def redis_client(folder: Path) -> AsyncIterator[Client]:
    """A stream, by pipelines of XADD; XRANGE to read."""
    with redis_server(folder) as server:
        async with redis.asyncio.Redis.from_url(server.url, max_connections=128) as client:

            async def append(values: list[bytes]) -> None:
                pipeline = client.pipeline(transaction=False)
                for value in values:
                    pipeline.xadd(STREAM, {"v": value})
                await pipeline.execute()

            yield Client(append, partial(_redis_reader, server.url))


@asynccontextmanager
async def _redis_reader(url: str) -> AsyncIterator[Take]:
    async with redis.asyncio.Redis.from_url(url) as client:
        last = "-"

        async def take(count: int) -> int:
            nonlocal last
            found: Any = await client.xrange(STREAM, min=last, count=count)
            last = f"({found[-1][0].decode()}" if found else last
            return len(found)

        yield take


@asynccontextmanager
async def nats_client(folder: Path) -> AsyncIterator[Client]:
    """A stream in files, by publish_async; a pull consumer without acks to read."""
    with nats_server(folder, sync=True) as server:
        client = await nats.connect(server.url)
        stream = client.jetstream(publish_async_max_pending=8_000)
        await stream.add_stream(name=STREAM, subjects=[STREAM])

        async def append(values: list[bytes]) -> None:
            acks = [await stream.publish_async(STREAM, value) for value in values]
            await asyncio.gather(*acks)

        try:
            yield Client(append, partial(_nats_reader, server.url))
        finally:
            await client.close()


@asynccontextmanager
async def _nats_reader(url: str) -> AsyncIterator[Take]:
    client = await nats.connect(url)
    config = nats.js.api.ConsumerConfig(ack_policy=nats.js.api.AckPolicy.NONE)
    consumer = await client.jetstream().pull_subscribe(STREAM, stream=STREAM, config=config)

    async def take(count: int) -> int:
        found = await consumer.fetch(count, timeout=READ_SECONDS)
        return len([one.data for one in found])

    try:
        yield take
    finally:
        await client.close()


@asynccontextmanager
async def kafka_client(folder: Path) -> AsyncIterator[Client]:
    """A topic of one partition, acks=all and a flush of the log before each answer."""
    with kafka_server(folder, sync=True) as server:
        own: dict[str, Any] = {"bootstrap.servers": server.address, "log_level": 2}
        admin = AdminClient(own)
        admin.create_topics([NewTopic(STREAM, 1, 1)])[STREAM].result()
        producer = Producer({**own, "enable.idempotence": True, "linger.ms": 1})

        async def append(values: list[bytes]) -> None:
            await asyncio.wrap_future(_KafkaCall(producer, values).done)

        stop = _Stop()
        poller = asyncio.create_task(asyncio.to_thread(_poll, producer, stop))
        try:
            yield Client(append, partial(_kafka_reader, own))
        finally:
            stop.asked = True
            await poller


@asynccontextmanager
async def _kafka_reader(own: dict[str, Any]) -> AsyncIterator[Take]:
    consumer = Consumer({**own, **CONSUMER})
    consumer.assign([TopicPartition(STREAM, 0, 0)])

    def consume(count: int) -> int:
        return len([(one.offset(), one.value()) for one in consumer.consume(count, READ_SECONDS)])

    async def take(count: int) -> int:
        return await asyncio.to_thread(consume, count)

    try:
        yield take
    finally:
        await asyncio.to_thread(consumer.close)


@dataclass
class _Stop:
    asked: bool = False


def _poll(producer: Producer, stop: _Stop) -> None:
    """Hear the reports, in a thread of its own, as its documentation does in asyncio."""
    while not stop.asked:
        producer.poll(0.05)


class _KafkaCall:
    """Records of which each one is reported."""

    def __init__(self, producer: Producer, values: list[bytes]) -> None:
        self.done: Future[None] = Future()
        self._missing = len(values)
        for value in values:
            producer.produce(STREAM, value, on_delivery=self._heard)

    def _heard(self, error: Any, _: Any) -> None:
        self._missing -= 1
        if error is not None and not self.done.done():
            self.done.set_exception(RuntimeError(str(error)))
        elif self._missing == 0 and not self.done.done():
            self.done.set_result(None)


SERVERS: dict[str, ServerPeer] = {
    "redis": ServerPeer(
        redis_client, "Streams: a pipeline of XADD for each call", f"appendfsync {ALWAYS}",
        "XRANGE of 1,000", read_records=100_000, read_batch=1_000, fill_batch=5_000),
    "nats": ServerPeer(
        nats_client, "JetStream: publish_async and its acks", f"sync_interval {ALWAYS}",
        "pull consumer without acks, fetch of 1,000",
        read_records=20_000, read_batch=1_000, fill_batch=4_000),
    "kafka": ServerPeer(
        kafka_client, "confluent-kafka: a report for each record",
        "acks=all, log.flush.interval.messages=1: synced before it answers",
        "consume(10,000), one partition assigned (no checksums)",
        read_records=500_000, read_batch=10_000, warm_up=200_000),
    "postgres": ServerPeer(
        postgres.client,
        f"asyncpg: COPY for each call, INSERT of one; {postgres.CONNECTIONS} connections",
        "fsync=on, synchronous_commit=on: synced at commit",
        "SELECT id, value, 10,000 at a time", read_records=500_000, read_batch=10_000),
}  # fmt: skip


def versions() -> dict[str, str]:
    """Of the servers that are here, and of what a client uses without asking."""
    found = {
        "Redis": _told(redis_binary, "--version"),
        "hiredis": _package("hiredis"),
        "NATS": _told(nats_binary, "--version"),
        "PostgreSQL": _told(lambda: postgres_binaries() / "postgres", "--version"),
        "Kafka": None if kafka_place.MISSING else kafka_place.VERSION,
        "Java": _told(lambda: "java", "-version"),
    }
    return {name: one or "(not here)" for name, one in found.items()}


def _package(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _told(binary: Callable[[], str | Path], *arguments: str) -> str | None:
    try:
        path = shutil.which(binary())
    except pytest.skip.Exception:
        return None
    if path is None:
        return None
    said = subprocess.run([path, *arguments], capture_output=True, check=True, text=True)
    number = re.search(r"\d+(\.\d+)+", said.stdout + said.stderr)
    return number[0] if number else None
