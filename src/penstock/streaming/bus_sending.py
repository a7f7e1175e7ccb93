"""Events of a bus on their way to one topic of a transport: in order, many at a time.

Who waits for an event hears of a failure at once and decides. An event that nobody waits for is tried
again until the transport takes it, or the bus is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

from penstock.bus.timers import Timers
from penstock.errors import BufferFull, Closed, UsageError
from penstock.transports.base import Transport
from penstock.transports.records import Produced

logger = logging.getLogger("penstock.streaming")

BATCH_RECORDS_MAX = 1_000
AGAIN_SECONDS = 0.5
AGAIN_SECONDS_MAX = 10.0

OnProduced = Callable[[str, Produced], None]


class Sent(NamedTuple):
    """Where an event went; the transport does not tell it of an event among others."""

    topic: str
    partition: int | None
    offset: int | None
    durable: bool


@dataclass(slots=True, eq=False)
class Outgoing:
    """An event on its way."""

    value: bytes | None
    key: bytes | None
    headers: Mapping[str, bytes] | None
    sent: asyncio.Future[Sent] | None
    """Who waits for it; None: nobody."""

    @property
    def is_given_up(self) -> bool:
        """Whether somebody waited for it, and does no more."""
        return self.sent is not None and self.sent.done()


class TopicSender:
    """Sends the events of one topic. Belongs to its event loop, but for :meth:`add_nowait`."""

    def __init__(
        self,
        transport: Transport,
        topic: str,
        timers: Timers,
        records_max: int,
        on_produced: OnProduced,
    ) -> None:
        self._transport = transport
        self._topic = topic
        self._timers = timers
        self._records_max = records_max
        self._on_produced = on_produced
        self._waiting: deque[Outgoing] = deque()
        self._lock = Lock()
        self._loop = asyncio.get_running_loop()
        self._sending: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    # Taking

    def add_nowait(self, event: Outgoing) -> None:
        """Queue an event, from any thread; BufferFull at the bound."""
        with self._lock:
            if self._closed:
                raise Closed(f"{self._topic}: the bus is closed", topic=self._topic)
            if len(self._waiting) >= self._records_max:
                raise BufferFull(
                    f"{self._topic}: {self._records_max} events wait for the transport "
                    f"{self._transport.name!r}: await publish, or publish less",
                    topic=self._topic,
                )
            self._waiting.append(event)
        if self._sending is None:
            self._loop.call_soon_threadsafe(self._start)

    async def add(self, event: Outgoing) -> None:
        """Queue an event; waits for room."""
        while True:
            try:
                self.add_nowait(event)
                return
            except BufferFull:
                await self._wait_for_progress()

    async def flush(self) -> None:
        """Wait until nothing waits."""
        while self._waiting or self._sending is not None:
            await self._wait_for_progress()

    async def _wait_for_progress(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    # Sending

    def _start(self) -> None:
        if self._sending is None and self._waiting:
            self._sending = self._loop.create_task(self._send_all())

    async def _send_all(self) -> None:
        seconds = AGAIN_SECONDS
        try:
            while self._waiting:
                if await self._send_some(self._take()):
                    seconds = AGAIN_SECONDS
                else:
                    await self._timers.sleep(seconds)
                    seconds = min(2 * seconds, AGAIN_SECONDS_MAX)
                self._moved.set()
        finally:
            self._sending = None
            self._moved.set()
            if not self._closed:
                self._start()

    def _take(self) -> list[Outgoing]:
        with self._lock:
            count = min(len(self._waiting), BATCH_RECORDS_MAX)
            taken = [self._waiting.popleft() for _ in range(count)]
        return [event for event in taken if not event.is_given_up]

    def _give_back(self, events: list[Outgoing]) -> None:
        with self._lock:
            self._waiting.extendleft(reversed(events))

    async def _send_some(self, events: list[Outgoing]) -> bool:
        """Whether the transport took them, or will never."""
        if not events:
            return True
        try:
            produced = await self._produce(events)
        except UsageError as error:
            await self._blame(events, error)
        except asyncio.CancelledError:
            self._give_back(events)
            raise
        except Exception as error:
            return self._failed(events, error)
        else:
            self._succeeded(events, produced)
        return True

    async def _produce(self, events: list[Outgoing]) -> Produced:
        return await self._transport.produce(
            self._topic,
            [event.value for event in events],
            keys=[event.key for event in events],
            headers=[event.headers for event in events],
        )

    async def _blame(self, events: list[Outgoing], error: UsageError) -> None:
        """Nothing was sent, and one of them is to blame: the others must not suffer for it."""
        if len(events) > 1:
            for event in events:
                await self._send_some([event])
        elif (sent := events[0].sent) is None:
            logger.error("an event of %s is refused, and lost: %s", self._topic, error)
        elif not sent.done():
            sent.set_exception(error)

    def _failed(self, events: list[Outgoing], error: Exception) -> bool:
        kept = [event for event in events if event.sent is None]
        for event in events:
            if event.sent is not None and not event.sent.done():
                event.sent.set_exception(error)
        if kept:
            logger.warning("%s: %d events wait for another try: %s", self._topic, len(kept), error)
            self._give_back(kept)
        return not kept

    def _succeeded(self, events: list[Outgoing], produced: Produced) -> None:
        self._on_produced(self._topic, produced)
        place: tuple[int | None, int | None] = (None, None)
        if len(events) == 1 and len(produced.ranges) == 1:
            [(partition, (first, _))] = produced.ranges.items()
            place = (partition, first)
        for event in events:
            if event.sent is not None and not event.sent.done():
                event.sent.set_result(Sent(self._topic, *place, produced.durable))

    # Life

    async def close(self) -> int:
        """Take no more, and send no more; how many events were not sent."""
        with self._lock:
            self._closed = True
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        left, self._waiting = list(self._waiting), deque()
        for event in left:
            if event.sent is not None and not event.sent.done():
                event.sent.set_exception(Closed(f"{self._topic}: closed before this was sent"))
        return sum(event.sent is None for event in left)
