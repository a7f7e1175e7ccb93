"""How a thread, or a task, waits for a sequence to move.

A strategy trades latency for processor time. All of them end at a deadline, so that nobody hangs
because the other side has died. A strategy may return early: the caller looks again and comes back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from penstock.scaling.sequence import Signal
from penstock.system import Clock

Ready = Callable[[], bool]

SPINS = 64
"""Looks at the sequence between two looks at the clock."""


class Parking(Protocol):
    """A sequence that calls those who wait for it."""

    def park(self, signal: Signal) -> None:
        """Have the signal called at the next move."""
        ...

    def unpark(self, signal: Signal) -> None:
        """Take the signal back."""
        ...


class WaitStrategy(Protocol):
    """How a thread waits."""

    def wait(self, sequence: Parking, ready: Ready, deadline: float, clock: Clock) -> None:
        """Return when ``ready()``, at the deadline on the monotonic clock, or earlier."""
        ...


@dataclass(frozen=True, slots=True)
class Spin:
    """Look again and again. The lowest latency between processes; a whole core.

    Between threads of one interpreter it is the slowest: it holds the lock of the interpreter that
    the other side needs.
    """

    def wait(self, sequence: Parking, ready: Ready, deadline: float, clock: Clock) -> None:
        while clock.monotonic() < deadline:
            for _ in range(SPINS):
                if ready():
                    return


@dataclass(frozen=True, slots=True)
class Yield:
    """Look, and let others run in between. A core when nobody else wants it."""

    def wait(self, sequence: Parking, ready: Ready, deadline: float, clock: Clock) -> None:
        while not ready() and clock.monotonic() < deadline:
            clock.sleep(0)


@dataclass(frozen=True, slots=True)
class Sleep:
    """Look, and sleep in between: first ``seconds``, then longer, up to ``seconds_max``."""

    seconds: float = 0.000_05
    seconds_max: float = 0.001

    def wait(self, sequence: Parking, ready: Ready, deadline: float, clock: Clock) -> None:
        pause = self.seconds
        while not ready() and (left := deadline - clock.monotonic()) > 0:
            clock.sleep(min(pause, left))
            pause = min(pause * 2, self.seconds_max)


@dataclass(frozen=True, slots=True)
class Park:
    """Sleep in the kernel until the writer of the sequence calls. No processor time; threads only."""

    def wait(self, sequence: Parking, ready: Ready, deadline: float, clock: Clock) -> None:
        called = threading.Event()
        sequence.park(called.set)
        try:
            if not ready():
                called.wait(max(0.0, deadline - clock.monotonic()))
        finally:
            sequence.unpark(called.set)


async def wait_on_loop(sequence: Parking, ready: Ready, deadline: float, clock: Clock) -> None:
    """Suspend the task until the writer calls: the strategy of asyncio.

    The loop is woken once, however much is published until the task runs: the signal is gone after
    the first move. A writer in another thread wakes the loop through ``call_soon_threadsafe``.
    Cancelling takes the signal back; nothing is lost, as the sequence keeps what was published.
    """
    call = _LoopCall()
    sequence.park(call.signal)
    timer = clock.call_after(max(0.0, deadline - clock.monotonic()), call.ring)
    try:
        if not ready():
            await call.future
    finally:
        timer.cancel()
        sequence.unpark(call.signal)


class _LoopCall:
    """A future of the running loop that any thread may complete."""

    __slots__ = ("_loop", "_thread", "future")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def signal(self) -> None:
        if threading.get_ident() == self._thread:
            self.ring()
        else:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self.ring)

    def ring(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
