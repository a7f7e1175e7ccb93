"""What the two ways to use RabbitMQ have in common: streams and quorum queues."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from penstock.errors import InvalidOption, UnknownTopic
from penstock.log.lag import PartitionLag
from penstock.log.topic import PARTITIONS_MAX
from penstock.transports.assignment import OnRevoke
from penstock.transports.base import Consumer
from penstock.transports.capabilities import Capabilities
from penstock.transports.producing import Routing, Rows
from penstock.transports.rabbitmq_connection import RabbitCounts
from penstock.transports.rabbitmq_settings import NAME, RabbitSettings, is_count
from penstock.transports.records import Produced, StartPosition
from penstock.transports.statistics import ConnectionStatistics


class Server(Protocol):
    """A connection that comes back by itself."""

    counts: RabbitCounts

    @property
    def is_connected(self) -> bool: ...
    def check_open(self) -> None: ...
    async def open(self) -> None: ...
    async def close(self) -> None: ...


class Mode(ABC):
    """One way to use the server. Its calls do what those of the transport do."""

    capabilities: Capabilities

    def __init__(self, settings: RabbitSettings, server: Server, routing: Routing) -> None:
        self._settings = settings
        self._server = server
        self._routing = routing
        self._counts: dict[str, int] = {}
        """How many partitions a topic has, where that is known."""
        self._produced = self._consumed = 0

    # Life

    async def open(self) -> None:
        """Connect."""
        await self._server.open()

    @abstractmethod
    async def close(self) -> None:
        """Finish what was begun."""

    async def disconnect(self) -> None:
        """Let go of the server at once."""
        await self._server.close()

    def check_open(self) -> None:
        """Raise Closed or UsageError unless it is open."""
        self._server.check_open()

    def statistics(self) -> ConnectionStatistics:
        """The connection and what went over it."""
        counts = self._server.counts
        return ConnectionStatistics(
            transport=NAME,
            connected=self._server.is_connected,
            reconnects=counts.reconnects,
            errors=counts.errors,
            last_error=counts.last_error,
            records_produced=self._produced,
            records_consumed=self._consumed,
            sent_again=self._times_sent_again(),
        )

    @abstractmethod
    def _times_sent_again(self) -> int:
        """How often something was sent again."""

    def _note_consumed(self, records: int) -> None:
        self._consumed += records

    # Producing and consuming

    @abstractmethod
    async def produce(self, topic: str, rows: Rows) -> Produced:
        """Send a batch, however long it takes."""

    @abstractmethod
    def subscribe(
        self,
        topic: str,
        group: str,
        start: StartPosition,
        on_revoke: OnRevoke | None,
        among: set[Consumer],
        options: Mapping[str, Any],
    ) -> Consumer:
        """A member of a group, which is one of these while it is open."""

    # Topics and groups

    @abstractmethod
    async def create_topic(
        self, topic: str, partitions: int | None, options: Mapping[str, Any]
    ) -> None:
        """Make a topic when it is not there."""

    def _checked_count(self, partitions: int | None) -> int:
        """How many partitions a new topic gets."""
        count = self._settings.partitions if partitions is None else partitions
        if not is_count(count):
            raise InvalidOption(
                f"partitions is {count!r}: use 1 to {PARTITIONS_MAX}", option="partitions"
            )
        return count

    @abstractmethod
    async def delete_topic(self, topic: str) -> None:
        """Remove a topic."""

    @abstractmethod
    async def topics(self) -> list[str]:
        """The names of all topics."""

    @abstractmethod
    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has, as it is now; it is known then."""

    async def _count(self, topic: str) -> int:
        """The same for the producer, which makes topics."""
        found = self._counts.get(topic)
        if found is not None:
            return found
        try:
            return await self.partitions(topic)
        except UnknownTopic:
            if not self._settings.auto_create:
                raise
            await self.create_topic(topic, None, {})
            return self._counts[topic]

    @abstractmethod
    async def lag(self, topic: str, group: str) -> list[PartitionLag]:
        """What a group has not committed."""

    @abstractmethod
    async def forget(self, topic: str, group: str) -> None:
        """Forget a group without a member."""

    @abstractmethod
    async def groups(self, topic: str) -> list[str]:
        """The groups of a topic."""
