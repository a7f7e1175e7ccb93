"""Any sequence of joins, departures, crashes, heartbeats, lost answers and commits of a group.

At every moment no partition has two owners, in the group's state and in what live members believe;
generations only grow; a commit lands when its member owns the partition in this generation, and
never otherwise. When the members that are left have settled, they share everything.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import chain
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from penstock.errors import DeadlineExceeded, Fenced
from penstock.log.group_coordinator import GroupCoordinator
from penstock.log.group_file import GroupFile
from penstock.log.group_member import Member
from penstock.log.group_state import GroupState, TopicPartition
from penstock.scaling.assignment import AssignmentStrategy
from penstock.stores import MemoryStore
from penstock.system import System
from penstock.testing import VirtualClock

LEASE = 10.0
SUBSCRIPTIONS = st.dictionaries(
    st.sampled_from(["orders", "invoices", "returns"]), st.integers(1, 5), min_size=1
)
PARTITIONS = st.builds(TopicPartition, st.sampled_from(["orders", "invoices"]), st.integers(0, 4))
T = TypeVar("T")


class InlineCoordinator(GroupCoordinator):
    """Works on the loop, and may do what it is asked without answering."""

    answers = True

    async def off_loop(self, job: Callable[[], T], what: str) -> T:
        done = job()
        if not self.answers:
            raise DeadlineExceeded("the answer is lost")
        return done


class GroupMachine(RuleBasedStateMachine):
    """Members are live, or zombies: the program has hung, but may wake up at any time."""

    live = Bundle("live")
    zombies = Bundle("zombies")

    @initialize(
        target=live,
        strategy=st.sampled_from(AssignmentStrategy),
        count=st.integers(2, 4),
        settled=st.booleans(),
    )
    def begin(self, strategy: AssignmentStrategy, count: int, settled: bool) -> Any:
        self.runner = asyncio.Runner()
        self.clock = VirtualClock()
        self.store = MemoryStore()
        system = System(clock=self.clock)
        self.coordinator = InlineCoordinator(
            self.store, "billing", system=system, lease_seconds=LEASE
        )
        self.file = GroupFile(self.store, "billing", self.clock, 1)
        self.strategy = strategy
        self.members: list[Member] = []
        self.committed: dict[TopicPartition, int] = {}
        self.seen = GroupState(group="billing")
        members = [self.join({"orders": 5}) for _ in range(count)]
        for member in [*members, *members] if settled else []:
            assert self.answers(member)
        return multiple(*members)

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def state(self) -> GroupState:
        return self.file.read()

    def call(self, work: Coroutine[Any, Any, object]) -> None:
        """Make a call that may be refused, if the member is out."""
        with suppress(Fenced):
            self.run(work)

    # What members do

    @rule(target=live, topics=SUBSCRIPTIONS)
    def join_later(self, topics: dict[str, int]) -> Member:
        return self.join(topics)

    def join(self, topics: dict[str, int]) -> Member:
        member = self.run(self.coordinator.join(topics, strategy=self.strategy))
        self.members.append(member)
        return member

    @rule(member=consumes(live), how=st.sampled_from(["leave", "crash"]))
    def go(self, member: Member, how: str) -> None:
        self.members.remove(member)
        if how == "leave":
            self.run(member.leave())
            assert member.assignment == frozenset()

    @rule(member=live)
    def heartbeat(self, member: Member) -> None:
        before = member.assignment
        live_before = member.is_live
        is_in = member.id in self.state().members
        try:
            change = self.run(member.heartbeat())
        except Fenced:
            assert not is_in
            assert member.assignment == frozenset()
            return
        assert is_in
        if change is not None:
            assert change.assignment == member.assignment
            if live_before:
                assert before - change.lost | change.gained == member.assignment

    @rule(member=live)
    def release(self, member: Member) -> None:
        self.call(member.release())

    @rule()
    def everybody_looks(self) -> None:
        for member in self.members:
            self.call(member.heartbeat())

    @rule(member=live, topics=SUBSCRIPTIONS)
    def resubscribe(self, member: Member, topics: dict[str, int]) -> None:
        self.call(member.resubscribe(topics))

    @rule(member=live, call=st.sampled_from(["heartbeat", "release"]))
    def lose_an_answer(self, member: Member, call: str) -> None:
        self.call(member.heartbeat())
        self.coordinator.answers = False
        with suppress(Fenced, DeadlineExceeded):
            self.run(getattr(member, call)())
        self.coordinator.answers = True

    @rule(topics=SUBSCRIPTIONS)
    def join_and_lose_the_answer(self, topics: dict[str, int]) -> None:
        self.coordinator.answers = False
        with suppress(DeadlineExceeded):
            self.run(self.coordinator.join(topics, strategy=self.strategy))
        self.coordinator.answers = True

    @rule(target=zombies, member=consumes(live))
    def hang(self, member: Member) -> Member:
        return member

    @rule(target=live, member=consumes(zombies))
    def wake_up(self, member: Member) -> Member:
        return member

    @rule(member=live | zombies, partition=PARTITIONS, offset=st.integers(0, 20))
    def commit(self, member: Member, partition: TopicPartition, offset: int) -> None:
        state = self.state()
        may = member.generation == state.generation and partition in state.owned_by(member.id)
        stands = self.committed.get(partition, 0)
        try:
            answer = self.run(member.commit({partition: offset}))
        except Fenced:
            assert not may
            return
        assert may
        assert answer == {partition: max(stands, offset)}
        self.committed[partition] = max(stands, offset)

    @rule(member=live)
    def commit_all_that_it_believes_to_own(self, member: Member) -> None:
        """Whoever is up to date is never refused."""
        mine = member.assignment | member.releasing
        wanted = {one: self.committed.get(one, 0) + 1 for one in mine}
        try:
            self.committed.update(self.run(member.commit(wanted)))
        except Fenced:
            state = self.state()
            assert member.generation < state.generation or member.id not in state.members

    # What the world does

    @rule(seconds=st.sampled_from([1.0, LEASE / 2, LEASE * 0.9, LEASE]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(member=live, seconds=st.sampled_from([LEASE / 2, LEASE * 0.9]))
    def look_later(self, member: Member, seconds: float) -> None:
        self.clock.advance(seconds)
        self.heartbeat(member)

    @rule(target=live, left=consumes(live))
    def settle(self, left: Member) -> Any:
        """All but those that answer crash; then they share everything."""
        answering = [one for one in self.members if self.answers(one)]
        for _ in range(3):
            self.clock.advance(LEASE / 2)
            answering = [one for one in answering if self.answers(one)]
        for _ in range(2):
            answering = [one for one in answering if self.answers(one)]
        if answering:
            self.check_settled(answering)
        return multiple(left)

    def answers(self, member: Member) -> bool:
        try:
            self.run(member.heartbeat())
            self.run(member.release())
        except Fenced:
            return False
        return True

    def check_settled(self, members: list[Member]) -> None:
        state = self.state()
        assert state.members.keys() == {one.id for one in members}
        for name in state.members:
            assert state.owned_by(name) <= state.assigned_to(name), "nothing waits for its release"
        shared = Counter(chain.from_iterable(one.assignment for one in members))
        wanted = {
            TopicPartition(topic, number)
            for topic, count in state.partitions().items()
            for number in range(count)
        }
        assert shared == dict.fromkeys(wanted, 1)

    # What holds at any time

    @invariant()
    def one_owner_in_the_state(self) -> None:
        state = self.state()
        owned = Counter(chain.from_iterable(map(state.owned_by, state.members)))
        assert set(owned.values()) <= {1}

    @invariant()
    def everything_is_assigned_once_to_a_reader(self) -> None:
        state = self.state()
        assigned = Counter(chain.from_iterable(map(state.assigned_to, state.members)))
        counts = state.partitions()
        everything = {(topic, one) for topic in counts for one in range(counts[topic])}
        assert assigned == dict.fromkeys(everything, 1)
        for name, one in state.members.items():
            assert {topic for topic, _ in state.assigned_to(name)} <= one.topics.keys()

    @invariant()
    def generations_only_grow(self) -> None:
        before, self.seen = self.seen, self.state()
        assert self.seen.generation >= before.generation
        if self.seen.members.keys() != before.members.keys():
            assert self.seen.generation > before.generation

    @invariant()
    def no_two_live_members_believe_to_own_one_partition(self) -> None:
        believed = chain.from_iterable(one.assignment | one.releasing for one in self.members)
        assert set(Counter(believed).values()) <= {1}

    @invariant()
    def offsets_are_what_was_committed(self) -> None:
        found = self.run(self.coordinator.committed(self.committed))
        assert found == self.committed


class JumpingMachine(GroupMachine):
    """Clocks that jump, and resets: members may believe old things, but cannot act on them."""

    @rule(milliseconds=st.sampled_from([-3_600_000, -15_000, -5_000, 5_000, 15_000, 3_600_000]))
    def jump(self, milliseconds: int) -> None:
        self.clock.jump(milliseconds)

    @rule()
    def reset(self) -> None:
        self.run(self.coordinator.reset())

    def no_two_live_members_believe_to_own_one_partition(self) -> None:
        """Does not hold here."""


TestGroup = pytest.mark.acceptance(76)(GroupMachine.TestCase)
TestGroupWithJumps = pytest.mark.acceptance(76)(JumpingMachine.TestCase)
TestGroupWithJumps.settings = settings(max_examples=40)
