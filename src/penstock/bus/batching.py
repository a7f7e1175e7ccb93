"""Handlers that take a list of events.

A batch is handed over when it is full, when nothing more is queued (it never waits for company),
and in any case after its timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.bus.delivery import delivery_of
from penstock.bus.drive import Suspended, begin, was_cancelled
from penstock.bus.exits import EXITS
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


_inside: ContextVar[frozenset[Batcher]] = ContextVar("penstock_inside_batches", default=frozenset())
"""Whose batches the calling code is handling."""


class Batcher:
    """Collects the events of one handler. Its batches are handed over one after the other."""

    def __init__(
        self, handler: Handler, batching: Batching, dispatch: Dispatch, timers: Timers
    ) -> None:
        self._handler = handler
        self._batching = batching
        self._dispatch = dispatch
        self._timers = timers
        self._waiting: list[Envelope] = []
        self._kinds: set[type] = set()
        self._expiry: PendingCall | None = None
        self._running: asyncio.Future[None] | None = None

    @property
    def _size(self) -> int:
        return self._batching.size if self._dispatch.batching else 1

    def add(self, envelope: Envelope) -> Awaitable[None] | None:
        """Take an event; returns what is to be awaited when that makes the batch full."""
        self._claim(envelope)
        self._waiting.append(envelope)
        if len(self._waiting) >= self._size:
            return self.flush()
        self._wait_for_company(envelope)
        return None

    def _claim(self, envelope: Envelope) -> None:
        notes = delivery_of(envelope)
        notes.open += 1
        notes.elsewhere |= {self._handler}

    async def alone(self, envelope: Envelope) -> None:
        """Handle an event in a batch of its own, after one that is being handled; cancelled, nothing is kept here."""
        self._claim(envelope)
        try:
            while self._running is not None and self not in _inside.get():
                await asyncio.shield(self._running)
            with self._at_work():
                failed = await self._call([envelope])
                self._finish(envelope, (failed or {}).get(0))
        except asyncio.CancelledError:
            if self._handler.guard is not None:
                self._handler.guard.abandoned()  # it is asked again when the event comes again
            delivery_of(envelope).open -= 1
            raise

    async def flush(self) -> None:
        """Hand over what is there, after a batch that is being handled.

        Who is part of that batch's handling does not wait for it, as it would wait for itself.
        """
        while self._waiting:
            if self._running is None or self in _inside.get():
                await self._hand_over(self._take())
            else:
                await asyncio.shield(self._running)

    def drain(self) -> list[Envelope]:
        """Take out the events that were not handed over, as ``stop`` does."""
        taken = []
        while self._waiting:
            taken += self._take()
        return taken

    def _wait_for_company(self, envelope: Envelope) -> None:
        kind = type(envelope.message)
        self._kinds.add(kind)
        self._dispatch.open_batches.setdefault(kind, set()).add(self)
        if self._expiry is None:
            self._expiry = self._timers.call_after(self._batching.timeout, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        if self._dispatch.intake.running:  # a bus that stops reports what waits
            self._dispatch.spawn(self.flush())

    def _take(self) -> list[Envelope]:
        size = self._size
        taken, self._waiting = self._waiting[:size], self._waiting[size:]
        if not self._waiting:
            self._stop_waiting()
        return taken

    def _stop_waiting(self) -> None:
        for kind in self._kinds:
            batchers = self._dispatch.open_batches[kind]
            batchers.discard(self)
            if not batchers:
                del self._dispatch.open_batches[kind]
        self._kinds.clear()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    async def _hand_over(self, taken: list[Envelope]) -> None:
        with self._at_work():
            await self._try(taken)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Other batches wait meanwhile, but for those of the handler itself."""
        running = None
        if self._running is None:
            running = self._running = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            if running is not None:
                self._running = None
                running.set_result(None)

    async def _try(self, taken: list[Envelope]) -> None:
        """Call the handler; when it fails on several, call it for each. Then let them go."""
        try:
            failed = await self._call(taken)
        except asyncio.CancelledError:
            self._keep(taken)
            raise
        if failed is None:
            while taken:
                await self._try_one_of(taken)
            return
        for index, envelope in enumerate(taken):
            self._finish(envelope, failed.get(index))

    async def _try_one_of(self, taken: list[Envelope]) -> None:
        """Call the handler for the first one alone, unless that has to wait for one that has failed."""
        envelope, *rest = taken
        guard = self._handler.guard
        if guard is not None and guard.waits(envelope):
            taken[:] = rest
            guard.abandoned()  # it was admitted with the batch
            self._dispatch.failures.refused(self._handler, envelope)
            self._dispatch.release(envelope)
            return
        try:
            failed = await self._call([envelope])
        except asyncio.CancelledError:
            self._keep(taken)
            raise
        taken[:] = rest
        self._finish(envelope, (failed or {}).get(0))

    def _keep(self, taken: list[Envelope]) -> None:
        """Somebody stops us: the next flush hands them over again, or stop reports them."""
        self._waiting[:0] = taken
        for envelope in taken:
            self._wait_for_company(envelope)

    async def _call(self, taken: Sequence[Envelope]) -> dict[int, BaseException] | None:
        """What failed, by index; None when the handler does not say and there are several."""
        try:
            result: Any = begin(self._invoke, taken[0], taken)
            if type(result) is Suspended:
                await result
        except asyncio.CancelledError as error:
            if was_cancelled():
                raise
            return {0: error} if len(taken) == 1 else None
        except GeneratorExit:
            raise  # nobody goes on with us
        except EXITS as error:
            return dict.fromkeys(range(len(taken)), error)  # before it was known which one it was
        except BaseException as error:
            named = getattr(error, "failed", None) if isinstance(error, BatchFailed) else None
            if named:
                return dict(named)
            return {0: error} if len(taken) == 1 else None
        return {}

    def _invoke(self, taken: Sequence[Envelope]) -> Any:
        _inside.set(_inside.get() | {self})
        messages = [envelope.message for envelope in taken]
        if self._handler.wants_envelope:
            return self._handler.function(messages, list(taken))
        return self._handler.function(messages)

    def _finish(self, envelope: Envelope, error: BaseException | None) -> None:
        if error is None:
            self._dispatch.succeed(self._handler, envelope)
        else:
            self._dispatch.fail(self._handler, envelope, error)
        self._dispatch.release(envelope)
