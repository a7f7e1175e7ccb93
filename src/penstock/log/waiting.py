"""Who waits for a commit: publishers, for room in a buffer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

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


def call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Run on the loop from another thread; a loop that is closed has nobody left to tell."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)
