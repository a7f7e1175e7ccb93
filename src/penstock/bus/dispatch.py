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
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.bus.batching import Batcher
from penstock.bus.delivery import Delivery, Failure, Outcome, delivery_of
from penstock.bus.drive import Suspended, begin
from penstock.bus.handlers import Handler
from penstock.bus.middleware import EventMiddleware, chain
from penstock.bus.registry import Plan, Registry
from penstock.errors import HandlerFailed
from penstock.messages import Envelope

logger = logging.getLogger("penstock.bus")

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


@dataclass(slots=True)
class Counters:
    """Events by what became of them."""

    published: int = 0
    processed: int = 0
    failed: int = 0
    filtered: int = 0
    unhandled: int = 0
    dropped: int = 0


class Dispatch:
    """Runs events through the handlers of one bus."""

    def __init__(self, registry: Registry, failures: Failures) -> None:
        self.registry = registry
        self.failures = failures
        self.middleware: list[EventMiddleware] = []
        self.counters = Counters()
        self.unsettled = 0
        self.tasks: set[asyncio.Task[Any]] = set()
        self.on_settled: Callable[[Envelope], None] | None = None
        self.open_batches: set[Batcher] = set()
        """Batches that have events and are not full."""
        self._idle: list[asyncio.Future[None]] = []

    # An event comes in

    def accept(self) -> None:
        """Count an event that was queued."""
        self.counters.published += 1
        self.unsettled += 1

    def begin(self, envelope: Envelope) -> Awaitable[None] | None:
        """Call the handlers until one waits; returns what is left to await, None when nothing is."""
        plan = self.registry.plan(envelope.message.__class__, envelope.session)
        handlers: Sequence[Handler] = plan.handlers
        if plan.filters or envelope.delivery is not None or not handlers:
            handlers = self._takers(plan, envelope)
            if not handlers:
                self.release(envelope)
                return None
        if self.middleware:
            return self._through_middleware(envelope, handlers)
        return self._call_from(0, handlers, envelope)

    def _takers(self, plan: Plan, envelope: Envelope) -> list[Handler]:
        delivery = delivery_of(envelope)
        waiting = [handler for handler in plan.handlers if handler not in delivery.done]
        takers = [handler for handler in waiting if self._wanted(handler, envelope)]
        delivery.filtered = bool(waiting) and not takers
        return takers

    def _wanted(self, handler: Handler, envelope: Envelope) -> bool:
        try:
            if handler.where is None or handler.where(envelope):
                return True
        except Exception as error:
            self.fail(handler, envelope, error)
        handler.filtered += 1
        return False

    # Handlers

    def _call_from(
        self, index: int, handlers: Sequence[Handler], envelope: Envelope
    ) -> Awaitable[None] | None:
        for handler in handlers[index:] if index else handlers:
            pending = self.call(handler, envelope)
            if pending is not None:
                return self._go_on(pending, handlers.index(handler), handlers, envelope)
        self.release(envelope)
        return None

    def call(self, handler: Handler, envelope: Envelope) -> Awaitable[Any] | None:
        """Call one handler; returns what is left to await. Never raises what the handler raises."""
        if handler.guard is not None and not handler.guard.admits(envelope):
            self.failures.refused(handler, envelope)
            return None
        if handler.batch is not None:
            return handler.batch.add(envelope)
        try:
            if handler.wants_envelope:
                result = handler.begin(envelope)
            else:  # as handler.begin does, without one more call
                result = begin(handler.function, envelope, envelope.message)
        except (Exception, asyncio.CancelledError) as error:
            self.fail(handler, envelope, error)
            return None
        if type(result) is Suspended:
            return self._finish_call(handler, envelope, result)
        self.succeed(handler, envelope)
        return None

    async def _finish_call(
        self, handler: Handler, envelope: Envelope, pending: Awaitable[Any]
    ) -> None:
        try:
            await pending
        except Exception as error:
            self.fail(handler, envelope, error)
        except asyncio.CancelledError as error:
            if was_cancelled():
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
        others = self.spawn(self._call_all(beside, envelope)) if beside else None
        await _both(pending, others)
        rest = self._call_from(end, handlers, envelope)
        if rest is not None:
            await rest

    async def _call_all(self, handlers: list[Handler], envelope: Envelope) -> None:
        for at, handler in enumerate(handlers):
            pending = self.call(handler, envelope)
            if pending is not None:
                # This task stays with the handler that waits; another one calls the rest.
                rest = handlers[at + 1 :]
                await _both(pending, self.spawn(self._call_all(rest, envelope)) if rest else None)
                return

    def succeed(self, handler: Handler, envelope: Envelope) -> None:
        """A handler is done with an event."""
        handler.handled += 1
        if handler.guard is not None:
            handler.guard.succeeded()
        if envelope.delivery is not None:
            envelope.delivery.done.add(handler)

    def fail(self, handler: Handler, envelope: Envelope, error: BaseException) -> None:
        """A handler raised: let the policy decide, note the failure when it is final."""
        handler.failed += 1
        if not self.failures.failed(handler, envelope, error):
            delivery_of(envelope).failures.append(Failure(handler.name, error))

    def spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        """A task that the bus keeps until it ends."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    # Middleware

    async def _through_middleware(self, envelope: Envelope, handlers: Sequence[Handler]) -> None:
        delivery = delivery_of(envelope)
        delivery.open += 1  # for the way through the pipeline, beside the handlers
        reached = False

        async def call_handlers(passed: Envelope) -> None:
            nonlocal reached
            if reached:
                delivery.open += 1
                delivery.failures.clear()
            reached = True
            waiting = [handler for handler in handlers if handler not in delivery.done]
            rest = self._call_from(0, waiting, passed)
            if rest is not None:
                await rest
            for failure in delivery.failures:
                raise HandlersFailed(failure.handler, delivery) from failure.error

        try:
            await chain(self.middleware, call_handlers)(envelope)
        except HandlersFailed:
            pass  # it is in the books already
        except Exception as error:
            logger.exception("a middleware failed on %s", envelope.topic)
            delivery.failures.append(Failure(MIDDLEWARE, error))
        finally:
            if not reached:
                delivery.filtered = not delivery.failures
                self.release(envelope)
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
        self.unsettled -= 1
        if self.on_settled is not None:
            self.on_settled(envelope)
        if not self.unsettled and self._idle:
            self._wake_idle()

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
        self.unsettled -= 1
        envelope.settled = True
        if envelope.delivery is not None:
            envelope.delivery.resolve(Outcome(0, dropped=True))
        self._wake_idle()

    # Waiting for all

    async def flush_batches(self) -> None:
        """Hand over the batches that are not full: nothing more comes at the moment."""
        while self.open_batches:
            await self.open_batches.pop().flush()

    async def idle(self) -> None:
        """Return when nothing is unsettled."""
        while self.unsettled:
            waiter = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._idle:
                    self._idle.remove(waiter)

    def _wake_idle(self) -> None:
        if self.unsettled:
            return
        for waiter in self._idle:
            if not waiter.done():
                waiter.set_result(None)
        self._idle.clear()


class HandlersFailed(HandlerFailed):
    """What a middleware sees when handlers failed after it passed the event on."""

    def __init__(self, handler: str, delivery: Delivery) -> None:
        names = ", ".join(failure.handler for failure in delivery.failures)
        super().__init__(f"failed: {names}", handler=handler)


def was_cancelled() -> bool:
    """Whether the running task was cancelled, as opposed to code inside that says so."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _both(pending: Awaitable[Any], others: asyncio.Task[None] | None) -> None:
    """Wait for a handler and for the task that calls the others; when cancelled, so are they."""
    try:
        await pending
        if others is not None:
            await others
    except asyncio.CancelledError:
        if others is not None:
            others.cancel()
        raise
