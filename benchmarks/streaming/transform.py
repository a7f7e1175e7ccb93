"""Consume, transform, produce: with a transaction for each batch, and without."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from benchmarks.model import Case, Load, Meter, Sample, Scale, Workload
from penstock.streaming import Producer
from penstock.transports import Consumer, EmbeddedTransport, StreamBatch

SOURCE, SINK, GROUP = "orders", "invoices", "billing"
PAYLOAD_BYTES = 100
BATCHES = (1_000, 10_000)
RECORDS_MAX = 400_000
"""What is there to be transformed, unless the load is less."""
KEYS = 997


def cases(scale: Scale) -> list[Case]:
    """Records of a batch, partitions, and the two ways."""
    load = Load.of(scale, PAYLOAD_BYTES)
    return [
        _case(load, batch, partitions, way)
        for batch in BATCHES
        for partitions in (1, 4)
        for way in ("plain", "transaction")
    ]


def _case(load: Load, batch: int, partitions: int, way: str) -> Case:
    name = f"partitions-{partitions}-{way}"
    what = f"{partitions} partition{'s'[: partitions - 1]}, {way}"
    run = partial(_run, load=load, batch=batch, partitions=partitions, way=way)
    return Case("transform", PAYLOAD_BYTES, f"batch-{batch}", name, what, run)


def _run(folder: Path, load: Load, batch: int, partitions: int, way: str) -> Sample:
    return asyncio.run(_transform(folder, load, batch, partitions, way))


async def _transform(folder: Path, load: Load, batch: int, partitions: int, way: str) -> Sample:
    async with EmbeddedTransport(folder) as transport:
        for topic in (SOURCE, SINK):
            await transport.create_topic(topic, partitions=partitions)
        await _fill(transport, load, batch)
        async with (
            transport.subscribe(SOURCE, GROUP) as consumer,
            transport.queue.producer(GROUP) as producer,
        ):
            return await _loop(transport, consumer, producer, load, batch, way)


async def _fill(transport: EmbeddedTransport, load: Load, batch: int) -> None:
    values = load.values()
    keys = [b"%d" % (number % KEYS) for number in range(len(values))]
    wanted = max(min(RECORDS_MAX, load.bytes_max // PAYLOAD_BYTES), 8 * batch)
    for _ in range(0, wanted, len(values)):
        await transport.produce(SOURCE, values, keys=keys)


async def _loop(
    transport: EmbeddedTransport,
    consumer: Consumer,
    producer: Producer,
    load: Load,
    batch: int,
    way: str,
) -> Sample:
    left = sum(one.records for one in await transport.lag(SOURCE, GROUP))
    step = partial(_exactly, producer) if way == "transaction" else partial(_plain, transport)
    left -= await step(consumer, await consumer.next_batch(records_max=batch))
    meter = Meter(load)
    while left > 0 and meter.more():
        done = await step(consumer, await consumer.next_batch(records_max=batch))
        meter.records += done
        left -= done
    return meter.sample()


async def _plain(transport: EmbeddedTransport, consumer: Consumer, batch: StreamBatch) -> int:
    values = [one.value for one in batch.records]
    await transport.produce(SINK, values, keys=[one.key for one in batch.records])
    await consumer.commit(batch)
    return len(values)


async def _exactly(producer: Producer, consumer: Consumer, batch: StreamBatch) -> int:
    values = [one.value for one in batch.records]
    async with producer.transaction() as transaction:
        await transaction.publish_many(SINK, values, keys=[one.key for one in batch.records])
        transaction.commit_offsets(consumer, batch)  # type: ignore[arg-type]
    return len(values)


WORKLOAD = Workload(
    "transform",
    "From topic to topic, exactly once",
    "A member of a group consumes batches, publishes each record to another topic and commits, all "
    "of it durable before the next batch. “transaction”: records and offset are one transaction. "
    "“plain”: first the records, then the offset; a crash in between doubles them.",
    cases,
)
