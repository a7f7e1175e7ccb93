"""The ring in one process: its end, and how one waits for it."""

import asyncio
import threading

import pytest

from penstock.errors import BufferFull, Closed
from penstock.scaling import (
    Park,
    Ring,
    Sequence,
    SharedProducerRing,
    Sleep,
    Spin,
    Yield,
)
from penstock.scaling.waiting import wait_on_loop
from penstock.system import OsClock
from penstock.testing import VirtualClock
from tests.scaling.threads import running

# ------------------------------------------------------------------------------- ---------- end


def test_a_closed_ring_is_read_to_its_end():
    ring: Ring[int] = Ring(8)
    consumer = ring.consumer()
    ring.publish_many([1, 2])
    ring.close()
    with pytest.raises(Closed):
        ring.publish(3)
    with pytest.raises(Closed):
        ring.try_publish(3)
    with pytest.raises(Closed):
        ring.publish_many([3])
    assert not consumer.finished
    assert consumer.drain() == [1, 2]
    assert consumer.finished
    assert not consumer.wait(50)


def test_a_closed_consumer_refuses():
    ring: Ring[int] = Ring(8)
    consumer = ring.consumer()
    ring.publish(1)
    assert consumer.poll() == [1]
    consumer.close()
    consumer.close()
    for call in [consumer.poll, consumer.advance, consumer.drain]:
        with pytest.raises(Closed):
            call()


# ------------------------------------------------------------------------------------- waiting


@pytest.mark.parametrize("strategy", [Spin(), Yield(), Sleep()])
def test_a_wait_ends_at_its_deadline(strategy):
    clock = TickingClock()
    ring: Ring[int] = Ring(2, wait=strategy, clock=clock, timeout=3)
    consumer = ring.consumer()
    assert not consumer.wait(5)
    assert clock.monotonic() >= 5
    ring.publish_many([1, 2])
    with pytest.raises(BufferFull) as caught:
        ring.publish(3)
    assert caught.value.published == 0
    with pytest.raises(BufferFull):
        ring.publish_many([3], timeout=1)
    assert consumer.drain() == [1, 2]


class TickingClock(VirtualClock):
    """Time passes with each look at it."""

    def monotonic(self) -> float:
        self.advance(0.01)
        return super().monotonic()


class MovesMeanwhile(Sequence):
    """Moves between a reader's first look and its parking, and calls nobody."""

    def park(self, signal) -> None:
        self.value += 1
        super().park(signal)


def test_who_parks_looks_once_more(monkeypatch):
    class NeverWait(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise AssertionError("it would wait for a move that was before")

    monkeypatch.setattr("penstock.scaling.waiting.threading.Event", NeverWait)
    sequence = MovesMeanwhile()
    Park().wait(sequence, lambda: sequence.value > 0, 1e9, OsClock())


async def test_a_task_that_parks_looks_once_more():
    sequence = MovesMeanwhile()
    async with asyncio.timeout(20):
        await wait_on_loop(sequence, lambda: sequence.value > 0, 1e9, VirtualClock())


def test_parking_ends_at_its_deadline():
    ring: Ring[int] = Ring(2, wait=Park(), timeout=0.001)
    consumer = ring.consumer()
    assert not consumer.wait(0.001)
    assert ring.parked == ()
    ring.publish_many([1, 2])
    with pytest.raises(BufferFull):
        ring.publish(3)
    assert consumer.stage.sequence.parked == ()


@pytest.mark.parametrize("strategy", [Spin(), Yield(), Sleep(), Park()])
@pytest.mark.parametrize("count", [2_000])
def test_each_strategy_brings_everything_through_a_small_ring(strategy, count):
    ring: Ring[int] = Ring(64, wait=strategy)
    consumer = ring.consumer()
    seen: list[int] = []

    def produce() -> None:
        for number in range(0, count, 20):
            ring.publish(number)
            ring.publish_many(range(number + 1, number + 20))
        ring.close()

    with running(produce):
        while not consumer.finished:
            seen += consumer.drain(50) or [] * consumer.wait(50)
    assert seen == list(range(count))


def test_several_threads_publish_under_a_lock():
    ring: SharedProducerRing[tuple[int, int]] = SharedProducerRing(16)
    consumer = ring.consumer()
    seen: list[tuple[int, int]] = []

    def produce(thread: int) -> None:
        for number in range(0, 500, 5):
            ring.publish((thread, number))
            ring.publish_many([(thread, number + more) for more in range(1, 5)])

    with running(lambda: produce(0)), running(lambda: produce(1)), running(lambda: produce(2)):
        while len(seen) < 1500 and consumer.wait(50):
            seen += consumer.drain()
    for thread in range(3):
        assert [number for one, number in seen if one == thread] == list(range(500))


class CountingLoopCalls:
    """Counts how often another thread wakes the loop."""

    def __init__(self, monkeypatch) -> None:
        self.count = 0
        loop = asyncio.get_running_loop()
        real = loop.call_soon_threadsafe

        def counted(*arguments, **named):
            self.count += 1
            return real(*arguments, **named)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)


async def test_another_thread_wakes_the_loop_once_for_many_entries(monkeypatch):
    calls = CountingLoopCalls(monkeypatch)
    ring: Ring[int] = Ring(1024)
    consumer = ring.consumer()
    waiting = asyncio.create_task(consumer.wait_async(50))
    while not ring.parked:
        await asyncio.sleep(0)

    def produce() -> None:
        for number in range(500):
            ring.publish(number)

    with running(produce):
        pass
    assert await waiting
    assert consumer.drain() == list(range(500))
    assert calls.count == 1


async def test_a_task_of_the_same_loop_is_woken_without_a_call_to_the_loop(monkeypatch):
    calls = CountingLoopCalls(monkeypatch)
    ring: Ring[int] = Ring(4)
    consumer = ring.consumer()
    seen: list[int] = []

    async def consume() -> None:
        while not consumer.finished:
            await consumer.wait_async(50)
            seen.extend(consumer.drain())

    async with asyncio.timeout(50):
        task = asyncio.create_task(consume())
        for number in range(0, 100, 10):
            await ring.publish_async(number)
            await ring.publish_many_async(range(number + 1, number + 10))
        ring.close()
        await task
    assert seen == list(range(100))
    assert calls.count == 0


async def test_a_task_waits_for_room_until_its_deadline():
    clock = VirtualClock()
    ring: Ring[int] = Ring(2, clock=clock)
    consumer = ring.consumer()
    task = asyncio.create_task(ring.publish_many_async([1, 2, 3], timeout=5))
    with pytest.raises(BufferFull) as caught:
        await clock.run_until(task)
    assert caught.value.published == 2
    assert consumer.drain() == [1, 2]


async def test_a_cancelled_wait_leaves_nothing_behind():
    ring: Ring[int] = Ring(2)
    consumer = ring.consumer()
    task = asyncio.create_task(consumer.wait_async(50))
    while not ring.parked:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ring.parked == ()
