"""A group as a value: who is assigned what, who owns what, and when the generation grows."""

from typing import Any

import pytest

from penstock.errors import Fenced, InvalidName, InvalidOption, LimitReached
from penstock.log import group_state
from penstock.log.group_state import (
    GroupMember,
    GroupState,
    checked_topics,
    departed,
    fence,
    joined,
    released,
    renewed,
    resubscribed,
)
from penstock.scaling.assignment import AssignmentStrategy

LEASE_MS = 1_000
EMPTY = GroupState(group="billing")


def member(**topics: int) -> GroupMember:
    return GroupMember(
        lease_expires_ms=0, lease_ms=LEASE_MS, process=1, host="here", topics=topics or {"t": 4}
    )


def group_of(*names: str, now: int = 0, strategy=None, **topics: int) -> GroupState:
    state = EMPTY
    for name in names:
        state = joined(state, name, member(**topics), strategy, now)
    return state


def settled(state: GroupState, now: int = 0) -> GroupState:
    """After everybody has released what it should."""
    for name in state.members:
        state = released(state, name, state.owned_by(name) - state.assigned_to(name), now)
    return state


def owned(state: GroupState) -> dict[str, set[tuple[str, int]]]:
    return {name: set(state.owned_by(name)) for name in state.members}


def all_of(topic: str, *numbers: int) -> Any:
    return {(topic, number) for number in numbers}


@pytest.mark.acceptance(76)
def test_the_first_member_owns_everything():
    state = group_of("a")
    assert state.generation == 1
    assert owned(state) == {"a": all_of("t", 0, 1, 2, 3)}


@pytest.mark.acceptance(76)
def test_what_moves_stays_with_its_owner_until_it_is_released():
    state = group_of("a", "b")
    assert state.generation == 2
    assert owned(state) == {"a": all_of("t", 0, 1, 2, 3), "b": set()}
    assert state.owned_by("a") - state.assigned_to("a") == all_of("t", 2, 3)
    state = released(state, "a", all_of("t", 2, 3), 0)
    assert owned(state) == {"a": all_of("t", 0, 1), "b": all_of("t", 2, 3)}
    assert state.generation == 2


@pytest.mark.acceptance(76)
@pytest.mark.parametrize("strategy", list(AssignmentStrategy))
def test_a_member_whose_lease_is_over_gives_its_part_to_the_others(strategy):
    state = settled(group_of("a", "b", strategy=strategy))
    state = renewed(state, "b", LEASE_MS - 1)
    state = renewed(state, "b", LEASE_MS)
    assert state.generation == 3
    assert owned(state) == {"b": all_of("t", 0, 1, 2, 3)}


def test_a_late_member_that_nobody_missed_stays():
    state = settled(group_of("a", "b"))
    later = renewed(state, "a", 10 * LEASE_MS)
    assert owned(later) == {"a": all_of("t", 0, 1, 2, 3)}
    with pytest.raises(Fenced) as refused:
        renewed(later, "b", 10 * LEASE_MS)
    assert refused.value.reason == "removed"


def test_a_clock_that_was_set_back_hides_a_crash_for_one_lease_at_most():
    state = settled(group_of("a", "b", now=1_000_000), now=1_000_000)
    state = renewed(state, "a", 5_000)  # b's lease is far in the future now
    assert set(renewed(state, "a", 5_000 + LEASE_MS - 1).members) == {"a", "b"}
    assert set(renewed(state, "a", 5_000 + LEASE_MS).members) == {"a"}


@pytest.mark.acceptance(76)
def test_sticky_moves_no_more_than_it_must():
    state = settled(group_of("a", "b", "c", t=9))
    before = owned(state)
    after = owned(settled(joined(state, "d", member(t=9), None, 0)))
    stayed = sum(len(before[name] & after[name]) for name in before)
    assert stayed == 7
    assert sorted(map(len, after.values())) == [2, 2, 2, 3]


def test_many_small_topics_are_spread():
    topics = {f"t{number}": 1 for number in range(6)}
    state = settled(group_of("a", "b", "c", **topics))
    assert [len(one) for one in owned(state).values()] == [2, 2, 2]


def test_range_keeps_the_same_numbers_of_two_topics_together():
    state = settled(group_of("a", "b", strategy=AssignmentStrategy.RANGE, x=4, y=4))
    assert owned(state)["a"] == all_of("x", 0, 1) | all_of("y", 0, 1)


@pytest.mark.acceptance(76)
def test_a_topic_goes_to_those_who_read_it():
    state = joined(EMPTY, "a", member(x=2), None, 0)
    state = joined(state, "b", member(x=2, y=2), None, 0)
    state = settled(state)
    assert all_of("y", 0, 1) <= owned(state)["b"]
    assert len(owned(state)["a"]) == 1


def test_the_largest_count_that_a_member_knows_is_the_topics():
    state = joined(group_of("a", t=2), "b", member(t=4), None, 0)
    assert set.union(*owned(settled(state)).values()) == all_of("t", 0, 1, 2, 3)


def test_another_count_makes_a_generation_and_the_same_one_does_not():
    state = group_of("a", t=2)
    assert resubscribed(state, "a", {"t": 2}, 0).generation == 1
    grown = resubscribed(state, "a", {"t": 3}, 0)
    assert grown.generation == 2
    assert owned(grown) == {"a": all_of("t", 0, 1, 2)}


def test_leaving_twice_is_leaving():
    state = departed(settled(group_of("a", "b")), "a", 0)
    assert owned(state) == {"b": all_of("t", 0, 1, 2, 3)}
    assert departed(state, "a", 0) == state


def test_a_partition_that_came_back_before_its_release_is_not_given_away():
    state = group_of("a", "b")
    to_release = state.owned_by("a") - state.assigned_to("a")
    state = departed(state, "b", 0)
    state = released(state, "a", to_release, 0)
    assert owned(state) == {"a": all_of("t", 0, 1, 2, 3)}


def test_the_fence_names_its_reason():
    state = settled(group_of("a", "b"))
    fence(state, "a", 2, [("t", 0)])
    for name, generation, partition, reason in [
        ("c", 2, 0, "removed"),
        ("a", 1, 0, "generation"),
        ("a", 3, 0, "generation"),
        ("a", 2, 3, "partition"),
        ("a", 2, 9, "partition"),
    ]:
        with pytest.raises(Fenced) as refused:
            fence(state, name, generation, [("t", partition)])
        assert refused.value.fields == {
            "group": "billing",
            "member": name,
            "generation": generation,
            "current": 2,
            "reason": reason,
            "topic": "t" if reason == "partition" else None,
            "partition": partition if reason == "partition" else None,
        }


def test_all_members_use_one_strategy():
    state = group_of("a", strategy=AssignmentStrategy.RANGE)
    assert joined(state, "b", member(), None, 0).strategy is AssignmentStrategy.RANGE
    with pytest.raises(InvalidOption, match="uses strategy range"):
        joined(state, "b", member(), AssignmentStrategy.STICKY, 0)
    empty = departed(state, "a", 0)
    other = joined(empty, "b", member(), AssignmentStrategy.STICKY, 0)
    assert other.strategy is AssignmentStrategy.STICKY


def test_the_number_of_members_is_bounded(monkeypatch):
    monkeypatch.setattr(group_state, "MEMBERS_MAX", 2)
    with pytest.raises(LimitReached):
        joined(group_of("a", "b"), "c", member(), None, 0)
    assert "c" in joined(group_of("a", "b"), "c", member(), None, LEASE_MS).members


@pytest.mark.parametrize("topics", [{}, {"t": 0}, {"t": 5_000}])
def test_topics_that_nobody_can_read_are_refused(topics):
    with pytest.raises(InvalidOption):
        checked_topics(topics)


def test_topic_names_are_checked():
    with pytest.raises(InvalidName):
        checked_topics({"../x": 1})
