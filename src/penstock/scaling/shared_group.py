"""Consumers in several processes that share: each entry goes to exactly one of them."""

from __future__ import annotations

from typing import Self

from penstock.errors import Closed
from penstock.scaling.shared_consumer import SharedRingConsumer, free_place
from penstock.scaling.shared_entry import cut, size_of
from penstock.scaling.shared_places import Place
from penstock.scaling.shared_segment import Segment, alive, myself
from penstock.scaling.waiting import WaitStrategy
from penstock.system import System


class SharedGroupMember(SharedRingConsumer):
    """A member of a group. Made by :meth:`SharedRingGroup.member`; may be handed to a process.

    It claims one entry at a time, under the lock of the ring, which costs some system calls: put
    large batches. Entries that one member gets are in order. When a member's process dies, the
    entry that it had claimed and not passed goes to another member, whole; so entries are handled
    at least once. ``get_many`` passes entries as it returns them: what was returned to a process
    that then dies is lost.
    """

    def __init__(self, segment: Segment, place: Place, wait: WaitStrategy, system: System) -> None:
        super().__init__(segment, place, wait, system)
        self._gate = segment.places.consumers[place.group - 1]
        self._inherit = False

    def pending(self) -> bool:
        """Whether there is something to poll, unless another member is faster."""
        return self._first < len(self._records) or self._available() > self._gate.claimed

    @property
    def finished(self) -> bool:
        """Whether nothing will come: closed, or the ring is and the group has passed everything."""
        passed = self._segment.places.all_passed(self._gate.sequence.value)
        return self._closed or not self._gate.pid or passed

    def _load(self) -> bool:
        if not self._inherit and self._available() <= self._gate.claimed:
            return False
        with self._segment.lock():
            self._check_membership()
            found = self._inherited() or self._claim()
        if found is None:
            return False
        self._records = cut(*found)
        self._first = self._polled = 0
        return True

    def _claim(self) -> tuple[bytes, int] | None:
        """Take the next entry that nobody has."""
        start = self._gate.claimed
        if self._available() <= start:
            return None
        self._next = start
        found = self._area.copy(start)
        if found is None:
            self._not_proven()
            return None
        self._next = start + size_of(0, len(found[0]))
        self._unproven_since = None
        self.place.claim = (start, self._next)
        self._gate.claimed = self._next
        return found

    def _inherited(self) -> tuple[bytes, int] | None:
        """Take the entry of a member whose process is dead."""
        if not self._inherit:
            return None
        self._inherit = False
        for one in self._segment.places.members(self._gate):
            if alive(self._system, one.owner):
                continue
            found = self._area.copy(one.claim[0]) if one.holds else None
            one.own((0, 0))
            if found is not None:
                self.place.claim = one.claim
                self._next = one.claim[1]
                return found
        return None

    def _overrun_at_start(self) -> bool:
        gate = self._gate
        if gate.records == 0:
            gate.claimed = gate.sequence.value = self._segment.places.producer.sequence.value
        return gate.records == 0

    def _pass_entry(self) -> None:
        with self._segment.lock():
            self._check_membership()
            self.place.claim = (0, 0)
            self._gate.records += len(self._records)
            move(self._segment, self._gate)

    def _look_around(self) -> None:
        """Besides those this group waits for, its other members may be dead."""
        members = self._segment.places.members(self._gate)
        self._inherit = any(not alive(self._system, one.owner) for one in members)
        if not self._inherit:
            super()._look_around()

    def _check_membership(self) -> None:
        if self.place.pid != self._pid:
            raise Closed("the group is closed", name=self._segment.name)

    def close(self) -> None:
        """Leave the group. An entry that was claimed and not passed goes to another member."""
        if self._closed:
            return
        self._closed = True
        with self._segment.lock():
            if self.place.owner == myself(self._system):
                # As if dead: another member takes the claim when it looks around.
                self.place.own((self.place.pid, 0) if self.place.holds else (0, 0))
        self._segment.unlink_if_unused()


class SharedRingGroup:
    """A group of members; to the ring it is one consumer. Made by :meth:`SharedRing.group`.

    It keeps its place, and holds the producer back, while the process that made it or one of its
    members lives, until it is closed.
    """

    def __init__(self, segment: Segment, place: Place, wait: WaitStrategy, system: System) -> None:
        self._segment = segment
        self._wait = wait
        self._system = system
        self.place = place
        self.ring_identity = segment.identity

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def member(self) -> SharedGroupMember:
        """A new member, in this process or to be handed to another; BufferFull without a place."""
        with self._segment.lock():
            if not self.place.pid:
                raise Closed("the group is closed", name=self._segment.name)
            place = free_place(self._segment)
            place.group = self.place.index + 1
            place.claim = (0, 0)
            place.own(myself(self._system))
        return SharedGroupMember(self._segment, place, self._wait, self._system)

    def close(self) -> None:
        """Remove the group and its members from the ring."""
        with self._segment.lock():
            if self.place.pid:
                self._segment.places.free(self.place)
        self._segment.unlink_if_unused()


def move(segment: Segment, group: Place) -> None:
    """Let the group pass what no member has claimed or still holds. The lock is held."""
    claims = [one.claim for one in segment.places.members(group)]
    starts = [start for start, end in claims if end]
    group.sequence.value = min(starts, default=group.claimed)
