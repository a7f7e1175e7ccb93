"""Deadlines for many futures with one timer: a timer per publish would cost more than the publish.

Futures wait in a queue for each length of time, so each queue is in the order of its deadlines. Those
that are made in one turn of the event loop share a place in it, and their time begins when the turn
ends. Those that are done are dropped from the front as new ones come.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from itertools import takewhile
from operator import methodcaller
from typing import Any, TypeVar

from penstock.errors import DeadlineExceeded, InvalidOption

LOCK_TIMEOUT_SECONDS = 30.0
"""For a lock of the log that somebody else holds: only for the moment of a change, unless a process was stopped in it."""

QUEUES_MAX = 64
"""With more queues than this the empty ones are looked for."""

_DONE = methodcaller("done")
_T = TypeVar("_T")
_Futures = list[Any]  # of asyncio, or rows, which have the same methods


class Deadlines:
    """Makes futures that fail by themselves when their time is up. Lives on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queues: dict[float, deque[tuple[float, _Futures]]] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}
        self._queues_max = QUEUES_MAX
        self.turn: dict[float, _Futures] = {}
        """Those of this turn of the loop."""

    def future(self, seconds: float) -> asyncio.Future[Any]:
        """A new future that fails with DeadlineExceeded after so many seconds."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.futures(seconds).append(future)
        return future

    def futures(self, seconds: float) -> _Futures:
        """Those of this turn that have so many seconds; more may be added until it ends."""
        futures = self.turn.get(seconds)
        return self._begin(seconds) if futures is None else futures

    def _begin(self, seconds: float) -> _Futures:
        """The list of the futures of this turn."""
        check_seconds(seconds)
        if not self.turn:
            self._loop.call_soon(self._end_turn)
        futures = self.turn[seconds] = []
        return futures

    def _take_turn(self) -> dict[float, _Futures]:
        # The inlet of a queue has this very dictionary at hand.
        turn = self.turn.copy()
        self.turn.clear()
        return turn

    def _end_turn(self) -> None:
        now = self._loop.time()
        for seconds, futures in self._take_turn().items():
            queue = self._queues.setdefault(seconds, deque())
            _drop_done(queue)
            queue.append((now + seconds, futures))
            if seconds not in self._timers:
                self._timers[seconds] = self._loop.call_later(seconds, self._expire, seconds)
        if len(self._queues) > self._queues_max:
            self._drop_empty()

    def _drop_empty(self) -> None:
        """Where each call has a time of its own, queues must not stay until theirs is up."""
        for seconds, queue in list(self._queues.items()):
            _drop_done(queue)
            if not queue:
                self._timers.pop(seconds).cancel()
                del self._queues[seconds]
        self._queues_max = max(QUEUES_MAX, 2 * len(self._queues))

    def close(self) -> None:
        """Let those who still wait go: the disk has not answered until now."""
        for seconds, futures in self._take_turn().items():
            _fail(futures, "publish before the queue was closed", seconds)
        for seconds, queue in self._queues.items():
            self._timers.pop(seconds).cancel()
            for _, futures in queue:
                _fail(futures, "publish before the queue was closed", seconds)
        self._queues.clear()

    @staticmethod
    def give_up(future: Any) -> None:
        """Nobody waits for the future any more."""
        if not future.cancel() and not future.cancelled():
            future.exception()

    def _expire(self, seconds: float) -> None:
        queue = self._queues[seconds]
        now = self._loop.time()
        while queue and queue[0][0] <= now:
            _fail(queue.popleft()[1], "publish", seconds)
        _drop_done(queue)
        if queue:
            self._timers[seconds] = self._loop.call_at(queue[0][0], self._expire, seconds)
        else:
            del self._timers[seconds], self._queues[seconds]


def _drop_done(queue: deque[tuple[float, _Futures]]) -> None:
    """From the front: each future is looked at once when it is done, however long others wait."""
    while queue:
        futures = queue[0][1]
        done = len(list(takewhile(_DONE, reversed(futures))))
        if done < len(futures):
            del futures[len(futures) - done :]
            return
        queue.popleft()


def _fail(futures: _Futures, what: str, seconds: float) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(late(what, seconds))


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
