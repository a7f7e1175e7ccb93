"""Producers and consumers that write down what they do, until somebody kills them."""

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import BusyError, DeadlineExceeded, Fenced
from penstock.testing import HistoryRecorder
from penstock.transports import Consumer, EmbeddedTransport, StreamBatch

TOPIC = "events"
PARTITIONS = 4
KEYS = 10
LEASE_SECONDS = 0.6
VALUES_EACH = 10_000_000


@dataclass
class Orders:
    """What a process is to do, under a name that no other has."""

    number: int
    role: str
    """``producer``, or the name of the group to be a member of."""
    log: str
    histories: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.role}-{self.number}"

    def recorder(self) -> HistoryRecorder:
        return HistoryRecorder(Path(self.histories, self.name), self.name)


def run(orders: Orders) -> None:
    asyncio.run(work(orders))


async def work(orders: Orders) -> None:
    with orders.recorder() as recorder:
        async with EmbeddedTransport(orders.log) as transport:
            await transport.create_topic(TOPIC, partitions=PARTITIONS)
            if orders.role == "producer":
                await produce(transport, orders, recorder)
            else:
                await consume(transport, orders, recorder)


async def produce(transport: EmbeddedTransport, orders: Orders, recorder: HistoryRecorder) -> None:
    """Batches of one key, one after the other."""
    chance = random.Random(orders.seed)
    first = orders.number * VALUES_EACH
    while True:
        key = chance.randrange(KEYS)
        values = list(range(first, first + chance.randint(1, 8)))
        first = values[-1] + 1
        recorder.sending(values, [key] * len(values))
        try:
            sent = await transport.produce(
                TOPIC, [b"%d" % value for value in values], keys=[b"%d" % key] * len(values)
            )
        except BusyError:
            continue  # the outcome is unknown
        ((partition, (start, end)),) = sent.ranges.items()
        together = end - start == len(values)
        recorder.sent(values, partition, range(start, end) if together else ())
        await asyncio.sleep(chance.uniform(0, 0.004))


class Reading:
    """A member that writes down what it has, what it gets and what it commits."""

    def __init__(self, consumer: Consumer, recorder: HistoryRecorder, began: int) -> None:
        self.consumer = consumer
        self.group = consumer.group
        self.recorder = recorder
        self.looked = began
        self.seen: Any = None

    def look(self, batch: StreamBatch | None = None) -> None:
        """Write down what it has, if that has changed; before a batch that came with it."""
        has = self.consumer.assignment()
        began, self.looked = self.looked, self.recorder.now()
        if has == self.seen or not has.partitions:
            # A member whose lease ran out, and that nobody has removed, goes on where it was.
            return
        self.seen = has
        positions = self.consumer.positions()
        if batch is not None and batch.partition in positions:
            positions[batch.partition] = batch.records[0].offset
        self.recorder.assigned(self.group, has.generation, positions, began)

    async def poll(self, timeout: float, records_max: int) -> StreamBatch | None:
        self.look()
        began = self.recorder.now()
        try:
            batch = await self.consumer.next_batch(timeout, records_max)
        except DeadlineExceeded:
            return None
        self.look(batch)
        self.recorder.polled(
            self.group,
            began,
            [(one.partition, one.offset, int(one.value or b"")) for one in batch],
        )
        return batch

    async def commit(self, batch: StreamBatch) -> None:
        done = {batch.partition: batch.next_offset}
        began = self.recorder.committing(self.group, done)
        try:
            await self.consumer.commit(done)
        except Fenced:
            return
        except BusyError:
            return  # the outcome is unknown
        self.recorder.committed(self.group, began, done)


async def consume(transport: EmbeddedTransport, orders: Orders, recorder: HistoryRecorder) -> None:
    chance = random.Random(orders.seed)
    began = recorder.now()
    consumer = transport.subscribe(TOPIC, orders.role, lease_seconds=LEASE_SECONDS)
    async with consumer:
        reading = Reading(consumer, recorder, began)
        while True:
            batch = await reading.poll(0.2, chance.randint(1, 40))
            if batch is not None and chance.random() < 0.7:
                await reading.commit(batch)
            if chance.random() < 0.2:
                await asyncio.sleep(chance.uniform(0, 0.01))


async def drain(orders: Orders) -> None:
    """Read what is left; nobody sends any more."""
    with orders.recorder() as recorder:
        async with EmbeddedTransport(orders.log) as transport:
            began = recorder.now()
            consumer = transport.subscribe(TOPIC, orders.role, lease_seconds=LEASE_SECONDS)
            async with consumer:
                reading = Reading(consumer, recorder, began)
                while any(one.records for one in await transport.lag(TOPIC, orders.role)):
                    batch = await reading.poll(0.2, 1_000)
                    if batch is not None:
                        await reading.commit(batch)
        recorder.drained(orders.role)
