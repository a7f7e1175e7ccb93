"""Handlers that take a list of events.

A batch is handed over when it is full, when nothing more is queued (it never waits for company),
and in any case after its timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.bus.delivery import delivery_of
from penstock.bus.drive import Suspended, begin
from penstock.bus.timers import PendingCall, Timers
from penstock.errors import HandlerError, InvalidOption
from penstock.messages import Envelope

if TYPE_CHECKING:
    from penstock.bus.dispatch import Dispatch
    from penstock.bus.handlers import Handler

BATCH_SIZE = 10
BATCH_TIMEOUT_SECONDS = 0.010


class BatchFailed(HandlerError):
    """Raise it in a batch handler to say which events failed; the others count as handled.

    ``BatchFailed("bad rows", failed={0: ValueError("...")})``, by index into the list. When a
    batch handler raises anything else, its events are handed over again, one by one.
    """


@dataclass(frozen=True, slots=True)
class Batching:
    """How a handler wants its batches."""

    size: int = BATCH_SIZE
    timeout: float = BATCH_TIMEOUT_SECONDS
    """Seconds after which a batch is handed over although it is not full."""

    def __post_init__(self) -> None:
        if self.size < 1 or not self.timeout >= 0:
            raise InvalidOption(
                f"a batch of {self.size} events or {self.timeout} s: use a size of 1 or more and "
                "a timeout of 0 or more",
                option="batch",
            )


class Batcher:
    """Collects the events of one handler."""

    def __init__(
        self, handler: Handler, batching: Batching, dispatch: Dispatch, timers: Timers
    ) -> None:
        self._handler = handler
        self._batching = batching
        self._dispatch = dispatch
        self._timers = timers
        self._waiting: list[Envelope] = []
        self._expiry: PendingCall | None = None
        self._running = False

    def add(self, envelope: Envelope) -> Awaitable[None] | None:
        """Take an event; returns what is to be awaited when that makes the batch full."""
        delivery_of(envelope).open += 1
        self._waiting.append(envelope)
        if len(self._waiting) >= self._batching.size:
            return self.flush()
        if self._expiry is None:
            self._expiry = self._timers.call_after(self._batching.timeout, self._expire)
        self._dispatch.open_batches.add(self)
        return None

    async def flush(self) -> None:
        """Hand over what is there. A batch that is being handled goes first."""
        if self._running:
            return
        self._running = True
        try:
            while self._waiting:
                await self._hand_over(self._take())
        finally:
            self._running = False

    def _expire(self) -> None:
        self._expiry = None
        self._dispatch.spawn(self.flush())

    def _take(self) -> list[Envelope]:
        size = self._batching.size
        taken, self._waiting = self._waiting[:size], self._waiting[size:]
        if not self._waiting:
            self._dispatch.open_batches.discard(self)
            if self._expiry is not None:
                self._expiry.cancel()
                self._expiry = None
        return taken

    async def _hand_over(self, taken: list[Envelope]) -> None:
        try:
            await self._try(taken)
        except asyncio.CancelledError:
            self._waiting[:0] = taken  # stop reports them
            raise
        for envelope in taken:
            self._dispatch.release(envelope)

    async def _try(self, taken: list[Envelope]) -> None:
        try:
            await self._call(taken)
        except BatchFailed as error:
            self._settle(taken, getattr(error, "failed", {}))
        except Exception as error:
            if len(taken) == 1:
                self._settle(taken, {0: error})
                return
            for envelope in taken:
                await self._try([envelope])
        else:
            self._settle(taken, {})

    async def _call(self, taken: Sequence[Envelope]) -> None:
        messages = [envelope.message for envelope in taken]
        result: Any = begin(self._handler.function, taken[0], messages)
        if type(result) is Suspended:
            await result

    def _settle(self, taken: Sequence[Envelope], failed: dict[int, BaseException]) -> None:
        for index, envelope in enumerate(taken):
            if index in failed:
                self._dispatch.fail(self._handler, envelope, failed[index])
            else:
                self._dispatch.succeed(self._handler, envelope)
