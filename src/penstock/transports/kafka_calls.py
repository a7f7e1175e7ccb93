"""How the event loop calls a member of a group: in the one thread that its client lets in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

from penstock.system import System
from penstock.transports.client_thread import CallThread, settle_by
from penstock.transports.kafka_member import KafkaMember

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class MemberCalls:
    """The thread of a member, its turns, and the commits whose answer is on its way."""

    def __init__(self, member: KafkaMember, system: System) -> None:
        self._member = member
        self._thread = CallThread(system, "penstock-kafka-poll")
        self._loop = asyncio.get_running_loop()
        self.turn = asyncio.Lock()
        """Who may call the client's thread; between two turns its position may be changed."""
        self.unanswered = 0
        """Commits that are heard of when records are asked for, and only then."""
        self._answered = asyncio.Event()

    async def call(self, function: Callable[[*_Ts], _T], *arguments: *_Ts) -> _T:
        """Call the client in its thread; the turn is the caller's."""
        return await self._thread.call(function, *arguments)

    async def job(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the client in its thread, also while that waits for a partition to be released."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._put(partial(settle_by, self._loop, future, function, *arguments))
        return await future

    def _put(self, job: Callable[[], None]) -> None:
        self._member.put(job)
        self._thread.submit(self._member.run_jobs)

    async def commit(self, offsets: Mapping[int, int], *, is_fetching: bool) -> None:
        """Commit, and wait for the broker.

        While records are fetched only this waits: the thread goes on with them. Otherwise the
        thread does too, as nobody would hear the answer.
        """
        if not is_fetching or self._member.wanted:
            await self.job(self._member.commit, offsets)
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self.unanswered += 1
        try:
            self._put(partial(self._member.send, offsets, partial(settle_by, self._loop, future)))
            await future
        finally:
            self.unanswered -= 1
            self._answered.set()

    @asynccontextmanager
    async def own_turn(self) -> AsyncIterator[None]:
        """Fetching is between two calls, and soon."""
        self._member.wanted += 1  # from here on no commit needs somebody to fetch
        try:
            while self.unanswered:
                self._answered.clear()
                await self._answered.wait()
            async with self.turn:
                yield
        finally:
            self._member.wanted -= 1

    async def close(self) -> None:
        """Leave the group, and end the thread."""
        try:
            await self.call(self._member.close)
        finally:
            await self._thread.close()
