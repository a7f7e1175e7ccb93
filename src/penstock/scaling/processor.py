"""Runs a handler over the entries of a ring."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from penstock.errors import Closed
from penstock.scaling.consumers import POLL_MAX, Reader

Item = TypeVar("Item")
Handle = Callable[[Item], Awaitable[None] | None]
OnError = Callable[[Item, Exception], None]

WAIT_SECONDS = 1.0
"""How long one wait for entries lasts before the processor looks around."""

logger = logging.getLogger("penstock.ring")


def log_error(item: object, error: Exception) -> None:
    """Report a failed entry when nobody else does. The entry itself may be secret: only its type."""
    logger.error("the handler of a ring failed for a %s", type(item).__name__, exc_info=error)


class RingProcessor(Generic[Item]):
    """Calls ``handler`` for each entry, batch by batch, until the reader is finished.

    A handler that raises does not stop the ring, nor is it called again for that entry:
    ``on_error(item, error)`` is told, and the next entry follows. If ``on_error`` raises, or the
    processor is cancelled or interrupted, the entries handled so far are passed, the failed one
    among them, and the exception leaves ``run``: a second ``run`` goes on after it. The entry whose
    handler was cancelled is not passed.
    """

    __slots__ = ("_batch_max", "_handler", "_on_error", "failed", "handled", "reader")

    def __init__(
        self,
        reader: Reader[Item],
        handler: Handle[Item],
        *,
        on_error: OnError[Item] = log_error,
        batch_max: int = POLL_MAX,
    ) -> None:
        self.reader = reader
        self._handler = handler
        self._on_error = on_error
        self._batch_max = batch_max
        self.handled = 0
        """Entries whose handler returned."""
        self.failed = 0
        """Entries whose handler raised."""

    def run(self) -> None:
        """Handle entries in this thread; the handler is a plain function."""
        reader = self.reader
        with self._until_closed():
            while not reader.finished:
                if self.run_once() == 0:
                    reader.wait(WAIT_SECONDS)

    def run_once(self) -> int:
        """Handle what is there, at most one batch, without waiting; how many entries it was."""
        items = self.reader.poll(self._batch_max)
        done = 0
        try:
            for item in items:
                try:
                    self._handler(item)
                except Exception as error:
                    done += 1
                    self._report(item, error)
                else:
                    done += 1
                    self.handled += 1
        finally:
            if done:
                self.reader.advance(done)
        return done

    async def run_async(self) -> None:
        """Handle entries in this task; what the handler returns is awaited if it can be."""
        reader = self.reader
        with self._until_closed():
            while not reader.finished:
                if await self.run_once_async() == 0:
                    await reader.wait_async(WAIT_SECONDS)
                else:
                    await asyncio.sleep(0)  # a full ring must not starve the loop

    async def run_once_async(self) -> int:
        """As :meth:`run_once`, for a handler that may suspend."""
        items = self.reader.poll(self._batch_max)
        done = 0
        try:
            for item in items:
                try:
                    result = self._handler(item)
                    if result is not None and inspect.isawaitable(result):
                        await result
                except Exception as error:
                    done += 1
                    self._report(item, error)
                else:
                    done += 1
                    self.handled += 1
        finally:
            if done:
                self.reader.advance(done)
        return done

    @contextmanager
    def _until_closed(self) -> Iterator[None]:
        """To be closed by somebody else is an end like any other."""
        try:
            yield
        except Closed:
            if not self.reader.closed:
                raise

    def _report(self, item: Item, error: Exception) -> None:
        self.failed += 1
        self._on_error(item, error)
