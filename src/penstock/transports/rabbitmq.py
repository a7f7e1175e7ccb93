"""RabbitMQ as a transport: ``rabbitmq://host:5552``; needs ``penstock[rabbitmq]``.

It has two modes. ``mode=streams``, the default, has offsets, replay and groups, and needs the server's
plugin rabbitmq_stream. ``mode=quorum`` has queues: what is acknowledged is gone. The capabilities tell
which is which.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from penstock.errors import Closed, Unreachable
from penstock.log.lag import PartitionLag
from penstock.log.names import check_name
from penstock.transports.assignment import Handled, OnRevoke
from penstock.transports.base import Consumer
from penstock.transports.foreign_names import names_among
from penstock.transports.producing import BrokerTransport, Rows
from penstock.transports.rabbitmq_mode import Mode
from penstock.transports.rabbitmq_queues import QueuesMode
from penstock.transports.rabbitmq_settings import NAME, settings_from
from penstock.transports.rabbitmq_streams import StreamsMode
from penstock.transports.records import Produced, StartPosition
from penstock.transports.statistics import ConnectionStatistics


class RabbitTransport(BrokerTransport):
    """Topics in the streams or in the quorum queues of a RabbitMQ server or cluster.

    ``produce`` returns when the server has confirmed all. Quorum queues are synced before that; streams
    are not: what was confirmed survives the end of the server's process, and a power cut only on
    those replicas that have not lost theirs. What was on its way when the connection was lost is sent
    again; streams keep it once.
    """

    name = NAME
    _given_up = "later"

    def __init__(self, url: str = "rabbitmq://127.0.0.1:5552", **options: Any) -> None:
        super().__init__()
        self._settings = settings_from(url, options)
        quorum = self._settings.mode == "quorum"
        self._mode: Mode = QueuesMode(self._settings) if quorum else StreamsMode(self._settings)
        self.capabilities = self._mode.capabilities

    def __repr__(self) -> str:
        return f"RabbitTransport({self._settings.address}, mode={self._settings.mode})"

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """``rabbitmq://host:5552/vhost?mode=streams``; see ``RabbitSettings``."""
        return cls(url, **options)

    # Life

    async def open(self) -> None:
        """Connect; Unreachable when no server answers in time, BrokerFailed when it refuses."""
        if not self._closing:
            await self._mode.open()

    async def _finish(self) -> None:
        await super()._finish()
        await self._mode.close()

    async def _disconnect(self) -> None:
        await self._mode.disconnect()

    @property
    def _broker(self) -> str:
        return f"RabbitMQ at {self._settings.address}"

    def _check_open(self) -> None:
        # Whoever closes it waits for what is on its way; nothing new is taken meanwhile.
        if self._closing:
            raise Closed("the RabbitMQ transport is closed")
        self._mode.check_open()

    def statistics(self) -> ConnectionStatistics:
        """The connection and what went over it."""
        return self._mode.statistics()

    # Producing

    async def _produce(self, topic: str, rows: Rows) -> Produced:
        return await self._mode.produce(topic, rows)

    def _unacknowledged(self, topic: str, count: int, seconds: float) -> Unreachable:
        why = f"{count} records for {topic!r} are not confirmed; some may be stored"
        last = self.statistics().last_error
        return self._settings.unreachable(
            seconds, f"{why}; the last error: {last or 'none'}", topic=topic
        )

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
    ) -> Consumer:
        """A member of a group.

        Streams take the options of the embedded transport: ``assignor``, ``lease_seconds`` (10),
        ``release_seconds`` (5), ``member``; times mean when the server stored a record. Queues take
        ``prefetch``.
        """
        self._check_open()
        check_name("topic", topic)
        check_name("group", group)
        self.require(requires, start)
        return self._mode.subscribe(topic, group, start, on_revoke, self._consumers, options)

    # Topics and groups

    async def create_topic(
        self, topic: str, *, partitions: int | None = None, **options: Any
    ) -> None:
        """Make a topic when it is not there; one that is there stays as it is.

        Streams: ``max_bytes``, ``max_age_seconds`` and ``segment_bytes`` of each partition,
        ``replicas``, ``leader_locator``. Queues: ``groups``, the names of those that get all from the
        beginning, ``max_records``, ``max_bytes``, ``replicas``.
        """
        self._check_open()
        await self._mode.create_topic(topic, partitions, options)

    async def delete_topic(self, topic: str) -> None:
        """Remove the streams of a topic and what its groups committed; queues cannot.

        A producer that goes on makes it anew, unless ``auto_create`` is off.
        """
        self._check_open()
        await self._mode.delete_topic(topic)

    async def topics(self) -> Sequence[str]:
        """The names of all topics with this prefix."""
        self._check_open()
        return names_among(await self._mode.topics(), transport=self.name)

    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has; UnknownTopic when it is not there."""
        self._check_open()
        return await self._mode.partitions(topic)

    async def lag(self, topic: str, group: str) -> Sequence[PartitionLag]:
        """What a group has not committed; one that never subscribed has all that is kept before it."""
        self._check_open()
        check_name("group", group)
        return await self._mode.lag(topic, group)

    async def forget(self, topic: str, group: str) -> None:
        """Remove the offsets, or the queues, of a group without a member; else SubscriberBusy."""
        self._check_open()
        check_name("topic", topic)
        await self._mode.forget(topic, check_name("group", group))

    async def groups(self, topic: str) -> Sequence[str]:
        """The groups that have read a topic; UnknownTopic when it is not there."""
        self._check_open()
        return await self._mode.groups(topic)
