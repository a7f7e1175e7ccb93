"""The hot path: a lane whose queue is a ring, with the ordinary queue behind it.

A message goes into the ring as it is, without an envelope; one is made when somebody needs it: a
second handler, a filter, middleware, a failure. With one plain handler the messages of a turn are
handled straight from the ring. When the ring is full, messages go to the queue behind it, and so do
all that follow until that queue is empty: nothing is lost, and nothing overtakes.

Priorities do not count on the hot path: the ring keeps the order in which messages came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from inspect import isawaitable
from types import CoroutineType
from typing import Any

from penstock.bus.dispatch import Dispatch
from penstock.bus.drive import current
from penstock.bus.handlers import Handler
from penstock.bus.lane import TURN_EVENTS, Lane
from penstock.bus.queue import BoundedEventQueue, EventQueueStatistics
from penstock.messages import Envelope
from penstock.resilience.guard import HandlerGuard
from penstock.scaling.ring import RING_CAPACITY, Ring

Enclose = Callable[[Any], Envelope]


class RingQueue(BoundedEventQueue):
    """A ring in front, a bounded queue behind it. ``depth`` is that of the queue behind."""

    __slots__ = ("_at", "_batch", "_enclose", "consumer", "fallbacks", "ring")

    def __init__(
        self, enclose: Enclose, ring_capacity: int = RING_CAPACITY, **options: Any
    ) -> None:
        super().__init__(**options)
        self.ring: Ring[Any] = Ring(ring_capacity)
        self.consumer = self.ring.consumer("bus")
        self.fallbacks = 0
        """Messages that found the ring full, or others waiting behind it."""
        self._enclose = enclose
        self._batch: list[Any] = []
        self._at = 0

    @property
    def in_ring(self) -> int:
        """Messages in the ring, and those that were taken out and have not begun."""
        passed = self.consumer.stage.sequence.value
        return self.ring.value - passed + len(self._batch) - self._at

    def __len__(self) -> int:
        return self.in_ring + self.depth

    def put(self, message: Any) -> bool:
        """Take a message without an envelope; False when ring and queue are full."""
        if not self.depth and self.ring.try_publish(message):
            return True
        return self._fall_back(self._enclose(message), 0)

    def offer(self, envelope: Envelope, extra: int = 0) -> bool:
        if not self.depth and self.ring.try_publish(envelope):
            return True
        return self._fall_back(envelope, extra)

    def _fall_back(self, envelope: Envelope, extra: int) -> bool:
        taken = super().offer(envelope, extra)
        self.fallbacks += taken
        return taken

    def take(self) -> Envelope | None:
        if self._at >= len(self._batch) and not self._refill():
            return super().take()
        item = self._batch[self._at]
        self._at += 1
        return item if type(item) is Envelope else self._enclose(item)

    def take_batch(self, limit: int) -> list[Any]:
        """The next messages of the ring, with or without envelopes; empty when the ring is."""
        if self._at >= len(self._batch):
            return self.consumer.drain(limit)
        batch, self._batch, self._at = self._batch[self._at :], [], 0
        return batch

    def put_back(self, items: list[Any]) -> None:
        """Messages that were taken as a batch come first again."""
        self._batch, self._at = items + self._batch[self._at :], 0

    def _refill(self) -> bool:
        self._batch, self._at = self.consumer.drain(TURN_EVENTS), 0
        return bool(self._batch)

    def has_room_for(self, count: int, extra: int = 0) -> bool:
        return super().has_room_for(count, extra) or self.ring.room() >= count

    def statistics(self) -> EventQueueStatistics:
        behind = super().statistics()
        return EventQueueStatistics(
            depth=len(self),
            capacity=behind.capacity + self.ring.capacity,
            peak_depth=behind.peak_depth,
            dropped=behind.dropped,
            rejected=behind.rejected,
            under_pressure=behind.under_pressure,
            pressure_starts=behind.pressure_starts,
        )


class HotLane(Lane):
    """The lane of a hot topic."""

    queue: RingQueue

    def __init__(self, kind: type, queue: RingQueue, dispatch: Dispatch, enclose: Enclose) -> None:
        super().__init__(kind, queue, dispatch)
        self._enclose = enclose
        dispatch.uncounted.append(self.uncounted)

    def uncounted(self) -> int:
        """Messages in the ring that the books of the bus do not have yet."""
        return self.queue.in_ring

    def put(self, message: Any) -> bool:
        """The shortest way in; False when ring and queue are full."""
        if not self.queue.put(message):
            return False
        if self.pumps == self.suspended:
            self.wake()
        return True

    async def _run_plain(self, handler: Handler) -> bool:
        registry, version = self.dispatch.registry, self.dispatch.registry.version
        before = copy_context()
        while registry.version == version and self.running and not self._ready:
            batch = self.queue.take_batch(TURN_EVENTS) if _is_simple(handler) else []
            if not batch:
                return await super()._run_plain(handler)
            await self._handle_batch(batch, handler, version)
            if copy_context() != before:
                return False
            await self._end_turn()
        return True

    async def _handle_batch(self, batch: list[Any], handler: Handler, version: int) -> None:
        """Handle messages of the ring one by one; those without an envelope enter the books here.

        What handlers set in the context lasts for the batch, which has one envelope: that is what
        messages follow from that a handler publishes.
        """
        function, registry = handler.function, self.dispatch.registry
        turn = self._enclose(None)
        token = current.set(turn)
        good = done = 0
        try:
            for message in batch:
                if registry.version != version:
                    break
                if type(message) is Envelope:
                    await self._handle_enclosed(message)
                else:
                    try:
                        result = function(message)
                        if type(result) is CoroutineType or (result is not None and isawaitable(result)):
                            await result
                        good += 1
                    except (Exception, asyncio.CancelledError) as error:
                        if not self._go_on_after(handler, message, error):
                            done += 1
                            break
                done += 1
        finally:
            turn.settled = True
            current.reset(token)
            self._note_good(handler, good)
            if done < len(batch):
                self.queue.put_back(batch[done:])
        self.dispatch.wake_idle()

    async def _handle_enclosed(self, envelope: Envelope) -> None:
        rest = self.dispatch.begin(envelope)
        if rest is not None:
            await self._wait(envelope, rest)

    def _go_on_after(self, handler: Handler, message: Any, error: BaseException) -> bool:
        """Note a failure; False when the handler is not to be called without being asked about."""
        self.dispatch.accept()
        envelope = self._enclose(message)
        if handler.guard is not None:
            handler.guard.admits(envelope)  # the breaker hears of calls that it was asked about
        self._failed(handler, envelope, error)
        self.dispatch.release(envelope)
        return _is_simple(handler)

    def _note_good(self, handler: Handler, count: int) -> None:
        counters = self.dispatch.counters
        counters.published += count
        counters.processed += count
        handler.handled += count
        if isinstance(handler.guard, HandlerGuard) and handler.guard.breaker is not None:
            handler.guard.breaker.passed(count)


def _is_simple(handler: Handler) -> bool:
    """Whether nothing but a closed breaker stands in front of the handler."""
    guard = handler.guard
    if guard is None:
        return True
    if not isinstance(guard, HandlerGuard):
        return False
    policy = guard.policy
    return not (policy.ordered or policy.pause or policy.ordered_dead_letters) and guard.is_clear
