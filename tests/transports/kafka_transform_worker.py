"""A process that runs a transform on Kafka until it is killed: python -m tests.transports.kafka_transform_worker URL."""

import asyncio
import sys

from penstock.streaming import Outgoing, Transform
from penstock.transports.kafka import KafkaTransport


def copied(batch):
    return [Outgoing("copies", one.value, one.key) for one in batch.records]


async def run(url):
    # Small batches: a kill finds a transaction in every state.
    async with KafkaTransport(url) as transport:
        made = Transform(
            transport,
            "orders",
            "copying",
            copied,
            producer="copier",
            records_max=20,
            lease_seconds=1.0,
        )
        await made.run()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
