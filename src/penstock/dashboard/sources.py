"""Where records are read from: a log by its files, or a broker. A step of reading has a bound."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from penstock import Record, System, WalMessageQueue, errors
from penstock.dashboard.matching import Wanted, chosen, chosen_of_arrow
from penstock.transports import Consumer, EmbeddedTransport, PartitionLag, Transport

NOBODY = "penstock-dashboard"
"""A group that never reads: its lag is all that there is."""
CHUNK_TIMEOUT_SECONDS = 20.0
ASSIGN_SECONDS = 20.0
POLL_SECONDS = 0.05
ARROW_RECORDS_MIN = 1_000
"""Fewer records are read one by one, which needs no further package."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a partition has: from the first offset up to the one before ``end``."""

    partition: int
    first: int
    end: int

    @property
    def records(self) -> int:
        """How many these are, at the most."""
        return max(0, self.end - self.first)


class Source(ABC):
    """Topics that can be read."""

    name: str

    async def bounds(self, topic: str) -> list[Bounds]:
        """What each partition of a topic has at this moment."""
        lags = await self.lag(topic, NOBODY)
        return [Bounds(one.partition, one.committed, one.end) for one in lags]

    @abstractmethod
    async def lag(self, topic: str, group: str) -> Sequence[PartitionLag]:
        """What a group has not consumed."""

    @abstractmethod
    async def read(
        self, topic: str, partition: int, first: int, stop: int, wanted: Wanted
    ) -> list[Record]:
        """The wanted records from ``first`` up to the one before ``stop``, in order."""

    @abstractmethod
    async def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        """The first offset from that time on; the end when there is none, None: nobody knows."""

    @abstractmethod
    def writing(self) -> Any:
        """A context with a transport that may change things."""

    @abstractmethod
    async def topics(self) -> Sequence[str]:
        """The names of all topics."""

    async def close(self) -> None:
        """Let go."""


class LogSource(Source):
    """A log, read by its files: what the program does with it is not disturbed."""

    def __init__(self, name: str, queue: WalMessageQueue) -> None:
        self.name = name
        self._queue = queue
        self._opening = asyncio.Lock()
        self._reader: EmbeddedTransport | None = None
        self._arrow = find_spec("pyarrow") is not None

    def _transport(self, *, read_only: bool) -> EmbeddedTransport:
        queue = self._queue
        return EmbeddedTransport(
            queue.store,
            tier=queue.tier,
            offsets=queue.offsets,
            read_only=read_only,
            maintenance_interval=None,
        )

    async def transport(self) -> EmbeddedTransport:
        """To look at things."""
        async with self._opening:
            if self._reader is None:
                reader = self._transport(read_only=True)
                await reader.open()
                self._reader = reader
        return self._reader

    async def topics(self) -> Sequence[str]:
        return await (await self.transport()).topics()

    async def lag(self, topic: str, group: str) -> Sequence[PartitionLag]:
        return await (await self.transport()).lag(topic, group)

    async def read(
        self, topic: str, partition: int, first: int, stop: int, wanted: Wanted
    ) -> list[Record]:
        queue = (await self.transport()).queue
        try:
            if self._arrow and stop - first > ARROW_RECORDS_MIN and not wanted.anything:
                # Loading it takes a while, which the loop shall not wait for.
                await asyncio.to_thread(import_module, "pyarrow.compute")
                return await self._of_arrow(queue, topic, partition, first, stop, wanted)
            found = queue.replay(topic, start=first, end=stop, partition=partition)
            return await asyncio.to_thread(chosen, [one async for one in found], wanted)
        except errors.OffsetOutOfRange:
            return []  # retention was faster

    async def _of_arrow(
        self,
        queue: WalMessageQueue,
        topic: str,
        partition: int,
        first: int,
        stop: int,
        wanted: Wanted,
    ) -> list[Record]:
        found: list[Record] = []
        batches = queue.replay_arrow(topic, partition=partition, start=first, end=stop)
        async for batch in batches:
            found += await asyncio.to_thread(chosen_of_arrow, batch, topic, partition, wanted)
        return found

    async def offset_at(self, topic: str, partition: int, time_ms: int) -> int:
        queue = (await self.transport()).queue
        start = datetime.fromtimestamp(time_ms / 1_000, UTC)
        async for record in queue.replay(topic, start=start, partition=partition):
            return record.offset
        return {one.partition: one.end for one in await self.bounds(topic)}[partition]

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[EmbeddedTransport]:
        """The same log, opened for a change."""
        transport = self._transport(read_only=False)
        await transport.open()
        try:
            yield transport
        finally:
            await transport.close()

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()


class BrokerSource(Source):
    """A broker: read by a group that is forgotten afterwards. Its client lives on another loop."""

    def __init__(self, name: str, transport: Transport, at_home: Callable[..., Any]) -> None:
        self.name = name
        self._transport = transport
        self._at_home = at_home

    async def topics(self) -> Sequence[str]:
        names: Sequence[str] = await self._at_home(self._transport.topics())
        return names

    async def lag(self, topic: str, group: str) -> Sequence[PartitionLag]:
        self._transport.capabilities.require(self._transport.name, ["lag"])
        lags: Sequence[PartitionLag] = await self._at_home(self._transport.lag(topic, group))
        return lags

    async def read(
        self, topic: str, partition: int, first: int, stop: int, wanted: Wanted
    ) -> list[Record]:
        if first >= stop:
            return []
        records = await self._at_home(self._read(topic, partition, first, stop))
        return await asyncio.to_thread(chosen, records, wanted)

    async def _read(self, topic: str, partition: int, first: int, stop: int) -> list[Record]:
        async with self._consumer(topic) as consumer:
            others = set(consumer.assignment().partitions) - {partition}
            await consumer.pause(*others)
            await consumer.seek(first, partition=partition)
            found: list[Record] = []
            with suppress(errors.DeadlineExceeded):
                while consumer.positions().get(partition, stop) < stop:
                    batch = await consumer.next_batch(CHUNK_TIMEOUT_SECONDS, stop - first)
                    if batch.partition == partition:
                        found += [one for one in batch.records if one.offset < stop]
            return found

    @asynccontextmanager
    async def _consumer(self, topic: str) -> AsyncIterator[Consumer]:
        """A member of a group of its own, with all partitions."""
        group = f"{NOBODY}-{System().random.getrandbits(48):012x}"
        transport = self._transport
        try:
            async with transport.subscribe(topic, group, requires=["replay", "seek"]) as consumer:
                await assigned(consumer, await transport.partitions(topic))
                yield consumer
        finally:
            with suppress(errors.PenstockError):
                await transport.forget(topic, group)

    async def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        found: int | None = await self._at_home(self._offset_at(topic, partition, time_ms))
        return found

    async def _offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        self._transport.capabilities.require(self._transport.name, ["seek_time"])
        async with self._consumer(topic) as consumer:
            start = datetime.fromtimestamp(time_ms / 1_000, UTC)
            await consumer.seek(start, partition=partition)
            return consumer.positions().get(partition)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Transport]:
        """The same broker: what it is asked for has to be asked at home."""
        yield self._transport


async def assigned(consumer: Consumer, partitions: int) -> None:
    """Wait until a consumer has all partitions of its topic; SubscriberBusy when others have some."""
    clock = System().clock
    until = clock.monotonic() + ASSIGN_SECONDS
    while len(consumer.assignment().partitions) < partitions:
        if clock.monotonic() > until:
            raise errors.SubscriberBusy(
                f"group {consumer.group!r} of {consumer.topic!r} has other members: stop them first",
                subscriber=consumer.group,
                topic=consumer.topic,
            )
        await asyncio.sleep(POLL_SECONDS)
