"""Who waits: publishers for room in a buffer, and who closes for work that goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from penstock.errors import BufferFull, PenstockError

_T = TypeVar("_T")


class CommitWaiters:
    """Who waits for room in the buffer of a writer. Lives on the queue's event loop.

    A commit hands the room on, to the first that came: who had to go and get it would find that
    those whose records were just written have taken it again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Any, _Waiting] = {}
        """By the future that tells, in the order in which they came."""

    def add_later(self, writer: object, add: Callable[[], object], waiter: Any) -> None:
        """Add to a writer when there is room and the waiter, a future, is not done; it gets what else goes wrong.

        Whoever waits for that future forgets it when it is over.
        """
        self._waiting[waiter] = _Waiting(writer, add, waiter)

    def forget(self, waiter: Any) -> bool:
        """Keep nothing of one who left, as no commit may end for long; whether it was waiting still."""
        return self._waiting.pop(waiter, None) is not None

    async def with_room(self, writer: object, add: Callable[[], _T]) -> _T:
        """Add to a writer, waiting while its buffer is full."""
        try:
            return add()
        except BufferFull:
            added: asyncio.Future[_T] = self._loop.create_future()
        self.add_later(writer, lambda: added.set_result(add()), added)
        try:
            return await added
        finally:
            self.forget(added)

    def committed(self) -> None:
        """A commit or a sync is over: those for whom there is room now are added, in their order."""
        waiting, self._waiting = self._waiting.values(), {}
        full: set[object] = set()
        kept = [one for one in waiting if not one.waiter.done() and not one.try_to_add(full)]
        self._waiting = {one.waiter: one for one in kept} | self._waiting

    def close(self, refusal: PenstockError) -> None:
        """Nobody gets room any more."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(refusal.again())


class _Waiting(NamedTuple):
    writer: object
    add: Callable[[], object]
    waiter: Any

    def try_to_add(self, full: set[object]) -> bool:
        """Whether it does not wait any more; who comes behind another one at a full writer waits too."""
        if self.writer in full:
            return False
        try:
            self.add()
        except BufferFull:
            full.add(self.writer)
            return False
        except Exception as error:
            self.waiter.set_exception(error)
        return True


def set_done(waiter: asyncio.Future[None]) -> None:
    """Complete a future unless somebody gave it up."""
    if not waiter.done():
        waiter.set_result(None)


def begin(at_work: set[asyncio.Future[Any]], job: Coroutine[Any, Any, _T]) -> asyncio.Future[_T]:
    """Begin a job that goes on when its caller is cancelled; it is in the set until it is done."""
    work = asyncio.ensure_future(job)
    at_work.add(work)
    work.add_done_callback(partial(end, at_work))
    return work


def end(at_work: set[asyncio.Future[Any]], work: asyncio.Future[Any]) -> None:
    """A job is done. Nobody may be left to hear of its error."""
    at_work.discard(work)
    if not work.cancelled():
        work.exception()


def runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this thread runs the loop now. It costs less than to be told by an error that none runs."""
    return asyncio._get_running_loop() is loop


def call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Run on the loop from another thread; a loop that is closed has nobody left to tell."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)
