"""Auto-commit: what was handled is committed every few seconds, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, Self

from penstock.bus.timers import PendingCall, Timers
from penstock.errors import Closed, Fenced, InvalidOption
from penstock.streaming.ranges import Position
from penstock.system import System

INTERVAL_SECONDS = 5.0
CLOSE_TIMEOUT_SECONDS = 30.0


class Commit(Protocol):
    """Makes the position of a partition durable before it returns."""

    def __call__(self, partition: int, position: Position) -> Awaitable[object]: ...


Positions = Callable[[], Mapping[int, Position]]
"""What is handled of each partition at this moment: never more than what is."""


class AutoCommit:
    """Commits what ``positions()`` says, every ``interval_seconds`` and on :meth:`close`.

    It asks for the positions when it commits, so records that are still in a handler are never
    among them, and handling a record costs nothing. Positions that did not change are not
    written. *When a commit fails*, ``on_error`` hears of it and the next one tries again; records
    may come again after a crash, but none is passed over. A partition whose commit is Fenced is
    not tried again: another member has it. *After a crash* at most the last interval comes again.

    ``begin`` starts it. It belongs to one event loop.
    """

    def __init__(
        self,
        positions: Positions,
        commit: Commit,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        on_error: Callable[[int, Exception], None] | None = None,
        system: System | None = None,
    ) -> None:
        if not 0 < interval_seconds < float("inf"):
            raise InvalidOption(
                f"interval_seconds is {interval_seconds}, and has to be more than 0",
                option="interval_seconds",
            )
        self._positions = positions
        self._commit = commit
        self._interval = interval_seconds
        self._on_error = on_error
        self._timers = Timers((system or System()).clock)
        self._committed: dict[int, Position] = {}
        self._fenced: set[int] = set()
        self._forgotten: dict[int, int] = {}
        """How often each partition was forgotten: a commit of before says nothing of it."""
        self._one_at_a_time = asyncio.Lock()
        self._next: PendingCall | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        self.begin()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def committed(self) -> Mapping[int, Position]:
        """What this one has committed last, by partition."""
        return dict(self._committed)

    def begin(self) -> None:
        """Commit from now on, first after one interval."""
        if self._closed:
            raise Closed("the auto-commit was closed")
        if self._next is None and self._task is None:
            self._next = self._timers.call_after(self._interval, self._due)

    async def commit(self) -> None:
        """Commit now; what was handled before the call is durable when it returns.

        Raises the error of the first partition that failed, after trying them all. *Cancelled*,
        some may be committed.
        """
        for error in (await self._commit_all()).values():
            raise error

    def forget(self, partition: int) -> None:
        """The partition belongs to somebody else, or comes back: know nothing of it."""
        self._committed.pop(partition, None)
        self._fenced.discard(partition)
        self._forgotten[partition] = self._forgotten.get(partition, 0) + 1

    async def close(self, *, timeout: float = CLOSE_TIMEOUT_SECONDS) -> None:
        """Commit a last time, and stop. Raises what the last commit raised."""
        if self._closed:
            return
        self._closed = True
        if self._next is not None:
            self._next.cancel()
        async with self._timers.deadline(timeout, "commit a last time"):
            await self.commit()

    def _due(self) -> None:
        self._next = None
        self._task = asyncio.get_running_loop().create_task(self._commit_by_itself())

    async def _commit_by_itself(self) -> None:
        try:
            for partition, error in (await self._commit_all()).items():
                self._tell(partition, error)
        finally:
            self._task = None
            if not self._closed:
                self.begin()

    async def _commit_all(self) -> dict[int, Exception]:
        """Commit each partition that moved; returns what failed."""
        async with self._one_at_a_time:
            errors: dict[int, Exception] = {}
            for partition in list(self._positions()):
                # Asked again: it may have gone to another member while the others were committed.
                position = self._positions().get(partition)
                if position is None or partition in self._fenced:
                    continue
                if self._committed.get(partition) != position:
                    await self._commit_one(partition, position, errors)
            return errors

    async def _commit_one(
        self, partition: int, position: Position, errors: dict[int, Exception]
    ) -> None:
        before = self._forgotten.get(partition, 0)
        try:
            await self._commit(partition, position)
        except Exception as error:
            errors[partition] = error
            if isinstance(error, Fenced) and self._forgotten.get(partition, 0) == before:
                self._fenced.add(partition)
        else:
            if self._forgotten.get(partition, 0) == before:
                self._committed[partition] = position

    def _tell(self, partition: int, error: Exception) -> None:
        if self._on_error is not None:
            self._on_error(partition, error)
            return
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"partition {partition} could not be committed", "exception": error}
        )
