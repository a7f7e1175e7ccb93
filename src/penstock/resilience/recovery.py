"""What a resilient bus does when a handler fails: try again later, or write a dead letter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.bus.delivery import Attempts, Failure, delivery_of
from penstock.bus.failures import log_broken
from penstock.bus.handlers import Handler
from penstock.errors import CircuitOpen
from penstock.messages import Envelope
from penstock.resilience.dead_letters import Reason
from penstock.resilience.parking import Parking, guard_of
from penstock.system import System

Tell = Callable[[Handler, Envelope, BaseException], None]


BuryEvent = Callable[[str, Envelope, BaseException, Attempts], None]
"""Makes a dead letter of an event that did not come to its handlers."""


class Bury(Protocol):
    """Makes a dead letter of a message."""

    def __call__(
        self,
        handler: Handler,
        envelope: Envelope,
        error: BaseException,
        attempts: Attempts,
        reason: Reason,
    ) -> None: ...


class Recovery:
    """Implements :class:`penstock.bus.dispatch.Failures`."""

    def __init__(
        self, parking: Parking, bury: Bury, bury_event: BuryEvent, tell: Tell, system: System
    ) -> None:
        self._parking = parking
        self._bury = bury
        self._bury_event = bury_event
        self._tell = tell
        self._clock = system.clock
        self._random = system.random

    def failed(self, handler: Handler, envelope: Envelope, error: BaseException) -> bool:
        guard = guard_of(handler)
        guard.failed(error)
        self._tell(handler, envelope, error)
        attempts = self.count(handler, envelope)
        delay = guard.policy.retry.after(
            error, attempts.count, self.elapsed(attempts), self._random
        )
        if delay is None:
            self._bury(handler, envelope, error, attempts, Reason.FAILED)
            return False
        self._parking.park(handler, envelope, delay)
        return True

    def refused(self, handler: Handler, envelope: Envelope) -> None:
        guard = guard_of(handler)
        lot = guard.lot_before(envelope)
        if lot is not None:
            self._parking.wait_behind(lot, envelope)
        elif guard.is_blocked(envelope):
            self._give_up(handler, envelope, Reason.BEHIND_ANOTHER)
        elif guard.policy.pause:
            self._parking.pause(handler, envelope)
        else:
            self._give_up(handler, envelope, Reason.CIRCUIT_OPEN)

    def broken(self, part: str, envelope: Envelope, error: BaseException) -> None:
        log_broken(part, envelope, error)
        self._bury_event(part, envelope, error, self._never_called())

    def count(self, handler: Handler, envelope: Envelope) -> Attempts:
        """Note one more failed call."""
        attempts = delivery_of(envelope).attempts.setdefault(handler, Attempts())
        now_ms = self._clock.time_ms()
        if not attempts.count:
            attempts.first_failed_ms = now_ms
            attempts.began = self._clock.monotonic()
        attempts.count += 1
        attempts.last_failed_ms = now_ms
        return attempts

    def elapsed(self, attempts: Attempts) -> float:
        """Seconds since the first call failed."""
        return self._clock.monotonic() - attempts.began

    def _give_up(self, handler: Handler, envelope: Envelope, reason: Reason) -> None:
        """Dead-letter an event that the handler is not even asked about."""
        delivery = delivery_of(envelope)
        error = refusal(handler, reason)
        delivery.failures.append(Failure(handler.name, error))
        attempts = delivery.attempts.get(handler) or self._never_called()
        self._bury(handler, envelope, error, attempts, reason)

    def _never_called(self) -> Attempts:
        now_ms = self._clock.time_ms()
        return Attempts(0, now_ms, now_ms, self._clock.monotonic())


def refusal(handler: Handler, reason: Reason = Reason.CIRCUIT_OPEN) -> CircuitOpen:
    """The error for a message that is kept from its handler."""
    breaker = guard_of(handler).breaker
    wait = breaker.retry_after if breaker is not None else 0.0
    why = (
        "an earlier event of its key is a dead letter"
        if reason is Reason.BEHIND_ANOTHER
        else f"its circuit is open for another {wait:.1f} s"
    )
    return CircuitOpen(
        f"{handler.name} was not called: {why}", handler=handler.name, retry_after=wait
    )
