"""Who waits: publishers for room in a buffer, and who closes for work that goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from penstock.errors import BufferFull

_T = TypeVar("_T")


class CommitWaiters:
    """Futures that a commit completes. Lives on the queue's event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._room: list[asyncio.Future[None]] = []

    def room(self) -> asyncio.Future[None]:
        """Done when a commit has made room in some buffer."""
        waiter = self._loop.create_future()
        self._room.append(waiter)
        return waiter

    async def with_room(self, add: Callable[[], _T]) -> _T:
        """Add to a writer, waiting while its buffer is full."""
        while True:
            try:
                return add()
            except BufferFull:
                room = self.room()
            await room

    def committed(self) -> None:
        """A commit or a sync is over: look who may go on."""
        rooms, self._room = self._room, []
        for waiter in rooms:
            set_done(waiter)


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
