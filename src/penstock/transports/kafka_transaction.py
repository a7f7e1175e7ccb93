"""Transactions on Kafka: records in any topics and the offsets of a group, all or none.

A producer has a name. Opening it again, here or elsewhere, fences whoever had it before. Consumers that
read only what is committed, as those of this transport do, see nothing of a transaction that was aborted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.errors import (
    Closed,
    DeadlineExceeded,
    Fenced,
    PenstockError,
    UsageError,
)
from penstock.system import System
from penstock.transports.client_thread import CallThread
from penstock.transports.kafka_consumer import KafkaConsumer
from penstock.transports.kafka_holdings import Owned
from penstock.transports.kafka_member import GONE
from penstock.transports.kafka_producer import ROOM_SECONDS, Batch, Columns, Routing, send
from penstock.transports.kafka_settings import KafkaSettings
from penstock.transports.records import StreamBatch

TRANSACTION_TIMEOUT_MS = 60_000
CALL_SECONDS = 30.0
COMMIT_TRIES = 3

FENCED_PRODUCER = {
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
}
FENCED_MEMBER = GONE - {KafkaError._FENCED} | {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.STALE_MEMBER_EPOCH,
}


class TransactionalProducer:
    """Produces in transactions, one at a time. Opened with ``async with``; see ``KafkaTransport``."""

    def __init__(
        self,
        name: str,
        settings: KafkaSettings,
        routing: Routing,
        system: System,
        among: set[TransactionalProducer],
    ) -> None:
        self.name = name
        self._settings = settings
        self.routing = routing
        self._system = system
        self._among = among
        self._client: Producer | None = None
        self._thread: CallThread | None = None
        self._one_at_a_time = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Take the name over: an unfinished transaction of its last owner is aborted."""
        if self._closed:
            raise self._is_closed()
        if self._client is not None:
            return
        own = {"linger.ms": 1, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
        configuration = own | self._settings.client("producer") | {"transactional.id": self.name}
        self._client = self._settings.make(Producer, configuration)
        self._thread = CallThread(self._system, "penstock-kafka-transactions")
        self._among.add(self)
        try:
            await self.call("open the producer", self._client.init_transactions, CALL_SECONDS)
        except BaseException:
            await asyncio.shield(self.close())
            raise

    async def close(self) -> None:
        """Wait for the transaction at hand, and let go. Idempotent."""
        if self._closed:
            return
        self._closed = True
        async with self._one_at_a_time:
            self._among.discard(self)
            if self._thread is not None:
                await self._thread.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[KafkaTransaction]:
        """Commit at the end of the block; abort when it raises or is cancelled.

        Fenced when another owner of the name, or of a partition whose offset is part of it, has taken
        over: nothing has happened then.
        """
        async with self._one_at_a_time:
            client = self._usable()
            await self.call("begin", client.begin_transaction)
            made = KafkaTransaction(self)
            try:
                yield made
                committing = asyncio.ensure_future(made._commit())
                # It is decided at the broker: whoever is cancelled here cannot take it back.
                await asyncio.shield(committing)
            except BaseException:
                await asyncio.shield(self._abort(made))
                raise

    async def _abort(self, made: KafkaTransaction) -> None:
        if made.is_over:
            return
        try:
            await self.call("abort", self._usable().abort_transaction, CALL_SECONDS)
        except PenstockError:
            # Fenced or unreachable: the broker aborts it by itself, at its timeout or for the next owner.
            return

    async def call(self, what: str, function: Any, *arguments: Any) -> Any:
        """Call the client in its thread; its errors become those of Penstock."""
        assert self._thread is not None
        try:
            return await self._thread.call(function, *arguments)
        except KafkaException as error:
            raise self.failed(error.args[0], what) from error

    def failed(self, error: KafkaError, what: str) -> PenstockError:
        """What Penstock raises for an error of the client."""
        text = self._settings.shown(error.str())
        if error.code() in FENCED_PRODUCER:
            return Fenced(
                f"producer {self.name!r} was opened elsewhere: {text}",
                producer=self.name,
                reason="epoch",
            )
        if error.code() in FENCED_MEMBER:
            return Fenced(f"the group went on without this member: {text}", reason="generation")
        return self._settings.error(error, what, CALL_SECONDS)

    def _usable(self) -> Producer:
        if self._closed:
            raise self._is_closed()
        if self._client is None:
            raise UsageError("open the producer first: async with transport.producer(name)")
        return self._client

    def _is_closed(self) -> Closed:
        return Closed(f"producer {self.name!r} is closed")

    def _send(self, columns: Columns, partitions: Sequence[int] | None, batch: Batch) -> None:
        """In the thread of the client: its buffer drains while it is polled."""
        client = self._usable()

        def wait_for_room() -> None:
            client.poll(ROOM_SECONDS)

        send(client, columns, partitions, batch, wait_for_room)
        client.poll(0)


class KafkaTransaction:
    """What will be visible together or not at all."""

    def __init__(self, producer: TransactionalProducer) -> None:
        self._producer = producer
        self._batches: list[Batch] = []
        self._offsets: dict[KafkaConsumer, dict[int, int]] = {}
        self._held: dict[KafkaConsumer, dict[int, Owned]] = {}
        self.is_over = False
        """It was committed, or it is not known whether it was."""

    async def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Add one record."""
        await self.publish_many(
            topic,
            [value],
            keys=[key],
            headers=[headers] if headers else None,
            timestamps=None if timestamp is None else [timestamp],
        )

    async def publish_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
        timestamps: Sequence[int] | None = None,
    ) -> None:
        """Add records, in order. They are sent, and not visible before the commit."""
        columns = Columns(topic, values, keys, headers, timestamps)
        columns.check()
        partitions = await self._producer.routing.partitions(columns)
        batch = Batch()
        self._batches.append(batch)
        await self._producer.call("send", self._producer._send, columns, partitions, batch)
        if batch.error is not None:
            raise self._wrong(batch.error)

    def commit_offsets(
        self, consumer: KafkaConsumer, done: StreamBatch | Mapping[int, int] | None = None
    ) -> None:
        """Let the transaction commit what a consumer has done; Fenced for what is not its own."""
        wanted = consumer.wanted(done)
        self._offsets.setdefault(consumer, {}).update(wanted)
        held = self._held.setdefault(consumer, {})
        # As it had them first: what came before a change of owners must not be in.
        self._held[consumer] = consumer._owned.held(wanted) | held

    async def _commit(self) -> None:
        producer = self._producer
        client = producer._usable()
        for consumer, offsets in self._offsets.items():
            consumer._owned.check_held(self._held[consumer])
            places = consumer._member.places(offsets)
            await producer.call(
                "commit offsets",
                client.send_offsets_to_transaction,
                places,
                await consumer.calls.job(consumer._member.group_metadata),
                CALL_SECONDS,
            )
        await self._decide(client)
        self.is_over = True
        for consumer, offsets in self._offsets.items():
            consumer.note(offsets)

    async def _decide(self, client: Producer) -> None:
        """Commit. What was too slow is asked again: it may be decided already."""
        for left in range(COMMIT_TRIES - 1, -1, -1):
            try:
                await self._producer.call("commit", client.commit_transaction, CALL_SECONDS)
                return
            except DeadlineExceeded:
                if not left:
                    raise
            except Fenced:
                raise
            except PenstockError as error:
                for batch in self._batches:
                    if batch.error is not None:
                        raise self._wrong(batch.error) from error
                raise

    def _wrong(self, error: KafkaError | Exception) -> PenstockError:
        if isinstance(error, KafkaException):
            error = error.args[0]
        if isinstance(error, KafkaError):
            return self._producer.failed(error, "send")
        return UsageError(f"not a record: {error}")
