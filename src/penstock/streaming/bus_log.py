"""A transport in the place of the log that a bus has its durable topics in.

So a bus moves from the local disk to a broker by another URL. What a broker cannot do, a bus on it
cannot do either: there are no atomic groups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Self

from penstock.bus.timers import Timers
from penstock.errors import NotSupported
from penstock.streaming.bus_reading import TopicReader
from penstock.streaming.bus_sending import Outgoing, Sent, TopicSender
from penstock.system import System
from penstock.transports.base import CLOSE_TIMEOUT_SECONDS, PRODUCE_TIMEOUT_SECONDS, Transport
from penstock.transports.records import Produced

logger = logging.getLogger("penstock.streaming")

BUFFER_RECORDS_MAX = 10_000
NEEDED = ("keyed_routing", "headers", "groups")


class TransportLog:
    """The topics of a transport, for ``ScalableMessageBus(log=...)``.

    ``publish`` returns when the broker has acknowledged the event: what that is worth tells
    ``transport.capabilities.durable``. Events that are published at the same time travel together,
    those of one topic in order. ``publish_nowait`` keeps up to ``buffer_records_max`` events of a
    topic in memory while the broker is away and sends them when it is back; a crash of the process
    loses them. ``close`` waits for them.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        partitions: int | None = None,
        buffer_records_max: int = BUFFER_RECORDS_MAX,
        system: System | None = None,
    ) -> None:
        transport.capabilities.require(transport.name, NEEDED)
        self._transport = transport
        self._partitions = partitions
        self._buffer_records_max = buffer_records_max
        self._timers = Timers((system or System()).clock)
        self._senders: dict[str, TopicSender] = {}
        self._written: dict[str, dict[int, int]] = {}
        """Topic → partition → the offset behind what was written here."""

    async def __aenter__(self) -> Self:
        await self._transport.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def create_topic(self, name: str) -> None:
        """Make the topic when it is not there."""
        await self._transport.create_topic(name, partitions=self._partitions)
        if name not in self._senders:
            self._senders[name] = TopicSender(
                self._transport, name, self._timers, self._buffer_records_max, self._note
            )

    async def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        durable: bool = False,
        timeout: float = PRODUCE_TIMEOUT_SECONDS,
    ) -> Sent:
        """Send an event; returns when the broker has acknowledged it.

        Cancelled or too late, or after an error, it may have been sent. ``durable`` changes nothing:
        how safe an acknowledged event is, is the broker's matter.
        """
        sent: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        try:
            async with self._timers.deadline(timeout, f"publish to {topic}"):
                await self._senders[topic].add(Outgoing(value, key, headers, sent))
                return await sent
        finally:
            sent.cancel()  # what is not on its way yet need not go

    def publish_nowait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        """Hand an event over, from any thread; BufferFull at the bound."""
        self._senders[topic].add_nowait(Outgoing(value, key, headers, None))

    def transaction(self, name: str) -> Any:
        """Not there: NotSupported."""
        raise NotSupported(
            f"{name!r}: a bus on {self._transport.name!r} has no atomic groups of events. Publish "
            "them one by one, or keep them on log:",
            transport=self._transport.name,
            missing=("transactions",),
        )

    async def flush(self) -> None:
        """Wait until everything that was accepted is acknowledged."""
        for sender in list(self._senders.values()):
            await sender.flush()

    def subscribe(self, topic: str, name: str) -> TopicReader:
        """A member of the group ``name``, which goes on where the group committed."""
        written = self._written.setdefault(topic, {})
        return TopicReader(self._transport, topic, name, written, self._timers)

    async def close(self, timeout: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """Send what was accepted, and close the transport. Idempotent.

        DeadlineExceeded when the broker does not take it in time; those events are lost then.
        """
        try:
            async with self._timers.deadline(timeout, f"send to {self._transport.name}"):
                await self.flush()
        finally:
            lost = sum([await sender.close() for sender in self._senders.values()])
            self._senders.clear()
            await self._transport.close()
            if lost:
                logger.error("%d events were not sent to %s", lost, self._transport.name)

    def _note(self, topic: str, produced: Produced) -> None:
        written = self._written.setdefault(topic, {})
        for partition, (_, end) in produced.ranges.items():
            written[partition] = max(end, written.get(partition, 0))
