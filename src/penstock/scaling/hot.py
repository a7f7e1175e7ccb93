"""The hot path: a lane whose queue is a ring, with the ordinary queue behind it.

A message goes into the ring as it is, without an envelope; one is made when somebody needs it: a
second handler, a filter, middleware, a failure. With one plain handler the messages of a turn are
handled straight from the ring. When the ring is full, messages go to the queue behind it, and so do
all that follow until that queue is empty: nothing is lost, and nothing overtakes.

Priorities do not count on the hot path: the ring keeps the order in which messages came.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import copy_context
from operator import length_hint
from typing import Any

from penstock.bus.drive import carry_on, current, rest_of
from penstock.bus.handlers import Handler
from penstock.bus.intake import Intake
from penstock.bus.lane import Lane
from penstock.bus.queue import BoundedEventQueue, EventQueueStatistics
from penstock.bus.turns import TURN_EVENTS
from penstock.messages import Envelope
from penstock.scaling.hot_ring import HotRing
from penstock.scaling.numbers import RingNumbers
from penstock.scaling.ring import RING_CAPACITY
from penstock.speedups import compiled

TURN_SECONDS = 0.001
"""How long the messages of a ring are handled, about, before others use the loop."""
TURN_MIN, TURN_FIRST, TURN_MAX = 32, 256, 2_048
"""How many messages that may be: as many as the handler can do in that time."""

NOWHERE = 1 << 62
"""Where a batch begins that does not exist."""

Enter = Callable[[Any, int | None], Envelope]
"""Puts a message into the books of the bus, and into an envelope; with this number, if it has one."""


class RingQueue(BoundedEventQueue):
    """A ring in front, a bounded queue behind it. ``depth`` is that of the queue behind."""

    __slots__ = (
        "_at",
        "_batch",
        "_enter",
        "begun",
        "consumer",
        "enclosed",
        "fallbacks",
        "numbers",
        "ring",
    )

    def __init__(
        self, enter: Enter, numbers: RingNumbers, ring_capacity: int = RING_CAPACITY, **options: Any
    ) -> None:
        super().__init__(**options)
        self.ring = HotRing(ring_capacity)
        self.consumer = self.ring.consumer("bus")
        self.fallbacks = 0
        """Messages that found the ring full, or others waiting behind it."""
        self.enclosed = 0
        """Messages in the ring that came with an envelope, and are in the books of the bus."""
        self.numbers = numbers
        self.begun = NOWHERE
        """The position of the batch that is in work."""
        self._enter = enter
        self._batch: list[Any] = []
        self._at = 0

    @property
    def in_ring(self) -> int:
        """Messages in the ring, and those that were taken out and have not begun."""
        passed = self.consumer.stage.sequence.value
        return self.ring.value - passed + len(self._batch) - self._at

    @property
    def position(self) -> int:
        """The position in the ring of the message that is taken next."""
        return self.consumer.stage.sequence.value - len(self._batch) + self._at

    def number_waiting(self) -> None:
        """What is in the ring is older than all that comes from now on: give it its numbers."""
        self.numbers.give(min(self.begun, self.position), self.ring.value)

    @property
    def capacity_in_all(self) -> int:
        return self.capacity + self.ring.capacity

    def __len__(self) -> int:
        return self.in_ring + self.depth

    def put(self, message: Any) -> bool:
        """Take a message as it is; False when the ring is full, or others wait behind it."""
        if self.depth or not self.ring.try_publish(message):
            return False
        self.ring.counted += 1
        return True

    def offer(self, envelope: Envelope, extra: int = 0) -> bool:
        if self.put(envelope):
            self.enclosed += 1
            return True
        self.ring.close_way()
        taken = super().offer(envelope, extra)
        self.fallbacks += taken
        return taken

    def take(self) -> Envelope | None:
        if self._at >= len(self._batch) and not self._refill():
            return super().take()
        item, position = self._batch[self._at], self.position
        self._at += 1
        if isinstance(item, Envelope):
            self.enclosed -= 1
            return item
        return self._enter(item, self.numbers.of(position))

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
        in_ring = 0 if self.depth else self.ring.room()
        return count <= in_ring or super().has_room_for(count - in_ring, extra)

    def statistics(self) -> EventQueueStatistics:
        behind = super().statistics()
        return EventQueueStatistics(
            depth=len(self),
            capacity=self.capacity_in_all,
            peak_depth=behind.peak_depth,
            dropped=behind.dropped,
            rejected=behind.rejected,
            under_pressure=behind.under_pressure,
            pressure_starts=behind.pressure_starts,
        )


class Work:
    """The messages of one turn. The iterator knows how far it is, so that nobody has to count."""

    __slots__ = ("_count", "_first", "left", "noted", "others", "version")

    def __init__(self, batch: list[Any], first: int, version: int) -> None:
        self.left = iter(batch)
        self.version = version
        """That of the registry for which the turn began."""
        self.others = 0
        """Messages that have failed, or had an envelope: they are in the books already."""
        self.noted = 0
        """Of the rest, those of which the handler's guard has heard that they went well."""
        self._first = first
        self._count = len(batch)

    @property
    def before(self) -> int:
        """How many messages of the turn come before the one that is in work."""
        return self._count - length_hint(self.left) - 1

    @property
    def position(self) -> int:
        """Where in the ring the message was that is in work."""
        return self._first + self.before


class HotLane(Lane):
    """The lane of a hot topic."""

    queue: RingQueue

    def __init__(
        self, kind: type, intake: Intake, ring_capacity: int = RING_CAPACITY, **options: Any
    ) -> None:
        dispatch = intake.dispatch
        numbers = RingNumbers(intake.next_number)
        queue = RingQueue(self._enter, numbers, ring_capacity, **options)
        super().__init__(kind, queue, dispatch)
        self.ring = queue.ring
        self._enclose = intake.enclose
        self._enclose_again = intake.enclose_again
        self._clock = intake.timers.clock
        self._turn = TURN_FIRST
        self._working = 0
        self._handled = 0
        """Messages of the last batch that are done with."""

    def uncounted(self) -> int:
        """Messages in the ring and in work that the books of the bus do not have yet."""
        return self.queue.in_ring - self.queue.enclosed + self._working

    def retire(self) -> None:
        super().retire()
        self._count_no_more()

    def wake(self) -> None:
        super().wake()
        if self.pumps or self.has_work:
            self.dispatch.uncounted[self.uncounted] = None

    def begin_in_place(self, envelope: Envelope) -> Awaitable[None] | None:
        self.dispatch.uncounted[self.uncounted] = None
        return super().begin_in_place(envelope)

    def drain(self) -> list[Envelope]:
        left = super().drain()
        self._count_no_more()
        return left

    async def wait(self, envelope: Envelope, rest: Awaitable[None]) -> None:
        self.ring.close_way()  # another pump may have to begin
        await super().wait(envelope, rest)

    async def _flush_batches(self) -> None:
        self.ring.close_way()
        await super()._flush_batches()

    def _leave(self) -> None:
        self.ring.close_way()
        super()._leave()
        if not self.pumps and not self.has_work:
            self._count_no_more()
            self.dispatch.wake_idle()

    def _count_no_more(self) -> None:
        self.dispatch.uncounted.pop(self.uncounted, None)

    def put(self, message: Any) -> bool:
        """The shortest way in; False when ring and queue are full."""
        queue = self.queue
        if not queue.put(message):
            if queue.room < 1:
                return False
            queue.number_waiting()
            if not queue.offer(self._enclose(message)):
                return False
            self.dispatch.accept()
        if self.pumps == self.suspended:
            self.wake()
        return True

    def _enter(self, message: Any, number: int | None) -> Envelope:
        """Whose handler published it is not known here: it follows from nothing."""
        self.dispatch.accept()
        token = current.set(None)
        envelope = self._enclose(message)
        current.reset(token)
        if number is not None:
            envelope.sequence = number
        return envelope

    async def _run_plain(self, handler: Handler) -> bool:
        registry, version = self.dispatch.registry, self.dispatch.registry.version
        before = copy_context()
        if self._ready:  # an event was interrupted: it comes first
            return await super()._run_plain(handler)
        while registry.version == version and self.running and not self._ready:
            began = self._clock.monotonic()
            batch = self.queue.take_batch(self._turn) if _is_simple(handler) else []
            if not batch:
                return await super()._run_plain(handler)
            await self._handle_batch(batch, handler, version)
            seconds = self._clock.monotonic() - began
            self._fit_turn(len(batch), seconds)
            if self.dispatch.meters is not None and self._handled:
                self.dispatch.meters.of(self.kind).add(seconds, self._handled)
            try:
                if copy_context() != before:
                    return False
            except Exception:  # values that cannot be compared, as arrays: they differ
                return False
            await self.end_turn()
        return True

    async def _handle_batch(self, batch: list[Any], handler: Handler, version: int) -> None:
        """Handle messages of the ring one by one; those without an envelope enter the books here.

        What handlers set in the context lasts for the batch, which has one envelope: that is what
        messages follow from that a handler publishes.
        """
        turn = self._enclose_again(None)
        turn.lane = self
        token = current.set(turn)
        first = self.queue.begun = self.queue.position - len(batch)
        enclosed = self._count_enclosed(batch)
        self._working = len(batch) - enclosed
        work = Work(batch, first, version)
        try:
            if enclosed:
                await self._handle_mixed(work, handler)
            else:
                await self._handle_bare(work, handler)
        finally:
            turn.settled = True
            current.reset(token)
            self._working = 0
            self.queue.begun = NOWHERE
            rest = list(work.left)
            self._handled = len(batch) - len(rest)
            self._enter_good(handler, self._handled - work.others, work.noted)
            self._put_back_batch(rest)

    async def _handle_bare(self, work: Work, handler: Handler) -> None:
        """The hot loop: what can be done once a batch, or only after a failure, is not done here."""
        function, guard = handler.function, handler.guard
        registry, version = self.dispatch.registry, work.version
        if compiled is not None:
            calls = compiled.Calls(self, handler, work.left, version)
            await self._handle_compiled(calls, work, handler)
            return
        for message in work.left:
            try:
                result = function(message)
                if result is not None:
                    if (rest := rest_of(result)) is not None:
                        self._note_so_far(work, handler)
                        await rest
                    if not self.running or not (guard is None or guard.clear):
                        break
            except BaseException as error:
                if not self._go_on_after(handler, message, work, error):
                    break
            if registry.version != version:
                break

    async def _handle_compiled(self, calls: Any, work: Work, handler: Handler) -> None:
        """As :meth:`_handle_bare`; in Python only for what has to wait, and for failures."""
        while True:
            try:
                rest = calls.next()
                if rest is None:
                    break
                self._note_so_far(work, handler)
                await carry_on(*rest[:2])
                if not self._may_go_on(handler):
                    break
            except BaseException as error:
                if not self._go_on_after(handler, calls.message, work, error):
                    break
            if self.dispatch.registry.version != work.version:
                break

    async def _handle_mixed(self, work: Work, handler: Handler) -> None:
        """As :meth:`_handle_bare`, with messages in between that have an envelope."""
        for message in work.left:
            self._note_so_far(work, handler)
            if isinstance(message, Envelope):
                work.others += 1
                await self._handle_enclosed(message)
            else:
                one = Work([message], work.position, work.version)
                try:
                    await self._handle_bare(one, handler)
                finally:
                    work.others += one.others
            if self.dispatch.registry.version != work.version or not self._may_go_on(handler):
                break

    def _count_enclosed(self, batch: list[Any]) -> int:
        """How many of a batch are in the books already; they leave the ring with it."""
        if not self.queue.enclosed:
            return 0
        enclosed = sum(isinstance(message, Envelope) for message in batch)
        self.queue.enclosed -= enclosed
        return enclosed

    def _put_back_batch(self, rest: list[Any]) -> None:
        if rest:
            self.queue.enclosed += sum(isinstance(message, Envelope) for message in rest)
            self.queue.put_back(rest)

    async def _handle_enclosed(self, envelope: Envelope) -> None:
        rest = self.dispatch.begin(envelope)
        if rest is not None:
            await self.wait(envelope, rest)

    def _go_on_after(
        self, handler: Handler, message: Any, work: Work, error: BaseException
    ) -> bool:
        """Note a failure; False when the rest of the turn has to wait or to be asked about."""
        self._note_so_far(work, handler)
        work.others += 1
        if isinstance(error, GeneratorExit):
            raise error  # nobody goes on with us
        envelope = self._enter(message, self.queue.numbers.of(work.position))
        self._working -= 1
        self.failed(handler, envelope, error, asked=False)
        self.dispatch.release(envelope)
        return self._may_go_on(handler)

    def _may_go_on(self, handler: Handler) -> bool:
        """Whether the rest of the turn is handled too: meanwhile the bus can have stopped, or a circuit opened."""
        return self.running and _is_simple(handler)

    def _fit_turn(self, count: int, seconds: float) -> None:
        """Choose how many messages the next turn may take, by how long this one took."""
        if seconds > TURN_SECONDS:
            self._turn = max(TURN_MIN, self._turn // 2)
        elif count == self._turn and seconds * 2 < TURN_SECONDS:
            self._turn = min(TURN_MAX, self._turn * 2)

    def _enter_good(self, handler: Handler, count: int, noted: int) -> None:
        self.dispatch.counters.published += count
        self.dispatch.counters.processed += count
        self.note_good(handler, count - noted)

    def _note_so_far(self, work: Work, handler: Handler) -> None:
        """Others may fail while a handler waits, and a breaker counts them beside the calls that went well."""
        good = work.before - work.others - work.noted
        work.noted += good
        self.note_good(handler, good)


def _is_simple(handler: Handler) -> bool:
    """Whether nothing stands between the messages and the handler."""
    return handler.guard is None or handler.guard.clear
