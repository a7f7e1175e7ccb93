"""The ring: entries pass from one producer to many consumers without a lock between them.

The algorithm, in the words of the Disruptor:

- The producer writes the slot first and moves its sequence second: what is visible is complete.
- Every consumer has a sequence of its own, and a barrier: the producer's cursor, or the sequences
  of the consumers that must have passed an entry before it.
- The producer never goes further than ``capacity`` beyond the slowest of them. It remembers how far
  that is and looks at the sequences again only when it gets there, at least once a lap.

:mod:`penstock.scaling.shared_ring` carries the same algorithm through shared memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TypeVar

from penstock.errors import BufferFull, Closed
from penstock.scaling.barrier import Waiting
from penstock.scaling.competing import CompetingGroup
from penstock.scaling.consumers import RingConsumer
from penstock.scaling.stages import Slots
from penstock.scaling.waiting import Park, WaitStrategy
from penstock.system import Clock, OsClock

Item = TypeVar("Item")

RING_CAPACITY = 65_536

PUBLISH_SECONDS_MAX = 30.0
"""How long publishing waits for room when nobody says otherwise."""
NEVER = -1
"""A limit that every position is beyond: each publish takes the slow path."""


class Ring(Slots[Item]):
    """Python objects from one producer to many consumers: tasks of a loop, or threads.

    The ring is itself the producer's sequence: ``value`` counts what was published.

    One producer at a time: one thread, or any tasks of one loop, as no call suspends between the
    look for room and the write. For several producing threads use :class:`SharedProducerRing`,
    which has a lock, or a ring for each, which is faster.

    Publishing and polling take no lock. Consumers take one among themselves, once a batch, when
    they pass entries: the last one to pass an entry empties its slot, so that the ring keeps no
    object that everybody has seen. A ring without consumers keeps its last ``capacity`` entries,
    and overwrites them: nobody gates it.

    A crash of the process loses what is in the ring. It is a buffer, not storage.
    """

    __slots__ = (
        "_closed",
        "timeout",
        "waiting",
    )

    def __init__(
        self,
        capacity: int = RING_CAPACITY,
        *,
        timeout: float = PUBLISH_SECONDS_MAX,
        wait: WaitStrategy | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(capacity)
        self.timeout = timeout
        """How long to wait for room when a call does not say, in seconds."""
        self.waiting = Waiting(wait or Park(), clock or OsClock())
        self._closed = False
        self._base = 0  # the position of slot 0 in this lap
        self._limit = self.capacity  # the position where to look for room, or start the next lap

    # ------------------------------------------------------------------------------- publishing

    def _publish_late(self, item: Item) -> None:
        self._wait_for_room(self.timeout)
        self._write([item])

    def _try_late(self, item: Item) -> bool:
        if self.find_room():
            self._write([item])
            return True
        self.refused += 1
        return False

    def publish_many(self, items: Iterable[Item], timeout: float | None = None) -> None:
        """Publish the items in order, in slices as there is room; blocks the thread meanwhile.

        Raises BufferFull when a slice finds no room within the time. What was published before
        stays published; the error's ``published`` says how many.
        """
        batch = items if isinstance(items, list) else list(items)
        done = self._offer(batch)
        while done < len(batch):
            self._wait_for_room(self.timeout if timeout is None else timeout, done)
            done += self._offer(batch[done:])

    async def publish_async(self, item: Item, timeout: float | None = None) -> None:
        """Publish one item; on a full ring, suspend the task until there is room.

        Cancelling, BufferFull and Closed mean that nothing was published.
        """
        await self.publish_many_async([item], timeout)

    async def publish_many_async(self, items: Iterable[Item], timeout: float | None = None) -> None:
        """As :meth:`publish_many`, for a task. Cancelling leaves what was published so far."""
        batch = items if isinstance(items, list) else list(items)
        seconds = self.timeout if timeout is None else timeout
        done = self._offer(batch)
        while done < len(batch):
            if not await self.waiting.until_on_loop(self.find_room, self._slowest, seconds):
                raise self._full(seconds, done)
            done += self._offer(batch[done:])

    def room(self) -> int:
        """How many entries may be published now. Consumers may make more at any time."""
        return self.capacity - (self.value - self._slowest_value())

    def find_room(self) -> bool:
        """Look at the sequences of all consumers. Only the producer calls it."""
        position = self.value
        self._base = base = position & ~self.mask
        gate = self._slowest_value() + self.capacity
        self._limit = min(gate, base + self.capacity)
        if self._closed:
            self._limit = NEVER
            raise Closed("the ring is closed")
        return position < gate

    def _offer(self, batch: list[Item]) -> int:
        """Publish what there is room for."""
        if self._closed:
            raise Closed("the ring is closed")
        count = len(batch)
        if self._limit - self.value < count:
            count = min(count, self.room())
        if count:
            self._write(batch if count == len(batch) else batch[:count])
        return count

    def _write(self, batch: list[Item]) -> None:
        """Put the batch in its slots, then show it. There is room."""
        count = len(batch)
        position = self.value
        first = position & self.mask
        split = min(count, self.capacity - first)
        self._slots[first : first + split] = batch if split == count else batch[:split]
        if split < count:
            self._slots[: count - split] = batch[split:]
        self.value = position + count
        if self.parked:
            self.wake()

    def _wait_for_room(self, timeout: float, done: int = 0) -> None:
        if not self.waiting.until(self.find_room, self._slowest, timeout):
            raise self._full(timeout, done)

    def _full(self, timeout: float, done: int) -> BufferFull:
        text = f"no consumer made room in the ring of {self.capacity} within {timeout} seconds"
        return BufferFull(text, capacity=self.capacity, published=done)

    # -------------------------------------------------------------------------------- consumers

    def consumer(
        self, name: str = "", *, after: Iterable[RingConsumer[Item] | CompetingGroup[Item]] = ()
    ) -> RingConsumer[Item]:
        """A new consumer that sees every entry from now on, after those in ``after`` have passed it.

        From now on it gates the producer: close it when it is not read any more. Any thread.
        """
        return RingConsumer(self, self.join(name, (one.stage for one in after)))

    def group(
        self, name: str = "", *, after: Iterable[RingConsumer[Item] | CompetingGroup[Item]] = ()
    ) -> CompetingGroup[Item]:
        """A new group whose members share the entries from now on: each goes to one of them."""
        return CompetingGroup(self, self.join(name, (one.stage for one in after)))

    # -------------------------------------------------------------------------------------- end

    @property
    def closed(self) -> bool:
        """Whether nothing more will be published."""
        return self._closed

    def close(self) -> None:
        """Publish no more, from any thread. Consumers read what is there and are then finished."""
        self._closed = True
        self._limit = NEVER
        self.wake()
        for stage in self._stages:
            stage.sequence.wake()


class SharedProducerRing(Ring[Item]):
    """A ring into which several threads publish, one at a time, under a lock.

    The lock is held for the write only, never while a thread waits for room. Waiting threads have
    no order among each other; what one of them publishes keeps its own order.
    """

    __slots__ = ("_turn",)

    def __init__(
        self,
        capacity: int = RING_CAPACITY,
        *,
        timeout: float = PUBLISH_SECONDS_MAX,
        wait: WaitStrategy | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(capacity, timeout=timeout, wait=wait, clock=clock)
        self._turn = threading.RLock()

    def publish(self, item: Item) -> None:
        self.publish_many([item])

    def try_publish(self, item: Item) -> bool:
        with self._turn:
            return super().try_publish(item)

    def find_room(self) -> bool:
        with self._turn:
            return super().find_room()

    def _offer(self, batch: list[Item]) -> int:
        with self._turn:
            return super()._offer(batch)
