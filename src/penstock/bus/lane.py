"""A lane: the queue of one message class, and the pump that empties it.

A slow class delays nobody else, because every class has a lane of its own. A pump is a task that
exists while there is something to do: ten thousand idle lanes cost no task.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

from penstock.bus.cells import LaneCells
from penstock.bus.delivery import Delivery, delivery_of
from penstock.bus.dispatch import Dispatch
from penstock.bus.drive import Suspended, current, nothing, rest_of
from penstock.bus.durations import Meter, Pace, Stopwatch
from penstock.bus.handlers import Handler
from penstock.bus.queue import BoundedEventQueue
from penstock.bus.turns import TURN_EVENTS, Turns
from penstock.hashing import hashable
from penstock.messages import DEFAULT_SESSION, Envelope, key_reader, stays
from penstock.speedups import compiled


class Lane(LaneCells):
    """Events of one class, handled in order; at most ``concurrency`` of them at once.

    With more than one at once, events of one key still stay in order.
    """

    def __init__(self, kind: type, queue: BoundedEventQueue, dispatch: Dispatch) -> None:
        self.kind = kind
        self.queue = queue
        self.dispatch = dispatch
        self.concurrency = 1
        self.running = False
        self.held_back = False
        """Whether older lanes of the class have to be empty first."""
        self.on_empty: Callable[[], None] | None = None
        """Told when nothing is queued and nothing is in work."""
        self.retired = False
        """Whether others have taken over."""
        self.pumps = 0
        self.suspended = 0
        self.short = type(self) is Lane and stays(kind)
        """Whether the twin may put events into it, and take them out, as far as they are the usual ones."""
        self.plain: Handler | None = None
        """The handler to which events go as they come, if there is one."""
        self.version = -1
        """The version of the registry for which that is so."""
        self.intake = dispatch.intake
        self.turn_events = TURN_EVENTS
        """How many events the twin may handle before others use the loop."""
        self.meter: Meter | None = None
        """What times the events that somebody waits for; found with the first of them."""
        self._room: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._key = key_reader(kind)
        self._busy: dict[object, deque[Envelope]] = {}
        """Keys whose handlers wait for something, each with the events that have to wait for it."""
        self._ready: deque[Envelope] = deque()
        """Events that were taken before and come first: they waited for a key, or came back."""

    @property
    def has_work(self) -> bool:
        """Whether something waits to be handled."""
        return bool(len(self.queue) or self._ready)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued and nothing is in work."""
        return not (self.pumps or self._ready or self.held_back or len(self.queue))

    def wake(self) -> None:
        """Make sure that somebody handles what is queued."""
        if self.pumps != self.suspended or not self.running or self.held_back:
            return
        plan = self.dispatch.registry.plan(self.kind, DEFAULT_SESSION)
        self.concurrency = plan.concurrency
        if self.pumps < self.concurrency:
            self.pumps += 1
            self.dispatch.spawn(self._pump())

    def begin_in_place(self, envelope: Envelope) -> Awaitable[None] | None:
        """Handle an event in the calling task; only while the lane is idle, or for a handler."""
        self.pumps += 1
        dispatch = self.dispatch
        meter, watch = self.meter, None
        if meter is not None and meter.skipped < meter.skip:
            meter.skipped += 1  # as stopwatch does, without a call
        elif dispatch.meters is not None:
            watch = self.stopwatch()
        try:
            rest = dispatch.begin_waited(envelope)
        except BaseException:
            self._leave()
            raise
        if rest is None and self.kind not in dispatch.open_batches:
            if watch is not None:
                watch.stop()
            self._leave()
            return None
        return self._finish_in_place(envelope, rest, watch)

    async def _finish_in_place(
        self, envelope: Envelope, rest: Awaitable[None] | None, watch: Stopwatch | None
    ) -> None:
        try:
            if rest is not None:
                await self.wait(envelope, rest)
            if self.kind in self.dispatch.open_batches:
                await self._flush_batches()
        finally:
            self._end_in_place(envelope, watch)
            self._leave()

    def _end_in_place(self, envelope: Envelope, watch: Stopwatch | None) -> None:
        """Time the event, unless it was put back: then it is timed when it is handled again."""
        again = bool(self._ready) and self._ready[0] is envelope
        if watch is not None and not again:
            watch.stop()
        elif again and watch is None and self.meter is not None:
            self.meter.forget_skipped()

    def look_up(self) -> None:
        """Find out to whom the events go as they come."""
        self.plain = self.dispatch.plain_handler(self.kind)
        if self.plain is not None:
            self.plain.known_to.add(self)
        self.version = self.dispatch.registry.version

    def forget(self) -> None:
        """The handler may be closed, and let go, before another event comes."""
        self.plain, self.version = None, -1

    def go_on_in_place(
        self,
        handler: Handler,
        envelope: Envelope,
        pending: tuple[Any, ...] | None,
        error: BaseException | None,
        watch: Stopwatch | None,
    ) -> tuple[Envelope, Delivery, Awaitable[None] | None]:
        """Go on where the twin has called the handler of :attr:`plain` in place, and it was not plain."""
        notes, rest = delivery_of(envelope), None
        try:
            if pending is not None:
                rest = self.dispatch.go_on_alone(handler, envelope, Suspended(*pending))
            else:
                self.dispatch.end_alone(handler, envelope, error)
        except BaseException:
            self._leave()
            raise
        if rest is None and self.kind not in self.dispatch.open_batches:
            if watch is not None:
                watch.stop()
            self._leave()
            return envelope, notes, None if envelope.settled else nothing()
        return envelope, notes, self._finish_in_place(envelope, rest, watch)

    # The pump

    async def _pump(self) -> None:
        try:
            while self.has_work and self.running:
                plain = self.dispatch.plain_handler(self.kind)
                if plain is None:
                    await self._run()
                elif compiled is not None and self._may_take_turns():
                    await Turns(self, plain).run()
                elif not await self._run_plain(plain):
                    return  # a new pump starts, in a clean context
                if self.has_work:
                    # The handlers have changed. Where each event does that, no turn would ever be over.
                    await self.end_turn()
        finally:
            self._leave()

    def _may_take_turns(self) -> bool:
        """Whether the twin can run the lane: nobody else does, and nobody is told of each event."""
        return self.short and self.pumps == 1 and self.dispatch.on_settled is None

    async def _run(self) -> None:
        """Handle events until none is left."""
        handled = 0
        pace = self.pace()
        stop = TURN_EVENTS if pace is None else pace.next(0, TURN_EVENTS)
        while (envelope := self.take()) is not None:
            if self._room:
                self.make_room()
            rest = self.dispatch.begin(envelope)
            if rest is not None:
                await self.wait(envelope, rest)
            handled += 1
            if handled == stop:
                pace = pace or self.pace(handled)  # somebody may want to know since
                stop = await self.look_at_clock(handled, pace)
            if not self.has_work and self.kind in self.dispatch.open_batches:
                await self._flush_batches()
        if pace is not None:
            pace.note(handled)

    def pace(self, handled: int = 0) -> Pace | None:
        """What times the events of a pump, those after so many; None when nobody measures."""
        meters = self.dispatch.meters
        return None if meters is None else Pace(meters, self.kind, handled)

    def stopwatch(self) -> Stopwatch | None:
        """What times the next event that somebody waits for; None when that one is not timed."""
        meters = self.dispatch.meters
        if meters is None:
            return None
        self.meter = meters.of(self.kind)
        return meters.stopwatch(self.kind)

    async def look_at_clock(self, handled: int, pace: Pace | None) -> int:
        """Look at the clock, let others use the loop; after which event that comes again."""
        if pace is not None:
            pace.note(handled)
        end = handled - handled % TURN_EVENTS + TURN_EVENTS
        if handled % TURN_EVENTS == 0:
            await self.end_turn()
            if pace is not None:
                pace.go_on()
        return end if pace is None else pace.next(handled, end)

    async def _run_plain(self, handler: Handler) -> bool:
        """Handle events until none is left; False when a handler has changed the context.

        What :meth:`_run` does, written out for one handler and nothing around it, which is the
        usual case.
        """
        dispatch, registry = self.dispatch, self.dispatch.registry
        function, guard, version = handler.function, handler.guard, registry.version
        take, ready, room = self.queue.take, self._ready, self._room
        handled = good = 0
        pace = self.pace()
        stop = TURN_EVENTS if pace is None else pace.next(0, TURN_EVENTS)
        try:
            while registry.version == version and self.running:
                envelope = self.take() if ready else take()
                if envelope is None:
                    break
                handled += 1
                if room:
                    self.make_room()
                if envelope.delivery is not None or envelope.session is not DEFAULT_SESSION:
                    rest = dispatch.begin(envelope)
                    if rest is not None:
                        await self.wait(envelope, rest)
                elif (asked := guard is not None and not guard.clear) and not handler.admits(
                    envelope
                ):
                    dispatch.failures.refused(handler, envelope)
                    dispatch.release(envelope)
                else:
                    current.set(envelope)
                    before = copy_context()
                    try:
                        result = function(envelope.message)
                        if result is not None and (rest := rest_of(result)) is not None:
                            good = self.note_good(handler, good)
                            await rest
                    except BaseException as error:
                        good = self.note_good(handler, good)
                        self.failed(handler, envelope, error, asked=asked)
                    else:
                        if asked:
                            dispatch.succeed(handler, envelope)
                        else:
                            good += 1
                    dispatch.release(envelope)
                    try:
                        if copy_context() != before:
                            return False
                    except Exception:  # values that cannot be compared, as arrays: they differ
                        return False
                if handled == stop:
                    good = self.note_good(handler, good)
                    stop = await self.look_at_clock(handled, pace)
        finally:
            self.note_good(handler, good)
            if pace is not None:
                pace.note(handled)
        current.set(None)
        return True

    def note_good(self, handler: Handler, count: int) -> int:
        """Calls that went well, made while the guard had nothing to say; how many are left to note."""
        handler.handled += count
        if count and handler.guard is not None:
            handler.guard.passed(count)
        return 0

    def failed(
        self, handler: Handler, envelope: Envelope, error: BaseException, *, asked: bool
    ) -> None:
        if isinstance(error, GeneratorExit):
            raise error  # nobody goes on with us
        if handler.guard is not None and not asked:
            handler.guard.began()  # it hears of the outcome of calls that it knows of
        if self.dispatch.was_interrupted(envelope, error):
            if handler.guard is not None:
                handler.guard.abandoned()
            self._put_back(envelope, claimed=False)
            raise error
        self.dispatch.fail(handler, envelope, error)

    async def wait(self, envelope: Envelope, rest: Awaitable[None]) -> None:
        """A handler waits: let another pump go on if the class allows, but not with its key."""
        claimed = self._key is not None and self._claim(envelope)
        self.suspended += 1
        if self.has_work:
            self.wake()
        try:
            await rest
        except asyncio.CancelledError:
            self._put_back(envelope, claimed=claimed)
            raise
        else:
            if claimed:
                self._free(envelope)
        finally:
            self.suspended -= 1

    async def _flush_batches(self) -> None:
        self.suspended += 1
        try:
            await self.dispatch.flush_batches(self.kind)
        finally:
            self.suspended -= 1

    async def end_turn(self) -> None:
        self.make_room()
        await asyncio.sleep(0)

    def _leave(self) -> None:
        self.pumps -= 1
        self.left()

    def left(self) -> None:
        """Somebody has ended work: tell who waits for that, and go on with what is left."""
        has_work = self._ready or len(self.queue)
        if not has_work and not self._room and self.on_empty is None:
            return  # nobody to tell
        loop = self.dispatch.loop
        if loop is not None and loop.is_closed():
            return  # nobody stopped the bus, and now its tasks are swept up
        if self._room:
            self.make_room()
        if has_work:
            self.wake()
        elif self.on_empty is not None and not self.pumps:
            self.on_empty()

    def take(self) -> Envelope | None:
        while self.running:
            if self._ready:
                self.queue.held -= 1
                envelope = self._ready.popleft()
            else:
                taken = self.queue.take()
                if taken is None:
                    return None
                envelope = taken
            if not self._busy or self._may_begin(envelope):
                return envelope
        return None

    def _put_back(self, envelope: Envelope, *, claimed: bool) -> None:
        """Keep an event whose handler was cancelled: it is handled again, or reported by stop."""
        if claimed:
            self._free(envelope)
        if not (envelope.settled or delivery_of(envelope).passed):
            self.queue.held += 1
            self._ready.appendleft(envelope)

    def drain(self) -> list[Envelope]:
        """Take out everything that has not been handled, oldest first."""
        held = [envelope for waiting in self._busy.values() for envelope in waiting]
        held.extend(self._ready)
        self.queue.held -= len(held)
        self._busy.clear()
        self._ready.clear()
        return sorted(held, key=lambda envelope: envelope.sequence) + self.queue.drain()

    # Order of keys

    def _key_of(self, envelope: Envelope) -> object:
        return hashable(envelope.key)

    def _claim(self, envelope: Envelope) -> bool:
        """Let others of its key wait; False when a handler that waits for this one did so before."""
        key = self._key_of(envelope)
        if key in self._busy:
            return False
        self._busy[key] = deque()
        return True

    def _may_begin(self, envelope: Envelope) -> bool:
        """Whether no other event of its key is in work; else it waits behind that one."""
        waiting = self._busy.get(self._key_of(envelope))
        if waiting is None:
            return True
        waiting.append(envelope)
        self.queue.held += 1
        return False

    def _free(self, envelope: Envelope) -> None:
        """An event of a key is done: those that waited for it come next."""
        waiting = self._busy.pop(self._key_of(envelope), None)
        if waiting:
            self._ready.extendleft(reversed(waiting))

    def retire(self) -> None:
        """Others have taken over, and nothing is left here: who waits for room asks them."""
        self.retired = True
        self.refuse_all()

    # Room

    async def wait_for_room(self) -> None:
        """Return when the queue may have room; who comes first is woken first."""
        waiter = asyncio.get_running_loop().create_future()
        self._room[waiter] = None
        try:
            await waiter
        except asyncio.CancelledError:
            self._room.pop(waiter, None)
            if not waiter.cancelled():
                self.make_room()  # pass on a turn that came too late for us
            raise

    def make_room(self) -> None:
        """Wake as many who wait for room as there is."""
        room = self.queue.room
        while self._room and room > 0:
            waiter, _ = self._room.popitem(last=False)
            if not waiter.done():
                waiter.set_result(None)
                room -= 1

    def refuse_all(self) -> None:
        """Wake all who wait for room: they find out that there is none to come."""
        while self._room:
            waiter, _ = self._room.popitem(last=False)
            if not waiter.done():
                waiter.set_result(None)
