"""What the bus notes about a message on its way, and what it tells who waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from penstock.bus.handlers import Handler
from penstock.errors import HandlerFailed
from penstock.messages import Envelope


@dataclass(frozen=True, slots=True)
class Failure:
    """A handler that failed on a message for good."""

    handler: str
    error: BaseException


class Outcome(msgspec.Struct, frozen=True):
    """What became of a published event."""

    handled: int
    """Handlers that are done with it."""
    failures: tuple[Failure, ...] = ()
    dropped: bool = False
    """It made room for newer events before it was handled (DROP_OLDEST)."""
    filtered: bool = False
    """A filter or a middleware kept it from all handlers."""

    @property
    def success(self) -> bool:
        """Whether every handler that wanted it is done with it."""
        return not self.failures and not self.dropped

    def unwrap(self) -> None:
        """Raise HandlerFailed for the first failure, if there is one."""
        for failure in self.failures:
            raise HandlerFailed(
                f"{failure.handler} failed: {failure.error!r}", handler=failure.handler
            ) from failure.error


@dataclass(slots=True)
class Attempts:
    """The failed calls of one handler for one message."""

    count: int = 0
    first_failed_ms: int = 0
    last_failed_ms: int = 0
    began: float = 0.0
    """When the first one failed, on the monotonic clock: the deadline counts from here."""


class Delivery(msgspec.Struct, eq=False):
    """Notes on one event. Most events need none."""

    open: int = 1
    """What is still to be done with the event; it is settled at zero."""
    waiters: list[asyncio.Future[Outcome]] = []
    failures: list[Failure] = []
    done: set[Handler] = set()
    """Handlers that are done with it, and must not be called if it comes again."""
    given_up: frozenset[Handler] = frozenset()
    """Handlers that failed on it for good."""
    meant_for: Handler | None = None
    """The handler that it is sent to again, whoever has its partition now."""
    elsewhere: frozenset[Handler] = frozenset()
    """Handlers that somebody else will call: a batch, or a retry."""
    passed: bool = False
    """Whether it went all the way through the middleware."""
    interruptions: int = 0
    """How often a handler was cancelled from outside and will be called again."""
    filtered: bool = False
    attempts: dict[Handler, Attempts] = {}
    """How often a handler was called, for those that failed."""
    final: Outcome | None = None
    """What became of the event, once that is known."""
    on_outcome: Callable[[Outcome], None] | None = None
    """Called when the event is settled or dropped; must not raise."""

    @property
    def is_new(self) -> bool:
        """Whether no handler had to do with the event yet."""
        return not (self.done or self.given_up or self.elsewhere)

    def wants(self, handler: Handler) -> bool:
        """Whether a handler is to be called, if the event comes again after an interruption."""
        return not (handler in self.done or handler in self.given_up or handler in self.elsewhere)

    def outcome(self) -> Outcome:
        """What became of the event."""
        if self.final is not None:
            return self.final
        return Outcome(len(self.done), tuple(self.failures), filtered=self.filtered)

    def resolve(self, outcome: Outcome) -> None:
        """Tell who waits, and who comes later."""
        self.final = outcome
        if self.on_outcome is not None:
            self.on_outcome(outcome)
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(outcome)


ONE_DONE = Outcome(1)
"""That of an event that was handled in place without notes: its one handler is done with it."""


def delivery_of(envelope: Envelope) -> Delivery:
    """The notes on an event, made when there are none yet."""
    if envelope.delivery is None:
        envelope.delivery = Delivery()
    notes: Delivery = envelope.delivery
    return notes
