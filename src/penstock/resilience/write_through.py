"""Keeps a journal as a table in memory is, without one disk write for each change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from penstock.bus.journal import Journal
from penstock.errors import StoreFailed

Current = Callable[[str], bytes | None]
"""The value of a key now, None when it is gone."""


class WriteThrough:
    """Writes what changed; who waits for one write shares the next one with all who came meanwhile.

    What is written is the state at the time of the write, so the journal and the table agree after
    each write, in whatever order changes came. After a failed write the keys stay to be written,
    with the next change or with ``flush``.
    """

    def __init__(self, journal: Journal, current: Current) -> None:
        self._journal = journal
        self._current = current
        self._changed: dict[str, None] = {}
        self._writing: dict[str, None] = {}
        self._next: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def unsaved(self) -> int:
        """Keys whose change is not on the disk yet."""
        return len(self._changed | self._writing)

    def note(self, keys: Iterable[str]) -> None:
        """Let the next write have these keys, or :meth:`flush`."""
        self._changed |= dict.fromkeys(keys)

    async def save(self, keys: Iterable[str]) -> None:
        """Return when the journal has these keys as they are now; raises what the journal raises.

        A caller that is cancelled does not undo the change, nor the write.
        """
        self.note(keys)
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = loop.create_future()
        waiter = self._next
        if self._task is None:
            self._task = loop.create_task(self._write_all())
        await asyncio.shield(waiter)

    async def flush(self) -> None:
        """Return when everything is written; raises what the journal raises."""
        if self._changed or self._task is not None:
            await self.save(())

    async def _write_all(self) -> None:
        try:
            while self._next is not None:
                waiter, self._next = self._next, None
                await self._write(waiter)
        finally:
            self._task = None

    async def _write(self, waiter: asyncio.Future[None]) -> None:
        keys = self._writing = self._changed
        self._changed = {}
        try:
            if keys:
                await self._journal.change({key: self._current(key) for key in keys})
        except BaseException as error:
            self._changed = keys | self._changed
            waiter.set_exception(error if isinstance(error, Exception) else _interrupted())
            waiter.exception()  # it may be that nobody waits any more
            if not isinstance(error, Exception):
                raise
        else:
            waiter.set_result(None)
        finally:
            self._writing = {}


def _interrupted() -> Exception:
    return StoreFailed("the event loop stopped in the middle of a write")
