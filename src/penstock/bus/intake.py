"""How messages come in: envelopes, lanes, waiting for room, and other threads."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import get_ident
from typing import Any

from penstock.bus.delivery import Outcome, delivery_of
from penstock.bus.dispatch import Dispatch
from penstock.bus.drive import current
from penstock.bus.handlers import Filter
from penstock.bus.lane import Lane
from penstock.bus.queue import (
    HIGH_MARK,
    LOW_MARK,
    QUEUE_MAX,
    BoundedEventQueue,
    Overflow,
    check_bounds,
)
from penstock.bus.timers import Timers
from penstock.errors import BufferFull, Closed, InvalidOption
from penstock.messages import (
    DEFAULT_SESSION,
    NO_HEADERS,
    NORMAL,
    Envelope,
    Priority,
    check_type,
    marks_of,
)
from penstock.system import System

PUBLISH_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """The bound of every lane's queue, and what happens there."""

    capacity: int = QUEUE_MAX
    overflow: Overflow = Overflow.WAIT
    high_mark: float = HIGH_MARK
    low_mark: float = LOW_MARK

    def __post_init__(self) -> None:
        check_bounds(self.capacity, self.high_mark, self.low_mark)


PressureCallback = Callable[[str, bool], None]
"""Called with a topic, and whether pressure began or ended there."""


class Intake:
    """Takes messages for one bus. Everything but :meth:`post` belongs to the bus's loop."""

    def __init__(
        self, dispatch: Dispatch, timers: Timers, options: QueueOptions, system: System
    ) -> None:
        self.dispatch = dispatch
        self.timers = timers
        self.options = options
        self.lanes: dict[type, Lane] = {}
        self.filters: list[Filter] = []
        self.on_pressure: PressureCallback | None = None
        self.origin = f"{system.random.getrandbits(64):016x}"
        self.refusal: Closed | None = None
        self._now_ms = system.clock.time_ms
        self._sequence = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._inbox: deque[Envelope] = deque()
        self._inbox_seen = True

    # Life

    def start(self) -> None:
        """Let the lanes run on the running loop, with what was queued before."""
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        for lane in self.lanes.values():
            lane.running = True
            lane.wake()

    def stop(self) -> list[Envelope]:
        """Stop the lanes and give back what is still queued."""
        self._empty_inbox()
        for lane in self.lanes.values():
            lane.running = False
        return [envelope for lane in self.lanes.values() for envelope in lane.queue.drain()]

    # Envelopes

    def enclose(
        self,
        message: Any,
        session: str = DEFAULT_SESSION,
        priority: int = NORMAL,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
    ) -> Envelope:
        """Put a message into an envelope; one that a handler publishes follows from its own."""
        if priority is not NORMAL:
            priority = check_priority(priority)
        cause = current.get()
        if cause is None and headers is None and correlation_id is None:
            return Envelope(
                message, next(self._sequence), self._now_ms(), self.origin, session, priority
            )
        return Envelope(
            message,
            next(self._sequence),
            self._now_ms(),
            self.origin,
            session,
            priority,
            headers or NO_HEADERS,
            correlation_id or (cause.correlation if cause is not None else None),
            cause.id if cause is not None else None,
        )

    def is_nested(self) -> bool:
        """Whether a handler of this bus calls, which must not wait for its own lane."""
        cause = current.get()
        return cause is not None and cause.origin == self.origin and not cause.settled

    # Queueing

    def lane(self, kind: type) -> Lane:
        """The lane of a class."""
        lane = self.lanes.get(kind)
        return lane if lane is not None else self._open_lane(kind)

    def offer(self, envelope: Envelope, extra: int = 0) -> bool:
        """Queue the event if there is room; what a filter refuses counts as taken."""
        if self.refusal is not None and not self.is_nested():
            raise self.refusal.again()
        if self.filters and not self._accepts(envelope):
            return True
        kind = envelope.message.__class__
        lane = self.lanes.get(kind) or self._open_lane(kind)
        if not lane.queue.offer(envelope, extra):
            return False
        self.dispatch.accept()
        if lane.pumps == lane.suspended:
            lane.wake()
        return True

    def _accepts(self, envelope: Envelope) -> bool:
        if all(accepts(envelope) for accepts in self.filters):
            return True
        self.dispatch.accept()
        delivery_of(envelope).filtered = True
        self.dispatch.release(envelope)
        return False

    def offer_unless_crowded(self, envelope: Envelope) -> bool:
        """Queue the event if ``publish`` need not wait for that."""
        lane = self.lane(envelope.message.__class__)
        return lane.queue.room > 0 and self.offer(envelope)

    async def admit(self, envelope: Envelope, timeout: float) -> None:
        """Queue the event, waiting for room if that is the policy.

        A handler of this bus never waits for room, which might be its own to make: it may fill
        the queue to twice its bound, and gets BufferFull beyond.
        """
        lane = self.lane(envelope.message.__class__)
        if lane.queue.overflow in WAITING and lane.queue.room < 1 and not self.is_nested():
            async with self.timers.deadline(timeout, f"queue an event of {envelope.topic}"):
                await self._wait_for_room(lane)
        self.admit_nowait(envelope)

    async def _wait_for_room(self, lane: Lane) -> None:
        while lane.queue.room < 1:
            await lane.wait_for_room()
            if self.refusal is not None:
                raise self.refusal.again()

    def admit_nowait(self, envelope: Envelope) -> None:
        """Queue the event now, or raise BufferFull. On the loop of the bus."""
        if self.offer(envelope):
            return
        if not self.is_nested() or not self.offer(envelope, extra=self.options.capacity):
            raise full(envelope)

    # Other threads

    def post(self, envelope: Envelope) -> None:
        """Queue the event from any thread."""
        if self._thread is None or get_ident() == self._thread:
            self.admit_nowait(envelope)
            return
        if self.refusal is not None:
            raise self.refusal.again()
        if len(self._inbox) >= self.options.capacity:
            raise full(envelope)
        self._inbox.append(envelope)
        if self._inbox_seen:
            # One wake-up for all that come until the loop looks.
            self._inbox_seen = False
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._empty_inbox)

    def _empty_inbox(self) -> None:
        self._inbox_seen = True
        while self._inbox:
            # They were accepted already: the inbox has a bound of its own.
            self.offer(self._inbox.popleft(), extra=self.options.capacity)

    def _open_lane(self, kind: type) -> Lane:
        check_type(kind)
        topic = marks_of(kind).topic
        queue = BoundedEventQueue(
            self.options.capacity,
            overflow=self.options.overflow,
            high_mark=self.options.high_mark,
            low_mark=self.options.low_mark,
            on_pressure=lambda started: self._tell_pressure(topic, started=started),
            on_drop=self.dispatch.drop,
        )
        lane = self.lanes[kind] = Lane(kind, queue, self.dispatch)
        lane.running = self._loop is not None and self.refusal is None
        return lane

    def _tell_pressure(self, topic: str, *, started: bool) -> None:
        if self.on_pressure is not None:
            self.on_pressure(topic, started)


WAITING = (Overflow.WAIT, Overflow.ADAPTIVE_RATE_LIMIT)


def full(envelope: Envelope) -> BufferFull:
    """The error for an event that found no room."""
    return BufferFull(
        f"the queue of {envelope.topic} is full: publish() waits for room, a faster handler or a "
        "larger queue makes some. Nothing was queued",
        topic=envelope.topic,
    )


def check_priority(priority: int) -> Priority:
    """The level of that number; refuse one that is none."""
    try:
        return Priority(priority)
    except ValueError:
        levels = ", ".join(f"{level.name} ({level.value})" for level in Priority)
        raise InvalidOption(
            f"{priority!r} is not a priority: use {levels}", option="priority"
        ) from None


async def wait_for_outcome(envelope: Envelope) -> Outcome:
    """Wait until all handlers are done with an event."""
    if not envelope.settled:
        waiter: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        delivery_of(envelope).waiters.append(waiter)
        return await waiter
    return delivery_of(envelope).outcome()
