"""How messages come in: envelopes, lanes, waiting for room, and other threads."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from threading import Lock, get_ident
from typing import Any, Protocol

from penstock.bus.cells import IntakeCells, opened
from penstock.bus.delivery import ONE_DONE, Delivery, Failure, Outcome, delivery_of
from penstock.bus.dispatch import Dispatch
from penstock.bus.drive import current, current_envelope, nothing, wait_for
from penstock.bus.event_log import EventRecorder
from penstock.bus.handlers import Filter
from penstock.bus.lane import Lane
from penstock.bus.log_fields import fields_of
from penstock.bus.queue import (
    HIGH_MARK,
    LOW_MARK,
    QUEUE_MAX,
    WAITING,
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
from penstock.system import OsClock, System

logger = logging.getLogger("penstock.bus")

PUBLISH_TIMEOUT_SECONDS = 30.0
NO_BOUND = 1 << 62
FILTER = "filter"
"""Stands for the handler where a filter or a limit of the bus kept an event out."""


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


class Spread(Protocol):
    """Several lanes for one class, as the partitions of a topic are."""

    def lane_of(self, envelope: Envelope) -> Lane:
        """The lane of an event; the same whenever it is asked."""
        ...

    def lanes(self) -> Iterable[Lane]:
        """All of its lanes."""
        ...


class Intake(IntakeCells):
    """Takes messages for one bus. Everything but :meth:`post` belongs to the bus's loop."""

    def __init__(
        self, dispatch: Dispatch, timers: Timers, options: QueueOptions, system: System
    ) -> None:
        super().__init__()
        self.done = ONE_DONE
        self.dispatch = dispatch
        self.timers = timers
        self.options = options
        self.lanes: dict[type, Lane] = {}
        self.spreads: dict[type, Spread] = {}
        """Classes that have several lanes instead of one."""
        self.filters: list[Filter] = []
        self.pressure_callbacks: list[PressureCallback] = []
        self.make_lane: Callable[[type], Lane] = self.make_plain_lane
        """Makes the lane of a class that comes for the first time; may refuse it."""
        self.origin = f"{system.random.getrandbits(64):016x}"
        self.refusal: Closed | None = None
        self.stamp: Callable[[Any], Mapping[str, str]] | None = None
        """Gives headers to every message that is published, as tracing does."""
        self.recorder: EventRecorder | None = None
        """Keeps every event that is queued, when the bus has an event log."""
        self.elsewhere: Callable[[Envelope], bool] | None = None
        """Takes events of other threads that are not for a lane, as those of a durable topic."""
        self.on_unpublished: Callable[[int], object] = lambda _: None
        """Told how many events came that nobody has just published on the loop of the bus."""
        self.now_ms = system.clock.time_ms
        self.real_time = type(system.clock) is OsClock
        self._loop: asyncio.AbstractEventLoop | None = None
        self.thread: int | None = None
        self.thread_here = 0
        """The same for the twin, and 0 while there is none."""
        self.running = False
        self._closed = False
        self._lock = Lock()
        self._inbox: deque[Envelope] = deque()
        self._inbox_seen = True
        self._let_in()

    def _let_in(self) -> None:
        """What the twin looks at before it takes an event in, beside what stands here."""
        dispatch = self.dispatch
        dispatch.intake = self
        self.current, self.wait_for = current, wait_for
        self.changes = dispatch.registry.changes
        self.counters = dispatch.counters
        self.middleware = dispatch.middleware
        self.open_batches = dispatch.open_batches
        self.idle_waiters = dispatch.idle_waiters

    # Life

    def start(self) -> None:
        """Let the lanes run on the running loop, with what was queued before."""
        with self._lock:
            self._loop = self.dispatch.loop = asyncio.get_running_loop()
            self.thread = self.thread_here = get_ident()
        self.dispatch.context = copy_context()
        self.running = True
        for lane in self.all_lanes():
            lane.running = True
            lane.wake()

    def halt(self) -> None:
        """Begin no more event; those that are in work go on."""
        self.running = False
        for lane in self.all_lanes():
            lane.running = False

    def stop(self) -> list[Envelope]:
        """Take nothing more, from nobody, and give back what is not handled, oldest first."""
        with self._lock:
            self._closed = True
        self.empty_inbox()
        left = self.dispatch.drain_batches()
        for lane in self.all_lanes():
            left += lane.drain()
        # An event may wait in a batch and, interrupted, in its lane.
        return sorted({one.sequence: one for one in left}.values(), key=lambda one: one.sequence)

    # Envelopes

    def enclose(
        self,
        message: Any,
        session: str = DEFAULT_SESSION,
        priority: int = NORMAL,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        kind: type[Envelope] = Envelope,
    ) -> Envelope:
        """Put a message into an envelope; one that a handler publishes follows from its own."""
        if self.stamp is not None:
            headers = {**self.stamp(message), **(headers or {})}
        if priority is not NORMAL:
            priority = check_priority(priority)
        cause = current.get()
        if cause is None and headers is None and correlation_id is None:
            return kind(message, self.next_number(), self.now_ms(), self.origin, session, priority)
        cause = None if cause is None else opened(cause)
        return Envelope(
            message,
            self.next_number(),
            self.now_ms(),
            self.origin,
            session,
            priority,
            headers or NO_HEADERS,
            correlation_id or (cause.correlation if cause is not None else None),
            cause.id if cause is not None else None,
        )

    def enclose_again(
        self, message: Any, session: str = DEFAULT_SESSION, priority: int = NORMAL
    ) -> Envelope:
        """An envelope for a message that was published before: observers have seen it, and marked it."""
        return Envelope(message, self.next_number(), self.now_ms(), self.origin, session, priority)

    def is_nested(self) -> bool:
        """Whether a handler of this bus calls, which must not wait for its own lane."""
        cause = current_envelope()
        return cause is not None and cause.origin == self.origin and not is_settled(cause)

    # Queueing

    def lane(self, kind: type) -> Lane:
        """The lane of a class."""
        lane = self.lanes.get(kind)
        return lane if lane is not None else self._open_lane(kind)

    def lane_of(self, envelope: Envelope) -> Lane:
        """The lane of an event: that of its class, or one of several, chosen once."""
        lane: Lane | None = envelope.lane
        if lane is not None:
            return lane
        kind = envelope.message.__class__
        lane = self.lanes.get(kind)
        if lane is None and kind not in self.spreads:
            lane = self._open_lane(kind)
        return self.spreads[kind].lane_of(envelope) if lane is None else lane

    def all_lanes(self) -> Iterator[Lane]:
        """Every lane of every class."""
        yield from self.lanes.values()
        for spread in self.spreads.values():
            yield from spread.lanes()

    def check_open(self) -> None:
        """Raise Closed when the bus takes no more; while it drains, handlers still may publish."""
        if self.refusal is not None and (self._closed or not self.is_nested()):
            raise self.refusal.again()

    def passes(self, envelope: Envelope) -> bool:
        """Whether the filters of the bus let the event in."""
        return all(accepts(envelope) for accepts in self.filters)

    def settle_filtered(self, envelope: Envelope) -> None:
        """Count an event that the filters did not let in."""
        self.dispatch.accept()
        delivery_of(envelope).filtered = True
        self.dispatch.release(envelope)

    def accepts(self, envelope: Envelope) -> bool:
        """Whether the event goes on; the filters are asked, and one they refuse is settled."""
        if self.filters and not self.passes(envelope):
            self.settle_filtered(envelope)
            return False
        return True

    def offer(self, envelope: Envelope, extra: int = 0) -> bool:
        """Queue an event that the bus makes, if there is room; what a filter refuses counts as taken."""
        self.check_open()
        self.on_unpublished(1)
        return not self.accepts(envelope) or self._offer(envelope, extra)

    def _offer(self, envelope: Envelope, extra: int = 0) -> bool:
        """Queue the event if there is room."""
        lane = self.lane_of(envelope)
        if not lane.queue.offer(envelope, extra):
            return False
        self.dispatch.accept()
        if self.recorder is not None:
            self.recorder.note(envelope)
        if lane.pumps == lane.suspended:
            lane.wake()
        return True

    def try_now(self, envelope: Envelope) -> bool:
        """The short way in, when nothing is in it; False leaves everything to the long one."""
        lane = self.lanes.get(envelope.message.__class__)
        if lane is None or self.refusal is not None or self.filters:
            return False
        queue = lane.queue
        if queue.depth + queue.held >= queue.bound or not queue.offer(envelope):
            return False
        dispatch = self.dispatch
        dispatch.counters.published += 1
        dispatch.counters.unsettled += 1
        if self.recorder is not None:
            self.recorder.note(envelope)
        if lane.pumps == lane.suspended:
            lane.wake()
        return True

    async def admit(self, envelope: Envelope, timeout: float) -> None:
        """Queue the event, waiting for room if that is the policy.

        A handler of this bus never waits for room, which might be its own to make: it may fill
        the queue to twice its bound, and gets BufferFull beyond.
        """
        self.check_open()
        if not self.accepts(envelope):
            return
        lane = self.lane_of(envelope)
        if lane.queue.overflow in WAITING and lane.queue.room < 1 and not self.is_nested():
            async with self.timers.deadline(timeout, f"queue an event of {envelope.topic}"):
                await self.wait_for_room(envelope)
        self.queue(envelope)

    async def wait_for_room(self, envelope: Envelope) -> None:
        """Wait until the lane of an event has room, whichever that is by then."""
        while (lane := self.lane_of(envelope)).queue.room < 1:
            await lane.wait_for_room()
            self.check_open()
            if lane.retired:
                envelope.lane = None

    def admit_nowait(self, envelope: Envelope) -> None:
        """Queue an event that comes again, or raise BufferFull. On the loop of the bus."""
        self._admit_nowait(envelope)
        self.on_unpublished(1)

    def _admit_nowait(self, envelope: Envelope) -> None:
        self.check_open()
        if self.accepts(envelope):
            self.queue(envelope)

    def queue(self, envelope: Envelope) -> None:
        """Queue an event that has passed the filters, or raise BufferFull."""
        if self._offer(envelope):
            return
        if not self.is_nested() or not self._offer(envelope, self.options.capacity):
            raise full(envelope)

    def begin_in_place(self, envelope: Envelope) -> Awaitable[None] | None:
        """Run the handlers in the calling task, if nothing is before them; what is left of that.

        None when the event is settled already, or has to be queued.
        """
        if self.refusal is not None:
            self.check_open()
        lane = self.lanes.get(envelope.message.__class__) or self.lane_of(envelope)
        if not self.running or not (lane.idle or self.is_nested()):
            return None
        if self.filters and not self.accepts(envelope):
            return None
        dispatch = self.dispatch
        dispatch.counters.published += 1
        dispatch.counters.unsettled += 1
        if self.recorder is not None:
            self.recorder.note(envelope)
        return lane.begin_in_place(envelope) or (None if envelope.settled else nothing())

    # Events that are in the log

    async def wait_for_admission(self, envelope: Envelope) -> bool:
        """Wait for room for an event that is going to be delivered; False when it is filtered."""
        self.check_open()
        if not self.accepts(envelope):
            return False
        lane = self.lane_of(envelope)
        if lane.queue.room < 1 and not self.is_nested():
            if lane.queue.overflow is Overflow.REJECT_NEW:
                raise full(envelope)
            if lane.queue.overflow in WAITING:
                await self.wait_for_room(envelope)
        return True

    def deliver(self, envelope: Envelope) -> None:
        """Queue an event that is in the log already, above the bound if need be."""
        self.dispatch.accept()
        self.put_back(envelope)

    def put_back(self, envelope: Envelope) -> None:
        """Queue an event that was counted before."""
        lane = self.lane_of(envelope)
        lane.queue.offer(envelope, NO_BOUND)
        self.on_unpublished(1)
        lane.wake()

    # Other threads

    def post(self, envelope: Envelope) -> None:
        """Queue the event from any thread."""
        if self.thread == get_ident():
            self._admit_nowait(envelope)
            return
        check_type(envelope.message.__class__)
        with self._lock:
            if self.thread is None:
                self.admit_nowait(envelope)  # nothing runs yet: the lock is all that is needed
            else:
                self._put_into_inbox(envelope)

    def _put_into_inbox(self, envelope: Envelope) -> None:
        self.check_open()
        if len(self._inbox) >= self.options.capacity or self._is_crowded(envelope):
            raise full(envelope)
        if self._inbox_seen:
            # One wake-up for all that come until the loop looks.
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self.empty_inbox)
            self._inbox_seen = False
        self._inbox.append(envelope)

    def _is_crowded(self, envelope: Envelope) -> bool:
        if envelope.message.__class__ in self.spreads:
            return False  # its lane is chosen on the loop, where the inbox is emptied
        lane = self.lanes.get(envelope.message.__class__)
        return (
            lane is not None
            and lane.queue.room < 1
            and lane.queue.overflow is not Overflow.DROP_OLDEST
        )

    def empty_inbox(self) -> None:
        """Queue what came from other threads. On the loop of the bus."""
        with self._lock:
            arrived, self._inbox = self._inbox, deque()
            self._inbox_seen = True
        for envelope in arrived:
            self._take_in(envelope)
        self.on_unpublished(len(arrived))

    def _take_in(self, envelope: Envelope) -> None:
        """Queue an event that was accepted: nobody is there to hear that it found no room."""
        try:
            if self.accepts(envelope) and not (self.elsewhere and self.elsewhere(envelope)):
                self._find_room(envelope)
        except Exception as error:
            self._fail(envelope, error)

    def _find_room(self, envelope: Envelope) -> None:
        # It found room when it came. Others may have filled the queue since, handlers even to
        # twice its bound, and the inbox holds as much again.
        if not self._offer(envelope) and not self._offer(envelope, 2 * self.options.capacity):
            self.dispatch.accept()
            self.dispatch.drop(envelope)

    def _fail(self, envelope: Envelope, error: Exception) -> None:
        logger.error("%s was not let in", envelope.topic, exc_info=error, extra=fields_of(envelope))
        self.dispatch.accept()
        delivery_of(envelope).failures.append(Failure(FILTER, error))
        self.dispatch.release(envelope)

    # Lanes

    def _open_lane(self, kind: type) -> Lane:
        check_type(kind)
        lane = self.lanes[kind] = self.make_lane(kind)
        lane.running = self.running
        return lane

    def make_plain_lane(self, kind: type) -> Lane:
        """A lane with a queue."""
        return Lane(kind, self.make_queue(marks_of(kind).topic), self.dispatch)

    def make_queue(self, topic: str) -> BoundedEventQueue:
        """A queue with the options of the bus."""
        return BoundedEventQueue(
            self.options.capacity,
            overflow=self.options.overflow,
            high_mark=self.options.high_mark,
            low_mark=self.options.low_mark,
            on_pressure=partial(self.tell_pressure, topic),
            on_drop=self.dispatch.drop,
        )

    def tell_pressure(self, topic: str, started: bool) -> None:
        """A queue of a topic has passed its high mark, or is back at its low one."""
        for callback in self.pressure_callbacks:
            callback(topic, started)


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


def is_settled(envelope: Envelope) -> bool:
    """Whether all is done with an event, also when middleware passed on another envelope."""
    return envelope.settled or (envelope.delivery is not None and envelope.delivery.open < 1)


async def wait_for_outcome(envelope: Envelope, notes: Delivery) -> Outcome:
    """Wait until all handlers are done with an event, which may have dropped the notes on it then."""
    if not (envelope.settled or notes.open < 1):
        waiter: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        notes.waiters.append(waiter)
        return await waiter
    return notes.outcome()
