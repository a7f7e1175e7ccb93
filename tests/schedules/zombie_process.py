"""A process that takes batches of many groups and names of producers, is stopped, and goes on too late.

A seed says how much it takes of each, and in which order it goes on with what.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Self

from penstock.log.producer import Producer
from penstock.log.queue import WalMessageQueue
from penstock.log.topic import TopicConfig
from penstock.transports import EmbeddedTransport, StreamBatch
from penstock.transports.embedded_consumer import EmbeddedConsumer
from tests.schedules.zombie_scenarios import OUT, TOPIC, Tries

LEASE_SECONDS = 0.3
BATCH_MAX = 9
ONE = TopicConfig(partitions=1)


def run(path: str, groups: list[str], seed: int, link: Connection) -> None:
    asyncio.run(work(path, groups, random.Random(seed), link))


async def work(path: str, groups: list[str], chance: random.Random, link: Connection) -> None:
    tries = Tries()
    async with EmbeddedTransport(path, defaults=ONE) as transport, AsyncExitStack() as stack:
        zombies = [
            await Zombie.take(transport, stack, group, chance.randint(1, BATCH_MAX))
            for group in groups
        ]
        link.send("holding")
        link.recv()  # stopped here, and told to go on
        for zombie in chance.sample(zombies, len(zombies)):
            await zombie.go_on(tries, chance)
        link.send((tries.tried, tries.accepted))


@dataclass
class Zombie:
    """What the process has of one group, and of the producer of the same name."""

    queue: WalMessageQueue
    consumer: EmbeddedConsumer
    producer: Producer
    batch: StreamBatch

    @classmethod
    async def take(
        cls, transport: EmbeddedTransport, stack: AsyncExitStack, group: str, records_max: int
    ) -> Self:
        consumer = transport.subscribe(
            TOPIC, group, lease_seconds=LEASE_SECONDS, release_seconds=LEASE_SECONDS
        )
        await stack.enter_async_context(consumer)
        producer = transport.queue.producer(group)
        await producer.open()
        batch = await consumer.next_batch(120, records_max)
        return cls(transport.queue, consumer, producer, batch)

    async def go_on(self, tries: Tries, chance: random.Random) -> None:
        """All that it could still do, in any order."""
        ways: list[Callable[[Tries], Awaitable[None]]] = [
            self._commit_batch,
            self._commit_offset,
            self._move,
            self._write,
            self._publish,
        ]
        for way in chance.sample(ways, len(ways)):
            await way(tries)

    async def _commit_batch(self, tries: Tries) -> None:
        await tries.late("batch", self.consumer.commit(self.batch))

    async def _commit_offset(self, tries: Tries) -> None:
        await tries.late("offset", self.consumer.commit({0: self.batch.next_offset}))

    async def _move(self, tries: Tries) -> None:
        moving = self.queue.transaction(f"zombie-{self.consumer.group}")
        await moving.publish(OUT, b"zombie")
        moving.commit_offsets(self.consumer, {0: self.batch.next_offset})
        await tries.late("transaction with offsets", moving.commit())

    async def _write(self, tries: Tries) -> None:
        writing = self.producer.transaction()
        await writing.publish(OUT, b"zombie")
        await tries.late("transaction", writing.commit())

    async def _publish(self, tries: Tries) -> None:
        await tries.late("sequence", self.producer.publish(OUT, b"zombie", sequence=7))
