"""Positions are sets of offsets: joining them is the union, and there is one way to write each."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidOption
from penstock.streaming import OffsetRange, Position
from penstock.streaming.ranges import position_of
from tests.streaming.streaming_world import handled_below, ranges

END = 40
offsets = st.integers(0, END)
any_ranges = st.lists(
    st.tuples(offsets, st.integers(1, 8)).map(lambda one: OffsetRange(one[0], one[0] + one[1])),
    max_size=8,
)
positions = st.builds(position_of, offsets, any_ranges)


@given(offsets, any_ranges)
def test_a_position_has_what_the_offset_and_the_ranges_have(offset, handled):
    expected = set(range(offset)).union(*(range(one.start, one.end) for one in handled))
    position = position_of(offset, handled)
    assert handled_below(position, 60) == expected
    assert not position.has_handled(position.offset)


@given(positions, positions)
def test_joining_is_the_union(one, other):
    joined = one.joined(other)
    assert handled_below(joined, 60) == handled_below(one, 60) | handled_below(other, 60)
    assert joined == other.joined(one)
    assert joined.joined(one) == joined


@given(positions)
def test_a_position_survives_json(position):
    assert msgspec.json.decode(msgspec.json.encode(position), type=Position) == position


@pytest.mark.parametrize(
    ("offset", "gaps"),
    [
        (-1, ()),
        (1 << 63, ()),
        (5, ((5, 6),)),
        (5, ((3, 9),)),
        (5, ((7, 7),)),
        (5, ((9, 7),)),
        (5, ((7, 9), (9, 11))),
        (5, ((9, 11), (6, 7))),
        (5, ((7, 1 << 63),)),
    ],
)
def test_a_position_that_cannot_be_is_refused(offset, gaps):
    with pytest.raises(InvalidOption):
        Position(offset, ranges(*gaps))
