"""Who reads which partition: assignments of partitions to the members of a group.

Pure functions. Whoever computes one from the same arguments gets the same answer, in whatever order
the members are named, so members need not talk to each other about it. Every partition has exactly
one member, and two members differ by at most one partition.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

from penstock.errors import InvalidOption

PARTITIONS_MAX = 64
"""The most partitions that :func:`partitions_for` gives unless it is told otherwise."""

Assignment = dict[str, tuple[int, ...]]
"""The partitions of each member, in order. Empty when there is no member."""

NOTHING: Mapping[str, Sequence[int]] = {}


class AssignmentStrategy(enum.StrEnum):
    """How partitions are given to members."""

    RANGE = "range"
    """Neighbours stay together: 0, 1, 2 to the first member, 3, 4 to the second."""
    ROUND_ROBIN = "round_robin"
    """In turn: 0, 2, 4 to the first member, 1, 3 to the second."""
    STICKY = "sticky"
    """As they were, with as few changes as balance allows."""


def assign(
    strategy: AssignmentStrategy | str,
    partitions: int,
    members: Iterable[str],
    before: Mapping[str, Sequence[int]] = NOTHING,
) -> Assignment:
    """The assignment that a strategy makes; ``before`` counts for STICKY alone."""
    match _strategy(strategy):
        case AssignmentStrategy.RANGE:
            return assign_ranges(partitions, members)
        case AssignmentStrategy.ROUND_ROBIN:
            return assign_in_turn(partitions, members)
        case AssignmentStrategy.STICKY:
            return assign_sticky(partitions, members, before)


def assign_ranges(partitions: int, members: Iterable[str]) -> Assignment:
    """Neighbouring partitions to each member; the first members have one more where it must be."""
    names = _checked(partitions, members)
    result: Assignment = {}
    start = 0
    for index, name in enumerate(names):
        end = start + _share(index, partitions, len(names))
        result[name] = tuple(range(start, end))
        start = end
    return result


def assign_in_turn(partitions: int, members: Iterable[str]) -> Assignment:
    """Partition ``p`` to member ``p % members``."""
    names = _checked(partitions, members)
    return {name: tuple(range(index, partitions, len(names))) for index, name in enumerate(names)}


def assign_sticky(
    partitions: int, members: Iterable[str], before: Mapping[str, Sequence[int]] = NOTHING
) -> Assignment:
    """The assignment before, changed for as few partitions as balance allows.

    Members that are gone give theirs away, new ones get some. What cannot be from ``before`` (a
    partition that is not there any more, or has two members) is passed over.
    """
    names = _checked(partitions, members)
    held = _held(partitions, names, before)
    # Who holds the most keeps the one that is over: any other choice would move one more.
    by_size = sorted(names, key=lambda name: (-len(held[name]), name))
    for index, name in enumerate(by_size):
        del held[name][_share(index, partitions, len(names)) :]
    free = sorted(set(range(partitions)).difference(*held.values()), reverse=True)
    for index, name in enumerate(by_size):
        while len(held[name]) < _share(index, partitions, len(names)):
            held[name].append(free.pop())
    return {name: tuple(sorted(held[name])) for name in names}


def partitions_for(subscribers: int, partitions_max: int = PARTITIONS_MAX) -> int:
    """How many partitions a topic with so many subscribers has when nobody says: a power of two.

    The smallest one that gives each subscriber a partition, at least 1, at most the largest one
    within ``partitions_max``. Powers of two change the count seldom as subscribers come one by one.
    When it doubles, the keys of partition ``p`` of ``n`` stay or go to ``p + n``, nowhere else.
    """
    if subscribers < 0 or partitions_max < 1:
        raise InvalidOption(
            f"{subscribers} subscribers and at most {partitions_max} partitions: use 0 or more, and "
            "1 or more",
            option="subscribers" if subscribers < 0 else "partitions_max",
        )
    wanted = 1 << max(0, subscribers - 1).bit_length()
    largest = 1 << (partitions_max.bit_length() - 1)
    return min(wanted, largest)


def _strategy(name: AssignmentStrategy | str) -> AssignmentStrategy:
    try:
        return AssignmentStrategy(name)
    except ValueError:
        known = ", ".join(AssignmentStrategy)
        raise InvalidOption(
            f"there is no strategy {name!r}: use one of {known}", option="strategy"
        ) from None


def _share(index: int, partitions: int, members: int) -> int:
    """How many partitions the member at this place has: one more while there is a remainder."""
    return partitions // members + (index < partitions % members)


def _held(
    partitions: int, names: Sequence[str], before: Mapping[str, Sequence[int]]
) -> dict[str, list[int]]:
    """What each member has of the assignment before, each partition with one member at most."""
    left = set(range(partitions))
    held: dict[str, list[int]] = {}
    for name in names:
        held[name] = sorted(left.intersection(before.get(name, ())))
        left.difference_update(held[name])
    return held


def _checked(partitions: int, members: Iterable[str]) -> list[str]:
    names = sorted(members)
    if partitions < 1:
        raise InvalidOption(f"{partitions} partitions: use 1 or more", option="partitions")
    if len(set(names)) < len(names):
        raise InvalidOption(f"a member is named twice: {names}", option="members")
    return names
