"""Pulsar as a transport: ``pulsar://host:6650/tenant/namespace``; needs ``penstock[pulsar]``.

A partition of a topic is a partition of a Pulsar topic, and an offset is the index that the broker gives
a message, so offsets are dense; see :mod:`penstock.transports.pulsar_index` for what the brokers need to be
told. Pulsar shares no partitions between the members of a group in a way that fences one that was away:
the groups, their leases and their offsets are in a log beside the topic; see
:mod:`penstock.transports.pulsar_keys`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self
from urllib.parse import quote

from penstock.errors import InvalidName, InvalidOption, UnknownTopic, Unreachable
from penstock.log.lag import PartitionLag
from penstock.log.names import check_name
from penstock.log.topic import PARTITIONS_MAX
from penstock.transports.capabilities import Capabilities
from penstock.transports.foreign_names import names_among
from penstock.transports.kv_groups import committed_offset, forget_group
from penstock.transports.kv_transport import KvTransport
from penstock.transports.options import check_options
from penstock.transports.producing import Routing, Rows
from penstock.transports.pulsar_client import PulsarConnection
from penstock.transports.pulsar_http import decoded, listed
from penstock.transports.pulsar_index import PulsarIndex
from penstock.transports.pulsar_keys import SUFFIX, PulsarKeys, TopicKeys, make_keeper
from penstock.transports.pulsar_producer import PulsarProducers
from penstock.transports.pulsar_reader import PulsarSource
from penstock.transports.pulsar_records import message_in
from penstock.transports.pulsar_settings import NAME, settings_from
from penstock.transports.records import Produced
from penstock.transports.statistics import ConnectionStatistics

CAPABILITIES = Capabilities(
    durable=True,
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
)
"""What it can do on every broker; idempotence depends on the namespace."""
TOPIC_OPTIONS = frozenset({"keep"})
PARTITION = "-partition-"


class PulsarTransport(KvTransport):
    """Topics in a namespace of a Pulsar cluster.

    ``produce`` returns when the bookies have acknowledged all; they sync their journal before that
    unless somebody turned it off. In a namespace with deduplication what is sent again after a
    lost connection is kept once, and the capability ``idempotence`` is there; without, it may be
    there twice. What ``produce`` raised Unreachable for may be stored in part, and more of it when
    the broker is back.
    """

    name = NAME
    _title = "Pulsar"

    def __init__(self, url: str = "pulsar://127.0.0.1:6650", **options: Any) -> None:
        self._settings = settings_from(url, options)
        super().__init__(self._settings.system, self._settings.timeout)
        self._connection = PulsarConnection(self._settings)
        self._keys = PulsarKeys(self._connection)
        self._producers = PulsarProducers(self._connection, self._settings.system)
        self._names: dict[str, Sequence[str]] = {}
        """Topic → the broker's names of its partitions, where they are known."""
        same = self._settings.partitioner == "fnv1a"
        self._routing = Routing(None if same else native_hash)
        self._opening = asyncio.Lock()
        self._produced = 0
        self.capabilities = replace(CAPABILITIES, keyed_routing=same)

    def __repr__(self) -> str:
        return f"PulsarTransport({self._settings!r})"

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """``pulsar://host:6650/tenant/namespace?admin_url=http://host:8080``; see ``PulsarSettings``."""
        return cls(url, **options)

    # Life

    async def open(self) -> None:
        """Find the brokers; Unreachable when none answers within ``connect_seconds``."""
        if self._closing:
            self._connection.check_open()
        async with self._opening:
            await self._connection.open()
        self.capabilities = replace(
            self.capabilities, idempotence=self._connection.is_deduplicating
        )

    async def _disconnect(self) -> None:
        await self._keys.close()
        await self._producers.close()
        await self._connection.close()

    @property
    def _broker(self) -> str:
        return f"Pulsar at {self._settings.service_url}"

    def statistics(self) -> ConnectionStatistics:
        """The connection and what went over it."""
        connection = self._connection
        connection.look()
        return ConnectionStatistics(
            transport=NAME,
            connected=connection.is_connected and not self._closing,
            reconnects=connection.reconnects,
            errors=connection.errors,
            last_error=connection.last_error,
            records_produced=self._produced,
            records_consumed=self._consumed,
        )

    def _check_open(self) -> None:
        # Whoever closes it waits for what is on its way; nothing new is taken meanwhile.
        if self._closing:
            raise self._connection.closed()
        self._connection.check_open()

    # Producing

    async def _produce(self, topic: str, rows: Rows) -> Produced:
        names = await self._names_for(topic)
        if not rows.values:
            return Produced(topic, 0, {}, durable=True)
        places = self._routing.places(topic, len(names), rows)
        try:
            sent = await asyncio.gather(
                *(self._producers.of(names[one]).send(rows, mine) for one, mine in places.items())
            )
        except UnknownTopic:
            self._names.pop(topic, None)
            raise
        self._produced += len(rows.values)
        return Produced(topic, len(rows.values), dict(zip(places, sent, strict=True)), durable=True)

    def _unacknowledged(self, topic: str, count: int, seconds: float) -> Unreachable:
        return self._connection.unreachable(
            f"send {count} records to {topic!r}; some of them may be stored", seconds
        )

    async def _names_for(self, topic: str) -> Sequence[str]:
        """For the producer, which makes topics."""
        names = self._names.get(topic)
        if names is not None:
            return names
        try:
            return await self._look(topic)
        except UnknownTopic:
            if not self._settings.auto_create:
                raise
        await self.create_topic(topic)
        return await self._look(topic)

    # Consuming

    def _store(self, topic: str) -> TopicKeys:
        return TopicKeys(self._keys, topic)

    def _source(self, topic: str, group: str) -> PulsarSource:
        return PulsarSource(
            self._connection, topic, partial(self._look, topic), self._note_consumed
        )

    # Topics and groups

    async def create_topic(
        self, topic: str, *, partitions: int | None = None, **options: Any
    ) -> None:
        """Make a topic when it is not there; one that is there stays as it is.

        ``keep=False``: the broker may remove what all of Pulsar's own subscriptions have consumed, as
        the policies of the namespace say; Penstock's groups are none of them.
        """
        self._check_open()
        check_name("topic", topic)
        check_options("a topic of the Pulsar transport", options, TOPIC_OPTIONS)
        if PARTITION in topic:
            raise InvalidName(
                f"{topic!r} is what Pulsar calls a partition: leave out {PARTITION!r}"
            )
        count = self._settings.partitions if partitions is None else partitions
        if not 1 <= count <= PARTITIONS_MAX:
            raise InvalidOption(
                f"partitions is {count}: use 1 to {PARTITIONS_MAX}", option="partitions"
            )
        path = self._settings.path(topic)
        call = self._connection.http.call
        answer = await call("PUT", f"{path}/partitions", count, may=(409,))
        if answer.status != 409 and options.get("keep", self._settings.keep):
            await make_keeper(self._connection, topic)

    async def delete_topic(self, topic: str) -> None:
        """Remove a topic and the offsets of its groups; SubscriberBusy, if it is read.

        A producer that goes on makes it anew, unless ``auto_create`` is off.
        """
        for group in await self.groups(topic):
            await self.forget(topic, group)
        names = await self._look(topic)
        self._names.pop(topic, None)
        self._producers.forget(names)
        await self._keys.forget(topic)
        path = self._settings.path(topic)
        for one in (path if names == [topic] else f"{path}/partitions", path + quote(SUFFIX)):
            await self._connection.http.call("DELETE", f"{one}?force=true", may=(404,))

    async def topics(self) -> Sequence[str]:
        """The names of all topics of the namespace, also of those that others made."""
        self._check_open()
        settings = self._settings
        place = f"/admin/v2/persistent/{settings.tenant}/{settings.namespace}"
        answers = [
            await self._connection.http.call("GET", place + end) for end in ("/partitioned", "")
        ]
        found = {str(name).rpartition("/")[2] for one in answers for name in listed(one)}
        own = (
            name
            for name in found
            if not name.startswith("__") and not name.endswith(SUFFIX) and PARTITION not in name
        )
        return names_among(own, transport=self.name)

    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has; UnknownTopic when it is not there."""
        self._check_open()
        return len(await self._look(topic))

    async def _look(self, topic: str) -> Sequence[str]:
        """The broker's names of the partitions of a topic, as it is now."""
        check_name("topic", topic)
        self._names.pop(topic, None)
        path = f"{self._settings.path(topic)}/partitions"
        answer = await self._connection.http.call("GET", path, may=(404,))
        if answer.status == 404:
            raise UnknownTopic(
                f"there is no topic {topic!r} in {self._settings!r}: create_topic() makes it",
                topic=topic,
            )
        count = int(decoded(answer)["partitions"])
        # One without partitions is made by others.
        names = [f"{topic}{PARTITION}{one}" for one in range(count)] or [topic]
        self._names[topic] = names
        return names

    async def lag(self, topic: str, group: str) -> Sequence[PartitionLag]:
        """What a group has not committed; one that never subscribed has all that is kept before it."""
        self._check_open()
        check_name("group", group)
        names = await self._look(topic)
        return await asyncio.gather(
            *(self._lag(topic, group, number, name) for number, name in enumerate(names))
        )

    async def _lag(self, topic: str, group: str, partition: int, name: str) -> PartitionLag:
        committed = await committed_offset(self._store(topic), topic, group, partition)
        index = PulsarIndex(self._settings, self._connection.http, name)
        first, end = await index.bounds()
        at = first if committed is None else max(first, committed)
        age = 0
        if at < end:
            age = max(0, self._settings.system.clock.time_ms() - await _time_of(index, at))
        return PartitionLag(partition, at, end, age)

    async def forget(self, topic: str, group: str) -> None:
        """Remove the offsets of a group without a live member; SubscriberBusy when it has one."""
        self._check_open()
        check_name("group", group)
        await self._look(topic)
        await forget_group(self._store(topic), topic, group)


async def _time_of(index: PulsarIndex, offset: int) -> int:
    """The time of the first record from an offset on."""
    start = await index.locate(offset)
    assert start.position is not None, "there is one"
    facts = await index.peek(start.position, body=True)
    place = max(0, offset - facts.first)
    if facts.batched:
        message = message_in(facts.body, facts.end - facts.first, place)
        return int(message.event_timestamp()) or facts.published_ms
    return facts.event_ms or facts.published_ms


def native_hash(key: bytes) -> int:
    """What Pulsar's clients in Java do by default with a key that is text."""
    value = 0
    units = key.decode(errors="replace").encode("utf-16-le")
    for place in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[place : place + 2], "little")) & 0xFFFFFFFF
    return value & 0x7FFFFFFF
