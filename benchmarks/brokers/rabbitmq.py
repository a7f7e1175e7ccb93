"""RabbitMQ's streams through Penstock, and through their bare client: the same records and server.

``python -m benchmarks.brokers.rabbitmq`` measures it alone.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from rstream import (
    AMQPMessage,
    Consumer,
    ConsumerOffsetSpecification,
    MessageContext,
    OffsetType,
    Producer,
    amqp_decoder,
)

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
from benchmarks.brokers.starting import rabbit_server
from benchmarks.model import Case, Load, Sample, Scale, Workload
from tests.transports.servers.rabbitmq import PASSWORD, USER

STREAM = f"penstock.{TOPIC}-0"


def cases(scale: Scale) -> list[Case]:
    """Producing and consuming, each through both clients."""
    bare = {
        "produce": ("rstream, send_batch of 1,000 and their confirms", _produce_bare),
        "consume": ("rstream, the offset stored after each 1,000", _consume_bare),
    }
    return cases_of("rabbitmq", scale, _run, bare)


def _run(folder: Path, load: Load, work: Work) -> Sample:
    with rabbit_server(folder) as server:
        return asyncio.run(work(server.url, load))


def _login(url: str) -> tuple[str, int]:
    host, _, port = url.rpartition("@")[2].rpartition(":")
    return host, int(port)


class _Confirms:
    """Counts what is confirmed; a call waits until as much is as it sent."""

    def __init__(self) -> None:
        self.sent = self.confirmed = 0
        self.changed = asyncio.Event()

    def note(self, status: object) -> None:
        self.confirmed += 1
        if self.confirmed % BLOCK == 0:
            self.changed.set()

    async def wait(self, upto: int) -> None:
        while self.confirmed < upto:
            self.changed.clear()
            await self.changed.wait()


async def _produce_bare(url: str, load: Load) -> Sample:
    values, keys = load.values(), some_keys(load.batch)
    host, port = _login(url)
    confirms = _Confirms()
    async with Producer(host, port=port, username=USER, password=PASSWORD) as producer:
        await producer.create_stream(STREAM)

        async def send() -> None:
            messages = [
                AMQPMessage(body=value, message_annotations={b"key": key})
                for value, key in zip(values, keys, strict=True)
            ]
            confirms.sent += len(messages)
            upto = confirms.sent
            await producer.send_batch(STREAM, messages, on_publish_confirm=confirms.note)
            await confirms.wait(upto)

        return await pump(load, send)


async def _consume_bare(url: str, load: Load) -> Sample:
    await fill(url, load)
    host, port = _login(url)
    taken = 0
    enough = asyncio.Event()
    consumer = Consumer(host, port=port, username=USER, password=PASSWORD)

    async def on_message(_: AMQPMessage, context: MessageContext) -> None:
        nonlocal taken
        taken += 1
        if taken % BLOCK == 0:
            await consumer.store_offset(STREAM, GROUP, context.offset)
            enough.set()

    async def take() -> int:
        before = taken
        enough.clear()
        while taken - before < BLOCK:
            enough.clear()
            await enough.wait()
        return taken - before

    await consumer.start()
    await consumer.subscribe(
        STREAM,
        on_message,
        decoder=amqp_decoder,
        offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST, None),
        subscriber_name=GROUP,
    )
    reading = asyncio.create_task(consumer.run())
    try:
        return await drain(load, take)
    finally:
        await consumer.close()
        await reading


WORKLOAD = Workload(
    "rabbitmq",
    "RabbitMQ streams",
    "Records of 100 bytes with a key, in one partition, on a server of its own as it comes: it does not "
    "sync its streams. Four calls of 1,000 records produce at the same time; one consumer takes what "
    "there is, 1,000 at most, and commits it before the next.",
    cases,
)
TARGETS = targets_of("rabbitmq", "RabbitMQ streams")

if __name__ == "__main__":
    measure(WORKLOAD, TARGETS)
