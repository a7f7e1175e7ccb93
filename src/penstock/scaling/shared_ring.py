"""The ring between processes: batches of bytes in shared memory.

The algorithm is that of :mod:`penstock.scaling.ring`; positions count bytes, and an entry is a batch
of records.

**Why it is correct without memory barriers, which Python does not have.** A processor may let
others see its stores late and in another order than they were made, and may load ahead of time.

- *An entry seen too early.* A consumer may see the producer's cursor before the bytes it covers.
  So the cursor is only a bound: an entry proves itself, by its absolute position, which no older
  content of these bytes carries, and by a checksum over that position and all of its bytes. An
  entry that does not is looked at again, until it does.
- *A slot used again too early.* The producer overwrites an entry after it saw that the consumers
  have passed it, and a consumer passes an entry after it has computed the checksum of its own copy.
  Both are a store behind a branch on a loaded value, which no processor makes visible before the
  load is done.
- *Half a word.* Sequences are aligned words of 8 bytes, stored in one piece by every processor that
  CPython runs on. Each has a check beside it; a reader that finds the two apart keeps the value it
  had, which is merely careful, as sequences only grow.
- *A consumer that joins while the producer runs away.* The producer may not have seen the new gate
  when the consumer reads the cursor. The first entry that a consumer reads may then be overwritten;
  it shows, and the consumer starts at the cursor again. What it reads after its first entry is gated.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from penstock.errors import BufferFull, Closed, InvalidOption, NotSupported, RecordTooLarge
from penstock.scaling.sequence import lowest
from penstock.scaling.shared_consumer import LIVENESS_SECONDS, SharedRingConsumer, SharedStage, join
from penstock.scaling.shared_entry import HEADER_BYTES, LENGTH_BYTES, EntryArea, size_of
from penstock.scaling.shared_group import SharedRingGroup
from penstock.scaling.shared_places import Place
from penstock.scaling.shared_segment import PAGE_BYTES, Segment, alive, myself, sweep
from penstock.scaling.waiting import Sleep, WaitStrategy
from penstock.system import System

SHARED_RING_BYTES = 8 << 20
SHARED_RING_BYTES_MAX = 1 << 32
PUT_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class SharedConsumerPosition:
    """How far a consumer of a shared ring has come."""

    process_id: int
    position: int
    """Bytes that it has passed."""
    depth: int
    """Bytes that were published and not yet passed."""
    records: int
    """Records that it has passed."""


@dataclass(frozen=True, slots=True)
class SharedRingStatistics:
    """The sequences of a shared ring, in bytes."""

    capacity_bytes: int
    published: int
    records: int
    """Records that were ever published."""
    depth: int
    consumers: tuple[SharedConsumerPosition, ...]


class SharedRing:
    """A queue of bytes from one process to many, in shared memory. Linux.

    One process makes it (:meth:`create`), others find it by name (:meth:`attach`), or get it as an
    argument of ``multiprocessing.Process``. The first process that puts is the producer; another
    one may take over when it has died. Consumers are made with :meth:`consumer`, in the process that
    reads or in one that hands them over, and see everything that is put from then on.

    Nothing survives the last process: the memory is removed when the last one closes. If it was
    killed, the next :meth:`create` on the machine removes what it left.

    Used by one thread of a process at a time. On an event loop put with :meth:`try_put_many`, and
    read in a thread: ``await asyncio.to_thread(consumer.get_many)``.
    """

    def __init__(
        self, segment: Segment, timeout: float, wait: WaitStrategy, system: System
    ) -> None:
        self._segment = segment
        self._area = EntryArea(segment.area, segment.capacity)
        self._wait = wait
        self._system = system
        self._limit = 0
        self._producer_pid = 0
        self._closed = False
        self.name = segment.name
        self.timeout = timeout
        self.entry_bytes_max = segment.capacity // 2

    @classmethod
    def create(
        cls,
        name: str = "",
        *,
        capacity_bytes: int = SHARED_RING_BYTES,
        consumers_max: int = 16,
        timeout: float = PUT_SECONDS_MAX,
        wait: WaitStrategy | None = None,
        system: System | None = None,
    ) -> Self:
        """Make a ring. Without a name it gets a random one. The capacity is rounded up to 2^n.

        UsageError when a live process takes part in a ring of that name; one that was left behind
        by dead processes is replaced.
        """
        if not PAGE_BYTES <= capacity_bytes <= SHARED_RING_BYTES_MAX:
            raise InvalidOption(f"a shared ring has {PAGE_BYTES} to {SHARED_RING_BYTES_MAX} bytes")
        outside = system or System()
        sweep(outside)
        capacity = 1 << (capacity_bytes - 1).bit_length()
        name = name or f"{outside.random.getrandbits(64):016x}"
        segment = Segment.create(outside, name, capacity, consumers_max)
        return cls(segment, timeout, wait or Sleep(), outside)

    @classmethod
    def attach(
        cls,
        name: str,
        *,
        timeout: float = PUT_SECONDS_MAX,
        wait: WaitStrategy | None = None,
        system: System | None = None,
    ) -> Self:
        """Find a ring that another process made; UsageError when there is none."""
        outside = system or System()
        return cls(Segment.attach(outside, name), timeout, wait or Sleep(), outside)

    def __reduce__(self) -> tuple[object, ...]:
        return _attach, (self.name, self.timeout, self._wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---------------------------------------------------------------------------------- putting

    def put_many(self, records: list[bytes], timeout: float | None = None) -> None:
        """Publish the records, in order; wait while the slowest consumer has not made room.

        They go in as few entries as fit. Raises RecordTooLarge, and nothing is put, when a record
        is larger than half the ring; BufferFull when there is no room in time: then the error's
        ``published`` says how many of the records, the first ones, were put.
        """
        seconds = self.timeout if timeout is None else timeout
        done = 0
        for batch, lengths in self._batches(records):
            if not self._make_room(size_of(len(batch), sum(lengths)), seconds):
                raise self._full(seconds, done)
            self._publish(batch, lengths)
            done += len(batch)

    def try_put_many(self, records: list[bytes]) -> int:
        """Publish the first entries of records that find room, without waiting; how many records."""
        done = 0
        for batch, lengths in self._batches(records):
            if not self._has_room(size_of(len(batch), sum(lengths))):
                break
            self._publish(batch, lengths)
            done += len(batch)
        return done

    def _batches(self, records: list[bytes]) -> Iterable[tuple[list[bytes], list[int]]]:
        """The records in pieces that fit an entry, each with the lengths of its records."""
        self._check_producer()
        lengths = list(map(len, records))
        room = self.entry_bytes_max - HEADER_BYTES
        if sum(lengths) + LENGTH_BYTES * len(lengths) <= room:
            return [(records, lengths)] if records else []
        if max(lengths) + LENGTH_BYTES > room:
            raise RecordTooLarge(f"a record of {max(lengths)} bytes; the ring takes {room}")
        return _split(records, lengths, room)

    def _publish(self, batch: list[bytes], lengths: list[int]) -> None:
        """Write the entry, then show it. There is room."""
        producer = self._segment.places.producer
        position = producer.sequence.value
        size = self._area.write(position, batch, lengths)
        producer.records += len(batch)
        producer.sequence.value = position + size

    def _has_room(self, size: int) -> bool:
        places = self._segment.places
        position = places.producer.sequence.value
        if position + size > self._limit:
            gates = [place.sequence for place in places.gates()]
            self._limit = lowest(gates, position) + self._segment.capacity
        return position + size <= self._limit

    def _make_room(self, size: int, timeout: float) -> bool:
        clock = self._system.clock
        deadline = clock.monotonic() + timeout
        while not self._has_room(size):
            now = clock.monotonic()
            if now >= deadline:
                return False
            sequence = self._segment.places.producer.sequence
            until = min(deadline, now + LIVENESS_SECONDS)
            self._wait.wait(sequence, lambda: self._has_room(size), until, clock)
            if not self._has_room(size):
                self._segment.remove_dead()
        return True

    def _full(self, timeout: float, done: int) -> BufferFull:
        gates = sorted(self._segment.places.gates(), key=lambda place: place.sequence.value)
        pid = gates[0].pid if gates else 0
        text = f"process {pid} made no room in the shared ring within {timeout} seconds"
        return BufferFull(text, name=self.name, process_id=pid, published=done)

    def _check_producer(self) -> None:
        if self._closed:
            raise Closed(f"the shared ring {self.name} is closed", name=self.name)
        if self._producer_pid != os.getpid():
            self._become_producer(self._segment.places.producer)

    def _become_producer(self, producer: Place) -> None:
        """Take the producer's place when it is free or its process is dead."""
        with self._segment.lock():
            owner, me = producer.owner, myself(self._system)
            if producer.marks:
                raise Closed(f"the producer of {self.name} has closed it", name=self.name)
            if owner != me and alive(self._system, owner):
                text = f"process {owner[0]} is the producer of {self.name}: a ring has one"
                raise NotSupported(text, name=self.name, process_id=owner[0])
            producer.own(me)
            self._producer_pid = me[0]
            self._limit = 0

    # -------------------------------------------------------------------------------- consumers

    def consumer(self, *, after: Iterable[SharedStage] = ()) -> SharedRingConsumer:
        """A new consumer that sees what is put from now on, after those in ``after`` have passed it.

        It gates the producer from now on. Hand it to another process as an argument, or use it
        here. BufferFull when all places are taken.
        """
        place = join(self._segment, self._system, after)
        return SharedRingConsumer(self._segment, place, self._wait, self._system)

    def group(self, *, after: Iterable[SharedStage] = ()) -> SharedRingGroup:
        """A new group whose members share what is put from now on: each entry goes to one of them."""
        place = join(self._segment, self._system, after)
        place.claimed = place.sequence.value
        return SharedRingGroup(self._segment, place, self._wait, self._system)

    def statistics(self) -> SharedRingStatistics:
        """The positions now."""
        places = self._segment.places
        seen = [(one, one.sequence.value) for one in places.gates()]
        published = places.producer.sequence.value
        consumers = tuple(
            SharedConsumerPosition(one.pid, at, published - at, one.records) for one, at in seen
        )
        depth = max((one.depth for one in consumers), default=0)
        records = places.producer.records
        return SharedRingStatistics(self._segment.capacity, published, records, depth, consumers)

    def close(self) -> None:
        """Leave the ring. When this process is the producer, nothing more will come.

        The same holds when it made the ring and nobody has put anything yet. Consumers read what is
        there and then get Closed. Consumers of this process stay open.
        """
        if self._closed:
            return
        self._closed = True
        places, me = self._segment.places, myself(self._system)
        with self._segment.lock():
            unused = places.creator.owner == me and not places.producer.pid
            if places.producer.owner == me or unused:
                places.producer.marks = places.producer.marks or places.producer.sequence.value + 1
                places.producer.own((0, 0))
            if places.creator.owner == me:
                places.creator.own((0, 0))
        self._segment.unlink_if_unused()


def _attach(name: str, timeout: float, wait: WaitStrategy) -> SharedRing:
    return SharedRing.attach(name, timeout=timeout, wait=wait)


def _split(
    records: list[bytes], lengths: list[int], room: int
) -> Iterable[tuple[list[bytes], list[int]]]:
    first = used = 0
    for index, length in enumerate(lengths):
        if used + length + LENGTH_BYTES > room:
            yield records[first:index], lengths[first:index]
            first, used = index, 0
        used += length + LENGTH_BYTES
    yield records[first:], lengths[first:]
