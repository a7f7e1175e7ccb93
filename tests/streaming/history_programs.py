"""Producers and consumers that write down what they do, until somebody kills them."""

import asyncio
import random
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from penstock.errors import BusyError, DeadlineExceeded, Fenced, StoreFailed
from penstock.log.transaction import Transaction
from penstock.testing import HistoryRecorder
from penstock.transports import Consumer, EmbeddedTransport, StreamBatch

TOPIC = "events"
PARTITIONS = 4
KEYS = 10
LEASE_SECONDS = 0.6
TELLER = "teller"
VALUES_EACH = 10_000_000
BATCHES = [1, 10, 500, 1_000]
READS = [1, 50, 2_000, 2_000]


@dataclass
class Orders:
    """What a process is to do, under a name that no other has."""

    number: int
    role: str
    """``producer``, ``teller``, or the name of the group to be a member of."""
    log: str
    histories: str
    seed: int
    pause: float = 0.002
    """Seconds between two sends, on average: what is sent must be read, too."""
    bug: str = ""
    """One of ``BUGS``."""

    def recorder(self, stay: int = 0) -> HistoryRecorder:
        name = f"{self.role}-{self.number}-{stay}"
        return HistoryRecorder(Path(self.histories, name), name)


def run(orders: Orders) -> None:
    if orders.bug:
        BUGS[orders.bug]()
    asyncio.run(work(orders))


def let_aborted_transactions_happen() -> None:
    Transaction.abort = Transaction.commit  # type: ignore[assignment,method-assign]


def lose_records() -> None:
    """Some are acknowledged, and not there."""
    produce = EmbeddedTransport.produce

    async def forgetful(transport: Any, topic: Any, values: Any, *, keys: Any) -> Any:
        if len(values) == 10:
            return await produce(transport, topic, values[:9], keys=keys[:9])
        return await produce(transport, topic, values, keys=keys)

    EmbeddedTransport.produce = forgetful  # type: ignore[assignment,method-assign]


BUGS = {
    "aborted transactions happen": let_aborted_transactions_happen,
    "records are lost": lose_records,
}
"""What the checker must find, when a process has it."""


async def work(orders: Orders) -> None:
    async with EmbeddedTransport(orders.log) as transport:
        await transport.create_topic(TOPIC, partitions=PARTITIONS)
        if orders.role not in ("producer", "teller"):
            await consume(transport, orders)
        with orders.recorder() as recorder:
            send = produce if orders.role == "producer" else tell
            await send(transport, orders, recorder)


async def produce(transport: EmbeddedTransport, orders: Orders, recorder: HistoryRecorder) -> None:
    """Batches of one key, one after the other."""
    chance = random.Random(orders.seed)
    first = orders.number * VALUES_EACH
    while True:
        key = chance.randrange(KEYS)
        values = list(range(first, first + chance.choice(BATCHES)))
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
        await asyncio.sleep(chance.uniform(0, 2 * orders.pause))


async def tell(transport: EmbeddedTransport, orders: Orders, recorder: HistoryRecorder) -> None:
    """Transactions over several partitions; some are aborted. Tellers take each other's names."""
    chance = random.Random(orders.seed)
    first = orders.number * VALUES_EACH
    producer = transport.queue.producer(f"{TELLER}-{orders.number % 2}")
    while True:
        values = list(range(first, first + chance.choice(BATCHES)))
        first = values[-1] + 1
        keys = [chance.randrange(KEYS) for _ in values]
        recorder.sending(values, keys)
        try:
            if await transact(producer.transaction(), values, keys, chance, recorder):
                recorder.sent(values)
            else:
                recorder.refused(values)
        except Fenced:
            recorder.refused(values)  # nothing happened
            await producer.open()
        except (BusyError, StoreFailed):
            continue  # the outcome is unknown
        await asyncio.sleep(chance.uniform(0, 2 * orders.pause))


async def transact(
    transaction: Transaction,
    values: list[int],
    keys: list[int],
    chance: random.Random,
    recorder: HistoryRecorder,
) -> bool:
    """Whether it was committed; else it was aborted."""
    await transaction.publish_many(
        TOPIC, [b"%d" % value for value in values], keys=[b"%d" % key for key in keys]
    )
    if chance.random() < 0.2:
        await transaction.abort()
        return False
    recorder.deciding(values)
    await transaction.commit()
    return True


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


async def consume(transport: EmbeddedTransport, orders: Orders) -> None:
    """Be a member again and again: each time it comes or goes, the group is balanced anew."""
    chance = random.Random(orders.seed)
    for stay in count():
        with orders.recorder(stay) as recorder:
            began = recorder.now()
            consumer = transport.subscribe(TOPIC, orders.role, lease_seconds=LEASE_SECONDS)
            async with consumer:
                polls = chance.choice([1, 10, 200, 200, 1_000])
                await stay_in(Reading(consumer, recorder, began), chance, polls)


async def stay_in(reading: "Reading", chance: random.Random, polls: int) -> None:
    for _ in range(polls):
        batch = await reading.poll(0.2, chance.choice(READS))
        if chance.random() < 0.1:
            # The time to become a zombie.
            await asyncio.sleep(chance.uniform(0, 0.04))
        if batch is not None and chance.random() < 0.7:
            await reading.commit(batch)


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
