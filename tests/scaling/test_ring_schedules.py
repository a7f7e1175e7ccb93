"""The ring's own code, with threads that are interrupted at every line and every instruction.

The scenarios are small, so that all schedules with one or two switches can be tried.
"""

from collections.abc import Callable

import pytest

from penstock.errors import Closed
from penstock.scaling import Reader, Ring
from tests.scaling.schedules import Scheduler, Stuck, explore

ITEMS = 4


class Blocking:
    """Waits as Park does, in the hands of the scheduler: a lost signal is for ever."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    def wait(self, sequence, ready, deadline, clock) -> None:
        called: list[bool] = []

        def signal() -> None:
            called.append(True)

        sequence.park(signal)
        try:
            if not ready():
                self.scheduler.block(lambda: bool(called))
        finally:
            sequence.unpark(signal)


def make(scheduler: Scheduler, kind: type[Ring] = Ring, capacity: int = 2) -> Ring[int]:
    ring = kind(capacity, wait=Blocking(scheduler))
    ring.guard = scheduler.lock()  # type: ignore[assignment]
    ring._lock = scheduler.lock()  # type: ignore[assignment]
    return ring


def tamed(scheduler: Scheduler, reader: Reader[int]) -> Reader[int]:
    reader.stage.sequence._lock = scheduler.lock()  # type: ignore[assignment]
    return reader


def publishing(scheduler: Scheduler, ring: Ring[int]) -> Callable[[], None]:
    """Publish the numbers, letting others run when the ring is full."""

    def program() -> None:
        for number in range(ITEMS):
            while not ring.try_publish(number):
                scheduler.give_way()

    return program


def reading(scheduler: Scheduler, reader: Reader[int], into: list[int], until: Callable[[], bool]):
    def program() -> None:
        while not until():
            batch = reader.poll(3)
            into.extend(batch)
            reader.advance()
            if not batch:
                scheduler.give_way()

    return program


def one(kind: type[Ring] = Ring):
    def scenario(scheduler: Scheduler):
        ring = make(scheduler, kind)
        seen: list[int] = []
        reader = tamed(scheduler, ring.consumer())

        def check() -> None:
            assert seen == list(range(ITEMS))
            assert ring._slots == [None, None]

        programs = [
            publishing(scheduler, ring),
            reading(scheduler, reader, seen, lambda: len(seen) >= ITEMS),
        ]
        return programs, check

    return scenario


def many(shape: str, kind: type[Ring] = Ring):
    def scenario(scheduler: Scheduler):
        ring = make(scheduler, kind)
        seen: list[list[int]] = [[], []]
        first = ring.consumer()
        second = ring.consumer(after=[first] if shape == "chain" else [])
        for reader in (first, second):
            tamed(scheduler, reader)

        def check() -> None:
            assert seen == [list(range(ITEMS))] * 2
            assert ring._slots == [None, None]

        programs = [publishing(scheduler, ring)] + [
            reading(scheduler, reader, into, lambda into=into: len(into) >= ITEMS)  # type: ignore[misc]
            for reader, into in zip((first, second), seen, strict=True)
        ]
        return programs, check

    return scenario


def sharing(scheduler: Scheduler):
    ring = make(scheduler)
    group = ring.group()
    seen: list[list[int]] = [[], []]
    members = [tamed(scheduler, group.member()) for _ in seen]

    def everything() -> bool:
        return sum(map(len, seen)) >= ITEMS

    def check() -> None:
        assert sorted(seen[0] + seen[1]) == list(range(ITEMS))
        assert seen == [sorted(one) for one in seen]

    programs = [publishing(scheduler, ring)] + [
        reading(scheduler, member, into, everything)
        for member, into in zip(members, seen, strict=True)
    ]
    return programs, check


def waiting(scheduler: Scheduler):
    """Both sides block. A wake-up that gets lost leaves somebody waiting."""
    ring = make(scheduler)
    reader = tamed(scheduler, ring.consumer())
    seen: list[int] = []

    def produce() -> None:
        for number in range(ITEMS):
            ring.publish(number)

    def consume() -> None:
        while len(seen) < ITEMS:
            seen.extend(reader.drain(1) or [] * reader.wait(1e9))

    def check() -> None:
        assert seen == list(range(ITEMS))

    return [produce, consume], check


def closing(scheduler: Scheduler):
    """A reader that waits for the end of the ring."""
    ring = make(scheduler)
    reader = tamed(scheduler, ring.consumer())
    seen: list[int] = []

    def produce() -> None:
        for number in range(ITEMS):
            ring.publish(number)
        ring.close()

    def consume() -> None:
        while not reader.finished:
            seen.extend(reader.drain(1))
            reader.wait(1e9)

    def check() -> None:
        assert seen == list(range(ITEMS))

    return [produce, consume], check


def coming_and_going(scheduler: Scheduler):
    """One reader stays, one joins in the middle, one is removed by another thread."""
    ring = make(scheduler)
    stays, leaves = tamed(scheduler, ring.consumer()), tamed(scheduler, ring.consumer())
    seen: list[int] = []
    late: list[int] = []

    def join_and_remove() -> None:
        reader = tamed(scheduler, ring.consumer())
        leaves.close()
        while not (late and late[-1] == ITEMS - 1) and len(seen) + len(late) < 2 * ITEMS:
            late.extend(reader.drain())
            if len(seen) == ITEMS and not reader.pending():
                return
            scheduler.give_way()

    def leave() -> None:
        try:
            assert leaves.drain(1) in ([], [0])
        except Closed:
            return

    def check() -> None:
        assert seen == list(range(ITEMS))
        assert late == list(range(ITEMS))[ITEMS - len(late) :]

    programs = [
        publishing(scheduler, ring),
        reading(scheduler, stays, seen, lambda: len(seen) >= ITEMS),
        join_and_remove,
        leave,
    ]
    return programs, check


def joining(scheduler: Scheduler):
    """The first reader joins while the producer, whom nobody holds back yet, runs away."""
    ring = make(scheduler)
    late: list[int] = []

    def join() -> None:
        reader = tamed(scheduler, ring.consumer())
        while ring.value < ITEMS or reader.pending():
            late.extend(reader.drain())
            scheduler.give_way()

    def check() -> None:
        assert late == list(range(ITEMS))[ITEMS - len(late) :]

    return [join, publishing(scheduler, ring)], check


SCENARIOS = {
    "one": one(),
    "broadcast": many("broadcast"),
    "chain": many("chain"),
    "sharing": sharing,
    "waiting": waiting,
    "closing": closing,
    "joining": joining,
    "coming and going": coming_and_going,
}


@pytest.mark.acceptance(31)
@pytest.mark.parametrize("name", SCENARIOS)
def test_one_switch_at_any_line(name):
    assert explore(SCENARIOS[name], switches=1) > 100


@pytest.mark.acceptance(31)
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.torture
@pytest.mark.timeout(1_800)
def test_one_switch_at_any_instruction(name):
    assert explore(SCENARIOS[name], switches=1, instructions=True) > 1_000


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_two_switches_at_any_lines(name):
    assert explore(SCENARIOS[name], switches=2) > 10_000


class ShowsFirst(Ring[int]):
    """Moves the cursor before the slot is written."""

    def try_publish(self, item: int) -> bool:
        if self.value >= self._limit and not self.find_room():
            return False
        position = self.value
        self.value = position + 1
        self.read(0, 0)  # a point at which the thread can be interrupted
        self._slots[position - self._base] = item
        return True


class NeverGated(Ring[int]):
    """Does not look at its consumers."""

    def find_room(self) -> bool:
        super().find_room()
        self._limit = self._base + self.capacity
        return True


class EmptiesLate(Ring[int]):
    """Empties slots when its sequence no longer holds the producer back."""

    def move(self, stage, end: int) -> None:
        start = stage.sequence.value
        stage.sequence.value = end
        self._empty(start, end)


class ForgetsToCall(Ring[int]):
    """Looks for waiting readers before the cursor is moved."""

    def publish(self, item: int) -> None:
        position = self.value
        if position >= self._limit:
            self._wait_for_room(1e9)
        if self.parked:
            self.wake()
        self.read(0, 0)
        self._slots[position - self._base] = item
        self.value = position + 1


@pytest.mark.parametrize("kind", [ShowsFirst, NeverGated, EmptiesLate])
def test_a_broken_ring_is_found_out(kind):
    with pytest.raises(AssertionError):
        explore(one(kind), switches=1)


def test_a_lost_wake_up_is_found_out(monkeypatch):
    monkeypatch.setattr(Ring, "publish", ForgetsToCall.publish)
    with pytest.raises(Stuck):
        explore(waiting, switches=1)
