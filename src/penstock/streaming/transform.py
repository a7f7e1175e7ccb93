"""Consume, transform, produce: from one topic into others, every effect exactly once.

::

    def price(batch: StreamBatch) -> Iterable[Outgoing]:
        return [Outgoing("invoices", invoice_of(one.value), key=one.key) for one in batch.records]


    async with EmbeddedTransport("./data") as transport:
        await Transform(transport, "orders", "billing", price).run()

What the function returns and the offset behind the batch are one transaction. A crash at any point
leaves both or neither. Any number of processes may run the same transform: they share the partitions.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.errors import Fenced
from penstock.transports.base import BATCH_RECORDS_MAX, Consumer, Transport
from penstock.transports.producers import StreamProducer, StreamTransaction
from penstock.transports.records import StartPosition, StreamBatch


class Outgoing(NamedTuple):
    """A record that a transform produces."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Mapping[str, bytes] | None = None
    timestamp: int | None = None


TransformFunction = Callable[[StreamBatch], Iterable[Outgoing] | Awaitable[Iterable[Outgoing]]]


@dataclass(slots=True)
class TransformStatistics:
    """Counts since the transform was made."""

    batches: int = 0
    consumed: int = 0
    produced: int = 0
    fenced: int = 0
    """Batches that were given up because their partition went to another member."""


class Transform:
    """Runs a function over the batches of a topic and produces what it returns, exactly once.

    The function may be called again with the same records after a crash or a rebalance: only what
    it returned in a committed transaction is ever seen. What it does beside that happens as often as
    it is called. When it raises, so does :meth:`run`; nothing of that batch has happened.

    Each run has a producer of its own; on a log that is ``<group>.<source>.<number>``, the first whose
    last owner is gone. Name one with ``producer`` to have exactly one run over all processes; a second
    one fences the first. Other options are those of the transport's ``subscribe``. The transport has to
    have transactions, or this raises NotSupported.
    """

    def __init__(
        self,
        transport: Transport,
        source: str,
        group: str,
        function: TransformFunction,
        *,
        producer: str | None = None,
        start: StartPosition = "earliest",
        records_max: int = BATCH_RECORDS_MAX,
        **options: Any,
    ) -> None:
        transport.capabilities.require(transport.name, ["transactions"])
        self._transport = transport
        self._source = source
        self._group = group
        self._function = function
        self._producer_name = producer
        self._start = start
        self._records_max = records_max
        self._options = options
        self._counts = TransformStatistics()

    def statistics(self) -> TransformStatistics:
        """Counts since the transform was made."""
        counts = self._counts
        return TransformStatistics(counts.batches, counts.consumed, counts.produced, counts.fenced)

    async def run(self) -> None:
        """Run until it is cancelled. A batch at hand is then finished or left to the next run.

        Raises Fenced when another run took over its producer, and whatever the function or the
        disk raised. It may be run again.
        """
        consumer = self._transport.subscribe(
            self._source, self._group, start=self._start, **self._options
        )
        producing = self._transport.transactional(self._group, self._source, self._producer_name)
        async with producing as producer, consumer:
            while True:
                batch = await consumer.next_batch(records_max=self._records_max)
                await self._one(producer, consumer, batch)

    async def _one(self, producer: StreamProducer, consumer: Consumer, batch: StreamBatch) -> None:
        try:
            async with producer.transaction() as transaction:
                produced = await self._produce(transaction, batch)
                transaction.commit_offsets(consumer, batch)
        except Fenced as refused:
            if refused.reason == "epoch":
                raise
            # Its records come again to whoever has the partition now.
            self._counts.fenced += 1
            await consumer.rewind(batch)
            return
        self._counts.batches += 1
        self._counts.consumed += len(batch.records)
        self._counts.produced += produced

    async def _produce(self, transaction: StreamTransaction, batch: StreamBatch) -> int:
        returned = self._function(batch)
        if inspect.isawaitable(returned):
            returned = await returned
        topics: dict[str, list[Outgoing]] = {}
        for one in returned:
            topics.setdefault(one.topic, []).append(one)
        for topic, records in topics.items():
            await _publish(transaction, topic, records)
        return sum(map(len, topics.values()))


async def _publish(transaction: StreamTransaction, topic: str, records: list[Outgoing]) -> None:
    _, values, keys, headers, timestamps = zip(*records, strict=True)
    if any(one is not None for one in timestamps):
        # Some have a time of their own, others get that of their entry: one by one.
        for _, value, key, mapping, timestamp in records:
            await transaction.publish(topic, value, key=key, headers=mapping, timestamp=timestamp)
        return
    await transaction.publish_many(
        topic,
        values,
        keys=keys if any(key is not None for key in keys) else None,
        headers=headers if any(headers) else None,
    )
