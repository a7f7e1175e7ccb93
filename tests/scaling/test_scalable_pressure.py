"""The scalable bus when there is too much: limits, pressure, shedding."""

import asyncio
from collections import Counter

import pytest

from penstock.bus.bus import MessageBus
from penstock.bus.intake import QueueOptions
from penstock.errors import InvalidOption, LimitReached, LoadShed
from penstock.pressure.states import BackpressureState, BackpressureThresholds
from penstock.scaling.bus import ScalableMessageBus
from penstock.scaling.limits import BusLimits
from tests.scaling.scalable_world import Alarm, Ordered, Plain, Stuck, Tick, quiet, turns

# ---------------------------------------------------------------------------------------- limits


@pytest.mark.acceptance(7)
async def test_one_subscriber_too_many_is_refused_until_the_limit_is_raised(system):
    async with quiet(MessageBus(system=system)) as bus:
        bus.reconfigure_limits(bus.current_limits.with_(max_subscribers_per_topic=2))
        bus.subscribe(Plain, print)
        bus.subscribe(Plain, print)
        with pytest.raises(LimitReached, match="max_subscribers_per_topic"):
            bus.subscribe(Plain, print)
        bus.reconfigure_limits(bus.current_limits.with_(max_subscribers_per_topic=3))
        bus.subscribe(Plain, print)


@pytest.mark.acceptance(9, 33)
async def test_one_topic_too_many_is_refused_and_the_others_go_on(system):
    async with quiet(MessageBus(system=system), limits=BusLimits(max_topics=2)) as bus:
        seen: list[object] = []
        bus.subscribe(Plain, seen.append)
        bus.subscribe(Ordered, seen.append)
        assert bus.get_scaling_metrics()["topics"] == 2
        with pytest.raises(LimitReached, match="max_topics"):
            await bus.publish(Alarm())
        with pytest.raises(LimitReached, match="max_topics"):
            bus.subscribe(Alarm, print)
        await bus.publish(Plain())
        await bus.settle()
        assert seen == [Plain()]
        bus.reconfigure_limits(bus.current_limits.with_(max_topics=3))
        await bus.publish(Alarm())


@pytest.mark.acceptance(8)
async def test_a_queue_never_holds_more_than_its_limit(system):
    async with quiet(MessageBus(system=system), limits=BusLimits(max_message_queue_size=50)) as bus:
        gate = asyncio.Event()

        @bus.on(Plain)
        async def handle(event):
            await gate.wait()

        publishing = [asyncio.ensure_future(bus.publish(Plain(number=n))) for n in range(500)]
        await turns()
        assert bus.get_scaling_metrics()["queue_depths"]["plain"] == [50]
        gate.set()
        await asyncio.gather(*publishing)
        await bus.settle()
        assert bus.statistics().queues["plain"].peak_depth <= 50
        assert bus.statistics().events_processed == 500


@pytest.mark.acceptance(6)
async def test_a_changed_limit_holds_for_the_next_publish(system):
    async with quiet(MessageBus(system=system)) as bus:
        gate = asyncio.Event()

        @bus.on(Plain)
        async def handle(event):
            await gate.wait()

        for number in range(20):
            await bus.publish(Plain(number=number))
        await turns()
        bus.reconfigure_limits(bus.current_limits.with_(max_message_queue_size=10))
        late = asyncio.ensure_future(bus.publish(Plain(number=20)))
        await turns()
        assert not late.done()
        bus.reconfigure_limits(bus.current_limits.with_(max_message_queue_size=100))
        await turns()
        assert late.done()
        gate.set()
        await bus.settle()
        assert bus.statistics().events_processed == 21


@pytest.mark.acceptance(6)
async def test_a_size_that_no_queue_can_have_is_refused_and_nothing_changes(system):
    async with quiet(MessageBus(system=system)) as bus:
        before = bus.current_limits
        with pytest.raises(InvalidOption):
            bus.reconfigure_limits(before.with_(max_message_queue_size=10**30, max_topics=1))
        assert bus.current_limits == before
        for kind in (Plain, Alarm):
            bus.subscribe(kind, lambda _: None)
            await bus.publish(kind())


@pytest.mark.acceptance(34)
async def test_messages_per_second(system, clock):
    async with quiet(MessageBus(system=system)) as bus:
        bus.subscribe(Plain, lambda event: None)
        bus.get_scaling_metrics()
        for _ in range(50):
            for _ in range(20):
                await bus.publish(Plain())
            await bus.settle()
            clock.advance(0.1)
        assert bus.get_scaling_metrics()["messages_per_second"] == pytest.approx(200, rel=0.05)


# -------------------------------------------------------------------------------------- pressure


THRESHOLDS = BackpressureThresholds()


@pytest.fixture
async def pressed(system):
    inner = MessageBus(system=system, queue=QueueOptions(capacity=100))
    async with ScalableMessageBus(inner) as bus:
        handler = Stuck()
        bus.subscribe(Plain, handler)
        bus.__dict__["handler"] = handler
        yield bus
        handler.gate.set()


async def fill(bus, share):
    """Publish until that share of the queue is full, beside what is in work."""
    await bus.publish(Plain())
    await turns()
    while bus.get_scaling_metrics()["queue_depths"]["plain"][0] < share * 100:
        bus._inner.publish_nowait(Plain())


@pytest.mark.acceptance(13, 58)
async def test_warning_adds_a_header_that_the_consumer_sees(pressed):
    await fill(pressed, 0.70)
    assert pressed.current_backpressure_state is BackpressureState.WARNING
    await pressed.publish(Plain(number=99))
    pressed.handler.gate.set()
    await pressed.settle()
    assert pressed.handler.headers[-1] == {"X-Backpressure": "warning"}
    assert pressed.handler.headers[0] == {}


@pytest.mark.acceptance(13, 59)
async def test_critical_lets_the_publisher_wait(pressed, clock):
    await fill(pressed, 0.86)
    publishing = asyncio.ensure_future(pressed.publish(Plain()))
    await turns()
    assert not publishing.done()
    for _ in range(100):
        clock.advance(0.010)
        await turns(5)
        if publishing.done():
            break
    assert publishing.done()
    assert 0.010 <= clock.monotonic() <= 1.0


@pytest.mark.acceptance(13, 60, 67, 38)
async def test_shedding_refuses_and_says_when_to_try_again(pressed):
    await fill(pressed, 0.96)
    before = pressed.get_scaling_metrics()
    with pytest.raises(LoadShed) as caught:
        await pressed.publish(Plain())
    assert caught.value.code == "SHED_LOAD"
    assert caught.value.fields["retry_after"] > 0  # type: ignore[operator]
    after = pressed.get_scaling_metrics()
    assert after["dropped"] == before["dropped"] + 1
    assert after["queue_depths"] == before["queue_depths"]


@pytest.mark.acceptance(61, 62)
async def test_critical_topics_are_never_shed_and_wait_the_full_second(pressed, clock):
    seen: list[object] = []
    pressed.subscribe(Alarm, seen.append)
    # One more topic means more capacity: fill the first beyond it.
    pressed.reconfigure_limits(pressed.current_limits.with_(max_message_queue_size=1_000))
    while pressed.current_backpressure_state < BackpressureState.SHEDDING:
        pressed._inner._intake.deliver(pressed._inner._intake.enclose(Plain()))
    alarm = asyncio.ensure_future(pressed.publish(Alarm()))
    await turns()
    clock.advance(0.999)
    await turns()
    assert not alarm.done()
    clock.advance(0.001)
    await turns()
    await alarm
    assert seen == [Alarm()]


@pytest.mark.acceptance(63)
async def test_batches_are_switched_off_under_pressure_and_on_again_after(system):
    inner = MessageBus(system=system, queue=QueueOptions(capacity=100))
    async with ScalableMessageBus(inner) as bus:
        sizes = []
        gate = asyncio.Event()

        @bus.on(Plain, batch=10)
        async def handle(events):
            await gate.wait()
            sizes.append(len(events))

        bus._inner.publish_nowait(Plain())
        await turns()
        for _ in range(90):
            bus._inner.publish_nowait(Plain())
        assert bus.current_backpressure_state >= BackpressureState.CRITICAL
        gate.set()
        await bus.settle()
        assert set(sizes[1:10]) == {1}
        sizes.clear()
        assert bus.current_backpressure_state is BackpressureState.NORMAL
        for _ in range(30):
            bus._inner.publish_nowait(Plain())
        await bus.settle()
        assert sizes == [10, 10, 10]


@pytest.mark.acceptance(57)
async def test_the_pressure_is_that_of_all_partitions_and_rings_together(system):
    inner = MessageBus(system=system, queue=QueueOptions(capacity=100))
    async with ScalableMessageBus(inner, partitions={"orders": 2}, ring_capacity=64) as bus:
        handler = Stuck()
        bus.subscribe(Ordered, handler)
        bus.subscribe(Tick, handler)
        for number in range(60):
            bus._inner.publish_nowait(Ordered(customer=f"c{number}"))
        for number in range(30):
            bus._inner.publish_nowait(Tick("x", number))
        stages = bus.backpressure.statistics().pressure.stages
        depths = bus.get_scaling_metrics()["queue_depths"]
        assert sum(stage.depth for stage in stages) == sum(map(sum, depths.values()))
        assert sum(stage.capacity for stage in stages) == 2 * 100 + 64 + 100
        handler.gate.set()
        await bus.settle()


@pytest.mark.acceptance(64)
async def test_thresholds_change_under_load(pressed):
    await fill(pressed, 0.50)
    assert pressed.current_backpressure_state is BackpressureState.NORMAL
    pressed.backpressure.monitor.thresholds = BackpressureThresholds(
        warning=0.3, critical=0.8, shedding=0.9
    )
    await pressed.publish(Plain())
    pressed.handler.gate.set()
    await pressed.settle()
    assert pressed.handler.headers[-1] == {"X-Backpressure": "warning"}


@pytest.mark.acceptance(41)
async def test_without_the_decorator_a_bus_is_as_it_was(system):
    async with MessageBus(system=system) as bus:
        assert bus._intake.make_lane == bus._intake.make_plain_lane
        assert bus._registry.on_add is None
        assert not bus._dispatch.uncounted


async def test_an_overload_of_ten_times_is_bounded_and_critical_traffic_passes(system, clock):
    inner = MessageBus(system=system, queue=QueueOptions(capacity=100))
    async with ScalableMessageBus(inner) as bus:
        handled: Counter[str] = Counter()
        bus.subscribe(Alarm, lambda event: handled.update(["alarm"]))

        @bus.on(Plain)
        async def slow(event):
            handled["plain"] += 1
            await bus._timers.sleep(0.01)

        refused = 0

        async def produce(kind, count):
            nonlocal refused
            for number in range(count):
                try:
                    await bus.publish(kind(number=number))
                except LoadShed:
                    refused += 1
                await bus._timers.sleep(0.001)

        producing = [asyncio.ensure_future(produce(Plain, 200)) for _ in range(10)]
        producing.append(asyncio.ensure_future(produce(Alarm, 50)))
        while not all(task.done() for task in producing):
            clock.advance(0.005)
            await turns(5)
            assert bus.statistics().queues["plain"].depth <= 100
        while bus.statistics().events_unsettled:
            clock.advance(0.1)
            await turns(5)
        assert handled["alarm"] == 50
        assert handled["plain"] + refused == 2_000
