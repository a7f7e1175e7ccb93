"""Driving a handler in place: no task, no turn of the event loop, unless it really waits.

A handler that never waits for anything is finished after one ``send``. One that does is carried
on by the task that started it, so that ``asyncio.current_task()``, timeouts and cancel scopes
inside it belong to that task from its first line to its last.

Each call has a context of its own: a context variable that a handler sets ends with the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from functools import partial
from inspect import isawaitable
from types import CoroutineType, coroutine
from typing import Any, TypeVar

from penstock.bus.cells import Slip
from penstock.messages import Envelope

Result = TypeVar("Result")

current: ContextVar[Envelope | Slip | None] = ContextVar("penstock_current_envelope", default=None)
"""What is handled: its envelope, or the slip that stands for it."""

RETURNED = object()
"""Stands for what a handler waits for when it has returned."""


def current_envelope() -> Envelope | None:
    """The envelope of the message that the calling code handles; None outside of handlers."""
    found = current.get()
    return found.envelope() if isinstance(found, Slip) else found


class Suspended:
    """A handler that waits for something. Await it at once, in the task that began it."""

    __slots__ = ("_context", "_coroutine", "_yielded")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], yielded: Any, context: Context) -> None:
        self._coroutine = coroutine
        self._yielded = yielded
        self._context = context

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any]
        yielded = self._yielded
        while True:
            try:
                value = yield yielded
            except BaseException as error:
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, value)
            try:
                yielded = self._context.run(step)
            except StopIteration as stop:
                return stop.value


@coroutine
def carry_on(begun: Coroutine[Any, Any, Result], yielded: Any) -> Generator[Any, Any, Result]:
    """Await a coroutine whose first step is made, and gave this."""
    while True:
        try:
            yield yielded
        except BaseException as error:
            try:
                yielded = begun.throw(error)
            except StopIteration as stop:
                result: Result = stop.value
                return result
        else:
            return (yield from begun.__await__())


def begin(function: Callable[[Any], Any], envelope: Envelope, argument: Any) -> Any:
    """Call the handler and drive it until it ends or waits.

    Returns what the handler returned, or a :class:`Suspended`; raises what the handler raised.
    """
    context = copy_context()
    return context.run(_begin, function, envelope, argument, context)


def _begin(function: Callable[[Any], Any], envelope: Envelope, argument: Any, here: Context) -> Any:
    current.set(envelope)
    result = function(argument)
    if type(result) is not CoroutineType:
        if result is None or not isawaitable(result):
            return result
        result = wait_for(result)
    try:
        yielded = result.send(None)
    except StopIteration as stop:
        return stop.value
    return Suspended(result, yielded, here)


def begin_event(
    function: Callable[[Any], Any], envelope: Envelope, argument: Any
) -> Suspended | None:
    """As :func:`begin`, for a handler of events: what it returns is not wanted."""
    context = copy_context()
    return context.run(_begin_event, function, envelope, argument, context)


def _begin_event(
    function: Callable[[Any], Any], envelope: Envelope, argument: Any, here: Context
) -> Suspended | None:
    current.set(envelope)
    result = function(argument)
    if type(result) is not CoroutineType:
        if result is None or not isawaitable(result):
            return None
        result = wait_for(result)
    # Unlike send, this needs no StopIteration to tell that the handler has returned.
    yielded = next(result.__await__(), RETURNED)
    return None if yielded is RETURNED else Suspended(result, yielded, here)


def rest_of(result: Any) -> Awaitable[Any] | None:
    """Drive what a handler has returned until it ends or waits; what is left to await, None when nothing is."""
    if type(result) is not CoroutineType:
        if not isawaitable(result):
            return None
        result = wait_for(result)
    yielded = next(result.__await__(), RETURNED)
    return None if yielded is RETURNED else carry_on(result, yielded)


def was_cancelled() -> bool:
    """Whether the running task was cancelled, as opposed to code inside that says so."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def both(pending: Awaitable[Any], others: asyncio.Task[None] | None) -> None:
    """Wait for a handler and for the task that calls the others; when cancelled, so are they, and it waits for their end."""
    try:
        await pending
        if others is not None:
            await others
    except asyncio.CancelledError:
        if others is not None:
            others.cancel()
            # They must be done with the event before it is handled again.
            await asyncio.wait({others})
        raise


async def nothing() -> None:
    """Nothing is left to await here: the event waits for a retry, or in a batch."""


async def wait_for(awaitable: Any) -> Any:
    """Await something, as a coroutine."""
    return await awaitable
