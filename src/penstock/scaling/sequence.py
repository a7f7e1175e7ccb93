"""A position that one side moves forward and the others watch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

Signal = Callable[[], None]


class Position(Protocol):
    """What the algorithm of the ring needs of a sequence, in whatever memory it lives."""

    @property
    def value(self) -> int:
        """How many entries were published, or passed."""
        ...


class Parking:
    """Where those wait who want to be told when a count moves. Who inherits it has the slots."""

    __slots__ = ()

    value: int
    parked: tuple[Signal, ...]
    _lock: threading.RLock

    def park(self, signal: Signal) -> None:
        """Have the signal called at the next move, once. Look at the value again after this."""
        with self._lock:
            self.parked = (*self.parked, signal)  # type: ignore[misc]

    def unpark(self, signal: Signal) -> None:
        """Take the signal back. Does nothing when it was called."""
        with self._lock:
            self.parked = tuple(  # type: ignore[misc]
                one for one in self.parked if one != signal
            )

    def wake(self) -> None:
        """Call every parked signal, each once; any thread. Nobody who waits may raise."""
        with self._lock:
            signals, self.parked = self.parked, ()  # type: ignore[misc]
        for signal in signals:
            signal()


class Sequence(Parking):
    """A count that only grows, with exactly one writer and any number of readers.

    The producer's sequence counts what was published, a consumer's what it has passed. Position
    ``n`` is the entry that becomes visible when the count goes from ``n`` to ``n + 1``. Counts are
    Python integers: they never wrap; the slot of a position is found with a mask.

    Who wants to be told of a move parks a signal here, looks at the value once more, and only then
    waits. The writer moves the value first and looks at ``parked`` second. In whatever order these
    four steps interleave, either the reader sees the new value or the writer sees the signal. The
    lock of the interpreter gives all threads one such order; no other lock is needed for it.
    """

    __slots__ = ("_lock", "parked", "value")

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self.parked: tuple[Signal, ...] = ()
        """Signals of those who wait. The writer calls :meth:`wake` after a move if there are any."""
        self._lock = threading.RLock()  # a finalizer may run anywhere, and come back here


def lowest(sequences: Iterable[Position], otherwise: int) -> int:
    """The lowest value, or ``otherwise`` when there are no sequences."""
    return min([sequence.value for sequence in sequences], default=otherwise)
