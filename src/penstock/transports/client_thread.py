"""Blocking calls of a client, off the event loop: one thread, one call after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, TypeVarTuple

from penstock.system import System

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class CallThread:
    """A thread of :class:`System` whose calls are awaited.

    Cancelling an await leaves the call running: it may still happen.
    """

    def __init__(self, system: System, name: str) -> None:
        self._worker = system.worker(name)

    async def call(self, function: Callable[[*_Ts], _T], *arguments: *_Ts) -> _T:
        """What the function returns or raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self._worker.submit(lambda: settle_by(loop, future, function, *arguments))
        return await future

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job that does not raise; nobody waits for it."""
        self._worker.submit(job)

    async def close(self) -> None:
        """Finish the calls and end the thread."""
        await asyncio.to_thread(self._worker.close)


def tell_loop(
    loop: asyncio.AbstractEventLoop,
    callback: Callable[[*_Ts], object],
    *arguments: *_Ts,
) -> None:
    """Call on the event loop, from any thread; nothing when the loop is over."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)


def heard(future: asyncio.Future[Any]) -> None:
    """Whoever waited may be gone: its error is nobody's then."""
    if not future.cancelled():
        future.exception()


def settle_by(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[_T],
    function: Callable[[*_Ts], _T],
    *arguments: *_Ts,
) -> None:
    """Call the function here, and let the future of the loop have what comes of it."""
    try:
        result = function(*arguments)
    except BaseException as error:
        tell_loop(loop, _fail, future, error)
    else:
        tell_loop(loop, _settle, future, result)


def _settle(future: asyncio.Future[_T], result: _T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[_T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
