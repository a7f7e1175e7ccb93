"""Reading a topic as a member of a group: the name is shared, the places come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING

from penstock.errors import DamagedFile, PenstockError
from penstock.log.membership import Membership
from penstock.log.open_topic import OpenTopic
from penstock.log.places import Place, Position, check_one_partition, resolve_start
from penstock.log.subscription import Subscription

if TYPE_CHECKING:
    from penstock.log.queue import WalMessageQueue


class GroupMembership(Membership):
    """A group's name in a topic, which any number of members use at the same time.

    It is registered as a subscriber's is, so retention and compaction wait for the group. Who
    owns a partition commits it through the group's coordinator.
    """

    def enter(self) -> None:
        """Register the group when it is new; for who joins it, under the group's lock.

        SubscriberBusy when a subscriber has the name alone.
        """
        with ExitStack() as stack:
            stack.push(super()._claim_name())
            self._enlist()

    def found(self, places: list[Place]) -> list[int | DamagedFile]:
        """Where the offset files say to go on, or why that is not known."""
        return [self._found(place) for place in places]

    def _found(self, place: Place) -> int | DamagedFile:
        try:
            return self._resume(place)
        except DamagedFile as damage:
            return damage

    def resolve(self, places: list[Place], to: Position) -> list[int]:
        """The offsets that a position means."""
        return [resolve_start(self.topic.reader(place.number), to) for place in places]

    def _claim_name(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _check_members(self) -> None:
        """Others may be there."""

    def _find_places(self) -> None:
        """They are found when a partition is given to this member."""

    def _go_on(self, places: list[Place]) -> None:
        """As above."""


class GroupSubscription(Subscription):
    """The records of those partitions that a member was given; all others are held.

    The calls that are not ``async`` take effect at once: nothing of a partition that is held is
    delivered any more.
    """

    def __init__(self, queue: WalMessageQueue, topic: str, group: str, start: Position) -> None:
        super().__init__(queue._engine, topic, group, start)
        self._trouble: Exception | None = None
        self._given: frozenset[int] = frozenset()
        self.on_growth: Callable[[], None] | None = None
        """Called when the topic has more partitions than before."""
        self.handled: Callable[[int], int] | None = None
        """Partition → offset below which all is handled, where delivering is not handling."""
        # So that closing the queue closes it.
        queue._subscriptions.add(self)

    @property
    def partitions(self) -> int:
        """How many the topic has."""
        return len(self._places)

    def enter(self) -> None:
        """Register the group when it is new. Blocking, under the group's lock."""
        self._shared.enter()

    def ends(self) -> list[int]:
        """The durable end of each partition, as far as this process has heard or read."""
        self._topic.note_commits()
        ends = list(self._topic.durable)
        for place in self._places:
            ends[place.number] = max(ends[place.number], place.read_to)
        return ends

    def delivered(self) -> dict[int, int]:
        """Partition → offset of the next record that will be delivered, for all partitions."""
        return {place.number: self._delivered(place) for place in self._places}

    async def start(self, partitions: Iterable[int]) -> None:
        """Go to the committed offsets. Where one cannot be read, the damage is raised until a seek."""
        # Another member may have seen before this one that the topic has more partitions.
        await self._topic.look_again()
        await self._follow_epochs()
        places = self._places_of(partitions)
        found = await asyncio.to_thread(self._call, self._shared.found, places)
        for place, at in zip(places, found, strict=True):
            if isinstance(at, DamagedFile):
                place.damage = at
            else:
                self._move([place], [at])

    async def resolve(self, partitions: Iterable[int], to: Position) -> dict[int, int]:
        """The offsets that a position means in these partitions; nothing moves."""
        places = self._places_of(partitions)
        check_one_partition(to, len(places))
        found = await asyncio.to_thread(self._call, self._shared.resolve, places, to)
        return {place.number: at for place, at in zip(places, found, strict=True)}

    def go_to(self, offsets: Mapping[int, int]) -> None:
        """Go on from these offsets, in memory."""
        self._move(self._places_of(offsets), list(offsets.values()))

    def deliver(self, partitions: Iterable[int]) -> None:
        """Deliver these partitions from where they are, and hold all others."""
        before = self._paused
        self._given = frozenset(partitions)
        self._paused = frozenset(range(len(self._places))) - self._given
        held = [self._places[number] for number in self._paused - before]
        # What was read and not delivered, or is being read, is read again later.
        sound = [place for place in held if place.damage is None]
        self._move(sound, [self._delivered(place) for place in sound])

    def fail(self, error: Exception | None) -> None:
        """Let whoever reads know, once; None: what went wrong before works again."""
        self._trouble = error
        self._changes.wake(self.topic)

    @property
    def _shared(self) -> GroupMembership:
        membership = self._membership
        assert isinstance(membership, GroupMembership)
        return membership

    def _join(self, topic: OpenTopic) -> None:
        super()._join(topic)
        self._joined = GroupMembership(topic, self.name, self._start)

    def _check_open(self) -> None:
        super()._check_open()
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble.again() if isinstance(trouble, PenstockError) else trouble
        for place in self._places:
            if place.damage is not None and place.number in self._given:
                raise place.damage.again()

    def _check_places(self) -> None:
        """Damage of what others read is theirs."""

    def _hears_of_all(self) -> bool:
        return self.handled is None and super()._hears_of_all()

    def _consumed(self, number: int) -> int:
        consumed = super()._consumed(number)
        if self.handled is None or number not in self._given:
            return consumed
        return min(consumed, self.handled(number))

    def _elsewhere(self) -> frozenset[int]:
        return frozenset(range(len(self._places))) - self._given

    def _grew(self, places: Sequence[Place]) -> None:
        """The new ones are held until they are given to this member."""
        self._paused |= {place.number for place in places}
        if self.on_growth is not None:
            self.on_growth()
