"""RabbitMQ's streams as topics: offsets, replay, groups.

Partition 2 of ``orders`` is the stream ``penstock.orders-2``, named as those of a super stream are. What
topics there are, and how many partitions they have, stands in the stream ``penstock.topics``; the groups of
a topic in ``penstock.orders.groups``. See :mod:`penstock.transports.rabbitmq_keys`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

import mmh3
import msgspec
from rstream import schema

from penstock.errors import BrokerFailed, InvalidOption, UnknownTopic
from penstock.log.group_coordinator import LEASE_SECONDS
from penstock.log.lag import PartitionLag
from penstock.log.names import check_name
from penstock.transports.assignment import OnRevoke
from penstock.transports.base import Consumer
from penstock.transports.capabilities import Capabilities
from penstock.transports.embedded_consumer import EmbeddedConsumer
from penstock.transports.kv_consumer import KV_GROUP_OPTIONS, KvConsumer
from penstock.transports.kv_groups import (
    PATIENCE_SECONDS,
    KvCoordinator,
    committed_offset,
    forget_group,
    groups_of,
)
from penstock.transports.options import check_options
from penstock.transports.producing import Routing, Rows
from penstock.transports.rabbitmq_connection import CALL_SECONDS, RabbitConnection
from penstock.transports.rabbitmq_keys import RabbitKeys, make_stream
from penstock.transports.rabbitmq_mode import Mode
from penstock.transports.rabbitmq_reader import NO_STREAM, RabbitSource, bounds, look, offset_spec
from penstock.transports.rabbitmq_records import encoded, records_of
from penstock.transports.rabbitmq_settings import RabbitSettings, unknown_topic
from penstock.transports.rabbitmq_super import make_super_stream
from penstock.transports.rabbitmq_wire import Link, Refused
from penstock.transports.rabbitmq_writer import StreamWriter, Tail
from penstock.transports.reading import BufferedReading
from penstock.transports.records import Produced, StartPosition

CAPABILITIES = Capabilities(
    shared=True,
    create_topics=True,
    delete_topics=True,
    keyed_routing=True,
    groups=True,
    rebalance=True,
    replay=True,
    seek=True,
    seek_time=True,
    pause=True,
    headers=True,
    timestamps=True,
    lag=True,
    lag_time=True,
    list_groups=True,
    idempotence=True,
)
"""Not durable: the server does not sync the files of a stream before it confirms."""
TOPIC_OPTIONS = {
    "max_bytes": "max-length-bytes",
    "max_age_seconds": "max-age",
    "segment_bytes": "stream-max-segment-size-bytes",
    "replicas": "initial-cluster-size",
    "leader_locator": "queue-leader-locator",
}
"""Options of a topic, and what RabbitMQ calls them."""
AT_ONCE = 32
NATIVE_SEED = 104_729
"""Of murmur3, as the clients of super streams have it."""


class StreamsMode(Mode):
    """Topics in streams; see ``RabbitTransport``."""

    capabilities = CAPABILITIES

    def __init__(self, settings: RabbitSettings) -> None:
        self._connection = RabbitConnection(settings)
        routing = Routing(_native_hash if settings.partitioner == "native" else None)
        super().__init__(settings, self._connection, routing)
        self._keys = RabbitKeys(self._connection)
        self._writers: dict[tuple[str, int], tuple[StreamWriter, Tail]] = {}

    # Life

    async def close(self) -> None:
        writers, self._writers = list(self._writers.values()), {}
        both = [one for pair in writers for one in pair]
        await asyncio.gather(*(one.close() for one in both), return_exceptions=True)
        await self._keys.close()

    def _times_sent_again(self) -> int:
        return sum(writer.sent_again for writer, _ in self._writers.values())

    # Producing

    async def produce(self, topic: str, rows: Rows) -> Produced:
        """Send to each partition in order; the offsets are looked for at the end of the streams."""
        count = await self._count(topic)
        places = self._routing.places(topic, count, rows)
        sent = await asyncio.gather(
            *(self._send(topic, number, rows, mine) for number, mine in places.items())
        )
        self._produced += len(rows.values)
        return Produced(topic, len(rows.values), dict(zip(places, sent, strict=True)), False)

    async def _send(
        self, topic: str, partition: int, rows: Rows, places: Sequence[int]
    ) -> tuple[int, int]:
        """The rows at these places; the first offset and the one after the last."""
        writer, tail = self._writer(topic, partition)
        marks = [tail.new_mark(), tail.new_mark()][: len(places)]
        messages = [encoded(*rows.row(place)) for place in places]
        messages[0] = encoded(*rows.row(places[0]), marks[0])
        messages[-1] = encoded(*rows.row(places[-1]), marks[-1])
        try:
            offsets = [await tail.expect(mark) for mark in marks]
            await writer.send(messages)
            found = [await offset for offset in offsets]
        except Refused as error:
            raise self._error(topic, error) from None
        finally:
            for mark in marks:
                tail.forget(mark)
        return found[0], found[-1] + 1

    def _writer(self, topic: str, partition: int) -> tuple[StreamWriter, Tail]:
        found = self._writers.get((topic, partition))
        if found is None:
            stream = self.stream(topic, partition)
            found = StreamWriter(self._connection, stream, topic), Tail(self._connection, stream)
            self._writers[topic, partition] = found
        return found

    # Consuming

    def subscribe(
        self,
        topic: str,
        group: str,
        start: StartPosition,
        on_revoke: OnRevoke | None,
        among: set[Consumer],
        options: Mapping[str, Any],
    ) -> KvConsumer:
        check_options("a subscription of the RabbitMQ transport", options, KV_GROUP_OPTIONS)
        given = dict(options)
        coordinator = KvCoordinator(
            self._keys,
            topic,
            group,
            system=self._settings.system,
            lease_seconds=given.pop("lease_seconds", LEASE_SECONDS),
            timeout=CALL_SECONDS + PATIENCE_SECONDS,
        )
        source = RabbitSource(
            self._connection,
            topic,
            lambda number: self.stream(topic, number),
            lambda: self.partitions(topic),
            self._note_consumed,
        )
        reading = BufferedReading(source, topic, group, start)
        members: set[EmbeddedConsumer] = among  # type: ignore[assignment]
        return KvConsumer(reading, coordinator, on_revoke, members, **given)

    # Topics

    def stream(self, topic: str, partition: int) -> str:
        """The stream of a partition."""
        return f"{self._settings.prefix}.{topic}-{partition}"

    async def create_topic(
        self, topic: str, partitions: int | None, options: Mapping[str, Any]
    ) -> None:
        check_name("topic", topic)
        check_options("a topic of the RabbitMQ transport", options, TOPIC_OPTIONS)
        count = self._checked_count(partitions)
        arguments = _arguments(options)
        try:
            await self.partitions(topic)
        except UnknownTopic:
            await self._make(topic, count, arguments)

    async def _make(self, topic: str, count: int, arguments: dict[str, str]) -> None:
        """The streams first, then the name: a topic that is listed is whole."""
        for first in range(0, count, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, count))
            await asyncio.gather(*(self._make_one(topic, one, arguments) for one in numbers))
        if self._settings.amqp_port:
            await make_super_stream(
                self._settings, topic, lambda number: self.stream(topic, number), count
            )
        # None: somebody else made it meanwhile, perhaps with another number.
        await self._keys.put(("topics", topic), msgspec.json.encode(count), 0)
        if await self.partitions(topic) > count:
            await self._make(topic, self._counts[topic], arguments)

    async def _make_one(self, topic: str, partition: int, arguments: dict[str, str]) -> None:
        async def make(link: Link) -> None:
            await make_stream(link, self.stream(topic, partition), arguments)

        try:
            await self._connection.call(make)
        except Refused as error:
            raise self._error(topic, error) from None

    async def delete_topic(self, topic: str) -> None:
        """The name first, then the streams; the stream of the groups stays, and is empty of them."""
        count = await self.partitions(topic)
        for group in await groups_of(self._keys, topic):
            await forget_group(self._keys, topic, group)
        await self._keys.delete(("topics", topic))
        self._counts.pop(topic, None)
        for number in range(count):
            for one in self._writers.pop((topic, number), ()):
                await one.close()
            await self._delete_one(topic, number)

    async def _delete_one(self, topic: str, partition: int) -> None:
        async def delete(link: Link) -> None:
            stream = self.stream(topic, partition)
            await link.call(schema.Delete, schema.DeleteResponse, stream=stream)

        try:
            await self._connection.call(delete)
        except Refused as error:
            if error.code != NO_STREAM:
                raise self._error(topic, error) from None

    async def topics(self) -> list[str]:
        return sorted(key[1] for key in await self._keys.keys(("topics",)))

    async def partitions(self, topic: str) -> int:
        check_name("topic", topic)
        self._counts.pop(topic, None)
        entry = await self._keys.get(("topics", topic))
        if entry is None:
            raise unknown_topic(topic)
        try:
            self._counts[topic] = msgspec.json.decode(entry.value, type=int)
        except msgspec.DecodeError as cause:
            raise BrokerFailed(
                f"the stream of the topics does not tell how many partitions {topic!r} has: "
                "something else wrote it",
                transport="rabbitmq",
            ) from cause
        return self._counts[topic]

    # Groups

    async def lag(self, topic: str, group: str) -> list[PartitionLag]:
        count = await self.partitions(topic)
        return await asyncio.gather(*(self._lag(topic, group, one) for one in range(count)))

    async def _lag(self, topic: str, group: str, partition: int) -> PartitionLag:
        stream = self.stream(topic, partition)
        committed = await committed_offset(self._keys, topic, group, partition)
        try:
            first, end = await bounds(self._connection, stream)
            at = first if committed is None else committed
            chunk = None
            if at < end:
                chunk = await look(self._connection, stream, offset_spec(at))
        except Refused as error:
            raise self._error(topic, error) from None
        records = [] if chunk is None else records_of(chunk, topic, partition, at)[:1]
        now = self._settings.system.clock.time_ms()
        age = max([0, *(now - one.timestamp for one in records)])
        return PartitionLag(partition, at, max(at, end), age)

    async def forget(self, topic: str, group: str) -> None:
        await self.partitions(topic)
        await forget_group(self._keys, topic, group)

    async def groups(self, topic: str) -> list[str]:
        await self.partitions(topic)
        return await groups_of(self._keys, topic)

    def _error(self, topic: str, error: Refused) -> Exception:
        if error.code == NO_STREAM:
            self._counts.pop(topic, None)
            return unknown_topic(topic)
        return self._settings.failed("refused a call", str(error), error.code)


def _native_hash(key: bytes) -> int:
    return mmh3.hash(key, NATIVE_SEED, signed=False)


def _arguments(options: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in options.items():
        if name == "leader_locator":
            found[TOPIC_OPTIONS[name]] = str(value)
            continue
        good = isinstance(value, int | float) and math.isfinite(value) and value >= 1
        if not good or isinstance(value, bool):
            raise InvalidOption(f"{name} is {value!r}: it is a number from 1 on", option=name)
        unit = "s" if name == "max_age_seconds" else ""
        found[TOPIC_OPTIONS[name]] = f"{round(value)}{unit}"
    return found
