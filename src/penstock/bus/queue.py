"""The bounded queue in front of every lane: priorities, marks, and a policy at the bound."""

from __future__ import annotations

import enum
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.bus.cells import QueueCells, opened
from penstock.errors import InvalidOption
from penstock.messages import NORMAL, Envelope, Priority

QUEUE_MAX = 10_000
CAPACITY_MAX = sys.maxsize
"""More than fit into memory."""
HIGH_MARK = 0.8
LOW_MARK = 0.5
OVERTAKES_MAX = 16
"""How many events may overtake a waiting one of lower priority before it has its turn."""

_LEVELS = tuple(Priority)


class Overflow(enum.Enum):
    """What happens to an event when the queue is full."""

    WAIT = "wait"
    """``publish`` waits for room, up to its timeout; ``publish_nowait`` raises BufferFull."""
    DROP_OLDEST = "drop oldest"
    """The oldest event of the lowest priority makes room. It is counted, and its waiter told."""
    REJECT_NEW = "reject new"
    """``publish`` and ``publish_nowait`` raise BufferFull at once. Nothing is queued."""
    ADAPTIVE_RATE_LIMIT = "adaptive rate limit"
    """Above the high mark ``publish`` is slowed to the rate at which events are handled."""


WAITING = (Overflow.WAIT, Overflow.ADAPTIVE_RATE_LIMIT)


@dataclass(frozen=True, slots=True)
class EventQueueStatistics:
    """The state of one queue."""

    depth: int
    """Events that wait now."""
    capacity: int
    peak_depth: int
    """The most that ever waited."""
    dropped: int
    """Events that made room for others (DROP_OLDEST)."""
    rejected: int
    """Events that were refused."""
    under_pressure: bool
    """Whether the high mark was passed, and the low mark not yet reached again."""
    pressure_starts: int
    """How often pressure began."""


class BoundedEventQueue(QueueCells):
    """Events in order of priority, never more than ``capacity``.

    Used by one thread. Pressure begins when the depth reaches ``high_mark`` of the capacity and
    ends when it is back at ``low_mark``; ``on_pressure`` is called once for each change. It must
    not raise; the bus wraps the callbacks of users.
    """

    __slots__ = (
        "_levels",
        "_marks",
        "_overtakes",
        "dropped",
        "on_drop",
        "on_pressure",
        "overflow",
        "pressure_starts",
        "rejected",
    )

    def __init__(
        self,
        capacity: int = QUEUE_MAX,
        *,
        overflow: Overflow = Overflow.WAIT,
        high_mark: float = HIGH_MARK,
        low_mark: float = LOW_MARK,
        on_pressure: Callable[[bool], None] | None = None,
        on_drop: Callable[[Envelope], None] | None = None,
    ) -> None:
        self.overflow = overflow
        self.on_pressure = on_pressure
        self.on_drop = on_drop
        self._marks = (high_mark, low_mark)
        self.resize(capacity)
        self._levels: dict[int, deque[Envelope]] = {level: deque() for level in _LEVELS}
        self._normal = self._levels[Priority.NORMAL]
        self._append, self._popleft = self._normal.append, self._normal.popleft
        self._overtakes = 0
        self.depth = 0
        self.held = 0
        """Events that were taken but have not begun; they count for the bound."""
        self.peak_depth = 0
        self.dropped = 0
        self.rejected = 0
        self.under_pressure = False
        self.pressure_starts = 0

    def resize(self, capacity: int) -> None:
        """Hold another number of events; those that are there stay, also when they are more."""
        high_mark, low_mark = self._marks
        check_bounds(capacity, high_mark, low_mark)
        self.capacity = capacity
        self._high = min(capacity, max(1, round(capacity * high_mark)))
        self._low = min(round(capacity * low_mark), self._high - 1)
        adaptive = self.overflow is Overflow.ADAPTIVE_RATE_LIMIT
        self.bound = self._high if adaptive else capacity
        """From this depth on ``publish`` waits."""

    def __len__(self) -> int:
        return self.depth

    @property
    def capacity_in_all(self) -> int:
        """How many events it holds, with what stands in front of it."""
        return self.capacity

    @property
    def room(self) -> int:
        """How many events ``publish`` may add before it has to wait.

        ADAPTIVE_RATE_LIMIT stops at the high mark: from there a publisher waits for its turn, one
        for each event that is handled.
        """
        return self.bound - self.depth - self.held

    def has_room_for(self, count: int, extra: int = 0) -> bool:
        """Whether so many events would be taken, each of them, one after the other."""
        if self.overflow is Overflow.DROP_OLDEST:
            return count + self.held <= self.capacity
        return self.depth + self.held + count <= self.capacity + extra

    def offer(self, envelope: Envelope, extra: int = 0) -> bool:
        """Take the event if there is room, or if the policy makes room.

        ``extra`` is room beyond the bound, for who cannot wait.
        """
        if self.depth + self.held >= self.capacity + extra and not self._drop_oldest():
            return False
        if envelope.priority is NORMAL:
            self._append(envelope)
        else:
            self._levels[envelope.priority].append(envelope)
        self.depth = depth = self.depth + 1
        if depth > self.peak_depth:
            self.peak_depth = depth
        if depth >= self._high and not self.under_pressure:
            self._press(started=True)
        return True

    def take(self) -> Envelope | None:
        """The next event; None when there is none."""
        if not self.depth:
            return None
        self.depth -= 1
        if self.under_pressure and self.depth <= self._low:
            self._press(started=False)
        if len(self._normal) == self.depth + 1:  # all that wait are alike: the usual case
            return opened(self._popleft())
        return self._take_by_priority()

    def drain(self) -> list[Envelope]:
        """Take everything, as ``stop`` does with what it could not handle."""
        taken = []
        while (envelope := self.take()) is not None:
            taken.append(envelope)
        return taken

    def statistics(self) -> EventQueueStatistics:
        """The figures of this moment."""
        return EventQueueStatistics(
            depth=self.depth,
            capacity=self.capacity,
            peak_depth=self.peak_depth,
            dropped=self.dropped,
            rejected=self.rejected,
            under_pressure=self.under_pressure,
            pressure_starts=self.pressure_starts,
        )

    def _take_by_priority(self) -> Envelope:
        waiting = [level for level in self._levels.values() if level]
        if len(waiting) > 1 and self._overtakes >= OVERTAKES_MAX:
            # The oldest of those that were overtaken, so that no level starves another.
            self._overtakes = 0
            return opened(min(waiting[1:], key=lambda level: level[0].sequence).popleft())
        self._overtakes = self._overtakes + 1 if len(waiting) > 1 else 0
        return opened(waiting[0].popleft())

    def _drop_oldest(self) -> bool:
        """Make room, if that is the policy and something waits."""
        if self.overflow is not Overflow.DROP_OLDEST or not self.depth:
            self.rejected += 1
            return False
        lowest = next(level for level in reversed(self._levels.values()) if level)
        envelope = opened(lowest.popleft())
        self.depth -= 1
        self.dropped += 1
        if self.on_drop is not None:
            self.on_drop(envelope)
        return True

    def _press(self, *, started: bool) -> None:
        self.under_pressure = started
        self.pressure_starts += started
        if self.on_pressure is not None:
            self.on_pressure(started)


def check_bounds(capacity: int, high_mark: float, low_mark: float) -> None:
    """Refuse bounds that make no sense."""
    if not 1 <= capacity <= CAPACITY_MAX:
        raise InvalidOption(
            f"a queue of {capacity} events: use 1 to {CAPACITY_MAX}", option="capacity"
        )
    if not 0 <= low_mark < high_mark <= 1:
        raise InvalidOption(
            f"marks must be 0 <= low < high <= 1, not low {low_mark} and high {high_mark}",
            option="high_mark",
        )
