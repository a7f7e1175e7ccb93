"""Deadlines for many futures with one timer: a timer per publish would cost more than the publish.

Futures wait in a queue for each length of time, so each queue is in the order of its deadlines.
Those that are done are dropped from the front as new ones come.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Any, TypeVar

from penstock.errors import DeadlineExceeded, InvalidOption

LOCK_TIMEOUT_SECONDS = 30.0
"""For a lock of the log that somebody else holds: only for the moment of a change, unless a process was stopped in it."""

_T = TypeVar("_T")


class Deadlines:
    """Makes futures that fail by themselves when their time is up. Lives on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queues: dict[float, deque[tuple[float, asyncio.Future[Any]]]] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def future(self, seconds: float) -> asyncio.Future[Any]:
        """A new future that fails with DeadlineExceeded after so many seconds."""
        loop = self._loop
        future = loop.create_future()
        queue = self._queues.get(seconds)
        if queue is None:
            check_seconds(seconds)
            queue = self._queues[seconds] = deque()
        while queue and queue[0][1].done():
            queue.popleft()
        queue.append((loop.time() + seconds, future))
        if seconds not in self._timers:
            self._timers[seconds] = loop.call_later(seconds, self._expire, seconds)
        return future

    def close(self) -> None:
        """Let those who still wait go: the disk has not answered until now."""
        for timer in self._timers.values():
            timer.cancel()
        for seconds, queue in self._queues.items():
            for _, future in queue:
                if not future.done():
                    future.set_exception(late("publish before the queue was closed", seconds))
        self._timers.clear()
        self._queues.clear()

    @staticmethod
    def give_up(future: asyncio.Future[Any]) -> None:
        """Nobody waits for the future any more."""
        if not future.cancel() and not future.cancelled():
            future.exception()

    def _expire(self, seconds: float) -> None:
        queue = self._queues[seconds]
        now = self._loop.time()
        while queue and (queue[0][1].done() or queue[0][0] <= now):
            future = queue.popleft()[1]
            if not future.done():
                future.set_exception(late("publish", seconds))
        if queue:
            self._timers[seconds] = self._loop.call_at(queue[0][0], self._expire, seconds)
        else:
            del self._timers[seconds], self._queues[seconds]


def check_seconds(seconds: object, option: str = "timeout") -> None:
    """InvalidOption unless it is a number of seconds: every wait has a deadline."""
    if not isinstance(seconds, int | float) or not seconds >= 0:
        raise InvalidOption(
            f"{option} is {seconds!r}; it is a number of seconds, at least 0", option=option
        )


async def within(seconds: float, waiting: Awaitable[_T], what: str) -> _T:
    """Wait at most so long; then DeadlineExceeded."""
    try:
        async with asyncio.timeout(seconds):
            return await waiting
    except DeadlineExceeded:
        # A lock further down: its message tells more.
        raise
    except TimeoutError:
        raise late(what, seconds) from None


def late(what: str, seconds: float) -> DeadlineExceeded:
    """The error of a wait that was too long."""
    return DeadlineExceeded(
        f"could not {what} within {seconds:g} s: the disk does not keep up or does not answer; "
        "what was handed over may still be written",
        seconds=seconds,
    )
