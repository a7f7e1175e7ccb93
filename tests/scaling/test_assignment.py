"""Every partition has one member, members differ by one at most, and sticky moves few."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.errors import InvalidOption
from penstock.scaling.assignment import (
    AssignmentStrategy,
    assign,
    assign_in_turn,
    assign_ranges,
    assign_sticky,
    partitions_for,
)

NAMES = [f"m{number}" for number in range(9)]
MEMBERS = st.lists(st.sampled_from(NAMES), min_size=1, unique=True)
STRATEGIES = list(AssignmentStrategy)


def check_cover(assignment, partitions, members):
    """Disjoint, complete, balanced within one, and in order."""
    assert set(assignment) == set(members)
    if not members:
        return
    given = [partition for mine in assignment.values() for partition in mine]
    assert sorted(given) == list(range(partitions))
    sizes = [len(mine) for mine in assignment.values()]
    assert max(sizes) - min(sizes) <= 1
    assert all(list(mine) == sorted(mine) for mine in assignment.values())


def moved(before, after):
    """Partitions that have another member than before, or had none."""
    was = {partition: name for name, mine in before.items() for partition in mine}
    return sum(was.get(one) != name for name, mine in after.items() for one in mine)


@pytest.mark.acceptance(26)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_members_share_four_partitions_and_one_takes_all_that_are_left(strategy):
    both = assign(strategy, 4, ["b", "a"])
    assert {name: len(mine) for name, mine in both.items()} == {"a": 2, "b": 2}
    check_cover(both, 4, ["a", "b"])
    assert assign(strategy, 4, ["b"], both) == {"b": (0, 1, 2, 3)}


def test_ranges_keep_neighbours_together():
    assert assign_ranges(5, ["b", "a"]) == {"a": (0, 1, 2), "b": (3, 4)}
    assert assign_ranges(2, ["c", "a", "b"]) == {"a": (0,), "b": (1,), "c": ()}


def test_in_turn_goes_round():
    assert assign_in_turn(5, ["b", "a"]) == {"a": (0, 2, 4), "b": (1, 3)}


def test_sticky_moves_only_what_a_newcomer_needs():
    before = {"a": (0, 1, 2), "b": (3, 4, 5)}
    assert assign_sticky(6, ["a", "b", "c"], before) == {"a": (0, 1), "b": (3, 4), "c": (2, 5)}


def test_sticky_gives_what_a_leaver_had_to_the_others():
    before = {"a": (0, 1), "b": (3, 4), "c": (2, 5)}
    assert assign_sticky(6, ["a", "b"], before) == {"a": (0, 1, 2), "b": (3, 4, 5)}


def test_sticky_passes_over_what_cannot_be():
    before = {"a": (0, 1, 7, -1), "b": (1, 1), "gone": (2,)}
    after = assign_sticky(4, ["a", "b"], before)
    check_cover(after, 4, ["a", "b"])
    assert after["a"] == (0, 1)


@pytest.mark.acceptance(76)
@pytest.mark.parametrize("strategy", STRATEGIES)
@given(data=st.data())
def test_the_order_in_which_members_are_named_does_not_matter(strategy, data):
    members = data.draw(MEMBERS)
    partitions = data.draw(st.integers(1, 40))
    before = assign_ranges(data.draw(st.integers(1, 40)), data.draw(MEMBERS))
    first = assign(strategy, partitions, members, before)
    assert assign(strategy, partitions, data.draw(st.permutations(members)), before) == first
    check_cover(first, partitions, members)


@given(
    MEMBERS,
    st.integers(1, 12),
    st.dictionaries(st.sampled_from(NAMES), st.sets(st.integers(0, 12))),
)
def test_no_balanced_assignment_moves_fewer(members, partitions, wild):
    """Against all ways to choose who has the partitions that are over."""
    taken: set[int] = set()
    before = {}
    for name in sorted(wild):
        before[name] = sorted(one for one in wild[name] - taken if one < partitions)
        taken |= wild[name]
    base, over = divmod(partitions, len(members))
    most_kept = max(
        sum(min(len(before.get(name, ())), base + (name in more)) for name in members)
        for more in combinations(members, over)
    )
    after = assign_sticky(partitions, members, before)
    check_cover(after, partitions, members)
    assert moved(before, after) == partitions - most_kept


@given(MEMBERS, st.integers(1, 30))
def test_sticky_moves_nothing_when_nothing_changed(members, partitions):
    before = assign_in_turn(partitions, members)
    assert assign_sticky(partitions, members, before) == before


class Group(RuleBasedStateMachine):
    """Members come and go, partitions are added and removed; nobody is left out."""

    @initialize(strategy=st.sampled_from(STRATEGIES), partitions=st.integers(1, 20))
    def start(self, strategy, partitions):
        self.strategy = strategy
        self.partitions = partitions
        self.members: set[str] = set()
        self.assignment = assign(strategy, partitions, [])

    @rule(name=st.sampled_from(NAMES))
    def join(self, name):
        self.members.add(name)
        self.rebalance()

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name):
        self.members.discard(name)
        self.rebalance()

    @rule(partitions=st.integers(1, 20))
    def repartition(self, partitions):
        self.partitions = partitions
        self.rebalance()

    def rebalance(self):
        self.assignment = assign(self.strategy, self.partitions, self.members, self.assignment)

    @invariant()
    def is_covered(self):
        if hasattr(self, "members"):
            check_cover(self.assignment, self.partitions, self.members)


TestGroup = pytest.mark.acceptance(26, 76)(Group.TestCase)


@pytest.mark.acceptance(21)
def test_the_default_partitions_follow_the_subscribers():
    counts = [partitions_for(subscribers) for subscribers in range(10)]
    assert counts == [1, 1, 2, 4, 4, 8, 8, 8, 8, 16]
    assert partitions_for(10_000) == 64
    assert [partitions_for(9, most) for most in (1, 2, 3, 8, 15, 16)] == [1, 2, 2, 8, 8, 16]


@given(st.integers(1, 200), st.integers(1, 300))
def test_every_subscriber_has_a_partition_while_the_bound_allows(subscribers, most):
    count = partitions_for(subscribers, most)
    assert 1 <= count <= most
    assert count >= subscribers or count * 2 > most
    assert count < subscribers * 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: assign_ranges(0, ["a"]),
        lambda: assign_in_turn(1, ["a", "a"]),
        lambda: assign_sticky(-1, []),
        lambda: assign("best", 4, ["a"]),
        lambda: partitions_for(-1),
        lambda: partitions_for(1, 0),
    ],
)
def test_what_makes_no_sense_is_refused(call):
    with pytest.raises(InvalidOption):
        call()
