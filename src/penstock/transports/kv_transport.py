"""Transports whose groups are in the keys of the broker; see :mod:`penstock.transports.kv_groups`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.log.group_coordinator import LEASE_SECONDS
from penstock.log.names import check_name
from penstock.system import System
from penstock.transports.assignment import Handled, OnRevoke
from penstock.transports.kv_consumer import KV_GROUP_OPTIONS, KvConsumer
from penstock.transports.kv_groups import PATIENCE_SECONDS, KeyValue, KvCoordinator, groups_of
from penstock.transports.options import check_options
from penstock.transports.producing import BrokerTransport
from penstock.transports.reading import BufferedReading, PartitionSource
from penstock.transports.records import StartPosition


class KvTransport(BrokerTransport):
    """Gives members of groups; where their keys and their records are is left to each broker."""

    _title: str
    """The name of the broker, for people."""

    def __init__(self, system: System, timeout: float) -> None:
        super().__init__()
        self._system = system
        self._timeout = timeout
        """Seconds that a call to the broker may take."""
        self._consumed = 0

    @abstractmethod
    def _store(self, topic: str) -> KeyValue:
        """The keys of the groups of a topic."""

    @abstractmethod
    def _source(self, topic: str, group: str) -> PartitionSource:
        """The records of a topic; it tells :meth:`_note_consumed`."""

    def subscribe(
        self,
        topic: str,
        group: str,
        *,
        start: StartPosition = "earliest",
        requires: Iterable[str] = (),
        on_revoke: OnRevoke | None = None,
        handled: Handled | None = None,
        lease_seconds: float = LEASE_SECONDS,
        **options: Any,
    ) -> KvConsumer:
        """A member of a group; options as on the embedded transport.

        ``assignor``, ``lease_seconds`` (10), ``release_seconds`` (5), ``member``. Times mean when
        the broker stored a record.
        """
        self._check_open()
        check_name("topic", topic)
        check_name("group", group)
        check_options(f"a subscription of the {self._title} transport", options, KV_GROUP_OPTIONS)
        self.require(requires, start)
        source = self._source(topic, group)
        coordinator = KvCoordinator(
            self._store(topic),
            topic,
            group,
            system=self._system,
            lease_seconds=lease_seconds,
            timeout=self._timeout + PATIENCE_SECONDS,
        )
        reading = BufferedReading(source, topic, group, start)
        return KvConsumer(reading, coordinator, on_revoke, self._consumers, **options)

    def _note_consumed(self, records: int) -> None:
        self._consumed += records

    async def groups(self, topic: str) -> Sequence[str]:
        """The groups that have read a topic; UnknownTopic when it is not there."""
        await self.partitions(topic)
        return await groups_of(self._store(topic), topic)
