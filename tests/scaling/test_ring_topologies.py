"""Many messages through each topology: none lost, none twice, in order.

A short form of each runs always; 10 million messages with `make torture`.
"""

import asyncio
import sys
from contextlib import ExitStack

import numpy as np
import pytest

from penstock.scaling import Reader, Ring, SharedRing
from tests.scaling import ring_programs as programs
from tests.scaling.ring_programs import ask, child, numbers
from tests.scaling.threads import running

SECONDS = 50.0
BATCH = 1_000
CAPACITY = 4_096

messages = pytest.mark.parametrize(
    "count",
    [
        200_000,
        pytest.param(10_000_000, marks=[pytest.mark.torture, pytest.mark.timeout(1_800)]),
    ],
)
pytestmark = pytest.mark.acceptance(30)


class InOrder:
    """Checks that a reader gets every number, in order."""

    def __init__(self) -> None:
        self.expected = 0

    def take(self, batch: list[int]) -> None:
        assert batch == list(range(self.expected, self.expected + len(batch)))
        self.expected += len(batch)


class Behind(InOrder):
    """Checks besides that another reader has taken each number before."""

    def __init__(self, first: InOrder) -> None:
        super().__init__()
        self.first = first

    def take(self, batch: list[int]) -> None:
        super().take(batch)
        assert self.expected <= self.first.expected


class Shares:
    """Checks that one member gets its numbers in order, and marks them."""

    def __init__(self, marks: np.ndarray) -> None:
        self.marks = marks
        self.last = -1

    def take(self, batch: list[int]) -> None:
        taken = np.array(batch)
        assert taken[0] > self.last
        assert (np.diff(taken) > 0).all()
        self.last = int(taken[-1])
        self.marks[taken] += 1


def topology(ring: Ring[int], name: str, count: int):
    """Pairs of a reader and its check, and the check of the whole."""
    if name == "one":
        checks: list = [InOrder()]
        return [(ring.consumer(), checks[0])], lambda: checks[0].expected == count
    if name == "broadcast":
        checks = [InOrder() for _ in range(3)]
        pairs = [(ring.consumer(), check) for check in checks]
        return pairs, lambda: all(check.expected == count for check in checks)
    if name == "chain":
        first = InOrder()
        last = Behind(first)
        before = ring.consumer()
        pairs = [(before, first), (ring.consumer(after=[before]), last)]
        return pairs, lambda: first.expected == last.expected == count
    marks = np.zeros(count, np.uint8)
    group = ring.group()
    sharing = [(group.member(), Shares(marks)) for _ in range(3)]
    return sharing, lambda: np.array_equal(marks, np.ones(count, np.uint8))


every_topology = pytest.mark.parametrize("name", ["one", "broadcast", "chain", "competing"])


def consume(reader: Reader[int], check) -> None:
    while not reader.finished:
        if batch := reader.poll(BATCH):
            check.take(batch)
            reader.advance()
        else:
            reader.wait(SECONDS)


@pytest.fixture
def hasty():
    """Threads take turns a hundred times more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 100)
    yield
    sys.setswitchinterval(before)


@every_topology
@messages
def test_threads(name, count, hasty):
    ring: Ring[int] = Ring(CAPACITY)
    pairs, complete = topology(ring, name, count)
    with ExitStack() as stack:
        for reader, check in pairs:
            stack.enter_context(running(lambda reader=reader, check=check: consume(reader, check)))
        for first in range(0, count, BATCH):
            ring.publish_many(range(first, first + BATCH - 1))
            ring.publish(first + BATCH - 1)
        ring.close()
    assert complete()
    assert ring.statistics().depth == 0


async def consume_on_loop(reader: Reader[int], check) -> None:
    while not reader.finished:
        if batch := reader.poll(BATCH):
            check.take(batch)
            reader.advance()
        else:
            await reader.wait_async(SECONDS)


@every_topology
@messages
async def test_tasks(name, count):
    ring: Ring[int] = Ring(CAPACITY)
    pairs, complete = topology(ring, name, count)
    async with asyncio.TaskGroup() as tasks:
        for reader, check in pairs:
            tasks.create_task(consume_on_loop(reader, check))
        for first in range(0, count, BATCH):
            await ring.publish_many_async(range(first, first + BATCH - 1))
            await ring.publish_async(first + BATCH - 1)
        ring.close()
    assert complete()


@messages
async def test_from_a_thread_to_a_task(count):
    ring: Ring[int] = Ring(CAPACITY)
    pairs, complete = topology(ring, "broadcast", count)

    def produce() -> None:
        for first in range(0, count, BATCH):
            ring.publish_many(range(first, first + BATCH))
        ring.close()

    with running(produce):
        await asyncio.gather(*(consume_on_loop(reader, check) for reader, check in pairs))
    assert complete()


def put_numbers(ring: SharedRing, count: int) -> None:
    for first in range(0, count, BATCH):
        ring.put_many(numbers(first, first + BATCH), timeout=SECONDS)
    ring.close()


@messages
@pytest.mark.parametrize("readers", [1, 3])
def test_processes_that_each_read_everything(readers, count):
    with SharedRing.create(capacity_bytes=1 << 18) as ring, ExitStack() as stack:
        consumers = [ring.consumer() for _ in range(readers)]
        children = [stack.enter_context(child(programs.read_all, one)) for one in consumers]
        put_numbers(ring, count)
        for _, there in children:
            assert ask(there) == "reading"
            assert ask(there) == (0, count)


@messages
def test_processes_one_behind_the_other(count):
    with SharedRing.create(capacity_bytes=1 << 18) as ring, ExitStack() as stack:
        first = ring.consumer()
        second = ring.consumer(after=[first])
        _, one = stack.enter_context(child(programs.pass_on, first))
        _, two = stack.enter_context(child(programs.read_all, second))
        put_numbers(ring, count)
        assert ask(one) == count
        assert ask(two) == "reading"
        assert ask(two) == (0, count)


@messages
def test_processes_that_share(count):
    with SharedRing.create(capacity_bytes=1 << 18) as ring, ExitStack() as stack:
        group = stack.enter_context(ring.group())
        members = [group.member() for _ in range(3)]
        children = [stack.enter_context(child(programs.share, one)) for one in members]
        put_numbers(ring, count)
        answers = [ask(there) for _, there in children]
        assert sum(answer[0] for answer in answers) == count
        assert sum(answer[1] for answer in answers) == count * (count - 1) // 2
        assert sum(answer[2] for answer in answers) == sum(n * n for n in range(count))


@messages
def test_a_producer_in_another_process(count):
    with SharedRing.create(capacity_bytes=1 << 18) as ring, ring.consumer() as consumer:
        check = InOrder()
        with child(programs.put_all, ring, count, BATCH) as (_, there):
            while check.expected < count:
                batch = consumer.get_many(5_000, timeout=SECONDS)
                check.take([programs.number_of(record) for record in batch])
            assert ask(there) == "put"
