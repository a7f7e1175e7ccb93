"""What a consumer group is at a moment, and every way in which that changes. No store, no clock.

Each member has two sets of partitions: those it is *assigned*, which the strategy gave it in this
generation, and those it *owns*. No partition ever has two owners. One that moves stays with its old
owner until that one releases it, leaves, or is removed because its lease ran out; only then does the
new one own it. A change of membership makes a new generation; a release does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from penstock.errors import Fenced, InvalidOption, LimitReached
from penstock.log.names import check_name
from penstock.log.topic import PARTITIONS_MAX
from penstock.scaling.assignment import Assignment, AssignmentStrategy, assign

MEMBERS_MAX = 1_000


class TopicPartition(NamedTuple):
    """One partition of a topic. A plain pair ``("orders", 0)`` is equal to it."""

    topic: str
    partition: int


Partitions = frozenset[TopicPartition]
Offsets = Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
"""The next offset to read in each partition."""
NO_PARTITIONS: Partitions = frozenset()
_Stored = dict[str, tuple[int, ...]]
"""Partitions by topic, in order: short in the file, and always the same bytes."""


class GroupMember(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One member as the group knows it."""

    lease_expires_ms: int
    lease_ms: int
    process: int
    host: str
    topics: dict[str, int]
    """What it reads, and how many partitions it knows of each."""
    assigned: _Stored = {}
    owned: _Stored = {}

    def renewed(self, now_ms: int) -> GroupMember:
        """With a whole lease from now on."""
        return replace(self, lease_expires_ms=now_ms + self.lease_ms)


class GroupState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group: its generation, and its members by id."""

    group: str
    generation: int = 0
    strategy: AssignmentStrategy = AssignmentStrategy.STICKY
    members: dict[str, GroupMember] = {}

    def owned_by(self, member: str) -> Partitions:
        """What a member owns; nothing when there is no such member."""
        found = self.members.get(member)
        return NO_PARTITIONS if found is None else _as_set(found.owned)

    def assigned_to(self, member: str) -> Partitions:
        """What a member has or gets once it is free; nothing when there is no such member."""
        found = self.members.get(member)
        return NO_PARTITIONS if found is None else _as_set(found.assigned)

    def shape(self) -> object:
        """All but the leases: when this changes, a member has something to do."""
        owners = {name: (one.assigned, one.owned) for name, one in self.members.items()}
        return self.generation, owners

    def readers(self, topic: str) -> list[str]:
        """The members that read a topic, in order."""
        return sorted(name for name, one in self.members.items() if topic in one.topics)

    def partitions(self) -> dict[str, int]:
        """Every topic that a member reads, with the largest count that a member knows."""
        counts: dict[str, int] = {}
        for member in self.members.values():
            for topic, count in member.topics.items():
                counts[topic] = max(count, counts.get(topic, 0))
        return counts


def checked_topics(topics: Mapping[str, int]) -> dict[str, int]:
    """The topics in order, or an error that says what is wrong with them."""
    for topic, count in topics.items():
        check_name("topic", topic)
        if not 1 <= count <= PARTITIONS_MAX:
            raise InvalidOption(
                f"topic {topic!r} with {count} partitions: use 1 to {PARTITIONS_MAX}",
                option="topics",
            )
    if not topics:
        raise InvalidOption("name at least one topic to read", option="topics")
    return dict(sorted(topics.items()))


# Changes: each takes a state and gives the next one


def joined(
    state: GroupState,
    name: str,
    member: GroupMember,
    strategy: AssignmentStrategy | None,
    now_ms: int,
) -> GroupState:
    """With one more member. Its strategy is the group's, or becomes it when the group is empty."""
    present = expired(state, now_ms)
    if len(present) >= MEMBERS_MAX:
        raise LimitReached(
            f"group {state.group!r} has {MEMBERS_MAX} members: use fewer, or another group",
            limit="members",
            value=MEMBERS_MAX,
        )
    if present and strategy not in (None, state.strategy):
        raise InvalidOption(
            f"group {state.group!r} uses strategy {state.strategy}, not {strategy}: all members "
            "use one; it can change when the group is empty",
            option="strategy",
        )
    chosen = state.strategy if present else strategy or AssignmentStrategy.STICKY
    members = {**present, name: member.renewed(now_ms)}
    return _rebalanced(replace(state, strategy=chosen), members)


def renewed(state: GroupState, name: str, now_ms: int) -> GroupState:
    """With a new lease of this member, without those whose lease ran out.

    A member that comes late, but before anybody noticed, is kept: nobody else was given its part.
    """
    mine = member_of(state, name).renewed(now_ms)
    return _with(state, {**expired(state, now_ms), name: mine})


def resubscribed(state: GroupState, name: str, topics: dict[str, int], now_ms: int) -> GroupState:
    """With other topics, or other partition counts, of this member."""
    mine = replace(member_of(state, name).renewed(now_ms), topics=topics)
    members = {**expired(state, now_ms), name: mine}
    if topics == state.members[name].topics:
        return _with(state, members)
    return _rebalanced(state, members)


def released(state: GroupState, name: str, partitions: Partitions, now_ms: int) -> GroupState:
    """Without these partitions at their owner; who was waiting for them owns them now."""
    before = renewed(state, name, now_ms)
    mine = before.members[name]
    owned = _as_stored(_as_set(mine.owned) - partitions)
    return _granted(replace(before, members={**before.members, name: replace(mine, owned=owned)}))


def departed(state: GroupState, name: str, now_ms: int) -> GroupState:
    """Without this member; as it was when it is not there any more."""
    present = expired(state, now_ms)
    present.pop(name, None)
    return _with(state, present)


def swept(state: GroupState, now_ms: int) -> GroupState:
    """Without those whose lease ran out."""
    return _with(state, expired(state, now_ms))


def emptied(state: GroupState, generation: int) -> GroupState:
    """Without any member, in a generation of its own."""
    return GroupState(group=state.group, generation=generation, strategy=state.strategy)


def expired(state: GroupState, now_ms: int) -> dict[str, GroupMember]:
    """The members whose lease holds. None is longer than one lease from now.

    A longer one says that the clock was set back; it would hide a crash for as long as that.
    """
    return {
        name: replace(one, lease_expires_ms=min(one.lease_expires_ms, now_ms + one.lease_ms))
        for name, one in state.members.items()
        if one.lease_expires_ms > now_ms
    }


def fence(
    state: GroupState, member: str, generation: int, partitions: Iterable[tuple[str, int]]
) -> None:
    """Return when the member is of this generation and owns all of these; else raise Fenced."""
    member_of(state, member, generation)
    if generation != state.generation:
        why = (
            f"generation {generation} is over, it is {state.generation}: heartbeat() tells what is "
            "still yours"
        )
        raise _fenced(state, member, generation, "generation", why)
    owned = state.owned_by(member)
    for topic, partition in partitions:
        if (topic, partition) not in owned:
            why = f"partition {partition} of {topic!r} belongs to another member, or to nobody"
            raise _fenced(state, member, generation, "partition", why, (topic, partition))


def member_of(state: GroupState, name: str, generation: int | None = None) -> GroupMember:
    """The member of this name; Fenced when the group went on without it."""
    found = state.members.get(name)
    if found is None:
        why = "it was removed because its lease ran out, or by a reset: stop, and join again"
        raise _fenced(state, name, generation, "removed", why)
    return found


def _fenced(
    state: GroupState,
    member: str,
    generation: int | None,
    reason: str,
    why: str,
    place: tuple[str, int] | None = None,
) -> Fenced:
    topic, partition = place or (None, None)
    return Fenced(
        f"member {member} of group {state.group!r} is refused: {why}",
        group=state.group,
        member=member,
        generation=generation,
        current=state.generation,
        reason=reason,
        topic=topic,
        partition=partition,
    )


# Who gets what


def _with(state: GroupState, members: dict[str, GroupMember]) -> GroupState:
    """With these members: a new generation when they are others than before."""
    if members.keys() != state.members.keys():
        return _rebalanced(state, members)
    return replace(state, members=members)


def _rebalanced(state: GroupState, members: dict[str, GroupMember]) -> GroupState:
    """The next generation, with a new assignment."""
    state = replace(state, generation=state.generation + 1, members=members)
    assigned: dict[str, set[TopicPartition]] = {name: set() for name in members}
    for topics in _shared_topics(state):
        for name, partitions in _assigned(state, topics).items():
            assigned[name].update(partitions)
    members = {
        name: replace(one, assigned=_as_stored(assigned[name])) for name, one in members.items()
    }
    return _granted(replace(state, members=members))


def _granted(state: GroupState) -> GroupState:
    """Every member owns what it is assigned and nobody else owns."""
    taken = frozenset[TopicPartition]().union(*map(state.owned_by, state.members))
    members = {}
    for name, one in state.members.items():
        mine = _as_set(one.owned) | (_as_set(one.assigned) - taken)
        members[name] = replace(one, owned=_as_stored(mine))
    return replace(state, members=members)


def _shared_topics(state: GroupState) -> list[list[str]]:
    """The topics that are assigned together: those with the same readers.

    So many small topics are spread over the members. RANGE looks at each topic alone, so that
    partition 3 of two topics of one size has one member, which can join them.
    """
    topics = sorted(state.partitions())
    if state.strategy is AssignmentStrategy.RANGE:
        return [[topic] for topic in topics]
    together: dict[tuple[str, ...], list[str]] = {}
    for topic in topics:
        together.setdefault(tuple(state.readers(topic)), []).append(topic)
    return list(together.values())


def _assigned(state: GroupState, topics: list[str]) -> dict[str, list[TopicPartition]]:
    """The partitions of topics with the same readers, for each reader."""
    counts = state.partitions()
    numbered = [TopicPartition(topic, one) for topic in topics for one in range(counts[topic])]
    number_of = {partition: number for number, partition in enumerate(numbered)}
    readers = state.readers(topics[0])
    before = {
        name: [number_of[one] for one in state.owned_by(name) if one in number_of]
        for name in readers
    }
    found: Assignment = assign(state.strategy, len(numbered), readers, before)
    return {name: [numbered[number] for number in numbers] for name, numbers in found.items()}


def _as_set(stored: Mapping[str, tuple[int, ...]]) -> Partitions:
    return frozenset(TopicPartition(topic, one) for topic, all_ in stored.items() for one in all_)


def _as_stored(partitions: Iterable[TopicPartition]) -> _Stored:
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return {topic: tuple(numbers) for topic, numbers in found.items()}
