"""Executing commands: one handler, one result, a timeout that is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.bus.drive import Suspended, begin, was_cancelled
from penstock.bus.durations import Meters
from penstock.bus.handlers import Handler
from penstock.bus.middleware import CommandMiddleware, chain
from penstock.bus.registry import Registry
from penstock.bus.timers import Deadline, Timers, check_timeout
from penstock.errors import (
    ApprovalDenied,
    ApprovalExpired,
    CircuitOpen,
    DeadlineExceeded,
    HandlerFailed,
    NoHandler,
    RateLimited,
)
from penstock.messages import Code, CommandResult, Envelope, check_type, dotted_name

CODES: dict[type[BaseException], Code] = {
    NoHandler: Code.NO_HANDLER,
    DeadlineExceeded: Code.TIMEOUT,
    RateLimited: Code.RATE_LIMITED,
    CircuitOpen: Code.CIRCUIT_OPEN,
    ApprovalDenied: Code.DENIED,
    ApprovalExpired: Code.EXPIRED,
}


class HandlerRaised(HandlerFailed):
    """Keeps an error of a handler apart from the same kind of error of the bus.

    Middleware sees it as HandlerFailed, as it does when handlers of an event fail.
    """

    def __init__(self, handler: Handler, error: BaseException) -> None:
        super().__init__(f"{handler.name} failed: {error!r}")
        self.handler = handler
        self.error = error


@dataclass(slots=True)
class CommandCounters:
    """Commands by how they ended."""

    executed: int = 0
    succeeded: int = 0
    failed: int = 0


Around = Callable[[Handler, Envelope, Callable[[], Awaitable[Any]], Deadline], Awaitable[Any]]
"""Wraps the call of a command's handler, as retries do, until the deadline."""

Gate = Callable[[Envelope, float, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Stands before a command, its middleware and its timeout, as approvals do."""


class Commands:
    """Runs commands through middleware and their handler."""

    def __init__(self, registry: Registry, timers: Timers) -> None:
        self.registry = registry
        self.timers = timers
        self.middleware: list[CommandMiddleware] = []
        self.around: Around | None = None
        self.gate: Gate | None = None
        self.counters = CommandCounters()
        self.running = 0
        """Commands that are being executed now."""
        self.meters: Meters | None = None
        """How long commands take, when somebody wants to know."""
        self._idle: asyncio.Future[None] | None = None

    async def execute(self, envelope: Envelope, timeout: float) -> CommandResult[Any]:
        """Run the command in the calling task. Errors become part of the result.

        A cancellation of the caller cancels the handler and stays a cancellation.
        """
        check_timeout(timeout)
        self.counters.executed += 1
        self.running += 1
        kind = envelope.message.__class__
        watch = None if self.meters is None else self.meters.stopwatch(kind)
        made = envelope.id
        metadata: dict[str, Any] = {"id": made, "correlation_id": envelope.correlation_id or made}
        try:
            run = partial(self._run, envelope, timeout, metadata)
            result = await (run() if self.gate is None else self.gate(envelope, timeout, run))
        except HandlerRaised as raised:
            return self._failed(raised.error, Code.HANDLER_ERROR, metadata)
        except Exception as error:
            return self._failed(error, CODES.get(type(error), Code.HANDLER_ERROR), metadata)
        except BaseException:
            self.counters.failed += 1
            raise
        finally:
            if watch is not None:
                watch.stop()
            self._end(envelope)
        self.counters.succeeded += 1
        return CommandResult(code=Code.OK, result=result, metadata=metadata)

    def _run(
        self, envelope: Envelope, timeout: float, metadata: dict[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        deadline = self.timers.deadline(timeout, f"execute {envelope.topic}")
        call = self._call_inside if self.middleware else self._call
        return deadline.over(call(envelope, metadata, deadline))

    async def _call_inside(
        self, envelope: Envelope, metadata: dict[str, Any], deadline: Deadline
    ) -> Any:
        """Call the handler inside the middleware."""
        pipeline = chain(self.middleware, lambda passed: self._call(passed, metadata, deadline))
        # In a context of its own, and as part of the command, as the handler is.
        result = begin(pipeline, envelope, envelope)
        return await result if type(result) is Suspended else result

    async def _call(self, envelope: Envelope, metadata: dict[str, Any], deadline: Deadline) -> Any:
        kind = type(envelope.message)
        handler = self.registry.command(kind, envelope.session)
        if handler is None:
            check_type(kind)
            raise NoHandler(
                f"nobody handles {dotted_name(kind)}: register a handler with @bus.handles",
                command=dotted_name(kind),
            )
        metadata["handler"] = handler.name
        if self.around is not None:
            call = partial(call_handler, handler, envelope)
            return await self.around(handler, envelope, call, deadline)
        return await call_handler(handler, envelope)

    async def idle(self) -> None:
        """Return when no command is being executed."""
        while self.running:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def _end(self, envelope: Envelope) -> None:
        envelope.settled = True
        self.running -= 1
        if not self.running and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    def _failed(
        self, error: BaseException, code: Code, metadata: dict[str, Any]
    ) -> CommandResult[Any]:
        self.counters.failed += 1
        return CommandResult(code=code, error=error, metadata=metadata)


async def call_handler(handler: Handler, envelope: Envelope) -> Any:
    """Call a command's handler; what it raises comes as HandlerRaised."""
    try:
        result = handler.begin(envelope)
        if type(result) is Suspended:
            result = await result
    except Exception as error:
        handler.failed += 1
        raise HandlerRaised(handler, error) from error
    except asyncio.CancelledError as error:
        handler.failed += 1
        if was_cancelled():
            raise
        raise HandlerRaised(handler, error) from error
    except BaseException:
        handler.failed += 1
        raise
    handler.handled += 1
    return result


def raise_failure(result: CommandResult[Any]) -> None:
    """Raise what kept a command from succeeding: our own error, or HandlerFailed."""
    if result.error is None:
        return
    if result.code is Code.HANDLER_ERROR:
        raise HandlerFailed(
            f"{result.metadata.get('handler')} failed: {result.error!r}",
            handler=result.metadata.get("handler"),
            code=result.code,
        ) from result.error
    raise result.error
