"""The brokers of the frameworks: how each is started, and how FastStream speaks to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from warnings import catch_warnings

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from nats import connect

from benchmarks.brokers.starting import kafka_server, nats_server, redis_server
from benchmarks.durable.stores import library

TOPIC, GROUP = "bench", "readers"

FastStream = tuple[Any, Any, Callable[[bytes], Coroutine[Any, Any, object]]]
"""A broker, the decorator of its subscriber, and how to publish."""
Confirm = Callable[[Any], Coroutine[Any, Any, object]]
"""Acknowledges a message, and returns when the broker has taken that."""


@dataclass(frozen=True)
class Started:
    """A server that runs."""

    url: str
    faststream: Callable[[bool], FastStream]
    """With True its subscriber takes one record after the other and leaves the acknowledgement to the handler."""
    confirm: Confirm | None = None
    """None where every acknowledgement waits for the broker."""


@dataclass(frozen=True)
class Broker:
    """A server to be started in a folder."""

    title: str
    start: Callable[[Path], AbstractContextManager[Started]]
    durability: str
    acknowledged: str
    """What FastStream promises as it comes: when a record is acknowledged, and whether that is waited for."""
    confirmed: str = ""
    """How it promises what ``event.commit()`` does; nothing where it does so as it comes."""


@contextmanager
def redis(folder: Path) -> Iterator[Started]:
    """Streams of Redis."""
    with redis_server(folder) as server:

        def open_broker(_: bool) -> FastStream:
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

        def open_broker(confirmed: bool) -> FastStream:
            module = library("faststream.nats")
            client = module.NatsBroker(server.url, logger=None)
            # What was pulled is handled at the same time; what is pushed, one after the other.
            how = (
                {"ack_policy": library("faststream").AckPolicy.MANUAL}
                if confirmed
                else {"pull_sub": module.PullSub(batch_size=1_000)}
            )
            with catch_warnings(action="ignore", category=RuntimeWarning):
                # One that is pushed to cannot share its work with others: here there are none.
                subscriber = client.subscriber(TOPIC, stream=TOPIC, durable=GROUP, **how)
            return client, subscriber, lambda value: client.publish(value, TOPIC, stream=TOPIC)

        yield Started(server.url, open_broker, lambda message: message.ack_sync())


async def _add_stream(url: str) -> None:
    client = await connect(url)
    await client.jetstream().add_stream(name=TOPIC, subjects=[TOPIC])
    await client.close()


@contextmanager
def kafka(folder: Path) -> Iterator[Started]:
    """A topic of one partition."""
    with kafka_server(folder) as server:
        admin = AdminClient({"bootstrap.servers": server.address, "log_level": 2})

        def open_broker(confirmed: bool) -> FastStream:
            admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result()
            module = library("faststream.confluent")
            client = module.KafkaBroker(server.address, logger=None, acks="all")
            policies = library("faststream").AckPolicy
            policy = policies.MANUAL if confirmed else policies.ACK
            subscriber = client.subscriber(
                TOPIC, group_id=GROUP, auto_offset_reset="earliest", ack_policy=policy
            )
            return client, subscriber, lambda value: client.publish(value, TOPIC)

        # ``await message.ack()`` is this call without its argument, and returns when the commit was sent.
        yield Started(
            server.url, open_broker, lambda message: message.consumer.commit(asynchronous=False)
        )


BROKERS = {
    "redis": Broker(
        "Redis",
        redis,
        "appendfsync always, for both",
        "one after the other, the acknowledgement of each is waited for",
    ),
    "nats": Broker(
        "NATS JetStream",
        nats,
        "files, synced every two minutes, for both",
        "up to 1,000 at the same time, acknowledgements are sent and not waited for",
        "one after the other, await message.ack_sync() of each",
    ),
    "kafka": Broker(
        "Kafka",
        kafka,
        "acks=all, synced by the system, for both",
        "one after the other, commits are sent and not waited for",
        "one after the other, await message.consumer.commit(asynchronous=False) of each",
    ),
}
