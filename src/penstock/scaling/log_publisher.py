"""Writes events to their topics in the log, and opens topics on the way."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from threading import Lock
from typing import Any

from penstock.bus.encoding import MessageCodec
from penstock.bus.intake import full
from penstock.errors import BufferFull
from penstock.messages import Envelope
from penstock.scaling.log_records import Row, TopicLog, row_of

logger = logging.getLogger("penstock.scaling")

EARLY_MAX = 10_000
"""Events of one topic that may wait until it is open."""
AGAIN_SECONDS = 5.0
"""How long to wait before a topic that could not be opened is tried again."""


class LogPublisher:
    """Publishes to one log. Belongs to its event loop, but for :meth:`publish_nowait`.

    A topic is opened when its first event comes. Who cannot wait for that leaves the event here; it
    is written, in order, before those that come after. When the process dies before, it is lost, as
    any event of ``publish_nowait`` may be.
    """

    def __init__(
        self, log: TopicLog, codec: MessageCodec, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self._log = log
        self._codec = codec
        self._sleep = sleep
        self._open: set[str] = set()
        self._early: dict[str, deque[tuple[Envelope, Row]]] = {}
        self._lock = Lock()
        self._opening: dict[str, asyncio.Task[None]] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where topics are opened when another thread asks; None before the start."""
        self.published = 0
        """Events that were handed to the log."""

    # Publishing

    async def publish(self, envelope: Envelope, *, durable: bool, timeout: float) -> Any:
        """Write an event; returns when it is as safe as its topic asks for, or on the disk.

        Cancelled while it is written, it may be published all the same.
        """
        row = row_of(envelope, self._codec.encode(envelope.message))
        await self.open(envelope.topic)
        self.published += 1
        return await self._log.publish(
            envelope.topic,
            row.value,
            key=row.key,
            headers=row.headers,
            durable=durable,
            timeout=timeout,
        )

    async def publish_together(self, producer: str, envelopes: list[Envelope]) -> None:
        """Write events in one transaction; returns when they are durable.

        Cancelled before it is committed, none is published; after that, all are.
        """
        rows = [row_of(one, self._codec.encode(one.message)) for one in envelopes]
        async with self._log.transaction(producer) as transaction:
            for envelope, row in zip(envelopes, rows, strict=True):
                await self.open(envelope.topic)
                await transaction.publish(
                    envelope.topic, row.value, key=row.key, headers=row.headers
                )
        self.published += len(envelopes)

    def publish_nowait(self, envelope: Envelope) -> None:
        """Hand an event over without waiting, from any thread; BufferFull at the bound."""
        topic = envelope.topic
        row = row_of(envelope, self._codec.encode(envelope.message))
        if topic not in self._open and self._leave_early(topic, envelope, row):
            self._open_soon(topic)
            return
        self._log.publish_nowait(topic, *row)
        self.published += 1

    def _leave_early(self, topic: str, envelope: Envelope, row: Row) -> bool:
        """Whether the topic is still not open, so that the event waits for that."""
        with self._lock:
            if topic in self._open:
                return False
            early = self._early.setdefault(topic, deque())
            if len(early) >= EARLY_MAX:
                raise full(envelope)
            early.append((envelope, row))
            return True

    # Opening

    async def open(self, topic: str) -> None:
        """Open a topic, and write what has waited for that. Cancelled, others go on with it."""
        if topic not in self._open:
            await asyncio.shield(self._start_opening(topic))

    def start(self) -> None:
        """The bus runs: open the topics whose events wait."""
        self.loop = asyncio.get_running_loop()
        for topic in list(self._early):
            self._open_soon(topic)

    def _open_soon(self, topic: str) -> None:
        try:
            on_loop = asyncio.get_running_loop() is (self.loop or asyncio.get_running_loop())
        except RuntimeError:
            on_loop = False
        if on_loop:
            self._start_opening(topic)
        elif self.loop is not None:
            self.loop.call_soon_threadsafe(self._start_opening, topic)

    def _start_opening(self, topic: str) -> asyncio.Task[None]:
        opening = self._opening.get(topic)
        if opening is None:
            loop = asyncio.get_running_loop()
            opening = self._opening[topic] = loop.create_task(self._open_topic(topic))
            opening.add_done_callback(lambda done: self._opened(topic, done))
        return opening

    async def _open_topic(self, topic: str) -> None:
        await self._log.create_topic(topic)
        while not self._is_open(topic):
            await self._write_first(topic)

    def _is_open(self, topic: str) -> bool:
        with self._lock:
            if self._early.get(topic):
                return False
            self._early.pop(topic, None)
            self._open.add(topic)
            return True

    async def _write_first(self, topic: str) -> None:
        try:
            self._log.publish_nowait(topic, *self._early[topic][0][1])
        except BufferFull:
            await self._log.flush()
            return
        with self._lock:
            self._early[topic].popleft()
        self.published += 1

    def _opened(self, topic: str, opening: asyncio.Task[None]) -> None:
        del self._opening[topic]
        if opening.cancelled() or opening.exception() is None:
            return
        logger.error("cannot open topic %s", topic, exc_info=opening.exception())
        if self._early.get(topic):
            again = asyncio.get_running_loop().create_task(self._open_again(topic))
            self._opening[topic] = again
            again.add_done_callback(lambda done: self._opened(topic, done))

    async def _open_again(self, topic: str) -> None:
        await self._sleep(AGAIN_SECONDS)
        await self._open_topic(topic)

    # Life

    @property
    def waiting(self) -> int:
        """Events that wait until their topic is open."""
        return sum(map(len, self._early.values()))

    async def flush(self) -> None:
        """Wait until all that was published is durable."""
        while self._opening:
            await asyncio.wait(list(self._opening.values()))
        await self._log.flush()

    async def close(self) -> list[Envelope]:
        """Write what waits, if that can be; what cannot is given back."""
        openings = list(self._opening.values())
        for opening in openings:
            opening.cancel()
        await asyncio.gather(*openings, return_exceptions=True)
        for topic in list(self._early):
            try:
                await self._open_topic(topic)
            except Exception:
                logger.exception("events of %s are not in the log", topic)
        return [envelope for early in self._early.values() for envelope, _ in early]
