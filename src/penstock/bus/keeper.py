"""Keeping what the bus must not forget: many small changes, few writes to the journal."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from contextvars import Context
from typing import NamedTuple

from penstock.bus.journal import Journal, JournalLog
from penstock.errors import UsageError

logger = logging.getLogger("penstock.bus")

WRITE_KEYS_MAX = 4_096
WRITE_BYTES_MAX = 8 * 1024 * 1024
"""What is written together; a larger change is written alone."""

Changes = Mapping[str, bytes | None]


class _Request(NamedTuple):
    changes: Changes
    size: int
    done: asyncio.Future[None] | None
    """Who waits for it; None when nobody does."""


class Keeper:
    """One journal of a bus, or none: then everything is in memory alone, and writes do nothing.

    Changes are made in the order in which they come. Those that come while the disk is busy are
    written together, each of them still atomic.
    """

    def __init__(self, log: JournalLog | None, name: str) -> None:
        self._log = log
        self._name = name
        self._journal: Journal | None = None
        self._requests: deque[_Request] = deque()
        self._writing: asyncio.Task[None] | None = None

    @property
    def durable(self) -> bool:
        """Whether what is written survives the process."""
        return self._log is not None

    async def open(self) -> Mapping[str, bytes]:
        """Claim the journal and return what it holds; SubscriberBusy when another bus has it."""
        if self._log is None:
            return {}
        journal = self._log.journal(self._name)
        held = await journal.open()
        self._journal = journal
        return held

    async def write(self, changes: Changes) -> None:
        """Make a change; durable when this returns. Cancelled, the change is made all the same."""
        if self._log is None:
            return
        done = asyncio.get_running_loop().create_future()
        self._add(changes, done)
        await done

    def post(self, changes: Changes) -> None:
        """Make a change soon; nobody waits for it. A failure is logged, a closed journal ignored."""
        if self._journal is not None:
            self._add(changes, None)

    async def flush(self) -> None:
        """Return when all that was given to it is written, or has failed."""
        while self._writing is not None:
            await asyncio.shield(self._writing)

    async def close(self) -> None:
        """Write what is left and let another bus have the journal. Idempotent."""
        await self.flush()
        journal, self._journal = self._journal, None
        if journal is not None:
            await journal.close()

    def _add(self, changes: Changes, done: asyncio.Future[None] | None) -> None:
        if self._journal is None:
            raise UsageError(
                f"journal {self._name!r} is not open: the bus is not started, or stopped already"
            )
        size = sum(len(key) + len(value or b"") for key, value in changes.items())
        self._requests.append(_Request(changes, size, done))
        if self._writing is None:
            # Not in the context of a handler that happens to be the first to ask.
            loop = asyncio.get_running_loop()
            self._writing = loop.create_task(self._write_all(self._journal), context=Context())

    async def _write_all(self, journal: Journal) -> None:
        try:
            while self._requests:
                await self._write_some(journal, self._take())
        finally:
            self._writing = None

    def _take(self) -> list[_Request]:
        """The next requests, as many as may be written together."""
        taken = [self._requests.popleft()]
        size, keys = taken[0].size, len(taken[0].changes)
        while self._requests:
            size += self._requests[0].size
            keys += len(self._requests[0].changes)
            if size > WRITE_BYTES_MAX or keys > WRITE_KEYS_MAX:
                break
            taken.append(self._requests.popleft())
        return taken

    async def _write_some(self, journal: Journal, requests: list[_Request]) -> None:
        changes: dict[str, bytes | None] = {}
        for request in requests:
            changes.update(request.changes)
        try:
            await journal.change(changes)
        except Exception as error:
            self._fail(requests, error)
            return
        for request in requests:
            if request.done is not None and not request.done.done():
                request.done.set_result(None)

    def _fail(self, requests: list[_Request], error: Exception) -> None:
        for request in requests:
            if request.done is None:
                logger.error("journal %r: a change was not written: %s", self._name, error)
            elif not request.done.done():
                request.done.set_exception(error)
