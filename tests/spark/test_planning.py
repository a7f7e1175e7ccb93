"""Planning: every record goes into one task, and limits are shared in proportion."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.planning import PACK_BYTES, PACK_RECORDS, Range, plan_tasks, share

RANGES = st.lists(
    st.builds(
        lambda partition, start, records, size: Range("t", partition, start, start + records, size),
        st.integers(0, 5),
        st.integers(0, 1000),
        st.integers(0, 50_000),
        st.integers(0, 8 * 1024 * 1024),
    ),
    max_size=8,
)


def covered(ranges):
    """The offsets of each partition, as merged stretches."""
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for one in sorted(ranges, key=lambda one: (one.topic, one.partition, one.start, one.end)):
        if not one.records:
            continue
        stretches = found.setdefault((one.topic, one.partition), [])
        stretches.append((one.start, one.end))
    return found


def numbered(ranges):
    """Each with a partition of its own, so that none overlaps another."""
    return [
        Range(one.topic, number, one.start, one.end, one.bytes) for number, one in enumerate(ranges)
    ]


@given(RANGES, st.none() | st.integers(1, 40), st.none() | st.integers(1, 20_000))
def test_every_record_is_in_one_task(ranges, tasks_min, records_max):
    ranges = numbered(ranges)
    tasks = plan_tasks(ranges, tasks_min, records_max)
    pieces = [piece for task in tasks for piece in task]
    assert all(piece.records > 0 for piece in pieces)
    for place, stretches in covered(pieces).items():
        (wanted,) = [one for one in ranges if (one.topic, one.partition) == place]
        assert (stretches[0][0], stretches[-1][1]) == (wanted.start, wanted.end)
        assert all(before[1] == after[0] for before, after in pairwise(stretches))
    assert sum(piece.records for piece in pieces) == sum(one.records for one in ranges)
    if records_max is not None:
        assert all(sum(one.records for one in task) <= records_max for task in tasks)
    if tasks_min is not None:
        assert len(tasks) >= min(tasks_min, sum(one.records for one in ranges))


def test_many_small_ranges_share_a_task():
    ranges = [Range("t", number, 0, 1, 100) for number in range(16)]
    assert len(plan_tasks(ranges)) == 1
    assert len(plan_tasks(ranges, tasks_min=16)) == 16
    assert len(plan_tasks(ranges, task_records_max=4)) == 4


def test_large_ranges_have_their_own_tasks():
    many = [Range("t", number, 0, PACK_RECORDS, 1) for number in range(3)]
    heavy = [Range("t", number, 0, 2, PACK_BYTES) for number in range(3)]
    assert [len(task) for task in plan_tasks(many)] == [1, 1, 1]
    assert [len(task) for task in plan_tasks(heavy)] == [1, 1, 1]


def test_the_larger_a_range_the_more_pieces():
    tasks = plan_tasks([Range("t", 0, 0, 900), Range("t", 1, 0, 100)], tasks_min=10)
    assert [task[0].partition for task in tasks] == [0] * 9 + [1]


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=9), st.integers(1, 30_000))
def test_a_limit_is_used_up_and_never_passed(counts, limit):
    waiting = {("t", number): count for number, count in enumerate(counts)}
    shares = share(waiting, limit)
    assert sum(shares.values()) == min(limit, sum(counts))
    assert all(0 <= shares[place] <= waiting[place] for place in waiting)


def test_a_limit_is_shared_in_proportion():
    assert share({("t", 0): 900, ("t", 1): 100}, 100) == {("t", 0): 90, ("t", 1): 10}
