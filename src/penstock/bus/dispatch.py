"""Calling the handlers of an event, and keeping the books on what became of it.

Every event that is accepted is counted once in ``published`` and ends up in exactly one of
``processed``, ``failed``, ``filtered``, ``unhandled`` and ``dropped``; until then it is in
``unsettled``. Handlers run in order of priority; those of one priority run side by side as soon as
one of them waits for something.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from typing import Any, Protocol

from penstock.bus.batching import Batcher
from penstock.bus.cells import Counters
from penstock.bus.delivery import Delivery, Failure, Outcome, delivery_of
from penstock.bus.drive import Suspended, begin_event, both, current
from penstock.bus.durations import Meters
from penstock.bus.exits import EXITS, end_loop
from penstock.bus.handlers import Handler
from penstock.bus.middleware import EventMiddleware, chain
from penstock.bus.registry import Plan, Registry
from penstock.bus.timers import Deadline
from penstock.bus.way import HandlersFailed, Way
from penstock.errors import DeadlineExceeded
from penstock.messages import DEFAULT_SESSION, Envelope, UntrackedEnvelope

logger = logging.getLogger("penstock.bus")

INTERRUPTIONS_MAX = 3
"""How often the handlers of an event may be cancelled from outside and still be called again."""
MIDDLEWARE = "middleware"
"""Stands for the handler where a middleware failed."""


class Failures(Protocol):
    """Decides what happens when a handler fails."""

    def failed(self, handler: Handler, envelope: Envelope, error: BaseException) -> bool:
        """Whether the failure is taken over: the handler will be called again later."""
        ...

    def refused(self, handler: Handler, envelope: Envelope) -> None:
        """The handler's guard did not admit the event."""
        ...

    def broken(self, part: str, envelope: Envelope, error: BaseException) -> None:
        """A part of the bus that stands before the handlers failed, as a middleware may."""
        ...


class Dispatch:
    """Runs events through the handlers of one bus."""

    def __init__(self, registry: Registry, failures: Failures) -> None:
        self.registry = registry
        self.failures = failures
        self.middleware: list[EventMiddleware] = []
        self.counters = Counters()
        self.batching = True
        """Whether handlers that take lists get more than one event at a time."""
        self.uncounted: dict[Callable[[], int], None] = {}
        """Tell how many events wait that enter the books when they are handled; idle lanes do not."""
        self.tasks: dict[asyncio.Task[Any], Context] = {}
        """What the bus runs, each in its context, which knows the event that is handled."""
        self.intake: Any = None
        """Where events come in."""
        self.meters: Meters | None = None
        """How long handlers take, when somebody wants to know."""
        self.on_settled: Callable[[Envelope], None] | None = None
        self.open_batches: dict[type, set[Batcher]] = {}
        """Batches that have events and are not full, by the classes of these events."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.context = copy_context()
        """Like what the bus was started in; its tasks run in copies of it."""
        self.idle_waiters: list[asyncio.Future[None]] = []
        self.ending = False
        """Whether the loop is about to raise what a handler has raised to end it."""

    # An event comes in

    def accept(self) -> None:
        """Count an event that was queued."""
        self.counters.published += 1
        self.counters.unsettled += 1

    def begin(self, envelope: Envelope) -> Awaitable[None] | None:
        """Call the handlers until one waits; returns what is left to await, None when nothing is."""
        plan = self.registry.plan(envelope.message.__class__, envelope.session)
        handlers: Sequence[Handler] = plan.handlers
        delivery: Delivery | None = envelope.delivery
        if plan.filters or not handlers or not (delivery is None or delivery.is_new):
            handlers = self._takers(plan, envelope)
            if not handlers:
                self.release(envelope)
                return None
        if self.middleware:
            return self._begin_middleware(envelope, handlers)
        return self.call_from(0, handlers, envelope)

    def begin_waited(self, envelope: Envelope) -> Awaitable[None] | None:
        """As :meth:`begin`, for an event whose outcome somebody wants to know.

        One plain handler that is done at once leaves no notes, and the outcome is ONE_DONE.
        """
        plan = self.registry.plan(envelope.message.__class__, envelope.session)
        handler = plan.plain
        if handler is None or envelope.delivery is not None or self.middleware:
            delivery_of(envelope)
            return self.begin(envelope)
        pending = self.call(handler, envelope)
        if pending is None:
            self.release(envelope)
            return None
        delivery_of(envelope)
        return self._go_on(pending, 0, plan.handlers, envelope)

    def go_on_alone(
        self, handler: Handler, envelope: Envelope, pending: Suspended
    ) -> Awaitable[None]:
        """What is left of an event whose only handler was called, and waits."""
        return self._go_on(self._finish_call(handler, envelope, pending), 0, (handler,), envelope)

    def end_alone(self, handler: Handler, envelope: Envelope, error: BaseException | None) -> None:
        """The only handler of an event has returned, or raised."""
        if error is None:
            self.succeed(handler, envelope)
        else:
            self.fail(handler, envelope, error)
        self.release(envelope)

    def _takers(self, plan: Plan, envelope: Envelope) -> list[Handler]:
        delivery = delivery_of(envelope)
        waiting = [handler for handler in plan.handlers if delivery.wants(handler)]
        takers = [handler for handler in waiting if self._wanted(handler, envelope)]
        delivery.filtered = len(waiting) == len(plan.handlers) > len(takers) == 0
        return takers

    def _wanted(self, handler: Handler, envelope: Envelope) -> bool:
        try:
            if handler.where is None or handler.where(envelope):
                return True
        except BaseException as error:
            if handler.guard is not None:
                handler.guard.began()  # it hears of the outcome of calls that it knows of
            self.fail(handler, envelope, error)
        handler.filtered += 1
        return False

    # Handlers

    def call_from(
        self, index: int, handlers: Sequence[Handler], envelope: Envelope
    ) -> Awaitable[None] | None:
        """Call the handlers from this one on, until one waits; returns what is left to await."""
        for handler in handlers[index:] if index else handlers:
            pending = self.call(handler, envelope)
            if pending is not None:
                return self._go_on(pending, handlers.index(handler), handlers, envelope)
        self.release(envelope)
        return None

    def call_again(self, handler: Handler, envelope: Envelope) -> Awaitable[Any] | None:
        """As :meth:`call`, for an event that waited: its filter is asked anew, and it is in no batch with others."""
        return self.call(handler, envelope, again=True) if self._wanted(handler, envelope) else None

    def call(
        self, handler: Handler, envelope: Envelope, *, again: bool = False
    ) -> Awaitable[Any] | None:
        """Call one handler; returns what is left to await. Never raises what the handler raises."""
        guard = handler.guard
        if guard is not None and not guard.admits(envelope):
            delivery_of(envelope).elsewhere |= {handler}
            self.failures.refused(handler, envelope)
            return None
        if handler.batch is not None:
            return handler.batch.alone(envelope) if again else handler.batch.add(envelope)
        try:
            if handler.wants_envelope:
                pending = begin_event(handler.call_with_envelope, envelope, envelope)
            else:
                pending = begin_event(handler.function, envelope, envelope.message)
        except BaseException as error:
            self.fail(handler, envelope, error)
            return None
        if pending is not None:
            return self._finish_call(handler, envelope, pending)
        handler.handled += 1  # as succeed does, without one more call
        if guard is not None:
            guard.succeeded()
        if envelope.delivery is not None:
            envelope.delivery.done.add(handler)
        return None

    async def _finish_call(
        self, handler: Handler, envelope: Envelope, pending: Awaitable[Any]
    ) -> None:
        try:
            await pending
        except GeneratorExit:
            raise  # nobody goes on with us
        except BaseException as error:
            if self.was_interrupted(envelope, error):
                if handler.guard is not None:
                    handler.guard.abandoned()
                raise  # somebody stops us: the lane keeps the event
            self.fail(handler, envelope, error)
        else:
            self.succeed(handler, envelope)

    async def _go_on(
        self,
        pending: Awaitable[Any],
        index: int,
        handlers: Sequence[Handler],
        envelope: Envelope,
    ) -> None:
        """A handler waits: meanwhile call the others of its priority, then those after them."""
        end = index + 1
        while end < len(handlers) and handlers[end].priority == handlers[index].priority:
            end += 1
        beside = [handlers[at] for at in range(index + 1, end)]
        if len(handlers) > 1:
            self._note_done(handlers[:index], envelope)
        others = self.spawn(self._call_all(beside, envelope)) if beside else None
        await both(pending, others)
        rest = self.call_from(end, handlers, envelope)
        if rest is not None:
            await rest

    async def _call_all(self, handlers: list[Handler], envelope: Envelope) -> None:
        for at, handler in enumerate(handlers):
            pending = self.call(handler, envelope)
            if pending is not None:
                # This task stays with the handler that waits; another one calls the rest.
                rest = handlers[at + 1 :]
                await both(pending, self.spawn(self._call_all(rest, envelope)) if rest else None)
                return

    def _note_done(self, handlers: Sequence[Handler], envelope: Envelope) -> None:
        """Make sure that these are not called again if we are interrupted now."""
        delivery = delivery_of(envelope)
        delivery.done.update(handler for handler in handlers if delivery.wants(handler))

    def was_interrupted(self, envelope: Envelope, error: BaseException) -> bool:
        """Whether a handler was cancelled from outside; the event comes again then.

        A handler that always cancels the task it runs in looks the same. It fails in the end.
        """
        task = asyncio.current_task()
        if not isinstance(error, asyncio.CancelledError) or task is None or not task.cancelling():
            return False
        delivery = delivery_of(envelope)
        delivery.interruptions += 1
        if delivery.interruptions <= INTERRUPTIONS_MAX:
            return True
        while task.uncancel():
            pass
        return False

    def succeed(self, handler: Handler, envelope: Envelope) -> None:
        """A handler is done with an event."""
        handler.handled += 1
        if handler.guard is not None:
            handler.guard.succeeded()
        if envelope.delivery is not None:
            envelope.delivery.done.add(handler)

    def fail(self, handler: Handler, envelope: Envelope, error: BaseException) -> None:
        """A handler raised: let the policy decide, note the failure when it is final.

        What is done about it, is done for the event: what that publishes has it for its cause.
        """
        handler.failed += 1
        if isinstance(error, EXITS):
            end_loop(self, error)
        if self._is_taken_over(handler, envelope, error):
            delivery_of(envelope).elsewhere |= {handler}
            return
        delivery = delivery_of(envelope)
        delivery.given_up |= {handler}
        delivery.failures.append(Failure(handler.name, error))

    def _is_taken_over(self, handler: Handler, envelope: Envelope, error: BaseException) -> bool:
        """Ask the policy. What it raises itself is told, and the failure is final: the event has to be settled."""
        before = current.set(envelope)
        try:
            return self.failures.failed(handler, envelope, error)
        except BaseException as trouble:
            logger.exception("what is done about a failure of %s has failed", handler.name)
            if isinstance(trouble, EXITS):
                end_loop(self, trouble)
            return False
        finally:
            current.reset(before)

    def plain_handler(self, kind: type) -> Handler | None:
        """The handler of a class when it is the only one and nothing stands around it."""
        plan = self.registry.plan(kind, DEFAULT_SESSION)
        return None if self.middleware else plan.plain

    def spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        """A task that the bus keeps until it ends.

        Its context is that of the bus, not of who happens to publish: a pump outlives the message
        that woke it.
        """
        loop = self.loop or asyncio.get_running_loop()
        context = self.context.copy()
        task = loop.create_task(coroutine, context=context)
        self.tasks[task] = context
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)

    async def cancel(self, deadline: Deadline) -> None:
        """Cancel all tasks and wait for their end; one that swallows that is left behind."""
        tasks = [task for task in self.tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        try:
            async with deadline:
                await asyncio.gather(*map(asyncio.shield, tasks), return_exceptions=True)
        except DeadlineExceeded:
            logger.warning("handlers that do not end when they are cancelled are left behind")

    # Middleware

    def _begin_middleware(
        self, envelope: Envelope, handlers: Sequence[Handler]
    ) -> Awaitable[None] | None:
        # In a context of its own, and as part of the event, as handlers are.
        return begin_event(lambda _: self._through_middleware(envelope, handlers), envelope, None)

    async def _through_middleware(self, envelope: Envelope, handlers: Sequence[Handler]) -> None:
        delivery = delivery_of(envelope)
        way = Way(self, delivery, handlers)
        try:
            await chain(self.middleware, way.call_handlers)(envelope)
        except HandlersFailed:
            pass  # it is in the books already
        except GeneratorExit:
            raise
        except BaseException as error:
            if self.was_interrupted(envelope, error):
                if way.ended:
                    self._end_way(envelope)
                raise
            self._middleware_failed(envelope, error)
        if not way.reached:
            delivery.filtered = not delivery.failures
        self._end_way(envelope)

    def _middleware_failed(self, envelope: Envelope, error: BaseException) -> None:
        delivery_of(envelope).failures.append(Failure(MIDDLEWARE, error))
        self.failures.broken(MIDDLEWARE, envelope, error)
        if isinstance(error, EXITS):
            end_loop(self, error)

    def _end_way(self, envelope: Envelope) -> None:
        delivery_of(envelope).passed = True
        self.release(envelope)

    # An event is done

    def release(self, envelope: Envelope) -> None:
        """One thing less to be done with an event; the last one settles it."""
        delivery: Delivery | None = envelope.delivery
        counters = self.counters
        if delivery is None:
            counters.processed += 1
        else:
            delivery.open -= 1
            if delivery.open:
                return
            self._close(envelope, delivery)
        envelope.settled = True
        self.counters.unsettled -= 1
        if self.on_settled is not None:
            self.on_settled(envelope)
        if delivery is not None:
            drop_notes(envelope)
        if not self.counters.unsettled and self.idle_waiters:
            self.wake_idle()

    def _close(self, envelope: Envelope, delivery: Delivery) -> None:
        counters = self.counters
        outcome = delivery.outcome()
        if outcome.failures:
            counters.failed += 1
        elif outcome.filtered:
            counters.filtered += 1
        elif (
            not outcome.handled
            and not self.registry.plan(envelope.message.__class__, envelope.session).handlers
        ):
            counters.unhandled += 1
        else:
            counters.processed += 1
        delivery.resolve(outcome)

    def drop(self, envelope: Envelope) -> None:
        """An event left the queue without being handled."""
        self.counters.dropped += 1
        self.counters.unsettled -= 1
        envelope.settled = True
        if envelope.delivery is not None:
            envelope.delivery.resolve(Outcome(0, dropped=True))
        if self.on_settled is not None:
            self.on_settled(envelope)
        drop_notes(envelope)
        self.wake_idle()

    # Waiting for all

    async def flush_batches(self, kind: type) -> None:
        """Hand over the batches that are not full: nothing more of a class comes at the moment."""
        while batchers := self.open_batches.get(kind):
            await next(iter(batchers)).flush()

    def drain_batches(self) -> list[Envelope]:
        """Take out what waits in batches, as ``stop`` does."""
        batchers = {batcher for found in self.open_batches.values() for batcher in found}
        return [envelope for batcher in batchers for envelope in batcher.drain()]

    @property
    def busy(self) -> bool:
        """Whether something is left to be done."""
        return bool(self.counters.unsettled or self.uncounted)

    def uncounted_events(self) -> int:
        """Events that wait in rings and are in no book yet."""
        return sum(count() for count in self.uncounted)

    async def idle(self) -> None:
        """Return when nothing is unsettled."""
        while self.busy:
            waiter = asyncio.get_running_loop().create_future()
            self.idle_waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self.idle_waiters:
                    self.idle_waiters.remove(waiter)

    def wake_idle(self) -> None:
        """Tell who waits for that, when nothing is left to be done."""
        if self.busy:
            return
        for waiter in self.idle_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.idle_waiters.clear()


def drop_notes(envelope: Envelope) -> None:
    """Notes lead to errors and so to frames, a lane to its bus; those may lead back: a ring that nobody would find."""
    if envelope.__class__ is UntrackedEnvelope:
        envelope.delivery = envelope.lane = None
