"""What is taken of a partition, and what of that is handled."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from penstock.streaming.ranges import START, OffsetRange, Position, position_of


class PartitionProgress:
    """Knows from where a group would have to go on, while records are handled in any order.

    Records are taken in the order of their offsets. Offsets in between that never come (compaction
    took them) count as handled. It holds one entry for each record that is taken and not handled,
    and there are never more gaps than these: who bounds the one bounds the other.
    """

    __slots__ = ("_end", "_handled_before", "_open")

    def __init__(self, start: Position = START) -> None:
        self._end = start.offset
        self._handled_before = deque(start.gaps)
        self._open: dict[int, None] = {}

    @property
    def end(self) -> int:
        """The offset behind the last record that was taken."""
        return self._end

    def take(self, offset: int) -> bool:
        """Note that a record has come; False when it has been taken or handled before."""
        if offset < self._end:
            return False
        self._end = offset + 1
        if self._was_handled_before(offset):
            return False
        self._open[offset] = None
        return True

    def handled(self, offset: int) -> None:
        """Note that a record which was taken is handled."""
        self._open.pop(offset, None)

    def handled_below(self, offset: int) -> None:
        """Note that all that was taken below an offset is handled."""
        for taken in [one for one in self._open if one < offset]:
            del self._open[taken]

    def position(self) -> Position:
        """All below its offset, and all in its gaps, is handled; what is open is not among it."""
        open_offsets = list(self._open)
        between = [
            OffsetRange(offset + 1, following)
            for offset, following in pairwise([*open_offsets, self._end])
            if offset + 1 < following
        ]
        first = open_offsets[0] if open_offsets else self._end
        return position_of(first, [*between, *self._handled_before])

    def _was_handled_before(self, offset: int) -> bool:
        before = self._handled_before
        while before and before[0].end <= offset:
            before.popleft()
        return bool(before) and offset in before[0]
