"""The brokers of the frameworks: how each is started, and how FastStream speaks to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from nats import connect

from benchmarks.brokers.starting import kafka_server, nats_server, redis_server
from benchmarks.durable.stores import library

TOPIC, GROUP = "bench", "readers"

FastStream = tuple[Any, Any, Callable[[bytes], Coroutine[Any, Any, object]]]
"""A broker, the decorator of its subscriber, and how to publish."""


@dataclass(frozen=True)
class Started:
    """A server that runs."""

    url: str
    faststream: Callable[[], FastStream]


@dataclass(frozen=True)
class Broker:
    """A server to be started in a folder."""

    title: str
    start: Callable[[Path], AbstractContextManager[Started]]
    durability: str


@contextmanager
def redis(folder: Path) -> Iterator[Started]:
    """Streams of Redis."""
    with redis_server(folder) as server:

        def open_broker() -> FastStream:
            module = library("faststream.redis")
            client = module.RedisBroker(server.url, logger=None)
            stream = module.StreamSub(
                TOPIC, group=GROUP, consumer="one", last_id="0", max_records=1_000
            )
            subscriber = client.subscriber(stream=stream)
            return client, subscriber, lambda value: client.publish(value, stream=TOPIC)

        yield Started(server.url, open_broker)


@contextmanager
def nats(folder: Path) -> Iterator[Started]:
    """JetStream of NATS."""
    with nats_server(folder) as server:
        asyncio.run(_add_stream(server.url))

        def open_broker() -> FastStream:
            module = library("faststream.nats")
            client = module.NatsBroker(server.url, logger=None)
            pull = module.PullSub(batch_size=1_000)
            subscriber = client.subscriber(TOPIC, stream=TOPIC, durable=GROUP, pull_sub=pull)
            return client, subscriber, lambda value: client.publish(value, TOPIC, stream=TOPIC)

        yield Started(server.url, open_broker)


async def _add_stream(url: str) -> None:
    client = await connect(url)
    await client.jetstream().add_stream(name=TOPIC, subjects=[TOPIC])
    await client.close()


@contextmanager
def kafka(folder: Path) -> Iterator[Started]:
    """A topic of one partition."""
    with kafka_server(folder) as server:
        admin = AdminClient({"bootstrap.servers": server.address, "log_level": 2})

        def open_broker() -> FastStream:
            admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result()
            module = library("faststream.confluent")
            client = module.KafkaBroker(server.address, logger=None, acks="all")
            policy = library("faststream").AckPolicy.ACK
            subscriber = client.subscriber(
                TOPIC, group_id=GROUP, auto_offset_reset="earliest", ack_policy=policy
            )
            return client, subscriber, lambda value: client.publish(value, TOPIC)

        yield Started(server.url, open_broker)


BROKERS = {
    "redis": Broker("Redis", redis, "appendfsync always, for both"),
    "nats": Broker("NATS JetStream", nats, "files, synced every two minutes, for both"),
    "kafka": Broker("Kafka", kafka, "acks=all, synced by the system, for both"),
}
