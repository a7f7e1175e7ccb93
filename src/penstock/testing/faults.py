"""Faults for handlers: failing, slow, crashing before the commit, delivered twice.

Each of them decorates a handler, or stands around all of them as a middleware::

    @bus.on(OrderPlaced)
    @fail_every(3)
    async def bill(order): ...


    bus.use(fail_every(3).middleware)
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.errors import InvalidOption
from penstock.messages import Envelope
from penstock.system import Clock

Call = Callable[[], Awaitable[Any]]


class InjectedFault(Exception):
    """What a fault raises when it is not told what to raise."""


class SimulatedCrash(InjectedFault):
    """The handler has done its work, and nobody heard of it."""


class Fault:
    """Stands around the call of a handler. ``calls`` counts, over all handlers that it is on."""

    def __init__(self) -> None:
        self.calls = 0
        self.injected = 0

    async def around(self, call: Call) -> Any:
        """Call the handler, with whatever goes wrong."""
        raise NotImplementedError

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A handler that has this fault."""

        @functools.wraps(function)
        async def handler(*arguments: Any) -> Any:
            return await self._count(lambda: _call(function, arguments))

        return handler

    async def middleware(
        self, envelope: Envelope, following: Callable[[Envelope], Awaitable[Any]]
    ) -> Any:
        """Around every message: ``bus.use(fault.middleware)``."""
        return await self._count(lambda: following(envelope))

    async def _count(self, call: Call) -> Any:
        self.calls += 1
        return await self.around(call)


class _FailEvery(Fault):
    def __init__(self, n: int, error: Callable[[], BaseException]) -> None:
        super().__init__()
        self._n = n
        self._error = error

    async def around(self, call: Call) -> Any:
        if self.calls % self._n == 0:
            self.injected += 1
            raise self._error()
        return await call()


class _Slow(Fault):
    def __init__(self, seconds: float, clock: Clock) -> None:
        super().__init__()
        self._seconds = seconds
        self._clock = clock

    async def around(self, call: Call) -> Any:
        self.injected += 1
        awake = asyncio.Event()
        timer = self._clock.call_after(self._seconds, awake.set)
        try:
            await awake.wait()
        finally:
            timer.cancel()
        return await call()


class _CrashBeforeCommit(Fault):
    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times

    async def around(self, call: Call) -> Any:
        result = await call()
        if self.injected < self._times:
            self.injected += 1
            raise SimulatedCrash("the handler did its work, and then the process died")
        return result


class _Duplicate(Fault):
    async def around(self, call: Call) -> Any:
        self.injected += 1
        await call()
        return await call()


def fail_every(n: int, error: Callable[[], BaseException] = InjectedFault) -> Fault:
    """Every nth call raises, without calling the handler."""
    if n < 1:
        raise InvalidOption(f"every {n}th call does not exist: use 1 or more", option="n")
    return _FailEvery(n, error)


def slow(seconds: float, clock: Clock) -> Fault:
    """Every call waits that long first, on the clock that it is given."""
    return _Slow(seconds, clock)


def crash_before_commit(times: int = 1) -> Fault:
    """The handler does its work, then raises: who calls it again finds out if that does harm."""
    return _CrashBeforeCommit(times)


def duplicate() -> Fault:
    """Every message is delivered twice."""
    return _Duplicate()


async def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    result = function(*arguments)
    return await result if inspect.isawaitable(result) else result
