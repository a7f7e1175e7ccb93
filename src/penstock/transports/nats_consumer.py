"""Reading partitions from JetStream: a pull consumer for each, made where the reading begins.

The consumers keep no state that matters: what a group has committed is in its keys. So a consumer
acknowledges nothing, lives in the server's memory, is removed by the server when nobody pulls, and
is made anew at the next offset whenever something may have been lost on the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error

from penstock.errors import PenstockError
from penstock.transports.nats_connection import NatsConnection
from penstock.transports.nats_records import Delivered, decoded, delivered
from penstock.transports.nats_streams import SECOND_NS, NatsStreams
from penstock.transports.reading import BUFFER_BYTES
from penstock.transports.records import StreamRecord

PULL_SECONDS = 30.0
"""How long a pull waits at the server for records."""
HEARTBEAT_SECONDS = 2.0
"""The server says so often that it is there, while it has none."""
SILENCE_SECONDS = 3 * HEARTBEAT_SECONDS
INACTIVE_SECONDS = 60.0
"""After that long without a pull the server removes a consumer: its process is gone."""
DELETE_SECONDS = 2.0
ID_BITS = 64


class PullReader:
    """The messages of one stream from an offset on, in order and without a gap."""

    def __init__(self, connection: NatsConnection, stream: str, name: str) -> None:
        self._connection = connection
        self._stream = stream
        self._name = name
        self._life = object()
        self._consumer: str | None = None
        self._subscription: Subscription | None = None
        self._epoch = -1
        self._offset = -1
        """What is returned next."""
        self._seen = 0
        """Messages of this consumer so far."""
        self._open = 0
        """How many messages the pull may still bring."""
        self._broken = False
        self._arrived: list[tuple[Msg, Delivered]] = []
        self._signal = asyncio.Event()

    async def read(self, offset: int, messages_max: int) -> list[tuple[Msg, Delivered]]:
        """What has arrived from this offset on; waits a while when nothing has."""
        if self._is_stale(offset):
            await self._begin(offset)
        if not self._arrived:
            await self._wait(messages_max)
        found, self._arrived = self._arrived, []
        self._signal.clear()
        if found:
            self._offset = found[-1][1].sequence
        return found

    async def close(self) -> None:
        """Remove the consumer, as far as the server can be reached."""
        self._connection.on_lost.discard(self._signal.set)
        consumer, self._consumer = self._consumer, None
        subscription, self._subscription = self._subscription, None
        if subscription is not None and not self._connection.client.is_closed:
            with suppress(Error):
                await subscription.unsubscribe()
        if consumer is not None:
            await delete_consumer(self._connection, self._stream, consumer)

    def _is_stale(self, offset: int) -> bool:
        other = self._epoch != self._connection.epoch
        return self._broken or other or self._consumer is None or offset != self._offset

    async def _begin(self, offset: int) -> None:
        await self.close()
        self._broken = False
        self._arrived, self._seen, self._open = [], 0, 0
        self._signal.clear()
        self._epoch = self._connection.epoch
        self._connection.on_lost.add(self._signal.set)
        client = self._connection.client
        self._subscription = await client.subscribe(
            client.new_inbox(), cb=self._receiver(), pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        begin = {"deliver_policy": "by_start_sequence", "opt_start_seq": offset + 1}
        made = await make_consumer(self._connection, self._stream, self._name, begin)
        self._consumer = made["name"]
        self._offset = offset

    def _receiver(self) -> Callable[[Msg], Awaitable[None]]:
        """Takes what comes for this consumer, and nothing when there is another one by then."""
        life = self._life = object()

        async def receive(message: Msg) -> None:
            if life is self._life:
                self._receive(message)

        return receive

    def _receive(self, message: Msg) -> None:
        where = delivered(message)
        if where is None:
            self._heard(message.headers or {})
            return
        self._seen += 1
        self._open -= 1
        if where.consumer_sequence != self._seen:
            # Something before it did not arrive.
            self._broken = True
        elif not self._broken:
            self._arrived.append((message, where))
        self._signal.set()

    def _heard(self, headers: dict[str, str]) -> None:
        """A status: 100 is a heartbeat, 408 the end of a pull; anything else ends the consumer."""
        status = headers.get("Status")
        if status == "408" or "MaxBytes" in headers.get("Description", ""):
            self._open = 0
        elif status != "100":
            self._broken = True
        self._signal.set()

    async def _wait(self, messages_max: int) -> None:
        if self._open <= 0:
            await self._pull(messages_max)
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                await self._signal.wait()
        except TimeoutError:
            self._broken = True

    async def _pull(self, messages_max: int) -> None:
        assert self._subscription is not None
        self._open = messages_max
        request = {
            "batch": messages_max,
            "max_bytes": max(BUFFER_BYTES, 2 * self._connection.client.max_payload),
            "expires": round(PULL_SECONDS * SECOND_NS),
            "idle_heartbeat": round(HEARTBEAT_SECONDS * SECOND_NS),
        }
        with suppress(Error):
            # When it does not go out, nothing is heard, and the consumer is made anew.
            await self._connection.client.publish(
                f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}",
                msgspec.json.encode(request),
                reply=self._subscription.subject,
            )


async def make_consumer(
    connection: NatsConnection, stream: str, name: str, begin: Mapping[str, Any]
) -> dict[str, Any]:
    """A consumer whose name begins so; what the server says of it."""
    name = f"{name}-{connection.settings.system.random.getrandbits(ID_BITS):016x}"
    config = {
        "name": name,
        "ack_policy": "none",
        "replay_policy": "instant",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": round(INACTIVE_SECONDS * SECOND_NS),
        **begin,
    }
    return await connection.api(
        f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config}
    )


async def delete_consumer(connection: NatsConnection, stream: str, name: str) -> None:
    """Remove it now; the server does it later when this fails."""
    if connection.is_connected:
        with suppress(PenstockError):
            await connection.api(f"CONSUMER.DELETE.{stream}.{name}", timeout=DELETE_SECONDS)


class NatsSource:
    """The partitions of one topic; see :class:`penstock.transports.reading.PartitionSource`."""

    def __init__(
        self,
        connection: NatsConnection,
        streams: NatsStreams,
        topic: str,
        group: str,
        count: Callable[[int], None],
    ) -> None:
        self._connection = connection
        self._streams = streams
        self._topic = topic
        self._group = group.replace(".", "=")
        self._count = count
        self._readers: dict[int, PullReader] = {}
        self._turns: dict[int, asyncio.Lock] = {}

    async def open(self) -> int:
        return await self._streams.look(self._topic)

    async def close(self) -> None:
        readers, self._readers = list(self._readers.values()), {}
        await asyncio.gather(*(one.close() for one in readers), return_exceptions=True)

    async def read(self, partition: int, offset: int, records_max: int) -> Sequence[StreamRecord]:
        # One that was cancelled may still be on its way out.
        async with self._turns.setdefault(partition, asyncio.Lock()):
            found = await self._reader(partition).read(offset, records_max)
        self._count(len(found))
        return [decoded(self._topic, partition, message, where) for message, where in found]

    def _reader(self, partition: int) -> PullReader:
        reader = self._readers.get(partition)
        if reader is None:
            stream = self._streams.stream(self._topic, partition)
            reader = self._readers[partition] = PullReader(self._connection, stream, self._group)
        return reader

    async def bounds(self, partition: int) -> tuple[int, int]:
        return await self._streams.bounds(self._topic, partition)

    async def offset_at(self, partition: int, time_ms: int) -> int:
        """By the time at which the server stored the records."""
        return await self._streams.offset_at(self._topic, partition, time_ms)
