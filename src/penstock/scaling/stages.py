"""The slots of a ring, and the stages that read them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from penstock.errors import InvalidOption
from penstock.scaling.barrier import Stage
from penstock.scaling.cells import Cells
from penstock.scaling.sequence import Parking, lowest

Item = TypeVar("Item")

RING_CAPACITY_MAX = 1 << 28


@dataclass(frozen=True, slots=True)
class ConsumerPosition:
    """How far a consumer, or a group that shares, has come."""

    name: str
    position: int
    """Entries that it has passed, counted from the start of the ring."""
    depth: int
    """Entries that were published and not yet passed."""


@dataclass(frozen=True, slots=True)
class RingStatistics:
    """The sequences of a ring, read without stopping it."""

    capacity: int
    published: int
    """Entries that were ever published; the producer's sequence."""
    depth: int
    """Entries that the slowest consumer has not passed."""
    refused: int
    """Entries that found no room and were handed back to the caller."""
    consumers: tuple[ConsumerPosition, ...]


def power_of_two(capacity: int) -> int:
    """The capacity, rounded up to a power of two."""
    if not 1 <= capacity <= RING_CAPACITY_MAX:
        raise InvalidOption(f"a ring has 1 to {RING_CAPACITY_MAX} slots, not {capacity}")
    return 1 << (capacity - 1).bit_length()


class Slots(Parking, Cells, Generic[Item]):
    """The part of a ring that its consumers see. The sequence itself is the producer's.

    Consumers take a lock among themselves, once a batch, when they come, go or pass entries; the
    producer never does. The last one to pass an entry empties its slot.
    """

    __slots__ = ("_lock", "_stages", "capacity", "guard", "mask", "refused")

    def __init__(self, capacity: int) -> None:
        self.value = 0
        self.parked = ()
        self.open_to = 0
        self.thread = 0
        self._lock = threading.RLock()  # as that of a Sequence
        self.capacity = power_of_two(capacity)
        self.mask = self.capacity - 1
        self.guard = threading.RLock()
        """Held by consumers that come, go or pass entries; never by the producer.

        Reentrant, as emptying a slot may run the finalizer of what was in it.
        """
        self.refused = 0
        self._slots: list[Item | None] = [None] * self.capacity
        self._stages: tuple[Stage, ...] = ()

    def join(self, name: str, after: Iterable[Stage]) -> Stage:
        """A new stage at the cursor, behind the barrier of the stages in ``after``."""
        stages = tuple(after)
        with self.guard:
            if any(stage not in self._stages for stage in stages):
                raise InvalidOption("a barrier needs open consumers of the same ring")
            stage = Stage(
                name or f"consumer-{len(self._stages)}",
                tuple(one.sequence for one in stages) or (self,),
            )
            # First at the cursor, so that the producer is never gated by position 0. Then among the
            # gates. Then at the cursor again: a producer that looked at the gates in between may
            # have gone on, but not further than a lap beyond where it is now.
            stage.sequence.value = self.value
            self._stages = (*self._stages, stage)
            stage.sequence.value = self.value
        return stage

    def leave(self, stage: Stage) -> None:
        """Remove a gate. Who waits for it looks again: the producer, and those after it."""
        with self.guard:
            if stage.closed:
                return
            others = tuple(one for one in self._stages if one is not stage)
            for one in others:
                one.replace(stage.sequence, stage.upstream)
            passed_by_all_others = lowest([one.sequence for one in others], self.value)
            self._empty(stage.sequence.value, passed_by_all_others)
            stage.closed = True
            self._stages = others
        stage.sequence.wake()
        for sequence in stage.upstream:
            sequence.wake()

    def read(self, start: int, end: int) -> list[Item]:
        """The entries from ``start`` up to ``end``. Only for who gates the producer at ``start``."""
        first = start & self.mask
        last = first + end - start
        if last <= self.capacity:
            return cast("list[Item]", self._slots[first:last])
        return cast("list[Item]", self._slots[first:] + self._slots[: last - self.capacity])

    def move(self, stage: Stage, end: int) -> None:
        """Let a stage pass the entries before ``end``. The caller holds the guard.

        The slots that everybody has passed then are emptied first, while this stage still gates
        the producer.
        """
        sequence = stage.sequence
        start = sequence.value
        others = [one.sequence for one in self._stages if one is not stage]
        self._empty(start, min(end, lowest(others, end)))
        sequence.value = end

    def _empty(self, start: int, end: int) -> None:
        if end <= start:
            return
        first = start & self.mask
        last = first + end - start
        self._slots[first : min(last, self.capacity)] = [None] * (min(last, self.capacity) - first)
        if last > self.capacity:
            self._slots[: last - self.capacity] = [None] * (last - self.capacity)

    def _slowest(self) -> Parking:
        gates = [stage.sequence for stage in self._stages]
        return min(gates, key=lambda sequence: sequence.value, default=self)

    def _slowest_value(self) -> int:
        return lowest([stage.sequence for stage in self._stages], self.value)

    def statistics(self) -> RingStatistics:
        """The positions now. Each is exact; together they are as of almost the same moment."""
        consumed = [(stage.name, stage.sequence.value) for stage in self._stages]
        published = self.value
        positions = tuple(ConsumerPosition(name, at, published - at) for name, at in consumed)
        depth = max((one.depth for one in positions), default=0)
        return RingStatistics(self.capacity, published, depth, self.refused, positions)
