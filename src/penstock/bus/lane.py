"""A lane: the queue of one message class, and the pump that empties it.

A slow class delays nobody else, because every class has a lane of its own. A pump is a task that
exists while there is something to do: ten thousand idle lanes cost no task.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from inspect import isawaitable
from types import CoroutineType

from penstock.bus.delivery import delivery_of
from penstock.bus.dispatch import Dispatch
from penstock.bus.drive import current
from penstock.bus.durations import Meter, Meters, Pace, Stopwatch
from penstock.bus.handlers import Handler
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
        self.held_back = False
        """Whether older lanes of the class have to be empty first."""
        self.on_empty: Callable[[], None] | None = None
        """Told when nothing is queued and nothing is in work."""
        self.retired = False
        """Whether others have taken over."""
        self.pumps = 0
        self.suspended = 0
        self._meter: Meter | None = None
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
        meter, watch = self._meter, None
        if meter is not None and meter.skipped < meter.skip:
            meter.skipped += 1  # as meters.stopwatch does, without a call
        elif dispatch.meters is not None:
            watch = self._stopwatch(dispatch.meters)
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
        return self._go_on_in_place(envelope, rest, watch)

    async def _go_on_in_place(
        self, envelope: Envelope, rest: Awaitable[None] | None, watch: Stopwatch | None
    ) -> None:
        try:
            if rest is not None:
                await self._wait(envelope, rest)
            if self.kind in self.dispatch.open_batches:
                await self._flush_batches()
        finally:
            if watch is not None:
                watch.stop()
            self._leave()

    # The pump

    async def _pump(self) -> None:
        try:
            while self.has_work and self.running:
                plain = self.dispatch.plain_handler(self.kind)
                if plain is None:
                    await self._run()
                elif not await self._run_plain(plain):
                    return  # a new pump starts, in a clean context
        finally:
            self._leave()

    async def _run(self) -> None:
        """Handle events until none is left."""
        handled = 0
        pace = self._pace()
        stop = TURN_EVENTS if pace is None else pace.next(0, TURN_EVENTS)
        while (envelope := self._take()) is not None:
            if self._room:
                self.make_room()
            rest = self.dispatch.begin(envelope)
            if rest is not None:
                await self._wait(envelope, rest)
            handled += 1
            if handled == stop:
                stop = await self._look_up(handled, pace)
            if not self.has_work and self.kind in self.dispatch.open_batches:
                await self._flush_batches()
        if pace is not None:
            pace.note(handled)

    def _pace(self) -> Pace | None:
        """What times the events of a pump; None when nobody measures."""
        meters = self.dispatch.meters
        return None if meters is None else Pace(meters, self.kind)

    def _stopwatch(self, meters: Meters) -> Stopwatch | None:
        self._meter = meters.of(self.kind)
        return meters.stopwatch(self.kind)

    async def _look_up(self, handled: int, pace: Pace | None) -> int:
        """Look at the clock, let others use the loop; after which event that comes again."""
        if pace is not None:
            pace.note(handled)
        end = handled - handled % TURN_EVENTS + TURN_EVENTS
        if handled % TURN_EVENTS == 0:
            await self._end_turn()
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
        pace = self._pace()
        stop = TURN_EVENTS if pace is None else pace.next(0, TURN_EVENTS)
        try:
            while registry.version == version and self.running:
                envelope = self._take() if ready else take()
                if envelope is None:
                    break
                handled += 1
                if room:
                    self.make_room()
                if envelope.delivery is not None or envelope.session is not DEFAULT_SESSION:
                    rest = dispatch.begin(envelope)
                    if rest is not None:
                        await self._wait(envelope, rest)
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
                        if type(result) is CoroutineType or (
                            result is not None and isawaitable(result)
                        ):
                            await result
                    except (Exception, asyncio.CancelledError) as error:
                        self._note_good(handler, good)
                        good = 0
                        self._failed(handler, envelope, error, asked=asked)
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
                    self._note_good(handler, good)
                    good = 0
                    stop = await self._look_up(handled, pace)
        finally:
            self._note_good(handler, good)
            if pace is not None:
                pace.note(handled)
        current.set(None)
        return True

    def _note_good(self, handler: Handler, count: int) -> None:
        """Calls that went well, made while the guard had nothing to say."""
        handler.handled += count
        if count and handler.guard is not None:
            handler.guard.passed(count)

    def _failed(
        self, handler: Handler, envelope: Envelope, error: BaseException, *, asked: bool
    ) -> None:
        if handler.guard is not None and not asked:
            handler.guard.admits(envelope)  # it hears of the outcome of calls that it knows of
        if isinstance(error, asyncio.CancelledError) and self.dispatch.was_interrupted(envelope):
            if handler.guard is not None:
                handler.guard.abandoned()
            self._put_back(envelope, claimed=False)
            raise error
        self.dispatch.fail(handler, envelope, error)

    async def _wait(self, envelope: Envelope, rest: Awaitable[None]) -> None:
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

    async def _end_turn(self) -> None:
        self.make_room()
        await asyncio.sleep(0)

    def _leave(self) -> None:
        self.pumps -= 1
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

    def _take(self) -> Envelope | None:
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
        if not delivery_of(envelope).passed:
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
        key = envelope.key
        try:
            hash(key)
        except TypeError:
            return repr(key)  # a list, say: still the same for equal keys
        return key

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
