"""What stands in front of each handler of a resilient bus: its breaker, and who waits behind whom."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.hashing import hashable
from penstock.messages import Envelope
from penstock.resilience.breaker import BreakerOptions, BreakerState, CircuitBreaker

if TYPE_CHECKING:
    from penstock.resilience.retry import Retry

REPLAY_HEADER = "x-penstock-replay"
"""Marks a message that comes from the dead letters, with the number of its replay."""


@dataclass(frozen=True, slots=True)
class HandlerPolicy:
    """How a handler's failures are treated."""

    retry: Retry
    breaker: BreakerOptions | None
    ordered: bool = False
    """Later events of a key wait while one of that key waits for a retry."""
    pause: bool = False
    """An open circuit makes events wait, instead of turning them into dead letters."""
    ordered_dead_letters: bool = False
    """Later events of a key follow the first one into the dead letters until that is dealt with."""


@dataclass(slots=True)
class Lot:
    """The events of one key, in order: the first waits for a retry, the others behind it."""

    leader: Envelope
    behind: deque[Envelope] = field(default_factory=deque)


class HandlerGuard:
    """Implements :class:`penstock.bus.handlers.Guard` for one handler."""

    __slots__ = (
        "blocked",
        "breaker",
        "clear",
        "lots",
        "passed",
        "paused",
        "policy",
        "resuming",
        "succeeded",
    )

    def __init__(self, policy: HandlerPolicy, breaker: CircuitBreaker | None) -> None:
        self.policy = policy
        self.breaker = breaker
        self.lots: dict[object, Lot] = {}
        self.paused: deque[Envelope] = deque()
        self.resuming: dict[int, Envelope] = {}
        """Those that waited and are in the handler now, by their numbers: a probe may be given up while it hangs."""
        self.blocked: dict[object, int] = {}
        """How many dead letters each key has, when later events have to follow them."""
        self.clear = True
        """Whether every event is admitted at the moment; :meth:`look` finds out."""
        if breaker is not None:
            breaker.on_change(lambda _, __: self.look())
        self.succeeded = _nothing if breaker is None else breaker.succeeded
        """The handler returned. The breaker's own method: it is called for every message."""
        self.passed: Callable[[int], None] = _none_of if breaker is None else breaker.passed

    def look(self) -> None:
        """Something has changed that decides whether events are admitted."""
        closed = self.breaker is None or self.breaker.state is BreakerState.CLOSED
        self.clear = closed and not (self.lots or self.paused or self.blocked)

    def admits(self, envelope: Envelope) -> bool:
        if (self.lots or self.paused or self.blocked) and self.waits(envelope):
            return False
        return self.breaker is None or self.breaker.admits()

    def waits(self, envelope: Envelope) -> bool:
        """Whether an earlier event is in the way, whatever the breaker says."""
        return (
            (bool(self.paused) and envelope.sequence not in self.resuming)
            or self.is_blocked(envelope)
            or self.lot_before(envelope) is not None
        )

    def lot_before(self, envelope: Envelope) -> Lot | None:
        """Those that the event has to wait behind."""
        lot = self.lots.get(hashable(envelope.key)) if self.lots else None
        return None if lot is None or lot.leader is envelope else lot

    def is_blocked(self, envelope: Envelope) -> bool:
        """Whether the event has to follow another one of its key into the dead letters."""
        if not self.blocked:
            return False
        return hashable(envelope.key) in self.blocked and REPLAY_HEADER not in envelope.headers

    def forget_waiting(self) -> None:
        """Let go of the events that wait, as nobody comes back for them."""
        self.lots.clear()
        self.paused.clear()
        self.resuming.clear()
        self.look()

    def began(self) -> None:
        if self.breaker is not None:
            self.breaker.began()

    def failed(self, error: BaseException) -> None:
        """The handler raised."""
        if self.breaker is not None:
            self.breaker.failed(error)

    def abandoned(self) -> None:
        if self.breaker is not None:
            self.breaker.abandoned()


def _nothing() -> None:
    """There is no breaker to tell."""


def _none_of(count: int) -> None:
    """There is no breaker to tell how many."""
