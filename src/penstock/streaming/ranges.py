"""Sets of offsets as ranges: what was handled beyond the first record that was not."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.errors import InvalidOption

OFFSET_MAX = (1 << 63) - 1


class OffsetRange(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """The offsets from ``start`` up to, and without, ``end``."""

    start: int
    end: int

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset < self.end

    def __len__(self) -> int:
        return self.end - self.start


Ranges = tuple[OffsetRange, ...]


class Position(msgspec.Struct, frozen=True, gc=False):
    """Which records of a partition are handled: all below ``offset``, and those in ``gaps``."""

    offset: int
    """The first record that is not handled."""
    gaps: Ranges = ()
    """What is handled beyond it, in order; the ranges neither touch each other nor the offset."""

    def __post_init__(self) -> None:
        check_position(self.offset, self.gaps)

    def has_handled(self, offset: int) -> bool:
        """Whether the record with this offset is handled."""
        return offset < self.offset or any(offset in gap for gap in self.gaps)

    def joined(self, other: Position) -> Position:
        """What is handled by one or by the other."""
        return position_of(max(self.offset, other.offset), (*self.gaps, *other.gaps))


def position_of(offset: int, handled: Iterable[OffsetRange]) -> Position:
    """The position after all below the offset and all in the ranges, which may overlap."""
    gaps: list[OffsetRange] = []
    for one in sorted(handled):
        last = gaps[-1].end if gaps else offset
        if one.start > last:
            gaps.append(one)
        elif one.end > last and gaps:
            gaps[-1] = OffsetRange(gaps[-1].start, one.end)
        elif one.end > last:
            offset = one.end
    return Position(offset, tuple(gaps))


def check_position(offset: int, gaps: Ranges) -> None:
    """Refuse an offset that cannot be, and ranges that are empty, touch or are out of order."""
    if not 0 <= offset <= OFFSET_MAX:
        raise InvalidOption(f"offset {offset} is outside 0..{OFFSET_MAX}", option="offset")
    last = offset
    for gap in gaps:
        if not last < gap.start < gap.end <= OFFSET_MAX:
            raise InvalidOption(
                f"the range {gap.start}..{gap.end} is empty, or touches what is before it "
                f"(up to {last})",
                option="gaps",
            )
        last = gap.end


START = Position(0)
