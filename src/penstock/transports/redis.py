"""The Redis transport: one stream for each partition, changed by scripts alone.

Needs the extra ``penstock[redis]`` and a server of version 6.2 or later, alone or with replicas; not a
cluster. What survives a crash of the server is what its settings say: only ``appendonly yes`` with
``appendfsync always`` makes what was acknowledged safe from a power cut. Say ``synced=true`` for such a
server, and the capabilities say ``durable``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self
from weakref import WeakSet

from penstock.errors import (
    BrokerFailed,
    Closed,
    InvalidOption,
    NotSupported,
    UnknownTopic,
    UsageError,
)
from penstock.log.deadlines import check_seconds, within
from penstock.log.group_coordinator import LEASE_SECONDS
from penstock.log.lag import PartitionLag
from penstock.log.names import check_name
from penstock.system import System
from penstock.transports import redis_scripts as scripts
from penstock.transports.assignment import Handled, OnRevoke
from penstock.transports.base import (
    CLOSE_TIMEOUT_SECONDS,
    PRODUCE_TIMEOUT_SECONDS,
    Transport,
)
from penstock.transports.capabilities import Capabilities
from penstock.transports.embedded_consumer import EmbeddedConsumer, session_maker
from penstock.transports.foreign_names import names_among
from penstock.transports.options import check_options
from penstock.transports.records import Produced, StartPosition
from penstock.transports.redis_client import RedisClient
from penstock.transports.redis_consumer import RedisConsumer, RedisSource
from penstock.transports.redis_groups import RedisGroup
from penstock.transports.redis_notices import RedisNotices
from penstock.transports.redis_producer import RedisProducer
from penstock.transports.redis_settings import NAME, RedisAddress, RedisOptions, check_partitions
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
"""What it can do on every server; durable is one that is known to sync (option ``synced``)."""

CALL_SECONDS = 30.0
SYNCED = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}
EVICTING = ("maxmemory", "maxmemory-policy")
LEAVE_SECONDS = 2.0
"""How long a transport that is closed tries to leave its groups in order, when the server is away."""
GROUP_OPTIONS = frozenset({"assignor", "lease_seconds", "member", "release_seconds"})
TOPIC_OPTIONS = frozenset({"age_ms_max", "protect_groups", "records_max"})


class RedisTransport(Transport):
    """Topics as Redis streams, one for each partition: ``redis://host:6379/0``, ``rediss://`` with TLS.

    Options, also in the URL's query: see :class:`RedisOptions`; ``options`` is a dictionary for
    redis-py's connections, such as ``{"ssl_ca_certs": "ca.pem"}``. User and password may be in the
    URL, or in ``PENSTOCK_REDIS_USERNAME`` and ``PENSTOCK_REDIS_PASSWORD``; they are in no message.

    While the server is away, calls wait and try again until their time is up, and consumers wait.
    A batch that is sent again because its answer was lost is kept once.
    """

    name = NAME

    def __init__(self, url: str, **options: Any) -> None:
        self.address, query = RedisAddress.parse(url)
        given = {**query, **options}
        self.options = RedisOptions.parse(given)
        self._system: System = given.get("system") or System()
        self.client = RedisClient(
            self.address, self._system, self.options.answer_seconds, given.get("options") or {}
        )
        self.notices = RedisNotices(self.client)
        self.consumed = 0
        self._producer = RedisProducer(
            self.client,
            self.options.partitioner,
            self._partitions_for,
            durable=self.options.synced,
        )
        self._counts: dict[str, int] = {}
        """How many partitions a topic has, where that is known."""
        self._consumers: set[EmbeddedConsumer] = set()
        self._groups: WeakSet[RedisGroup] = WeakSet()
        self._is_open = self._closed = False
        same = self.options.partitioner == "fnv1a"
        self.capabilities = replace(CAPABILITIES, keyed_routing=same, durable=self.options.synced)

    def __repr__(self) -> str:
        return f"RedisTransport({str(self.address)!r})"

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """``redis://host:6379/0``, or ``rediss://`` with TLS; options may be in the query."""
        return cls(url, **options)

    # Life

    async def open(self) -> None:
        """Connect; Unreachable when the server does not answer within ``connect_seconds``."""
        if self._closed:
            raise Closed(f"{self!r} is closed: make another one")
        if not self._is_open:
            seconds = self.options.connect_seconds
            await self.client.command("PING", seconds=seconds, what="connect")
            if self.options.synced:
                await self._check_synced(seconds)
            self._is_open = True

    async def _check_synced(self, seconds: float) -> None:
        """NotSupported when the server tells that it does not sync, or that it evicts."""
        try:
            has = {name: await self._setting(name, seconds) for name in (*SYNCED, *EVICTING)}
        except BrokerFailed:
            # Servers for rent often forbid it: then the option is what there is.
            return
        wrong = [f"{name} {has[name]}" for name, value in SYNCED.items() if has[name] != value]
        memory, policy = (has[name] for name in EVICTING)
        if memory != "0" and policy.startswith("allkeys"):
            wrong.append(f"{EVICTING[1]} {policy}")
        if wrong:
            raise NotSupported(
                f"synced=true, but the server at {self.address} has {', '.join(wrong)}: set "
                f"{', '.join(f'{name} {value}' for name, value in SYNCED.items())} and no eviction of "
                "all keys, or leave synced out",
                transport=NAME,
                missing=("durable",),
            )

    async def _setting(self, name: str, seconds: float) -> str:
        words = await self.client.command(
            "CONFIG", "GET", name, seconds=seconds, what="read the server's settings"
        )
        value = words.get(name, "") if isinstance(words, dict) else words[1]
        return value.decode() if isinstance(value, bytes) else str(value)

    async def close(self, timeout: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """Finish what was accepted, leave the groups, let go; DeadlineExceeded if too slow."""
        if self._closed:
            return
        self._closed = True
        self._hurry(timeout)
        try:
            await within(timeout, self._finish(), "finish what was accepted")
        finally:
            await self.notices.close()
            await self.client.close()

    async def _finish(self) -> None:
        await self._producer.drain()
        await asyncio.gather(*(one.close() for one in list(self._consumers)))

    def _hurry(self, seconds: float) -> None:
        """What is not left in time is settled by the lease."""
        for group in self._groups:
            group.seconds = seconds / 2 if self.client.connected else LEAVE_SECONDS

    def check_open(self) -> None:
        """Closed or UsageError unless it is open."""
        if self._closed:
            raise Closed(f"{self!r} is closed: make another one")
        if not self._is_open:
            raise UsageError(f"open the transport first: async with {self!r} as transport")

    def key_of(self, topic: str) -> str:
        """The key that all keys of a topic begin with; the braces keep them together."""
        return f"{self.options.prefix}:{{{topic}}}"

    def statistics(self) -> ConnectionStatistics:
        """How it is connected, and what it did; plain numbers, cheap to read."""
        client = self.client
        return ConnectionStatistics(
            transport=NAME,
            connected=client.connected,
            reconnects=client.reconnects,
            errors=client.errors,
            last_error=client.last_error,
            records_produced=self._producer.produced,
            records_consumed=self.consumed,
            sent_again=self._producer.sent_again,
        )

    # Producing and consuming

    async def produce(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
        timestamps: Sequence[int] | None = None,
        timeout: float = PRODUCE_TIMEOUT_SECONDS,
    ) -> Produced:
        """Append a batch; makes the topic when it is not there, unless ``auto_create`` is off.

        Up to 1,000 records, or 1 MiB, of it become visible at once. Unreachable when the server did
        not acknowledge all within ``timeout``: a leading part, or all of it, may be there.
        """
        self.check_open()
        check_name("topic", topic)
        check_seconds(timeout)
        return await self._producer.produce(
            topic, self.key_of(topic), values, keys, headers, timestamps, timeout
        )

    async def _partitions_for(self, topic: str, seconds: float, known: int) -> int:
        """For the producer: how many partitions; ``known`` turned out to be wrong, if it is not 0."""
        count = self._counts.get(topic, 0)
        if count in (0, known):
            count = await self._ask_partitions(topic, seconds)
        if not count:
            if not self.options.auto_create:
                raise self._unknown(topic)
            await self.create_topic(topic)
            count = await self._ask_partitions(topic, seconds)
        return count

    def subscribe(
        self,
        topic: str,
        group: str,
        *,
        start: StartPosition = "earliest",
        requires: Iterable[str] = (),
        on_revoke: OnRevoke | None = None,
        handled: Handled | None = None,
        **options: Any,
    ) -> RedisConsumer:
        """A member of a group; goes on where the group committed, a new group at ``start``.

        Options are those of the embedded transport: ``assignor``, ``lease_seconds``,
        ``release_seconds`` and ``member``. ``handled`` is not asked: partitions never change.
        """
        if self._closed:
            self.check_open()
        check_name("topic", topic)
        check_name("group", group)
        check_options("a subscription of the Redis transport", options, GROUP_OPTIONS)
        self.require(requires, start)
        return self._consumer(topic, group, start, on_revoke, **options)

    def _consumer(
        self,
        topic: str,
        group: str,
        start: StartPosition,
        on_revoke: OnRevoke | None,
        *,
        lease_seconds: float = LEASE_SECONDS,
        **options: Any,
    ) -> RedisConsumer:
        coordinator = RedisGroup(self.client, self.key_of(topic), topic, group, lease_seconds)
        self._groups.add(coordinator)
        make = session_maker(coordinator, coordinator, **options)
        return RedisConsumer(
            RedisSource(self, coordinator, start), make, on_revoke, self._consumers
        )

    # Topics and groups

    async def create_topic(
        self, topic: str, *, partitions: int | None = None, **options: Any
    ) -> None:
        """Make a topic when it is not there; one that is there stays as it is.

        Options say what is trimmed when records are produced, and by :meth:`trim`: ``records_max``
        keeps about so many in each partition, ``age_ms_max`` those that are not older. What a
        group has not consumed is kept all the same, unless ``protect_groups`` is False.
        """
        self.check_open()
        check_name("topic", topic)
        check_options("a topic of the Redis transport", options, TOPIC_OPTIONS)
        count = self.options.partitions if partitions is None else partitions
        check_partitions(count)
        words: list[Any] = ["partitions", count, *_retention_words(options)]
        await self._call(scripts.CREATE, topic, "make the topic", *words)
        await self.client.command(
            "SADD", self._topics_key, topic, seconds=CALL_SECONDS, what="list the topic"
        )

    async def delete_topic(self, topic: str) -> None:
        """Remove a topic and the offsets of its groups; SubscriberBusy when a group reads it.

        A producer that goes on makes it anew, unless ``auto_create`` is off.
        """
        count = await self.partitions(topic)
        for group in await self.groups(topic):
            await self.forget(topic, group)
        base = self.key_of(topic)
        keys = [base, *(f"{base}:{number}" for number in range(count)), f"{base}:ends"]
        await self.client.command("DEL", *keys, seconds=CALL_SECONDS, what="delete the topic")
        await self.client.command(
            "SREM", self._topics_key, topic, seconds=CALL_SECONDS, what="unlist the topic"
        )
        self._counts.pop(topic, None)

    async def trim(self, topic: str) -> int:
        """Remove now what is beyond the topic's retention; how many records that were."""
        count = await self.partitions(topic)
        return int(await self._call(scripts.TRIM, topic, "trim the topic", count))

    async def topics(self) -> Sequence[str]:
        """The names of all topics under the prefix."""
        self.check_open()
        found = await self.client.command(
            "SMEMBERS", self._topics_key, seconds=CALL_SECONDS, what="list the topics"
        )
        return names_among(found, transport=self.name)

    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has; UnknownTopic when it is not there."""
        self.check_open()
        check_name("topic", topic)
        count = await self._ask_partitions(topic, CALL_SECONDS)
        if not count:
            raise self._unknown(topic)
        return count

    async def lag(self, topic: str, group: str) -> Sequence[PartitionLag]:
        """What a group has not committed; one that never subscribed has everything before it."""
        check_name("group", group)
        numbers = range(await self.partitions(topic))
        words = [group, "look", "earliest", 0, *numbers]
        found = await self._call(scripts.PLACES, topic, "look at the lag", *words)
        now = self._system.clock.time_ms()
        return [
            _lag(number, now, *map(int, one)) for number, one in zip(numbers, found, strict=True)
        ]

    async def groups(self, topic: str) -> Sequence[str]:
        """The groups that have read a topic, of all processes, until they are forgotten."""
        await self.partitions(topic)
        found = await self.client.command(
            "SMEMBERS", f"{self.key_of(topic)}:groups", seconds=CALL_SECONDS, what="list the groups"
        )
        return names_among(found, transport=self.name, kind="group")

    async def forget(self, topic: str, group: str) -> None:
        """Remove the offsets of a group without a live member; SubscriberBusy when it has one."""
        check_name("group", group)
        await self.partitions(topic)
        base = self.key_of(topic)
        await RedisGroup(self.client, base, topic, group, LEASE_SECONDS).forget_all()

    # Inside

    @property
    def _topics_key(self) -> str:
        return f"{self.options.prefix}:topics"

    async def _ask_partitions(self, topic: str, seconds: float) -> int:
        found = await self.client.command(
            "HGET", self.key_of(topic), "partitions", seconds=seconds, what=f"look at {topic!r}"
        )
        self._counts[topic] = int(found or 0)
        return self._counts[topic]

    async def _call(self, script: str, topic: str, what: str, *words: Any) -> Any:
        return await self.client.script(
            script, self.key_of(topic), *words, seconds=CALL_SECONDS, what=what
        )

    def _unknown(self, topic: str) -> UnknownTopic:
        return UnknownTopic(
            f"there is no topic {topic!r} on {self.address}: create_topic({topic!r}) makes it",
            topic=topic,
        )


def _retention_words(options: Mapping[str, Any]) -> list[Any]:
    words: list[Any] = ["protect_groups", int(bool(options.get("protect_groups", True)))]
    for name in ("records_max", "age_ms_max"):
        value = options.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidOption(f"{name} is {value!r}; use a whole number, at least 1", option=name)
        words += [name, value]
    return words


def _lag(
    number: int, now: int, committed: int, _: int, earliest: int, end: int, time: int
) -> PartitionLag:
    place = max(committed, earliest)
    waits = time >= 0 and place < end
    return PartitionLag(number, place, end, max(0, now - time) if waits else 0)
