"""The transport seam: where streams of records go and come from.

A transport produces batches, gives consumers, and answers a few questions about topics. What it can
do stands in its :class:`Capabilities`; asking a subscription for more raises NotSupported before
anything is read. Options that only one broker has are passed through to it by name.

Everything here runs on the event loop that opened the transport and never blocks it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Self

from penstock.errors import NotSupported, UsageError
from penstock.log.lag import PartitionLag
from penstock.stores.base import PersistentBackingStore
from penstock.transports.assignment import Handled, MemberAssignment, OnRevoke
from penstock.transports.capabilities import Capabilities
from penstock.transports.producers import StreamProducer
from penstock.transports.records import Produced, StartPosition, StreamBatch

PRODUCE_TIMEOUT_SECONDS = 30.0
CLOSE_TIMEOUT_SECONDS = 30.0
RELEASE_SECONDS = 5.0
"""How long a member may take to finish a partition that goes to another one."""
BATCH_RECORDS_MAX = 10_000


class Consumer(ABC):
    """A member of a group that reads one topic, in order within each partition.

    ``async with transport.subscribe(topic, group) as consumer: async for batch in consumer``. What
    was delivered and not committed comes again after a crash, a close or a rebalance. Cancelling
    an iteration loses nothing: the next one goes on where it was.
    """

    topic: str
    group: str

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @abstractmethod
    async def open(self) -> None:
        """Join the group and find the places to start. Raises UnknownTopic when there is none."""

    @abstractmethod
    async def close(self) -> None:
        """Leave the group. Commits nothing; who waits for a batch gets Closed. Idempotent."""

    @abstractmethod
    async def next_batch(
        self, timeout: float | None = None, records_max: int = BATCH_RECORDS_MAX
    ) -> StreamBatch:
        """The next records of some partition, at least one; never waits to fill a batch.

        Raises DeadlineExceeded when none came within ``timeout`` seconds; nothing is lost by it.
        """

    def __aiter__(self) -> AsyncIterator[StreamBatch]:
        return self.batches()

    def batches(self, records_max: int = BATCH_RECORDS_MAX) -> AsyncIterator[StreamBatch]:
        """Batch after batch, for ever."""
        return _Batches(self, records_max)

    @abstractmethod
    async def commit(self, done: StreamBatch | Mapping[int, int] | None = None) -> None:
        """Mark as consumed: this batch, or up to an offset per partition, or all delivered.

        A mapping holds for each partition the offset of the next record that is not consumed. The
        commit is as durable as the transport when this returns. It never moves backwards. When it
        is cancelled, it may or may not have happened.
        """

    @abstractmethod
    async def seek(self, to: StartPosition, *, partition: int | None = None) -> None:
        """Go on from another place, of one partition or of all; resumes there after a restart."""

    @abstractmethod
    async def pause(self, *partitions: int) -> None:
        """Deliver nothing of these partitions until :meth:`resume`, this member's memory only."""

    @abstractmethod
    async def resume(self, *partitions: int) -> None:
        """Deliver records of these partitions again."""

    async def rewind(self, batch: StreamBatch) -> None:
        """Deliver a batch again whose transaction was given up, if it is still this member's.

        Nothing on transports where a transaction is given up only with the partition.
        """

    @abstractmethod
    def assignment(self) -> MemberAssignment:
        """Which partitions this member has, and since which generation."""

    @abstractmethod
    def positions(self) -> dict[int, int]:
        """Partition → offset of the next record that will be delivered, of those it has."""


def check_opened(is_open: bool) -> None:
    """Raise UsageError for a consumer that is not open yet."""
    if not is_open:
        raise UsageError("open the consumer first: async with transport.subscribe(...) as consumer")


class Transport(ABC):
    """Produces to topics and gives consumers of them. See the module's text."""

    name: str
    """What errors and metrics call it."""
    capabilities: Capabilities

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @classmethod
    @abstractmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """The transport that a URL names, not open yet; unknown options raise InvalidOption."""

    @abstractmethod
    async def open(self) -> None:
        """Connect. Idempotent."""

    @abstractmethod
    async def close(self, timeout: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """Finish what was accepted, close the consumers, let go. Idempotent.

        Raises DeadlineExceeded when the other side does not answer in time.
        """

    @abstractmethod
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
        """Send a batch, in order, and wait until all of it is acknowledged.

        Records with a key go to the key's partition, others to the partitions in turn. A full
        buffer makes it wait. After an error, a cancellation or a crash a leading part may have
        been sent.
        """

    def transactional(
        self, group: str, topic: str, name: str | None = None
    ) -> AbstractAsyncContextManager[StreamProducer]:
        """The producer of one run that reads a topic as a group; NotSupported without transactions.

        One of the same ``name`` elsewhere is fenced. Without a name it is one of its own.
        """
        self.capabilities.require(self.name, ["transactions"])
        raise NotSupported(f"the transport {self.name!r} gives no producers of transactions")

    @abstractmethod
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
        """A member of a group: goes on where the group committed, a new group at ``start``.

        ``requires`` names capabilities that will be used: NotSupported when one is missing.
        ``on_revoke`` is awaited with partitions that go to another member, before they go.
        ``handled`` tells how far the caller has handled a partition, where that is not the same as
        delivered: the order per key over a repartition goes by it.
        """

    @abstractmethod
    async def create_topic(
        self, topic: str, *, partitions: int | None = None, **options: Any
    ) -> None:
        """Make a topic when it is not there; one that is there stays as it is."""

    async def delete_topic(self, topic: str) -> None:
        """Remove a topic, all its records and what its groups committed. There is no way back.

        UnknownTopic when there is none, SubscriberBusy when a group reads it. Stop its producers
        first: one that goes on gets an error, or makes the topic anew, as it is told to.
        """
        raise NotSupported(
            f"the transport {self.name!r} cannot delete {topic!r}: use the tools of the broker",
            transport=self.name,
            missing=("delete_topics",),
        )

    @abstractmethod
    async def topics(self) -> Sequence[str]:
        """The names of all topics."""

    @abstractmethod
    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has; UnknownTopic when it is not there."""

    @abstractmethod
    async def lag(self, topic: str, group: str) -> Sequence[PartitionLag]:
        """What a group has not consumed, partition by partition, whether it has members or not."""

    @abstractmethod
    async def forget(self, topic: str, group: str) -> None:
        """Forget a group that has no member: its offsets, and that retention waits for it."""

    async def groups(self, topic: str) -> Sequence[str]:
        """The groups that have read a topic, of all processes, whether they have members or not."""
        raise NotSupported(f"the transport {self.name!r} cannot list the groups of {topic!r}")

    async def repartition(self, topic: str, partitions: int) -> None:
        """Give a topic another number of partitions; order per key is kept. See ``repartition``."""
        raise NotSupported(
            f"the transport {self.name!r} cannot give {topic!r} {partitions} partitions: make the "
            "topic anew",
            topic=topic,
        )

    @property
    def checkpoint_store(self) -> PersistentBackingStore | None:
        """Where checkpoints beside the committed offsets may be kept; None: it has no place."""
        return None

    def require(self, wanted: Iterable[str], start: StartPosition = "earliest") -> None:
        """Raise NotSupported unless the transport has all that a subscription asks for."""
        self.capabilities.require(self.name, wanted)
        if isinstance(start, datetime):
            self.capabilities.require(self.name, ["seek_time"])


class _Batches(AsyncIterator[StreamBatch]):
    """Batch after batch; may be cancelled and taken up again, as the consumer itself."""

    def __init__(self, consumer: Consumer, records_max: int) -> None:
        self._consumer = consumer
        self._records_max = records_max

    async def __anext__(self) -> StreamBatch:
        return await self._consumer.next_batch(records_max=self._records_max)
