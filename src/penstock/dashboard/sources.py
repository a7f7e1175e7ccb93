"""Where records are read from: a log by its files, or a broker. A step of reading has a bound."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from penstock import Record, WalMessageQueue, errors
from penstock.dashboard.matching import Wanted, chosen, chosen_of_arrow
from penstock.transports import EmbeddedTransport, PartitionLag

NOBODY = "penstock-dashboard"
"""A group that never reads: its lag is all that there is."""
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
    async def change(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        """Do something with a transport that may change things, on the loop that it belongs to."""

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

    async def change(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        async with self.writing() as transport:
            await work(transport)

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.close()
