"""A consumer of a shared ring, in any process."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol, Self

from penstock.errors import (
    BufferFull,
    Closed,
    DamagedEntry,
    Forked,
    InvalidOption,
    ProducerDied,
    UsageError,
)
from penstock.scaling.sequence import lowest
from penstock.scaling.shared_entry import EntryArea
from penstock.scaling.shared_places import Place
from penstock.scaling.shared_segment import Segment, alive, myself
from penstock.scaling.waiting import WaitStrategy
from penstock.system import System

GET_MAX = 1_024
GET_SECONDS_MAX = 1.0
LIVENESS_SECONDS = 0.1
"""How often a process that waits looks whether the other side is alive."""
PROOF_SECONDS_MAX = 1.0
"""How long an entry that the cursor covers may take to prove itself."""


class SharedStage(Protocol):
    """What a barrier may be made of: a consumer or a group."""

    place: Place
    ring_identity: int


def join(segment: Segment, system: System, after: Iterable[SharedStage]) -> Place:
    """Take a free place, at the cursor, behind the given consumers."""
    places = segment.places
    with segment.lock():
        marks = 0
        for one in after:
            usable = one.place.pid and not one.place.group
            if one.ring_identity != segment.identity or not usable:
                raise InvalidOption("a barrier needs open consumers of the same ring")
            marks |= one.place.bit
        place = free_place(segment)
        place.marks = marks
        # As in the ring of objects: at the cursor, then a gate, then at the cursor again.
        place.sequence.value = places.producer.sequence.value
        place.own(myself(system))
        place.sequence.value = places.producer.sequence.value
    return place


def free_place(segment: Segment) -> Place:
    """A place that nobody has, or whose process is dead. The lock is held."""
    places = segment.places
    free = [place for place in places.consumers if not place.pid]
    dead = (place for place in places.consumers if not segment.lives(place) and not place.holds)
    place = free[0] if free else next(dead, None)
    if place is None:
        raise BufferFull(f"all {len(places.consumers)} places of {segment.name} are taken")
    places.free(place)
    place.group = place.marks = place.records = 0
    place.claimed = 0
    return place


class SharedRingConsumer:
    """Reads every record that is put after it was made. Made by :meth:`SharedRing.consumer`.

    It belongs to one process: the one that made it, until another one, to which it was handed as an
    argument or by ``fork``, uses it first; then to that one. Used by one thread at a time. When its
    process dies it no longer holds the producer back, after a moment. What it has read and not
    passed then is lost for it.
    """

    def __init__(self, segment: Segment, place: Place, wait: WaitStrategy, system: System) -> None:
        self._segment = segment
        self._area = EntryArea(segment.area, segment.capacity)
        self._wait = wait
        self._system = system
        self._records: list[bytes] = []
        self._first = 0
        self._polled = 0
        self._next = place.sequence.value
        self._fresh = True
        self._unproven_since: float | None = None
        self._closed = False
        self._pid = os.getpid()
        self.place = place
        self._gate = place
        """What the producer sees of this consumer: its own place, or that of its group."""
        self.ring_identity = segment.identity

    def __reduce__(self) -> tuple[object, ...]:
        ticket = (self._segment.name, self.place.index, self.place.owner, self._wait)
        return take_over, (type(self), *ticket)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---------------------------------------------------------------------------------- reading

    def get_many(self, limit: int = GET_MAX, timeout: float = GET_SECONDS_MAX) -> list[bytes]:
        """The next records, at most ``limit``, and pass them; [] when none came in time.

        Raises Closed when the producer has closed the ring and all is read; ProducerDied when its
        process is gone and all that it had published is read.
        """
        records = self.drain(limit)
        if records:
            return records
        if self.wait(timeout):
            return self.drain(limit)
        if self.finished:
            raise Closed(f"the producer has closed {self._segment.name}", name=self._segment.name)
        return []

    def drain(self, limit: int = GET_MAX) -> list[bytes]:
        """Poll and pass what is there, at most ``limit`` records, without waiting."""
        records = self.poll(limit)
        self.advance()
        while len(records) < limit and (more := self.poll(limit - len(records))):
            records += more
            self.advance()
        return records

    def poll(self, limit: int = GET_MAX) -> list[bytes]:
        """The next records of one entry, without waiting; the same again until advanced."""
        self._check()
        if self._first >= len(self._records) and not self._load():
            return []
        records = self._records[self._first : self._first + limit]
        self._polled = len(records)
        return records

    def advance(self, count: int | None = None) -> None:
        """Pass the first ``count`` of the records that were polled, or all of them.

        The producer, and consumers after this one, see it when a whole entry is passed.
        """
        self._check()
        passed = self._polled if count is None else count
        if not 0 <= passed <= self._polled:
            raise InvalidOption(f"{self._polled} records were polled, {passed} cannot be passed")
        self._first += passed
        self._polled -= passed
        if passed and self._first == len(self._records):
            self.place.records += len(self._records)
            self._pass_entry()
            self._records, self._first = [], 0

    def _pass_entry(self) -> None:
        self.place.sequence.value = self._next

    def pending(self) -> bool:
        """Whether there is something to poll, or will be in a moment."""
        return self._first < len(self._records) or self._available() > self._next

    @property
    def finished(self) -> bool:
        """Whether nothing will come: this consumer is closed, or the ring is and all is read."""
        read = not self._records and self._segment.places.all_passed(self._next)
        return self._closed or read

    def wait(self, timeout: float) -> bool:
        """Block the thread until there is something to poll.

        False after ``timeout`` seconds, or when the ring is finished. Raises ProducerDied.
        """
        self._check()
        clock = self._system.clock
        deadline = clock.monotonic() + timeout
        while not self._proven():
            now = clock.monotonic()
            if self.finished or now >= deadline:
                return False
            until = min(deadline, now + LIVENESS_SECONDS)
            self._wait.wait(self.place.sequence, self._stirs, until, clock)
            if not self._stirs():
                self._look_around()
        return True

    def _stirs(self) -> bool:
        return self._proven() or self.finished

    def _proven(self) -> bool:
        return self._first < len(self._records) or self._load()

    def _available(self) -> int:
        before = self._segment.places.before(self._gate)
        return lowest([one.sequence for one in before], 0)

    def _load(self) -> bool:
        """Copy the next entry out of the ring, if it is there and proves itself."""
        if self._available() <= self._next:
            return False
        entry = self._area.read(self._next)
        if entry is None:
            self._not_proven()
            return False
        self._records, size = entry
        self._first = self._polled = 0
        self._next += size
        self._fresh = False
        self._unproven_since = None
        return True

    def _not_proven(self) -> None:
        """The cursor was seen before the entry: look again soon. See the module of the ring."""
        now = self._system.clock.monotonic()
        if self._unproven_since is None:
            self._unproven_since = now
        elif now - self._unproven_since > PROOF_SECONDS_MAX:
            if not self._overrun_at_start():
                text = f"the entry at {self._next} of {self._segment.name} fails its checks"
                raise DamagedEntry(text, file=self._segment.name, position=self._next)
            self._unproven_since = None

    def _overrun_at_start(self) -> bool:
        """If nothing was read yet, the producer did not see this gate in time: start again."""
        if self._fresh:
            self._next = self.place.sequence.value = self._segment.places.producer.sequence.value
        return self._fresh

    def _look_around(self) -> None:
        """Whoever this one waits for may be dead."""
        places = self._segment.places
        for one in places.before(self._gate):
            if one is places.producer:
                owner = one.owner
                if owner[0] and not alive(self._system, owner) and not self.pending():
                    raise ProducerDied(f"process {owner[0]} is gone", process_id=owner[0])
            elif one.pid and not self._segment.lives(one):
                self._segment.remove_dead()

    # ------------------------------------------------------------------------------------ owner

    def _check(self) -> None:
        if self._closed or not self.place.pid:
            raise Closed("the consumer is closed", name=self._segment.name)
        if self.place.pid != os.getpid():
            self._adopt()

    def _adopt(self) -> None:
        """After a fork, the first process to use the consumer has it."""
        if self._pid == os.getpid() or self.place.pid != self._pid:
            text = f"the consumer belongs to process {self.place.pid}"
            raise Forked(text, process_id=self.place.pid)
        with self._segment.lock():
            self.place.own(myself(self._system))
        self._pid = os.getpid()

    def close(self) -> None:
        """Read no more; the producer is not held back any more. Any process but the owner: nothing."""
        if self._closed:
            return
        self._closed = True
        if self.place.owner == myself(self._system):
            with self._segment.lock():
                self._segment.places.free(self.place)
        self._segment.unlink_if_unused()


def take_over(
    kind: type[SharedRingConsumer],
    name: str,
    index: int,
    owner: tuple[int, int],
    wait: WaitStrategy,
) -> SharedRingConsumer:
    """The consumer in the process to which it was handed."""
    system = System()
    segment = Segment.attach(system, name)
    place = segment.places.consumers[index]
    with segment.lock():
        if place.owner != owner:
            raise UsageError("the consumer was handed to another process before", name=name)
        place.own(myself(system))
    return kind(segment, place, wait, system)
