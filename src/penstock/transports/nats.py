"""NATS JetStream as a transport: ``nats://host:4222``; needs ``penstock[nats]`` and a server from 2.12 on.

A partition of a topic is a stream of its own with one subject, so the sequence of a message is its
offset plus one, and offsets are dense. NATS shares no partitions between the members of a group: the
groups, their leases and their offsets are keys of a JetStream bucket, and a commit is a
compare-and-set; see :mod:`penstock.transports.kv_groups`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from penstock.errors import Unreachable
from penstock.log.lag import PartitionLag
from penstock.log.names import check_name
from penstock.transports.capabilities import Capabilities
from penstock.transports.foreign_names import names_among
from penstock.transports.kv_groups import committed_offset, forget_group
from penstock.transports.kv_transport import KvTransport
from penstock.transports.nats_connection import NatsConnection
from penstock.transports.nats_consumer import NatsSource
from penstock.transports.nats_keys import NatsKeys
from penstock.transports.nats_producer import NatsProducer
from penstock.transports.nats_records import TIME
from penstock.transports.nats_settings import settings_from
from penstock.transports.nats_streams import NatsStreams
from penstock.transports.producing import Routing, Rows
from penstock.transports.records import Produced, milliseconds
from penstock.transports.statistics import ConnectionStatistics

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
"""What it can do on every server; durable depends on how the server syncs."""


class NatsTransport(KvTransport):
    """Topics in the streams of a NATS server or cluster.

    ``produce`` returns when the server has acknowledged all. The server syncs its files now and
    then, every two minutes unless ``sync_interval`` says otherwise: what it acknowledged survives
    the end of its process, but not a power cut of all replicas. Run it with
    ``sync_interval: always`` and say ``synced=True``, and the capability ``durable`` is there.

    Up to 1,000 records of a partition are stored together or not at all. When the outcome is not
    known they are sent again, and kept once. When ``produce`` raises, a leading part of each
    partition may have been stored.
    """

    name = "nats"
    _title = "NATS"

    def __init__(self, url: str = "nats://127.0.0.1:4222", **options: Any) -> None:
        self._settings = settings_from(url, options)
        super().__init__(self._settings.system, self._settings.timeout)
        self._connection = NatsConnection(self._settings)
        self._streams = NatsStreams(self._connection)
        self._keys = NatsKeys(self._connection)
        self._producer = NatsProducer(self._connection, self._streams)
        self._routing = Routing()
        durable = self._settings.synced and self._settings.storage == "file"
        self.capabilities = replace(CAPABILITIES, durable=durable)

    def __repr__(self) -> str:
        return f"NatsTransport({self._settings.address})"

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """``nats://host:4222,host2:4222?prefix=shop&replicas=3``; see ``NatsSettings``."""
        return cls(url, **options)

    # Life

    async def open(self) -> None:
        """Connect, and make the bucket of the groups; Unreachable when no server answers in time."""
        if self._connection.is_connected or self._closing:
            return
        await self._connection.open()
        await self._keys.open()

    async def _disconnect(self) -> None:
        await self._connection.close()

    @property
    def _broker(self) -> str:
        return f"NATS at {self._settings.address}"

    def _check_open(self) -> None:
        # Whoever closes it waits for what is on its way; nothing new is taken meanwhile.
        if self._closing:
            raise self._connection.closed()
        _ = self._connection.client

    def statistics(self) -> ConnectionStatistics:
        """The connection and what went over it."""
        connection = self._connection
        return ConnectionStatistics(
            transport=self.name,
            connected=connection.is_connected and not self._closing,
            reconnects=connection.reconnects,
            errors=connection.errors,
            last_error=connection.last_error,
            records_produced=self._producer.records,
            records_consumed=self._consumed,
            sent_again=self._producer.sent_again,
        )

    # Producing

    async def _produce(self, topic: str, rows: Rows) -> Produced:
        count = await self._count(topic)
        if not rows.values:
            return Produced(topic, 0, {}, self.capabilities.durable)
        places = self._routing.places(topic, count, rows)
        sent = await asyncio.gather(
            *(self._producer.send(topic, number, rows, mine) for number, mine in places.items())
        )
        ranges = dict(zip(places, sent, strict=True))
        return Produced(topic, len(rows.values), ranges, self.capabilities.durable)

    def _unacknowledged(self, topic: str, count: int, seconds: float) -> Unreachable:
        return Unreachable(
            f"{self._broker} did not acknowledge {count} records for {topic!r} within {seconds:g} s; "
            f"some of them may have been stored. The last error: "
            f"{self._connection.last_error or 'none'}",
            transport=self.name,
            address=self._settings.address,
            seconds=seconds,
            topic=topic,
        )

    async def _count(self, topic: str) -> int:
        if not self._settings.auto_create:
            return await self._streams.count(topic)
        return await self._streams.count_or_create(topic)

    # Consuming

    def _store(self, topic: str) -> NatsKeys:
        return self._keys

    def _source(self, topic: str, group: str) -> NatsSource:
        return NatsSource(self._connection, self._streams, topic, group, self._note_consumed)

    # Topics and groups

    async def create_topic(
        self, topic: str, *, partitions: int | None = None, **options: Any
    ) -> None:
        """Make a topic when it is not there; one that is there stays as it is.

        Options: ``replicas``, ``storage``, ``compression`` ("none" or "s2"),
        ``dedupe_seconds``, and what is kept: ``max_age_seconds``, ``max_bytes``, ``max_records`` of
        each partition.
        """
        self._check_open()
        await self._streams.create(topic, partitions, options)

    async def delete_topic(self, topic: str) -> None:
        """Remove the streams of a topic and the offsets of its groups; SubscriberBusy, if it is read.

        A producer that goes on makes it anew, unless ``auto_create`` is off.
        """
        for group in await self.groups(topic):
            await self.forget(topic, group)
        await self._streams.delete(topic)

    async def topics(self) -> Sequence[str]:
        """The names of all topics with this prefix."""
        self._check_open()
        return names_among(await self._streams.topics(), transport=self.name)

    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has; UnknownTopic when it is not there."""
        self._check_open()
        return await self._streams.look(topic)

    async def lag(self, topic: str, group: str) -> Sequence[PartitionLag]:
        """What a group has not committed; one that never subscribed has all that is kept before it."""
        self._check_open()
        check_name("group", group)
        count = await self._streams.look(topic)
        return await asyncio.gather(*(self._lag(topic, group, one) for one in range(count)))

    async def _lag(self, topic: str, group: str, partition: int) -> PartitionLag:
        committed = await committed_offset(self._keys, topic, group, partition)
        first, end = await self._streams.bounds(topic, partition)
        at = first if committed is None else committed
        age = 0
        if at < end:
            now = self._settings.system.clock.time_ms()
            age = max(0, now - await self._time_of(topic, partition, at, now))
        return PartitionLag(partition, at, end, age)

    async def _time_of(self, topic: str, partition: int, offset: int, default: int) -> int:
        """The time of the first record from an offset on."""
        headers = await self._streams.direct(topic, partition, seq=offset + 1) or {}
        if TIME in headers:
            return int(headers[TIME])
        stored = headers.get("Nats-Time-Stamp")
        return default if stored is None else milliseconds(stored)

    async def forget(self, topic: str, group: str) -> None:
        """Remove the offsets of a group without a live member; SubscriberBusy when it has one."""
        self._check_open()
        check_name("topic", topic)
        await forget_group(self._keys, topic, check_name("group", group))
