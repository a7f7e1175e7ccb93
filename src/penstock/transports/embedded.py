"""The embedded transport: the log itself, in a directory or in memory, without a server."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Self

import msgspec

from penstock.errors import UsageError
from penstock.log.deadlines import within
from penstock.log.deletion import delete_topic
from penstock.log.group_bell import GroupBells
from penstock.log.group_coordinator import LEASE_SECONDS, GroupCoordinator
from penstock.log.group_subscription import GroupSubscription
from penstock.log.lag import PartitionLag, lag_of, topic_state
from penstock.log.names import check_name, place_in
from penstock.log.queue import WalMessageQueue
from penstock.log.side_by_side import SideBySide
from penstock.log.topic import TopicConfig, TopicFile
from penstock.stores.base import PersistentBackingStore
from penstock.system import System
from penstock.transports.assignment import Handled, OnRevoke
from penstock.transports.base import (
    CLOSE_TIMEOUT_SECONDS,
    PRODUCE_TIMEOUT_SECONDS,
    Transport,
)
from penstock.transports.capabilities import Capabilities
from penstock.transports.embedded_consumer import EmbeddedConsumer, MakeSession, session_maker
from penstock.transports.options import check_options
from penstock.transports.producers import StreamProducer, log_producer
from penstock.transports.records import Produced, StartPosition

CAPABILITIES = Capabilities(
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
    repartition=True,
    transactions=True,
)
"""What it can do on every store; durable and shared depend on the store."""

QUEUE_OPTIONS = frozenset(inspect.signature(WalMessageQueue).parameters) - {"store"}
GROUP_OPTIONS = frozenset({"assignor", "lease_seconds", "member", "release_seconds"})
TOPIC_OPTIONS = frozenset(TopicConfig.__struct_fields__) - {"partitions"}


class EmbeddedTransport(Transport):
    """Topics in a :class:`~penstock.WalMessageQueue`, shared by all processes on the directory.

    ``log:./data`` keeps them in a directory, ``memory:`` in the process. Options are those of
    ``WalMessageQueue``, options of topics those of ``TopicConfig``. What ``produce`` acknowledged is
    as safe as the topic's ``fsync`` says. Any number of consumers, in any number of processes, may
    be members of a group. A group's name may be a durable subscriber's of the log at another time;
    while one uses it, the other gets SubscriberBusy.
    """

    name = "embedded"

    def __init__(
        self, store: PersistentBackingStore | str | os.PathLike[str], **options: Any
    ) -> None:
        check_options("the embedded transport", options, QUEUE_OPTIONS)
        self._defaults = options.get("defaults") or TopicConfig()
        self._read_only = bool(options.get("read_only"))
        self.queue = WalMessageQueue(store, **options)
        kept = self.queue.store.capabilities
        self._system: System = options.get("system") or System()
        self._consumers: set[EmbeddedConsumer] = set()
        self._bells: GroupBells | None = None
        self._helpers = SideBySide(self._system)
        self.capabilities = replace(CAPABILITIES, durable=kept.durable, shared=kept.shared)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """``log:./data`` and ``memory:``; also ``log:sqlite:./data.db`` and the like."""
        if url.partition(":")[0] == "memory":
            return cls("memory:", **options)
        return cls(place_in(url), **options)

    async def open(self) -> None:
        """Start the threads of the queue. Topics are opened on first use."""
        await self.queue.open()

    async def close(self, timeout: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """Commit what was accepted, close the consumers, let go; DeadlineExceeded if too slow."""
        try:
            closing = asyncio.gather(*(one.close() for one in list(self._consumers)))
            await within(timeout, closing, "leave the groups")
        finally:
            if self._bells is not None:
                self._bells.close()
            await self.queue.close(timeout)
            await asyncio.to_thread(self._helpers.close)

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
        """Append a batch; makes the topic when it is not there, unless ``auto_create`` is off."""
        return await self.queue.publish_many(
            topic, values, keys=keys, headers=headers, timestamps=timestamps, timeout=timeout
        )

    def transactional(
        self, group: str, topic: str, name: str | None = None
    ) -> AbstractAsyncContextManager[StreamProducer]:
        """The producer of one run: ``name``, or the first of ``<group>.<topic>.<number>`` that is free."""
        return log_producer(self.queue, group, topic, name)

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
    ) -> EmbeddedConsumer:
        """A member of a group; goes on where the group committed, a new group at ``start``.

        Options: ``assignor`` is how the partitions are shared, ``"sticky"`` (the default),
        ``"range"`` or ``"round-robin"``, the same for all members. ``lease_seconds`` (10) is after
        how long a member that does not answer is taken for dead. ``release_seconds`` (5) is how
        long it may take to finish a partition that goes to another member: ``on_revoke``, or
        without one the commit of what was delivered. ``member`` is what the member's id begins
        with.
        """
        check_name("topic", topic)
        check_name("group", group)
        check_options("a subscription of the embedded transport", options, GROUP_OPTIONS)
        self.require(requires, start)
        subscription = GroupSubscription(self.queue, topic, group, start)
        subscription.handled = handled
        make = self._session_maker(group, **options)
        consumer = EmbeddedConsumer(subscription, make, on_revoke, self._consumers)
        return consumer

    def _session_maker(
        self, group: str, *, lease_seconds: float = LEASE_SECONDS, **options: Any
    ) -> MakeSession:
        if self._bells is None:
            self._bells = GroupBells(self.queue.store)
        bells = self._bells
        coordinator = GroupCoordinator(
            self.queue.store,
            group,
            system=self._system,
            lease_seconds=lease_seconds,
            offsets=self.queue.offsets,
            recover=lambda _: self.queue.settle_group(group),
            settle=partial(self.queue.settle_entries, group),
            on_change=lambda: bells.ring(group),
            helpers=self._helpers,
        )
        return session_maker(coordinator, bells, **options)

    async def create_topic(
        self, topic: str, *, partitions: int | None = None, **options: Any
    ) -> None:
        """Make a topic with the transport's defaults, these changed; see ``TopicConfig``."""
        check_options("a topic of the embedded transport", options, TOPIC_OPTIONS)
        if partitions is not None:
            options["partitions"] = partitions
        config = msgspec.structs.replace(self._defaults, **options).check()
        await self.queue.create_topic(topic, config)

    async def delete_topic(self, topic: str) -> None:
        """Remove a topic. UsageError when this transport has it open: use one that has not."""
        if topic in self.queue.statistics().topics:
            raise UsageError(
                f"topic {topic!r} is in use by this transport: delete it with another one, when "
                "nobody writes to it any more",
                topic=topic,
            )
        if self._read_only:
            raise UsageError("the queue was opened read-only")
        queue = self.queue
        offsets = None if queue.offsets is queue.store else queue.offsets
        await asyncio.to_thread(
            delete_topic, queue.store, topic, tier=queue.tier, offsets=offsets, system=self._system
        )

    async def topics(self) -> Sequence[str]:
        """The names of all topics, opened here or not."""
        return await self.queue.topics()

    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has; UnknownTopic when it is not there."""
        return (await topic_state(self.queue, topic)).partitions

    async def lag(self, topic: str, group: str) -> Sequence[PartitionLag]:
        """What a group has not committed; one that never subscribed has everything before it."""
        return await lag_of(self.queue, topic, check_name("group", group))

    async def forget(self, topic: str, group: str) -> None:
        """Remove the offsets of a group without a live member; SubscriberBusy when it has one."""
        await self.queue.unsubscribe(topic, check_name("group", group))

    async def repartition(self, topic: str, partitions: int) -> None:
        """Change the partition count, up or down; see ``WalMessageQueue.repartition``."""
        await self.queue.repartition(topic, partitions)

    async def groups(self, topic: str) -> Sequence[str]:
        """All that retention waits for; those of other processes too, as the topic's file has them."""
        await topic_state(self.queue, topic)  # UnknownTopic when it is not there
        file = TopicFile(self.queue.store, topic)
        return sorted((await asyncio.to_thread(file.read)).subscribers)

    @property
    def checkpoint_store(self) -> PersistentBackingStore:
        """The store of the groups' offsets."""
        return self.queue.offsets
