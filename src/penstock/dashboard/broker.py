"""Records of a broker. It is read by a group of the dashboard's own, which is forgotten afterwards."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from penstock import Record, System, errors
from penstock.dashboard.matching import Wanted, chosen
from penstock.dashboard.sources import NOBODY, Source
from penstock.transports import Consumer, PartitionLag, Transport
from penstock.upkeep import assigned

BATCH_SECONDS = 5.0
READERS_MAX = 4
"""Consumers that are kept for the next look; joining a group takes a broker seconds."""


class BrokerSource(Source):
    """A broker. Its client lives on another loop, where everything is done."""

    def __init__(self, name: str, transport: Transport, at_home: Callable[..., Any]) -> None:
        self.name = name
        self._transport = transport
        self._at_home = at_home
        self._readers: OrderedDict[str, _Reader] = OrderedDict()

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
        reader = await self._reader(topic)
        return await reader.read(partition, first, stop)

    async def _reader(self, topic: str) -> _Reader:
        if topic not in self._readers:
            self._readers[topic] = _Reader(self._transport, topic)
        self._readers.move_to_end(topic)
        while len(self._readers) > READERS_MAX:
            _, oldest = self._readers.popitem(last=False)
            await oldest.close()
        return self._readers[topic]

    async def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        found: int | None = await self._at_home(self._offset_at(topic, partition, time_ms))
        return found

    async def _offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        self._transport.capabilities.require(self._transport.name, ["seek_time"])
        reader = await self._reader(topic)
        return await reader.offset_at(partition, time_ms)

    async def change(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        await self._at_home(work(self._transport))

    async def close(self) -> None:
        await self._at_home(self._close())

    async def _close(self) -> None:
        while self._readers:
            _, reader = self._readers.popitem()
            await reader.close()


class _Reader:
    """A member of a group of its own, with all partitions of a topic. One look at a time."""

    def __init__(self, transport: Transport, topic: str) -> None:
        self._transport = transport
        self._topic = topic
        self._group = f"{NOBODY}-{System().random.getrandbits(48):012x}"
        self._consumer: Consumer | None = None
        self._lock = asyncio.Lock()

    async def _joined(self) -> Consumer:
        if self._consumer is None:
            consumer = self._transport.subscribe(
                self._topic, self._group, requires=["replay", "seek"]
            )
            await consumer.open()
            try:
                await assigned(consumer, await self._transport.partitions(self._topic))
                await consumer.pause(*consumer.assignment().partitions)
            except BaseException:
                await consumer.close()
                raise
            self._consumer = consumer
        return self._consumer

    async def read(self, partition: int, first: int, stop: int) -> list[Record]:
        """The records of a range, as far as they are there."""
        async with self._lock:
            consumer = await self._joined()
            await consumer.seek(first, partition=partition)
            await consumer.resume(partition)
            try:
                return await self._until(consumer, partition, first, stop)
            finally:
                await consumer.pause(partition)

    async def _until(
        self, consumer: Consumer, partition: int, first: int, stop: int
    ) -> list[Record]:
        found: list[Record] = []
        with suppress(errors.DeadlineExceeded):
            while consumer.positions().get(partition, stop) < stop:
                batch = await consumer.next_batch(BATCH_SECONDS, stop - first)
                if batch.partition == partition:
                    found += [one for one in batch.records if first <= one.offset < stop]
        return found

    async def offset_at(self, partition: int, time_ms: int) -> int | None:
        """Where a partition is at a time, when the broker tells at once."""
        async with self._lock:
            consumer = await self._joined()
            start = datetime.fromtimestamp(time_ms / 1_000, UTC)
            await consumer.seek(start, partition=partition)
            return consumer.positions().get(partition)

    async def close(self) -> None:
        """Leave the group, and let the broker forget it."""
        async with self._lock:
            if self._consumer is not None:
                await self._consumer.close()
                self._consumer = None
                with suppress(errors.PenstockError):
                    await self._transport.forget(self._topic, self._group)
