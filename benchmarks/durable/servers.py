"""Peers that are servers: each on loopback, with a folder of its own, told to sync before it answers."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import nats
import pytest
import redis.asyncio
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.model import Missing
from tests import servers as databases
from tests.transports.servers import kafka as kafka_server
from tests.transports.servers import nats as nats_server
from tests.transports.servers.redis import RedisServer
from tests.transports.servers.redis import binary as redis_binary

STREAM = "bench"
READ_BLOCK = 1_000
CONNECTIONS = 16
"""Of PostgreSQL: each one commits alone, and they share syncs."""
ALWAYS = "always: synced before it answers"


@dataclass(frozen=True)
class Client:
    """A connection to a server."""

    append: Callable[[list[bytes]], Awaitable[object]]
    """All records, acknowledged and durable on return."""
    read: Callable[[int], Awaitable[int]]
    """Some of the records as objects, oldest first; how many there were."""


@dataclass(frozen=True)
class ServerPeer:
    """How to start a server and connect to it, and what it promises."""

    open: Callable[[Path], AbstractAsyncContextManager[Client]]
    how: str
    durability: str
    read_how: str


def started(server: Any, stack: ExitStack, stop: Callable[[], object]) -> None:
    """Start a server of the tests; what is missing for it leaves the case out."""
    try:
        server.start()
    except pytest.skip.Exception as missing:
        raise Missing(str(missing)) from missing
    stack.callback(stop)


@asynccontextmanager
async def redis_client(folder: Path) -> AsyncIterator[Client]:
    """A stream, by pipelines of XADD; XRANGE to read."""
    with ExitStack() as stack:
        server = RedisServer(folder)
        started(server, stack, server.stop)
        async with redis.asyncio.Redis.from_url(server.url, max_connections=128) as client:

            async def append(values: list[bytes]) -> None:
                pipeline = client.pipeline(transaction=False)
                for value in values:
                    pipeline.xadd(STREAM, {"v": value})
                await pipeline.execute()

            yield Client(append, partial(_read_redis, client))


async def _read_redis(client: Any, records: int) -> int:
    count, last = 0, "-"
    while count < records:
        found = await client.xrange(STREAM, min=last, count=READ_BLOCK)
        last = f"({found[-1][0].decode()}"
        count += len(found)
    return count


@asynccontextmanager
async def nats_client(folder: Path) -> AsyncIterator[Client]:
    """A stream in files, by publish_async; a pull consumer without acks to read."""
    with ExitStack() as stack:
        store = f'jetstream {{ store_dir: "{folder / "data"}", sync_interval: always }}'
        server = nats_server.NatsServer(folder, store)
        server.jetstream = False  # its own block would have no sync_interval
        started(server, stack, server.stop)
        client = await nats.connect(server.url)
        stream = client.jetstream(publish_async_max_pending=8_000)
        await stream.add_stream(name=STREAM, subjects=[STREAM])

        async def append(values: list[bytes]) -> None:
            acks = [await stream.publish_async(STREAM, value) for value in values]
            await asyncio.gather(*acks)

        try:
            yield Client(append, partial(_read_nats, stream))
        finally:
            await client.close()


async def _read_nats(stream: Any, records: int) -> int:
    consumer = await stream.pull_subscribe(
        STREAM,
        stream=STREAM,
        config=nats.js.api.ConsumerConfig(ack_policy=nats.js.api.AckPolicy.NONE),
    )
    count = 0
    while count < records:
        count += len(await consumer.fetch(READ_BLOCK, timeout=30))
    return count


@asynccontextmanager
async def kafka_client(folder: Path) -> AsyncIterator[Client]:
    """A topic of one partition, acks=all and a flush of the log before each answer."""
    if kafka_server.MISSING:
        raise Missing(kafka_server.MISSING)
    with ExitStack() as stack:
        server = kafka_server.KafkaServer(folder, {"log.flush.interval.messages": "1"})
        started(server, stack, server.kill)
        own: dict[str, Any] = {"bootstrap.servers": server.address, "log_level": 2}
        admin = AdminClient(own)
        admin.create_topics([NewTopic(STREAM, 1, 1)])[STREAM].result()
        producer = Producer({**own, "enable.idempotence": True, "linger.ms": 1})

        async def append(values: list[bytes]) -> None:
            await asyncio.wrap_future(_KafkaCall(producer, values).done)

        stop = _Stop()
        poller = asyncio.create_task(asyncio.to_thread(_poll, producer, stop))
        try:
            yield Client(append, lambda records: asyncio.to_thread(_read_kafka, own, records))
        finally:
            stop.asked = True
            await poller


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


def _read_kafka(own: dict[str, Any], records: int) -> int:
    consumer = Consumer({**own, "group.id": "readers"})
    consumer.assign([TopicPartition(STREAM, 0, 0)])
    count = 0
    try:
        while count < records:
            count += len([(one.offset(), one.value()) for one in consumer.consume(READ_BLOCK, 5.0)])
    finally:
        consumer.close()
    return count


@asynccontextmanager
async def postgres_client(_: Path) -> AsyncIterator[Client]:
    """A table; COPY for many records, INSERT for one; its user may not enter the folder of the run."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(databases.postgres_server())
        except pytest.skip.Exception as missing:
            raise Missing(str(missing)) from missing
        async with asyncpg.create_pool(
            server.dsn, min_size=CONNECTIONS, max_size=CONNECTIONS
        ) as pool:
            await pool.execute(f"CREATE TABLE {STREAM} (id bigserial PRIMARY KEY, value bytea)")

            async def append(values: list[bytes]) -> None:
                if len(values) == 1:
                    await pool.execute(f"INSERT INTO {STREAM} (value) VALUES ($1)", values[0])
                else:
                    await pool.copy_records_to_table(
                        STREAM, records=[(value,) for value in values], columns=["value"]
                    )

            yield Client(append, partial(_read_postgres, pool))


async def _read_postgres(pool: Any, records: int) -> int:
    query = f"SELECT id, value FROM {STREAM} WHERE id > $1 ORDER BY id LIMIT 10000"
    count = last = 0
    while count < records:
        rows = await pool.fetch(query, last)
        count, last = count + len(rows), rows[-1]["id"]
    return count


SERVERS: dict[str, ServerPeer] = {
    "redis": ServerPeer(
        redis_client, "Streams: a pipeline of XADD for each call", f"appendfsync {ALWAYS}",
        "XRANGE of 1,000"),
    "nats": ServerPeer(
        nats_client, "JetStream: publish_async and its acks", f"sync_interval {ALWAYS}",
        "pull consumer without acks, fetch of 1,000"),
    "kafka": ServerPeer(
        kafka_client, "confluent-kafka: a report for each record",
        "acks=all, log.flush.interval.messages=1: synced before it answers", "consume(1,000)"),
    "postgres": ServerPeer(
        postgres_client, f"asyncpg: COPY for each call, INSERT of one; {CONNECTIONS} connections",
        "fsync=on, synchronous_commit=on: synced at commit", "SELECT id, value, 10,000 at a time"),
}  # fmt: skip


def versions() -> dict[str, str]:
    """Of the servers that are here."""
    found = {
        "Redis": _told(redis_binary, "--version"),
        "NATS": _told(nats_server.binary, "--version"),
        "PostgreSQL": _told(lambda: databases.postgres_binaries() / "postgres", "--version"),
        "Kafka": None if kafka_server.MISSING else kafka_server.VERSION,
    }
    return {name: one or "(not here)" for name, one in found.items()}


def _told(binary: Callable[[], str | Path], *arguments: str) -> str | None:
    try:
        path = shutil.which(binary())
    except pytest.skip.Exception:
        return None
    said = subprocess.run([path or "", *arguments], capture_output=True, check=True, text=True)
    number = re.search(r"\d+(\.\d+)+", said.stdout + said.stderr)
    return number[0] if number else None
