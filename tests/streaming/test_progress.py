"""Progress against a plain set: what may be committed while records end in any order."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.streaming import Position
from penstock.streaming.progress import PartitionProgress
from tests.streaming.streaming_world import handled_below
from tests.streaming.test_ranges import positions


@given(positions, st.sets(st.integers(0, 60)), st.data())
def test_a_position_has_all_that_is_handled_and_nothing_that_is_open(start, coming, data):
    progress = PartitionProgress(start)
    taken = {offset for offset in sorted(coming) if progress.take(offset)}
    assert taken == {offset for offset in coming if not start.has_handled(offset)}
    handled = data.draw(st.sets(st.sampled_from(sorted(taken)))) if taken else set()
    for offset in data.draw(st.permutations(sorted(handled))):
        progress.handled(offset)
    position = progress.position()
    there = handled_below(position, 70)
    assert there >= handled_below(start, 70) | handled
    assert not there & (taken - handled)
    # Beyond what was taken, nothing is known but what was handled before.
    assert {one for one in there if one >= progress.end} == {
        one for one in handled_below(start, 70) if one >= progress.end
    }
    assert len(position.gaps) <= len(taken - handled) + len(start.gaps)


def test_a_record_is_taken_once():
    progress = PartitionProgress(Position(3))
    assert [progress.take(offset) for offset in (2, 3, 3, 5, 4)] == [
        False,
        True,
        False,
        True,
        False,
    ]
