"""The numbers of messages that are in a ring without an envelope.

A number says which of two messages is older. A message gets one with its envelope, and in a ring it
has none. So before a younger one gets an envelope, those in the ring are given their numbers here,
by their positions in the ring.
"""

from __future__ import annotations

from collections.abc import Callable


class RingNumbers:
    """Numbers of the positions of one ring, from the oldest that is still needed on."""

    __slots__ = ("_first", "_next_number", "_numbers")

    def __init__(self, next_number: Callable[[], int]) -> None:
        self._next_number = next_number
        self._first = 0
        self._numbers: list[int] = []

    def give(self, start: int, end: int) -> None:
        """Number the positions up to ``end`` that have no number; those before ``start`` are done.

        What is kept stays within twice the positions between the two.
        """
        if start - self._first > len(self._numbers) // 2:
            del self._numbers[: start - self._first]
            self._first = start
        missing = end - self._first - len(self._numbers)
        self._numbers.extend(self._next_number() for _ in range(missing))

    def of(self, position: int) -> int | None:
        """The number of a position; None when it was given none."""
        place = position - self._first
        return self._numbers[place] if 0 <= place < len(self._numbers) else None
