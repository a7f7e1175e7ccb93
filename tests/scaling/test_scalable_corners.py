"""Corners of the scalable bus: cancellation on the hot path, changes with events aside, exact counts."""

import asyncio
import random
import threading

import pytest

from penstock.bus.bus import MessageBus
from penstock.bus.intake import QueueOptions
from penstock.errors import BufferFull
from penstock.hashing import fnv1a, key_bytes
from penstock.messages import Event, hot_path, topic
from penstock.resilience.bus import ResilientMessageBus
from penstock.resilience.retry import Retry
from penstock.scaling.bus import ScalableMessageBus
from penstock.scaling.limits import BusLimits
from penstock.system import System
from penstock.testing import ScalableSubsystemConformance, VirtualClock

INNER = [MessageBus, ResilientMessageBus]


@hot_path
@topic("ticks", key="symbol")
class Tick(Event):
    symbol: str
    number: int = 0


@topic("orders", key="customer")
class Ordered(Event):
    customer: str
    number: int = 0


@topic("orders", key="customer")
class Cancelled(Event):
    customer: str


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


def quiet(inner, **options):
    return ScalableMessageBus(inner, backpressure=False, **options)


@pytest.mark.acceptance(1, 3)
class TestScalableMessageBusAsASubsystem(ScalableSubsystemConformance):
    @pytest.fixture(params=INNER)
    async def subsystem(self, request):
        async with ScalableMessageBus(request.param()) as bus:
            bus.subscribe(Ordered, lambda event: None)
            bus.subscribe(Tick, lambda event: None)
            yield bus


# -------------------------------------------------------------------------------------- hot path


@pytest.mark.acceptance(146)
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("headers", [None, {"a": "b"}])
async def test_a_stop_reports_what_is_in_the_ring_once(inner, headers):
    bus = quiet(inner())
    await bus.start()

    @bus.on(Tick)
    async def handle(event):
        if event.number == 3:
            await asyncio.Event().wait()

    options = {"headers": headers} if headers else {}
    for number in range(300):
        bus.publish_nowait(Tick("x", number), **options)
    await turns()
    report = await bus.stop(drain=False)
    assert [one.message.number for one in report.undrained] == list(range(3, 300))
    figures = bus.statistics()
    assert figures.events_published == 300
    assert (figures.events_processed, figures.events_unsettled) == (3, 297)


async def test_a_hot_handler_that_is_cancelled_is_called_again_and_keeps_the_order():
    async with quiet(MessageBus()) as bus:
        seen: list[int] = []

        @bus.on(Tick)
        async def handle(event):
            if event.number == 3 and 3 not in seen:
                seen.append(3)
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
            seen.append(event.number)

        for number in range(10):
            bus.publish_nowait(Tick("x", number))
        await bus.settle()
        assert seen == [0, 1, 2, 3, *range(3, 10)]
        assert bus.statistics().events_processed == 10


@pytest.mark.acceptance(38)
async def test_each_publish_that_is_refused_counts_once():
    async with quiet(MessageBus(queue=QueueOptions(capacity=5)), ring_capacity=4) as bus:
        gate = asyncio.Event()

        @bus.on(Tick)
        async def handle(event):
            await gate.wait()

        refused = 0
        for number in range(100):
            try:
                bus.publish_nowait(Tick("x", number))
            except BufferFull:
                refused += 1
        assert refused == 91
        assert bus.get_scaling_metrics()["dropped"] == refused
        waiting = asyncio.ensure_future(bus.publish(Tick("x", 100)))
        await turns()
        gate.set()
        await waiting
        await bus.settle()
        assert bus.get_scaling_metrics()["dropped"] == refused


@pytest.mark.acceptance(114)
async def test_a_hot_topic_tells_of_the_pressure_behind_its_ring():
    async with quiet(MessageBus(queue=QueueOptions(capacity=10)), ring_capacity=4) as bus:
        told: list[tuple[str, bool]] = []
        bus.on_pressure(lambda name, started: told.append((name, started)))
        bus.subscribe(Tick, lambda event: None)
        for number in range(4 + 8):
            bus.publish_nowait(Tick("x", number))
        assert told == [("ticks", True)]
        await bus.settle()
        assert told == [("ticks", True), ("ticks", False)]


# --------------------------------------------------------------------------------------- changes


@pytest.mark.acceptance(10)
async def test_an_event_that_waits_for_a_retry_counts_where_it_was_when_partitions_change():
    clock = VirtualClock()
    inner = ResilientMessageBus(
        system=System(clock=clock, random=random.Random(1)), retry=Retry(attempts=3, jitter=False)
    )
    async with quiet(inner) as bus:
        bus.on_error(lambda *_: None)
        calls: list[int] = []

        @bus.on(Ordered)
        async def handle(event):
            calls.append(event.number)
            if len(calls) < 3:
                raise RuntimeError("not yet")

        await bus.publish(Ordered("a", 1))
        await turns()
        bus.set_partitions(Ordered, 4)
        for _ in range(5):
            clock.advance(1.0)
            await turns()
        await bus.settle()
        assert calls == [1, 1, 1]
        assert bus.get_scaling_metrics()["queue_depths"]["orders"] == [0, 0, 0, 0]


@pytest.mark.acceptance(10)
async def test_who_waits_for_room_gets_it_when_partitions_change():
    async with quiet(MessageBus(queue=QueueOptions(capacity=5))) as bus:
        gate = asyncio.Event()
        seen: list[int] = []

        @bus.on(Ordered)
        async def handle(event):
            await gate.wait()
            seen.append(event.number)

        def publish(numbers):
            events = [Ordered(f"c{number % 3}", number) for number in numbers]
            return [asyncio.ensure_future(bus.publish(event)) for event in events]

        publishing = publish(range(50))
        await turns()
        bus.set_partitions(Ordered, 2)
        publishing += publish(range(50, 100))
        await turns()
        bus.set_partitions(Ordered, 1)
        publishing += publish(range(100, 150))
        await turns()
        gate.set()
        await asyncio.gather(*publishing)
        await bus.settle()
        assert sorted(seen) == list(range(150))
        assert bus.statistics().events_processed == 150


@pytest.mark.acceptance(35)
async def test_the_depth_of_a_partition_is_its_own_while_partitions_change():
    async with quiet(MessageBus(), partitions={"orders": 2}) as bus:
        gate = asyncio.Event()

        @bus.on(Ordered)
        async def handle(event):
            await gate.wait()

        await bus.publish(Ordered("a"))
        await turns()
        bus.set_partitions(Ordered, 5)
        for number in range(10):
            await bus.publish(Ordered("k", number))
        depths = bus.get_scaling_metrics()["queue_depths"]["orders"]
        assert len(depths) == 5
        assert depths[fnv1a(key_bytes("k")) % 5] == 10
        gate.set()
        await bus.settle()
        assert bus.get_scaling_metrics()["queue_depths"]["orders"] == [0] * 5


@pytest.mark.acceptance(38)
async def test_drops_are_counted_on_when_partitions_change():
    async with quiet(MessageBus(queue=QueueOptions(capacity=2))) as bus:
        bus.subscribe(Ordered, lambda event: None)
        bus.publish_nowait(Ordered("a"))
        bus.publish_nowait(Ordered("a"))
        with pytest.raises(BufferFull):
            bus.publish_nowait(Ordered("a"))
        assert bus.get_scaling_metrics()["dropped"] == 1
        await bus.settle()
        for partitions in (4, 1, 3):
            bus.set_partitions(Ordered, partitions)
            await bus.settle()
            assert bus.get_scaling_metrics()["dropped"] == 1


@pytest.mark.acceptance(33, 36)
async def test_two_classes_on_one_topic_are_one_topic_in_the_figures():
    async with quiet(MessageBus()) as bus:
        gate = asyncio.Event()

        async def handle(event):
            await gate.wait()

        bus.subscribe(Ordered, handle)
        bus.subscribe(Cancelled, handle)
        for _ in range(3):
            await bus.publish(Ordered("a"))
            await bus.publish(Cancelled("a"))
        await turns()
        metrics = bus.get_scaling_metrics()
        assert metrics["topics"] == 1
        assert metrics["queue_depths"]["orders"] == [4]
        assert metrics["subscribers"]["orders"] == 2
        gate.set()


async def test_partitions_before_the_start_and_after_the_stop():
    bus = quiet(MessageBus())
    seen: list[int] = []
    bus.subscribe(Ordered, lambda event: seen.append(event.number))
    for number in range(10):
        bus.publish_nowait(Ordered("a", number))
    bus.set_partitions(Ordered, 3)
    for number in range(10, 20):
        bus.publish_nowait(Ordered("a", number))
    bus.set_hot(Ordered)
    for number in range(20, 30):
        bus.publish_nowait(Ordered("a", number))
    await bus.start()
    await bus.settle()
    assert seen == list(range(30))
    await bus.stop()
    bus.set_partitions(Ordered, 2)
    bus.set_hot(Ordered, hot=False)
    assert bus.get_scaling_metrics()["dropped"] == 0


async def test_a_class_that_is_marked_hot_may_leave_the_hot_path_and_come_back():
    async with quiet(MessageBus()) as bus:
        seen: list[int] = []
        bus.subscribe(Tick, lambda event: seen.append(event.number))
        for hot in (True, False, True):
            bus.set_hot(Tick, hot=hot)
            bus.publish_nowait(Tick("x", len(seen)))
            assert bool(bus.get_scaling_metrics()["rings"]) is hot
            await bus.settle()
        assert seen == [0, 1, 2]


# ---------------------------------------------------------------------------------- other threads


@pytest.mark.acceptance(9, 139)
async def test_one_topic_too_many_from_another_thread_loses_only_itself():
    async with quiet(MessageBus(), limits=BusLimits(max_topics=1)) as bus:
        seen: list[int] = []
        bus.subscribe(Ordered, lambda event: seen.append(event.number))

        def work():
            bus.publish_nowait(Tick("x", 1))
            for number in range(5):
                bus.publish_nowait(Ordered("a", number))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        await turns()
        await bus.settle()
        assert seen == list(range(5))
        figures = bus.statistics()
        assert (figures.events_processed, figures.events_failed) == (5, 1)
