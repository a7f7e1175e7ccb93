"""A circuit breaker: leaves a handler alone that fails, and tries it carefully after a while.

::

    CLOSED     every call is admitted; too many failures within the window open the circuit
    OPEN       no call is admitted, until ``recovery`` has passed
    HALF_OPEN  a few calls are admitted as probes; enough successes close the circuit, one failure
               opens it again
"""

from __future__ import annotations

import asyncio
import enum
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import CircuitOpen, InvalidOption
from penstock.resilience.callbacks import Callbacks
from penstock.resilience.cells import BreakerCells
from penstock.resilience.options import ErrorTypes, check_error_types, check_range
from penstock.resilience.rate import SlidingRate
from penstock.system import Clock

COUNT_MAX = 10_000
LOOK_EVERY = 64
"""Successes between two looks at the clock, when the rate of failures matters."""
PROBE_POLL_SECONDS = 0.01
"""The shortest time after which it makes sense to ask again while probes are out."""
NOBODY_LOOKS = sys.maxsize


class BreakerState(enum.StrEnum):
    """What a breaker does with calls."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


OnChange = Callable[[BreakerState, BreakerState], None]
"""Is told the previous and the current state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerOptions:
    """When a circuit opens and how it closes again."""

    failures: int | None = 5
    """Failures within the window that open the circuit; None counts the rate only.

    They need not follow each other: a success in between does not erase them. A handler that fails
    on every second call is broken too, and would never be noticed otherwise.
    """
    failure_rate: float | None = None
    """Share of the calls within the window, up to 1.0, whose failure opens the circuit."""
    minimum_calls: int = 20
    """Calls within the window below which the rate says nothing."""
    window: float = 60.0
    """Seconds that a failure counts."""
    recovery: float = 60.0
    """Seconds that the circuit stays open."""
    successes: int = 3
    """Probes that have to go well to close the circuit."""
    probes_max: int = 3
    """Probes that may be out at the same time."""
    ignore: ErrorTypes = ()
    """Errors that say nothing about the handler's health, such as those of a wrong message."""

    def __post_init__(self) -> None:
        if self.failures is None and self.failure_rate is None:
            raise InvalidOption("set failures, failure_rate or both", option="failures")
        if self.failures is not None:
            check_range("failures", self.failures, 1, COUNT_MAX)
        if self.failure_rate is not None:
            check_range("failure_rate", self.failure_rate, 0.000_1, 1.0)
        check_range("minimum_calls", self.minimum_calls, 1)
        check_range("window", self.window, 0.001)
        check_range("recovery", self.recovery, 0)
        check_range("successes", self.successes, 1, COUNT_MAX)
        check_range("probes_max", self.probes_max, 1, COUNT_MAX)
        check_error_types("ignore", self.ignore)


@dataclass(frozen=True, slots=True)
class BreakerStatistics:
    """A breaker. The counts are totals since it was made."""

    name: str
    state: BreakerState
    admitted: int
    refused: int
    succeeded: int
    failed: int
    abandoned: int
    """Admitted calls that ended without an outcome: cancelled, or with an ignored error."""
    opened: int
    """How often the circuit opened."""
    failure_rate: float
    """Share of the calls within the window that failed; see SlidingRate for how exact it is."""
    retry_after: float
    changed_ms: int
    """When the state changed last, in milliseconds since 1970, UTC."""


class CircuitBreaker(BreakerCells):
    """Decides whether a handler is called. Implements :class:`penstock.bus.handlers.Guard`.

    Each admitted call must be followed by ``succeeded``, ``failed`` or ``abandoned``. A probe whose
    outcome is never told does not keep the circuit half open for ever: after ``recovery`` seconds
    without a new probe it is given up. Calls that were admitted before the circuit opened and end
    later are counted, and decide nothing.

    Used by one event loop; not thread-safe. While the circuit is closed a successful call costs a
    few integer operations, and no look at the clock.
    """

    def __init__(self, options: BreakerOptions, clock: Clock, name: str = "") -> None:
        self.options = options
        self.name = name
        self._clock = clock
        self._state = BreakerState.CLOSED
        self._closed = True
        self._callbacks = Callbacks[[BreakerState, BreakerState]](f"the breaker of {name}")
        self._changes: deque[tuple[BreakerState, BreakerState]] = deque()
        self._telling = False
        self._admitted = self._refused = self._succeeded = self._failed = self._abandoned = 0
        self._opened = 0
        self._since = clock.monotonic()
        """When the circuit opened, or the last probe went out."""
        self._changed_ms = clock.time_ms()
        self._probes = 0
        """Probes that are out."""
        self._good_probes = 0
        self._late = 0
        """Calls from before the circuit opened that have not ended."""
        self._lost = 0
        """Calls whose outcome is no longer waited for."""
        self._start_window()

    # What the bus calls

    def admits(self) -> bool:
        """Whether the handler may be called now. A yes must be followed by its outcome."""
        if self._closed or self._admits_probe():
            self._admitted += 1
            return True
        self._refused += 1
        return False

    def began(self) -> None:
        """A call was made without asking, while the circuit was closed; its outcome follows.

        If it has opened since, that outcome decides nothing.
        """
        self._admitted += 1
        self._late += not self._closed

    def succeeded(self) -> None:
        """An admitted call went well."""
        self._succeeded += 1
        if self._succeeded >= self._look_at:
            self._note_success()

    def failed(self, error: BaseException) -> None:
        """An admitted call raised. A cancellation or an ignored error is no failure."""
        if isinstance(error, (asyncio.CancelledError, *self.options.ignore)):
            self.abandoned()
            return
        self._failed += 1
        if self._closed:
            self._note_failure()
        elif self._ends_probe():
            self._open()

    def abandoned(self) -> None:
        """An admitted call ended without an outcome; if it was a probe, another one may go out."""
        self._abandoned += 1
        if not self._closed:
            self._ends_probe()

    # What others ask

    @property
    def state(self) -> BreakerState:
        """The state; an open circuit becomes half open when the first call after ``recovery`` comes."""
        return self._state

    @property
    def retry_after(self) -> float:
        """Seconds after which a call may be admitted; 0.0 when it is worth trying now.

        While all probes are out nobody knows: the answer is as long again as they have been out,
        so that asking again and again costs little.
        """
        passed = self._clock.monotonic() - self._since
        if self._state is BreakerState.OPEN:
            return max(0.0, self.options.recovery - passed)
        if self._closed or self._may_probe():
            return 0.0
        return max(0.0, min(max(passed, PROBE_POLL_SECONDS), self.options.recovery - passed))

    def refusal(self) -> CircuitOpen:
        """The error for a call that was not admitted."""
        after = self.retry_after
        return CircuitOpen(
            f"the circuit of {self.name or 'the handler'} is {self._state}: try again in {after:.3g} s",
            handler=self.name,
            retry_after=after,
        )

    def on_change(self, callback: OnChange) -> Callable[[], None]:
        """Tell the callback each change of state; returns what takes it back.

        It is called in the middle of a call's way, so it must be quick. What it raises is logged.
        """
        return self._callbacks.add(callback)

    def reset(self) -> None:
        """Close the circuit, whatever happened."""
        if not self._closed:
            self._close()

    def statistics(self) -> BreakerStatistics:
        """The figures of now."""
        calls, failures = self._rate.counts(self._clock.monotonic(), self._ended, self._failed)
        return BreakerStatistics(
            name=self.name,
            state=self._state,
            admitted=self._admitted,
            refused=self._refused,
            succeeded=self._succeeded,
            failed=self._failed,
            abandoned=self._abandoned,
            opened=self._opened,
            failure_rate=min(failures / calls, 1.0) if calls > 0 else 0.0,
            retry_after=self.retry_after,
            changed_ms=self._changed_ms,
        )

    # Closed

    @property
    def _ended(self) -> int:
        """Calls with an outcome."""
        return self._succeeded + self._failed

    def _start_window(self) -> None:
        self._recent: deque[float] = deque(maxlen=self.options.failures or 1)
        self._rate = SlidingRate(
            self.options.window, self._clock.monotonic(), self._ended, self._failed
        )
        self._look_later()

    def _look_later(self) -> None:
        """While the circuit is not closed every success is looked at, by a number always reached."""
        wanted = self.options.failure_rate is not None
        self._look_at = self._succeeded + LOOK_EVERY if wanted else NOBODY_LOOKS

    def _note_success(self) -> None:
        if self._closed:
            self._rate.look(self._clock.monotonic(), self._ended, self._failed)
            self._look_later()
        elif self._ends_probe():
            self._good_probes += 1
            if self._good_probes >= self.options.successes:
                self._close()

    def _note_failure(self) -> None:
        now = self._clock.monotonic()
        self._recent.append(now)
        self._rate.failed(now, self._ended, self._failed)
        if self._too_many(now) or self._too_often(now):
            self._open()

    def _too_many(self, now: float) -> bool:
        wanted = self.options.failures
        if wanted is None or len(self._recent) < wanted:
            return False
        return now - self._recent[0] < self.options.window

    def _too_often(self, now: float) -> bool:
        if self.options.failure_rate is None:
            return False
        calls, failures = self._rate.counts(now, self._ended, self._failed)
        return calls >= self.options.minimum_calls and (
            failures >= self.options.failure_rate * calls
        )

    # Open and half open

    def _admits_probe(self) -> bool:
        now = self._clock.monotonic()
        if now - self._since >= self.options.recovery:
            self._half_open()
        if self._state is not BreakerState.HALF_OPEN or not self._may_probe():
            return self._closed  # a callback may have reset it
        self._probes += 1
        self._since = now
        return True

    def _may_probe(self) -> bool:
        """No more probes than may be out, nor than are needed to close the circuit."""
        needed = self.options.successes - self._good_probes
        return self._probes < min(self.options.probes_max, needed)

    def _half_open(self) -> None:
        """Begin to probe, or give up on probes whose outcome nobody told."""
        if self._state is BreakerState.OPEN:
            self._good_probes = 0
            self._change(BreakerState.HALF_OPEN)
        elif not self._may_probe():
            self._lost += self._in_flight()
            self._probes = self._late = 0

    def _ends_probe(self) -> bool:
        """Whether the call that ended is a probe; calls from before are taken to end first."""
        if self._late:
            self._late -= 1
            return False
        self._probes -= self._probes > 0
        return self._state is BreakerState.HALF_OPEN

    def _open(self) -> None:
        self._late = self._in_flight()
        self._probes = 0
        self._opened += 1
        self._since = self._clock.monotonic()
        self._closed = False
        self._look_at = 0
        self._change(BreakerState.OPEN)

    def _in_flight(self) -> int:
        return max(0, self._admitted - self._ended - self._abandoned - self._lost)

    def _close(self) -> None:
        self._late = self._probes = 0
        self._closed = True
        self._start_window()
        self._change(BreakerState.CLOSED)

    def _change(self, state: BreakerState) -> None:
        self._changes.append((self._state, state))
        self._state = state
        self._changed_ms = self._clock.time_ms()
        if not self._telling:  # a callback that changes the state is told after the others
            self._telling = True
            try:
                while self._changes:
                    self._callbacks.tell(*self._changes.popleft())
            finally:
                self._telling = False
