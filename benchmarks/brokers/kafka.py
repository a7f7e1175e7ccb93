"""Kafka through Penstock, and through its bare client: the same records, broker and promise.

``python -m benchmarks.brokers.kafka`` measures it alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.brokers.common import (
    BLOCK,
    IN_FLIGHT,
    PAYLOAD_BYTES,
    measure,
    pump,
    some_keys,
    targets_of,
)
from benchmarks.brokers.starting import kafka_server
from benchmarks.model import Case, Load, Meter, Sample, Scale, Workload
from penstock.transports import open_transport
from tests.transports.servers.kafka import KafkaServer

TOPIC, GROUP = "bench", "readers"
PARTITIONS = 2
PREPARED_BLOCKS = 400
"""Records that are there before they are consumed."""
AHEAD = {"fetch.queue.backoff.ms": 20}
"""As Penstock sets it: by default the client stops for a second when it has fetched 100,000 records."""

Work = Callable[[KafkaServer, Load], Sample]


def cases(scale: Scale) -> list[Case]:
    """Producing and consuming, each through both clients."""
    load = Load.of(scale, PAYLOAD_BYTES, BLOCK)
    contenders: list[tuple[str, str, str, Work]] = [
        ("produce", "penstock", "1,000 records a call, acknowledged", _produce_penstock),
        ("produce", "bare", "confluent-kafka, a report for each record", _produce_bare),
        ("consume", "penstock", "batches, each committed", _consume_penstock),
        ("consume", "bare", "confluent-kafka, consume(1,000) and commit", _consume_bare),
    ]
    return [
        Case("kafka", PAYLOAD_BYTES, point, name, what, partial(_run, load=load, work=work))
        for point, name, what, work in contenders
    ]


def _run(folder: Path, load: Load, work: Work) -> Sample:
    with kafka_server(folder) as server:
        new = NewTopic(TOPIC, PARTITIONS, 1)
        admin = AdminClient({"bootstrap.servers": server.address, "log_level": 3})
        admin.create_topics([new])[TOPIC].result()
        return work(server, load)


def _produce_penstock(server: KafkaServer, load: Load) -> Sample:
    async def run() -> Sample:
        values, keys = load.values(), some_keys(load.batch)
        async with open_transport(server.url) as transport:
            return await pump(load, lambda: transport.produce(TOPIC, values, keys=keys))

    return asyncio.run(run())


class _BareProducer:
    """Blocks of records, of which so many may be on their way; each record is reported."""

    def __init__(self, server: KafkaServer) -> None:
        own = {"bootstrap.servers": server.address, "log_level": 3}
        self._client = Producer({**own, "enable.idempotence": True, "linger.ms": 1})
        self.reported = 0

    def _heard(self, error: KafkaError | None, _: Message) -> None:
        assert error is None
        self.reported += 1

    def send(self, values: list[bytes], keys: list[bytes]) -> None:
        for value, key in zip(values, keys, strict=True):
            self._client.produce(TOPIC, value, key, on_delivery=self._heard)

    def wait_for(self, count: int) -> None:
        while self.reported < count:
            self._client.poll(0.1)


def _produce_bare(server: KafkaServer, load: Load) -> Sample:
    values, keys = load.values(), some_keys(load.batch)
    producer = _BareProducer(server)
    producer.send(values, keys)
    producer.wait_for(load.batch)
    sent = load.batch
    meter = Meter(load)
    while meter.more():
        producer.send(values, keys)
        sent += load.batch
        producer.wait_for(sent - (IN_FLIGHT - 1) * load.batch)
        meter.records = producer.reported - load.batch
    producer.wait_for(sent)
    meter.records = sent - load.batch
    return meter.sample()


def _prepare(server: KafkaServer, load: Load) -> None:
    values, keys = load.values(), some_keys(load.batch)
    producer = _BareProducer(server)
    for number in range(PREPARED_BLOCKS):
        producer.send(values, keys)
        producer.wait_for((number - 50) * load.batch)
    producer.wait_for(PREPARED_BLOCKS * load.batch)


def _is_enough(meter: Meter) -> bool:
    return not meter.more() or meter.records >= (PREPARED_BLOCKS - 10) * BLOCK


def _consume_penstock(server: KafkaServer, load: Load) -> Sample:
    async def run() -> Sample:
        async with (
            open_transport(server.url) as transport,
            transport.subscribe(TOPIC, GROUP) as consumer,
        ):
            await consumer.commit(await consumer.next_batch(records_max=BLOCK))
            meter = Meter(load)
            while not _is_enough(meter):
                batch = await consumer.next_batch(records_max=BLOCK)
                await consumer.commit(batch)
                meter.records += len(batch)
            return meter.sample()

    _prepare(server, load)
    return asyncio.run(run())


def _consume_bare(server: KafkaServer, load: Load) -> Sample:
    _prepare(server, load)
    own = {"group.id": GROUP, "enable.auto.commit": False, "auto.offset.reset": "earliest", **AHEAD}
    client = Consumer({"bootstrap.servers": server.address, "log_level": 3, **own})
    client.subscribe([TOPIC])
    try:
        while not _read(client):
            pass
        meter = Meter(load)
        while not _is_enough(meter):
            meter.records += _read(client)
        return meter.sample()
    finally:
        client.close()


def _read(client: Consumer) -> int:
    """A block of records with all that Penstock gives, then its commit."""
    messages = client.consume(BLOCK, 1.0)
    rows = [
        (one.partition(), one.offset(), one.timestamp()[1], one.key(), one.value(), one.headers())
        for one in messages
    ]
    if rows:
        client.commit(asynchronous=False)
    return len(rows)


WORKLOAD = Workload(
    "kafka",
    "Kafka",
    "Records of 100 bytes with a key, in two partitions, on a broker of its own. Four calls of 1,000 "
    "records produce at the same time, and each waits until all are acknowledged; one consumer takes up "
    "to 1,000 at a time and commits them before the next.",
    cases,
)

TARGETS = targets_of("kafka", "Kafka")

if __name__ == "__main__":
    measure(WORKLOAD, TARGETS)
