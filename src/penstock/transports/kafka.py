"""The Kafka transport: ``kafka://host:port``, over confluent-kafka.

The client's threads do the talking; nothing here blocks the event loop. Records are routed by the same
hash of the key as on the bus and in the log, unless ``partitioner`` says otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError

from penstock.errors import Closed, InvalidOption, UsageError
from penstock.log.deadlines import check_seconds, within
from penstock.log.group_coordinator import LEASE_SECONDS
from penstock.log.lag import PartitionLag
from penstock.log.names import check_name
from penstock.system import System
from penstock.transports.assignment import Handled, OnRevoke
from penstock.transports.base import (
    CLOSE_TIMEOUT_SECONDS,
    PRODUCE_TIMEOUT_SECONDS,
    RELEASE_SECONDS,
    Transport,
)
from penstock.transports.capabilities import Capabilities
from penstock.transports.foreign_names import names_among
from penstock.transports.kafka_admin import KafkaAdmin
from penstock.transports.kafka_consumer import KafkaConsumer
from penstock.transports.kafka_member import KafkaMember
from penstock.transports.kafka_producer import Columns, KafkaProducer, Routing
from penstock.transports.kafka_settings import KafkaSettings
from penstock.transports.kafka_transaction import TransactionalProducer
from penstock.transports.options import check_options, from_text
from penstock.transports.records import Produced, StartPosition
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
    transactions=True,
)
"""Not ``repartition``: Kafka adds partitions, and a key may change its partition without its order.
Not ``idempotence``: what the client sends again is kept once, what the caller produces again is not."""

OPTIONS = frozenset({"auto_create", "connect_seconds", "options", "partitioner", "system"})
GROUP_OPTIONS = frozenset(
    {"assignor", "instance", "lease_seconds", "member", "options", "protocol", "release_seconds"}
)
TOPIC_OPTIONS = frozenset(
    {
        "cleanup_policy", "compression_type", "config", "delete_retention_ms", "max_message_bytes",
        "message_timestamp_type", "min_insync_replicas", "replication_factor", "retention_bytes",
        "retention_ms", "segment_bytes", "segment_ms",
    }
)  # fmt: skip
ASSIGNORS = {"sticky": "cooperative-sticky", "range": "range", "round-robin": "roundrobin"}
PARTITIONERS = {
    "fnv1a": None,
    "native": "murmur2_random",
    **{
        name: name
        for name in (
            "consistent", "consistent_random", "fnv1a_random", "murmur2", "murmur2_random", "random",
        )
    },
}  # fmt: skip
"""``native`` is what Kafka's own clients in Java do."""
CONNECT_SECONDS = 10.0
HEARTBEAT_MS_MAX = 500
POLL_INTERVAL_MS = 300_000
DEFAULT = -1
"""The broker's own default."""

_DOWN = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaStatistics(ConnectionStatistics):
    """Figures of one transport. It counts as connected until all connections are lost."""

    waiting: int
    """Calls of ``produce`` whose records are on their way."""
    consumers: int


class KafkaTransport(Transport):
    """Topics on a Kafka cluster.

    ``kafka://user@host:9092,other:9092?acks=all&security.protocol=SASL_SSL``: native options of the
    client stand in the query, or in ``options``. Passwords and keys come from the environment. What
    ``produce`` acknowledged is on all replicas that are in sync: it survives a crash of a machine
    when the topic has two or more (``replication_factor``, ``min_insync_replicas``).

    Other options: ``partitioner``, ``auto_create`` (a topic that is produced to and is not there is made
    with the broker's defaults), ``connect_seconds`` (10), after which a broker that does not answer is
    Unreachable.
    """

    name = "kafka"

    def __init__(self, url: str, **options: Any) -> None:
        check_options("the Kafka transport", options, OPTIONS)
        self.settings, query = KafkaSettings.of(url, options.pop("options", {}))
        check_options("a Kafka URL", query, OPTIONS - {"options", "system"})
        given = {**query, **options}
        self._system: System = given.get("system") or System()
        self._auto_create = _as_bool(given.get("auto_create", True), "auto_create")
        self._connect_seconds = _as_seconds(given.get("connect_seconds", CONNECT_SECONDS))
        self._partitioner = _chosen("partitioner", given.get("partitioner", "fnv1a"), PARTITIONERS)
        self.capabilities = CAPABILITIES
        self._consumers: set[KafkaConsumer] = set()
        self._producers: set[TransactionalProducer] = set()
        self._admin: KafkaAdmin | None = None
        self._producer: KafkaProducer | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._produced = self._delivered = self._errors = self._reconnects = 0
        self._is_down = False
        self._last_error: str | None = None

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """``kafka://host:port,host:port?option=value``."""
        return cls(url, **options)

    def __repr__(self) -> str:
        return f"KafkaTransport({self.settings!r})"

    # Life

    async def open(self) -> None:
        """Connect; Unreachable when no broker answers within ``connect_seconds``."""
        self._check_not_closed()
        async with self._opening:
            if self._producer is not None:
                return
            calls = {"error_cb": self._noticed}
            admin = KafkaAdmin(self.settings, self._system, self._connect_seconds)
            try:
                await admin.names()
            except BaseException:
                await admin.close()
                raise
            self._routing = Routing(
                admin,
                self._system,
                native=self._partitioner is not None,
                auto_create=self._auto_create,
            )
            if self._partitioner is not None:
                calls |= {"partitioner": self._partitioner}  # type: ignore[dict-item]
            self._producer = KafkaProducer(self.settings, self._routing, self._system, calls)
            self._admin = admin

    async def close(self, timeout: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """Wait for what was accepted, close the consumers, let go."""
        if self._closed:
            return
        self._closed = True
        until = asyncio.get_running_loop().time() + timeout
        try:
            members: list[KafkaConsumer | TransactionalProducer] = [
                *self._consumers,
                *self._producers,
            ]
            closing = asyncio.gather(*(one.close() for one in members))
            await within(timeout, closing, "leave the groups")
        finally:
            try:
                if self._producer is not None:
                    left = max(0.0, until - asyncio.get_running_loop().time())
                    await self._producer.close(left)
            finally:
                if self._admin is not None:
                    await self._admin.close()

    def statistics(self) -> KafkaStatistics:
        """The figures of this moment."""
        return KafkaStatistics(
            transport=self.name,
            connected=self._producer is not None and not self._is_down and not self._closed,
            reconnects=self._reconnects,
            errors=self._errors,
            last_error=self._last_error,
            records_produced=self._produced,
            records_consumed=self._delivered,
            waiting=self._producer.waiting if self._producer is not None else 0,
            consumers=len(self._consumers),
        )

    def _noticed(self, error: KafkaError) -> None:
        """A client tells of an error; in one of its threads."""
        self._errors += 1
        self._last_error = self.settings.shown(error.str())
        if error.code() in _DOWN:
            self._is_down = True

    def _answered(self) -> None:
        if self._is_down:
            self._is_down = False
            self._reconnects += 1

    # Producing

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
        """Send a batch, in order, and wait until all replicas in sync have it."""
        _, producer = self._usable()
        check_name("topic", topic)
        check_seconds(timeout)
        done = await producer.produce(Columns(topic, values, keys, headers, timestamps), timeout)
        self._produced += done.count
        self._answered()
        return done

    def producer(self, name: str) -> TransactionalProducer:
        """A producer of transactions; opening one of the same name elsewhere fences this one.

        ``async with transport.producer("billing-1") as producer``, then
        ``async with producer.transaction() as transaction``.
        """
        self._usable()
        return TransactionalProducer(
            check_name("producer", name),
            self.settings,
            self._routing,
            self._system,
            self._producers,
        )

    def transactional(
        self, group: str, topic: str, name: str | None = None
    ) -> TransactionalProducer:
        """The producer of one run; without a ``name`` nobody else has, or takes over, the same.

        Fencing is the group's: the offsets of a member that lost its partition abort the transaction.
        What a run that died had begun is aborted when its name is opened again, or after
        ``transaction.timeout.ms`` (a minute); readers wait for that.
        """
        own = f"{group}.{topic}.{self._system.random.getrandbits(64):016x}"
        return self.producer(name or own)

    # Consuming

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
    ) -> KafkaConsumer:
        """A member of a group; goes on where the group committed, a new group at ``start``.

        Options: ``assignor`` is ``"sticky"`` (the default: few partitions move, the others go on),
        ``"range"`` or ``"round-robin"``. ``protocol="consumer"`` uses the group protocol of Kafka 4, in which
        the broker shares the partitions out; it has no ``assignor`` and no ``lease_seconds``.
        ``lease_seconds`` (10) is after how long a member that does not answer is taken for dead.
        ``release_seconds`` (5) is how long it may take to finish a partition that goes to another
        member. ``member`` is what the member's id begins with, ``instance`` a name with which it
        may come back within its lease without a rebalance. ``options`` are the client's own.
        """
        self._check_not_closed()
        check_name("topic", topic)
        check_name("group", group)
        check_options("a subscription of the Kafka transport", options, GROUP_OPTIONS)
        self.require(requires, start)
        release_seconds = options.pop("release_seconds", RELEASE_SECONDS)
        check_seconds(release_seconds, "release_seconds")
        native = KafkaSettings(self.settings.address, options.pop("options", {}), {})
        own = _group_options(group, **options)
        configuration = (
            _consumer_defaults()
            | self.settings.client("consumer", error_cb=self._noticed)
            | native.given()
            | own
        )

        def make_member(consumer: KafkaConsumer) -> KafkaMember:
            return KafkaMember(
                lambda heard: self.settings.make(Client, configuration | {"on_commit": heard}),
                topic,
                start,
                consumer,
                self._system.clock,
                cooperative=own.get("partition.assignment.strategy") in (None, ASSIGNORS["sticky"]),
                seconds=self._connect_seconds,
            )

        return KafkaConsumer(
            topic,
            group,
            make_member,
            settings=self.settings,
            admin=self._usable_admin,
            system=self._system,
            on_revoke=on_revoke,
            release_seconds=release_seconds,
            among=self._consumers,
            took=self._took,
        )

    def _took(self, count: int) -> None:
        self._delivered += count
        self._answered()

    # Topics and groups

    async def create_topic(
        self, topic: str, *, partitions: int | None = None, **options: Any
    ) -> None:
        """Make a topic when it is not there; what is not said is the broker's default.

        Options: ``replication_factor``, ``retention_ms``, ``retention_bytes``, ``cleanup_policy``,
        ``min_insync_replicas`` and the like; ``config`` takes any setting of a topic by Kafka's name.
        """
        check_name("topic", topic)
        check_options("a topic of the Kafka transport", options, TOPIC_OPTIONS)
        if partitions is not None and partitions < 1:
            raise InvalidOption(f"{partitions} partitions: use 1 or more", option="partitions")
        replicas = options.pop("replication_factor", DEFAULT)
        config = {name: str(value) for name, value in options.pop("config", {}).items()}
        config |= {name.replace("_", "."): str(value) for name, value in options.items()}
        await self._usable()[0].create(topic, partitions or DEFAULT, replicas, config)

    async def delete_topic(self, topic: str) -> None:
        """Remove a topic and what its groups committed; SubscriberBusy when a group reads it.

        The brokers have to allow it (``delete.topic.enable``). A producer that goes on makes the
        topic anew where the brokers do that by themselves.
        """
        await self.partitions(topic)
        for group in await self.groups(topic):
            await self.forget(topic, group)
        await self._usable()[0].delete(topic)

    async def topics(self) -> Sequence[str]:
        """The names of all topics but Kafka's own."""
        return names_among(await self._usable()[0].names(), transport=self.name)

    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has; UnknownTopic when it is not there."""
        return await self._usable()[0].count(check_name("topic", topic))

    async def lag(self, topic: str, group: str) -> Sequence[PartitionLag]:
        """What a group has not committed; one that never did has everything before it.

        Markers of transactions count as records, as they have offsets.
        """
        check_name("group", group)
        return await self._usable()[0].lag(check_name("topic", topic), group)

    async def forget(self, topic: str, group: str) -> None:
        """Forget a group without members; NotSupported when it has read other topics, too."""
        await self._usable()[0].forget(topic, check_name("group", group))

    async def groups(self, topic: str) -> Sequence[str]:
        """The groups that have committed something of a topic."""
        return await self._usable()[0].groups(check_name("topic", topic))

    async def repartition(self, topic: str, partitions: int) -> None:
        """Add partitions. Keys may move to another partition, and their order is not kept then.

        Let consumers catch up before, with nothing being produced, to keep it. Consumers see new
        partitions within ten seconds, producers of other processes too.
        """
        await self._usable()[0].grow(check_name("topic", topic), partitions)
        self._routing.forget(topic)

    # Inside

    def _check_not_closed(self) -> None:
        if self._closed:
            raise Closed(f"the Kafka transport on {self.settings.address} is closed")

    def _usable(self) -> tuple[KafkaAdmin, KafkaProducer]:
        self._check_not_closed()
        if self._admin is None or self._producer is None:
            raise UsageError(
                "open the transport first: async with open_transport(url) as transport"
            )
        return self._admin, self._producer

    def _usable_admin(self) -> KafkaAdmin:
        return self._usable()[0]


def _consumer_defaults() -> dict[str, Any]:
    return {
        "topic.metadata.refresh.interval.ms": 10_000,
        "fetch.queue.backoff.ms": 20,
        "fetch.error.backoff.ms": 100,
        "max.poll.interval.ms": POLL_INTERVAL_MS,
    }


def _group_options(
    group: str,
    *,
    assignor: str | None = None,
    lease_seconds: float | None = None,
    member: str | None = None,
    instance: str | None = None,
    protocol: str = "classic",
) -> dict[str, Any]:
    own: dict[str, Any] = {
        "group.id": group,
        "group.protocol": _chosen(
            "protocol", protocol, {"classic": "classic", "consumer": "consumer"}
        ),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
    }
    if member is not None:
        own["client.id"] = check_name("member", member)
    if instance is not None:
        own["group.instance.id"] = check_name("instance", instance)
    if protocol == "consumer":
        for option, value in (("assignor", assignor), ("lease_seconds", lease_seconds)):
            if value is not None:
                raise InvalidOption(
                    f"{option} is the broker's with protocol='consumer'", option=option
                )
        return own
    lease = LEASE_SECONDS if lease_seconds is None else _as_seconds(lease_seconds, "lease_seconds")
    milliseconds = max(1, int(lease * 1_000))
    return own | {
        "partition.assignment.strategy": _chosen("assignor", assignor or "sticky", ASSIGNORS),
        "session.timeout.ms": milliseconds,
        "heartbeat.interval.ms": max(1, min(HEARTBEAT_MS_MAX, milliseconds // 3)),
        "max.poll.interval.ms": max(POLL_INTERVAL_MS, milliseconds),
    }


def _chosen(option: str, value: object, among: Mapping[str, str | None]) -> str | None:
    if not isinstance(value, str) or value not in among:
        raise InvalidOption(f"{option} is {value!r}: use {', '.join(among)}", option=option)
    return among[value]


def _as_bool(value: object, option: str) -> bool:
    if isinstance(value, bool):
        return value
    found: bool = from_text(option, str(value), bool)
    return found


def _as_seconds(value: Any, option: str = "connect_seconds") -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    check_seconds(seconds, option)
    return seconds
