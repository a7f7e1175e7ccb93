"""Who waits for a commit: publishers for room in a buffer, others for a durable offset."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

from penstock.errors import BufferFull
from penstock.log.open_topic import OpenTopic

_T = TypeVar("_T")


class _DurableWait(NamedTuple):
    topic: OpenTopic
    partition: int
    offset: int
    waiter: asyncio.Future[None]

    def settle(self) -> bool:
        """Whether the wait is over, well or badly."""
        poison = self.topic.logs[self.partition].poison
        if self.waiter.done():
            return True
        if self.topic.durable[self.partition] > self.offset:
            self.waiter.set_result(None)
        elif poison is not None:
            self.waiter.set_exception(poison)
        return self.waiter.done()


class CommitWaiters:
    """Futures that a commit completes. Lives on the queue's event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._room: list[asyncio.Future[None]] = []
        self._durable: list[_DurableWait] = []

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

    def durable(self, topic: OpenTopic, partition: int, offset: int) -> asyncio.Future[None]:
        """Done when the record at the offset is durable; fails when the partition is poisoned."""
        wait = _DurableWait(topic, partition, offset, self._loop.create_future())
        if not wait.settle():
            self._durable.append(wait)
        return wait.waiter

    def committed(self) -> None:
        """A commit or a sync is over: look who may go on."""
        rooms, self._room = self._room, []
        for waiter in rooms:
            set_done(waiter)
        self._durable = [wait for wait in self._durable if not wait.settle()]


def set_done(waiter: asyncio.Future[None]) -> None:
    """Complete a future unless somebody gave it up."""
    if not waiter.done():
        waiter.set_result(None)


def call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Run on the loop from another thread; a loop that is closed has nobody left to tell."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)
