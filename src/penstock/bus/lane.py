"""A lane: the queue of one message class, and the pump that empties it.

A slow class delays nobody else, because every class has a lane of its own. A pump is a task that
exists while there is something to do: ten thousand idle lanes cost no task.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable

from penstock.bus.delivery import delivery_of
from penstock.bus.dispatch import Dispatch
from penstock.bus.queue import BoundedEventQueue
from penstock.messages import DEFAULT_SESSION, Envelope, key_reader

TURN_EVENTS = 100
"""How many events a pump handles before it lets others use the loop."""


class Lane:
    """Events of one class, handled in order; at most ``concurrency`` of them at once.

    With more than one at once, events of one key still stay in order.
    """

    def __init__(self, kind: type, queue: BoundedEventQueue, dispatch: Dispatch) -> None:
        self.kind = kind
        self.queue = queue
        self.dispatch = dispatch
        self.concurrency = 1
        self.running = False
        self.pumps = 0
        self.suspended = 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._key = key_reader(kind)
        self._busy: dict[object, deque[Envelope]] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is queued and nothing is in work."""
        return not self.pumps and not len(self.queue)

    def wake(self) -> None:
        """Make sure that somebody handles what is queued."""
        if self.pumps != self.suspended or not self.running:
            return
        plan = self.dispatch.registry.plan(self.kind, DEFAULT_SESSION)
        self.concurrency = plan.concurrency
        if self.pumps < self.concurrency:
            self.pumps += 1
            self.dispatch.spawn(self._pump())

    async def wait_for_room(self) -> None:
        """Return when the queue may have room; who comes first is woken first."""
        waiter = asyncio.get_running_loop().create_future()
        self._room.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.make_room()  # pass on a turn that came too late for us
            raise

    def begin_in_place(self, envelope: Envelope) -> Awaitable[None] | None:
        """Handle an event in the calling task; only while the lane is idle."""
        self.pumps += 1
        rest = self.dispatch.begin(envelope)
        if rest is None and not self.dispatch.open_batches:
            self._leave()
            return None
        return self._go_on_in_place(envelope, rest)

    async def _go_on_in_place(self, envelope: Envelope, rest: Awaitable[None] | None) -> None:
        try:
            if rest is not None:
                await self._wait(envelope, rest)
            await self.dispatch.flush_batches()
        finally:
            self._leave()

    async def _pump(self) -> None:
        handled = 0
        begin = self.dispatch.begin
        take = self.queue.take if self._key is None or self.concurrency == 1 else self._take
        try:
            while (envelope := take()) is not None:
                rest = begin(envelope)
                if rest is not None:
                    await self._wait(envelope, rest)
                if self._busy:
                    await self._free(envelope)
                handled += 1
                if handled % TURN_EVENTS == 0:
                    self.make_room()
                    await asyncio.sleep(0)
                if not len(self.queue) and self.dispatch.open_batches:
                    await self.dispatch.flush_batches()
        finally:
            self._leave()

    def _take(self) -> Envelope | None:
        while (envelope := self.queue.take()) is not None:
            if self._claim(envelope):
                return envelope
        return None

    async def _handle(self, envelope: Envelope) -> None:
        rest = self.dispatch.begin(envelope)
        if rest is not None:
            await self._wait(envelope, rest)

    async def _wait(self, envelope: Envelope, rest: Awaitable[None]) -> None:
        self.suspended += 1
        if len(self.queue):
            self.wake()
        try:
            await rest
        except asyncio.CancelledError:
            self._put_back(envelope)
            raise
        finally:
            self.suspended -= 1

    def _leave(self) -> None:
        self.pumps -= 1
        self.make_room()
        if len(self.queue):
            self.wake()

    def _put_back(self, envelope: Envelope) -> None:
        """Keep an event whose handler was cancelled: it is handled again, or reported by stop."""
        delivery_of(envelope)  # so that handlers which are done with it are not called again
        self.queue.offer(envelope, extra=self.pumps)

    # Order of keys

    def _claim(self, envelope: Envelope) -> bool:
        """Whether no other event of its key is in work; else it waits behind that one."""
        key = envelope.key
        waiting = self._busy.get(key)
        if waiting is None:
            self._busy[key] = deque()
            return True
        waiting.append(envelope)
        self.queue.held += 1
        return False

    async def _free(self, envelope: Envelope) -> None:
        """An event of a key is done: handle those that wait behind it."""
        key = envelope.key
        waiting = self._busy.get(key)
        while waiting:
            self.queue.held -= 1
            await self._handle(waiting.popleft())
        self._busy.pop(key, None)

    # Room

    def make_room(self) -> None:
        """Wake as many who wait for room as there is room for."""
        room = self.queue.room
        while self._room and room > 0:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                room -= 1
