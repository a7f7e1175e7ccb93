"""Dead letters in Kafka, published again: each once, as on a log.

The records and the place up to which letters were replayed are one transaction of Kafka.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.errors import DeadlineExceeded, InvalidOption
from penstock.spark.kafka_cluster import cluster_at
from penstock.spark.replaying import LETTERS_MAX, again
from penstock.transports.kafka import KafkaTransport

if TYPE_CHECKING:
    from penstock.transports.kafka_consumer import KafkaConsumer
    from penstock.transports.kafka_transaction import TransactionalProducer

JOIN_SECONDS = 30.0
LOOK_SECONDS = 1.0


def replay_kafka_letters(url: str, letters: str, topic: str, group: str, limit: int | None) -> int:
    """Publish the letters that were not replayed yet; how many. Blocking.

    *After a crash* a letter was replayed or was not. Two at a time share the letters.
    """
    if limit is not None and limit < 1:
        raise InvalidOption(f"limit is {limit}: use 1 or more", option="limit")
    cluster = cluster_at(url)
    cluster.check_topics([letters, topic])
    waiting = cluster.letters_left(letters, group)[1]
    wanted = waiting if limit is None else min(limit, waiting)
    return asyncio.run(_replay(url, (letters, topic, group), wanted)) if wanted else 0


async def _replay(url: str, names: tuple[str, str, str], wanted: int) -> int:
    letters, topic, group = names
    done = 0
    async with (
        KafkaTransport(url) as transport,
        transport.subscribe(letters, group) as consumer,
        transport.producer(group) as producer,
    ):
        seconds = JOIN_SECONDS
        # Markers of transactions count as waiting, and are no letters.
        with suppress(DeadlineExceeded):
            while done < wanted:
                done += await _portion(consumer, producer, topic, wanted - done, seconds)
                seconds = LOOK_SECONDS
    return done


async def _portion(
    consumer: KafkaConsumer,
    producer: TransactionalProducer,
    topic: str,
    records_max: int,
    seconds: float,
) -> int:
    batch = await consumer.next_batch(records_max=min(records_max, LETTERS_MAX), timeout=seconds)
    async with producer.transaction() as transaction:
        columns = again(batch.records)
        await transaction.publish_many(
            topic, columns.values, keys=columns.keys, headers=columns.headers
        )
        transaction.commit_offsets(consumer, batch)
    return len(batch.records)
