"""Consumers that share: each entry goes to exactly one member of the group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.errors import Closed, InvalidOption
from penstock.scaling.barrier import Stage
from penstock.scaling.consumers import POLL_MAX, Reader

if TYPE_CHECKING:
    from penstock.scaling.ring import Ring

Item = TypeVar("Item")
Span = tuple[int, int]
"""The positions from the first up to, not including, the second."""


class CompetingGroup(Generic[Item]):
    """A group of members; to the ring it is one consumer. Made by :meth:`Ring.group`.

    A member claims a span of entries when it polls, under the guard that all consumers of the ring
    share. The group's sequence is the lowest position that is claimed and not passed, so that the
    producer, and stages after the group, see only what is handled. Entries that a member claimed
    and did not pass before it was closed go to another member. The group keeps its place, and
    gates the producer, also while it has no members.
    """

    __slots__ = ("_claimed", "_held", "_returned", "_ring", "stage")

    def __init__(self, ring: Ring[Item], stage: Stage) -> None:
        self._ring = ring
        self.stage = stage
        self._claimed = stage.sequence.value
        self._held: dict[CompetingConsumer[Item], Span] = {}
        self._returned: list[Span] = []

    def member(self) -> CompetingConsumer[Item]:
        """A new member. Raises Closed when the group is closed."""
        if self.stage.closed:
            raise Closed(f"group {self.stage.name} is closed", group=self.stage.name)
        return CompetingConsumer(self._ring, self)

    def close(self) -> None:
        """Remove the group and all of its members from the ring; any thread."""
        self._ring.leave(self.stage)

    def claimable(self) -> bool:
        """Whether there is an entry that no member has."""
        return bool(self._returned) or self.stage.available() > self._claimed

    def claim(self, member: CompetingConsumer[Item], limit: int) -> Span | None:
        """What the member holds, or a new span of at most ``limit`` entries for it."""
        span = self._held.get(member)
        if span is not None or limit < 1:
            return span
        with self._ring.guard:
            if member.closed or not self.claimable():
                return None
            span = self._held[member] = self._next_span(limit)
        return span

    def holds(self, member: CompetingConsumer[Item]) -> bool:
        """Whether the member has claimed entries that it has not passed."""
        return member in self._held

    def _next_span(self, limit: int) -> Span:
        if not self._returned:
            start = self._claimed
            self._claimed = min(self.stage.available(), start + limit)
            return start, self._claimed
        start, end = self._returned.pop()
        if end - start > limit:
            self._returned.append((start + limit, end))
        return start, min(end, start + limit)

    def passed(self, member: CompetingConsumer[Item], count: int) -> None:
        """The member has handled the first ``count`` entries of its span."""
        with self._ring.guard:
            if member.closed:
                raise Closed(f"a member of {self.stage.name} is closed", group=self.stage.name)
            start, end = self._held.pop(member)
            if start + count < end:
                self._held[member] = (start + count, end)
            self._move()
        self.stage.sequence.wake()
        if self._ring.closed:  # the other members may be finished now
            self._wake_members()

    def dismiss(self, member: CompetingConsumer[Item]) -> None:
        """Take back what the member holds, for another one. The member is marked closed."""
        with self._ring.guard:
            span = self._held.pop(member, None)
            if span is not None:
                self._returned.append(span)
        self._wake_members()

    def _wake_members(self) -> None:
        for sequence in self.stage.upstream:
            sequence.wake()

    def _move(self) -> None:
        spans = [*self._held.values(), *self._returned]
        self._ring.move(self.stage, min([start for start, _ in spans], default=self._claimed))


class CompetingConsumer(Reader[Item]):
    """A member of a group. Made by :meth:`CompetingGroup.member`.

    Entries that one member gets are in order; across members there is none.
    """

    __slots__ = ("_closed", "_group", "_polled")

    def __init__(self, ring: Ring[Item], group: CompetingGroup[Item]) -> None:
        super().__init__(ring, group.stage)
        self._group = group
        self._closed = False
        self._polled = 0

    def poll(self, limit: int = POLL_MAX) -> list[Item]:
        """Claim the next entries, at most ``limit``, without waiting; the same until advanced.

        Raises Closed on a closed member or group.
        """
        span = self._group.claim(self, limit)
        items = self._ring.read(span[0], min(span[1], span[0] + limit)) if span else []
        if self.closed:
            raise self._closed_error()
        self._polled = len(items)
        return items

    def advance(self, count: int | None = None) -> None:
        """Pass the first ``count`` of the entries that were polled, or all of them.

        Raises Closed on a closed member: what it held is another's now.
        """
        passed = self._polled if count is None else count
        if not 0 <= passed <= self._polled:
            raise InvalidOption(f"{self._polled} entries were polled, {passed} cannot be passed")
        if self._polled:
            self._group.passed(self, passed)
            self._polled -= passed

    def pending(self) -> bool:
        """Whether :meth:`poll` would return something, unless another member is faster."""
        return not self.closed and (self._group.holds(self) or self._group.claimable())

    @property
    def closed(self) -> bool:
        """Whether the member or its group was closed."""
        return self._closed or self.stage.closed

    def close(self) -> None:
        """Leave the group. What was claimed and not passed goes to another member.

        Any thread; if this member is at work on its entries in that moment, they are handled twice,
        and its ``advance`` raises Closed.
        """
        self._closed = True
        self._group.dismiss(self)
