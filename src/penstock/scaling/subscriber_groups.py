"""Subscribers that share a topic: each event goes to one member of a group, by its partition.

Two groups each get everything. Which member has a partition depends only on the members that are
there; when one comes or goes, the others take over with the next event. Events of a partition are
handled one after the other, so two members never work on one partition at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.bus.handlers import Filter, Handler
from penstock.errors import InvalidName
from penstock.messages import Envelope, marks_of
from penstock.scaling.assignment import assign_in_turn


@dataclass(slots=True)
class SubscriberGroup:
    """The members of one group on one message class, in the order in which they came."""

    kind: type
    name: str
    members: list[Handler] = field(default_factory=list)

    def owner(self, partition: int) -> Handler:
        """The member that has a partition."""
        return self.members[partition % len(self.members)]

    def assignment(self, partitions: int) -> Mapping[str, tuple[int, ...]]:
        """Which partitions each member has, by its place in the group."""
        places = [f"{place:06d}" for place in range(len(self.members))]
        return assign_in_turn(partitions, places)


class SubscriberGroups:
    """The groups of one bus."""

    def __init__(self) -> None:
        self._groups: dict[tuple[type, str], SubscriberGroup] = {}

    def largest(self, kind: type) -> int:
        """How many members the largest group of a class has."""
        sizes = [len(group.members) for (one, _), group in self._groups.items() if one is kind]
        return max(sizes, default=0)

    def has_members(self, topic: str, name: str) -> bool:
        """Whether a group has members on a topic."""
        return any(place[1] == name and marks_of(place[0]).topic == topic for place in self._groups)

    def filter_for(self, kind: type, name: str, where: Filter | None) -> tuple[Filter, Joined]:
        """What keeps a new member to its partitions, and what makes it one when it exists."""
        if not name:
            raise InvalidName("a group needs a name", kind="group", name=name)
        place = (kind, name)
        member: list[Handler] = []

        def is_mine(envelope: Envelope) -> bool:
            if envelope.group not in (None, name) or not member:
                return False
            meant_for = None if envelope.delivery is None else envelope.delivery.meant_for
            owner = meant_for or self._groups[place].owner(envelope.partition or 0)
            return owner is member[0] and (where is None or where(envelope))

        def join(handler: Handler, on_leave: Callable[[], None]) -> None:
            group = self._groups.setdefault(place, SubscriberGroup(kind, name))
            group.members.append(handler)
            member.append(handler)
            remove = handler.remove
            assert remove is not None

            def leave(gone: Handler) -> None:
                remove(gone)
                group.members.remove(gone)
                if not group.members:
                    del self._groups[place]
                on_leave()

            handler.remove = leave

        return is_mine, join

    def groups(self) -> list[SubscriberGroup]:
        """All groups."""
        return list(self._groups.values())


Joined = Callable[[Handler, Callable[[], None]], None]
"""Makes a handler a member; told what to call when it leaves."""
