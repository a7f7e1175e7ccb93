"""The pressure of a bus: what publishers and handlers feel, on a real bus with real queues."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock import Event, MessageBus, QueueOptions, System, critical, topic
from penstock.bus.timers import Timers
from penstock.errors import Closed, DeadlineExceeded, LoadShed, NotSupported
from penstock.messages import marks_of
from penstock.pressure import (
    BackpressureContext,
    BackpressureState,
    BackpressureStateChanged,
    BackpressureStrategy,
    BackpressureThresholds,
    MessageBusBackpressure,
    PressureMonitor,
    PublishRules,
    Reading,
)
from penstock.pressure import ledger as ledger_module
from penstock.pressure.message_bus import read_lanes
from penstock.pressure.monitor import STEP_MAX
from penstock.testing import VirtualClock

NORMAL, WARNING, CRITICAL, SHEDDING = BackpressureState
CAPACITY = 100


@topic("orders")
class OrderPlaced(Event):
    number: int


@critical
@topic("alarms")
class Alarm(Event):
    number: int


class World:
    """A bus whose handlers wait until they are let go, and publishers that feel the pressure."""

    def __init__(self, **options):
        self.clock = VirtualClock()
        system = System(clock=self.clock)
        self.bus = MessageBus(queue=QueueOptions(CAPACITY), system=system)
        self.timers = Timers(self.clock)
        self.monitor = PressureMonitor(self.clock, timers=self.timers)
        self.monitor.add(lambda: read_lanes(self.bus._intake), counted=True)
        self.pressure = MessageBusBackpressure(self.monitor, self.timers, **options)
        self.gate = asyncio.Event()
        self.seen: list[tuple[int, dict[str, str]]] = []

    async def handle(self, event, envelope):
        await self.gate.wait()
        self.seen.append((event.number, dict(envelope.headers)))

    async def publish(self, event, **options):
        marks = marks_of(event.__class__)
        headers = await self.pressure.before_publish(
            marks.topic, critical=marks.critical, **options
        )
        await self.bus.publish(event, headers=headers)

    async def fill(self, percent):
        """Queue events behind one that is being handled, whatever the pressure says."""
        queued = self.depth
        assert percent >= queued
        for number in range(queued, percent):
            await self.bus.publish(OrderPlaced(number))
        assert self.depth == percent

    @property
    def depth(self):
        return sum(queue.depth for queue in self.bus.statistics().queues.values())

    async def drain(self):
        self.gate.set()
        await self.bus.settle()
        self.monitor.evaluate()


@pytest.fixture
async def world():
    world = World()
    async with world.bus:
        world.bus.subscribe(OrderPlaced, world.handle)
        world.bus.subscribe(Alarm, world.handle)
        await world.bus.publish(OrderPlaced(-1))
        await asyncio.sleep(0)  # the handler has it; the queue is empty
        assert world.depth == 0
        yield world
        world.gate.set()


async def took(world, publishing):
    """How long it took on the clock."""
    before = world.clock.monotonic()
    await world.clock.run_until(publishing)
    return world.clock.monotonic() - before


# -- publishers


@pytest.mark.acceptance(13)
async def test_a_publisher_feels_each_level(world):
    assert await took(world, world.publish(OrderPlaced(0))) == 0
    await world.fill(70)
    assert await took(world, world.publish(OrderPlaced(70))) == 0
    await world.fill(85)
    assert await took(world, world.publish(OrderPlaced(85))) == pytest.approx(0.050)
    await world.fill(95)
    with pytest.raises(LoadShed):
        await world.publish(OrderPlaced(95))
    await world.drain()
    headers = dict(world.seen)
    assert headers[0] == headers[85] == {}
    assert headers[70] == {"X-Backpressure": "warning"}


@pytest.mark.acceptance(58)
async def test_the_consumer_sees_the_header_between_70_and_85_percent(world):
    for number in range(85):
        await world.publish(OrderPlaced(number))
    await world.drain()
    warned = [number for number, headers in world.seen if headers]
    assert warned == list(range(70, 85))
    assert world.pressure.statistics().topics["orders"].warned == 15


@pytest.mark.acceptance(59)
async def test_the_fuller_the_longer_a_publisher_waits(world):
    waits = []
    for percent in range(85, 95, 2):
        await world.fill(percent)
        waits.append(await took(world, world.publish(OrderPlaced(percent))))
    assert waits == sorted(set(waits))
    assert waits[0] == pytest.approx(0.050)
    assert 0.010 <= min(waits) <= max(waits) <= 1.0


@pytest.mark.acceptance(59)
@pytest.mark.parametrize(("base", "delay"), [(0.001, 0.010), (5.0, 1.0)])
async def test_the_wait_of_a_publisher_is_between_10_milliseconds_and_1_second(world, base, delay):
    world.pressure.rules = PublishRules(base_delay=base)
    await world.fill(85)
    assert await took(world, world.publish(OrderPlaced(85))) == pytest.approx(delay)


@pytest.mark.acceptance(60, 67)
async def test_shedding_refuses_and_queues_nothing(world):
    await world.fill(95)
    for _ in range(3):
        with pytest.raises(LoadShed) as caught:
            await world.publish(OrderPlaced(95))
        assert (caught.value.code, caught.value.retry_after) == ("SHED_LOAD", 1.0)
        assert caught.value.topic == "orders"
    assert world.depth == 95
    statistics = world.pressure.statistics()
    assert (statistics.total.shed, statistics.total.dropped) == (3, 3)
    await world.drain()
    await world.publish(OrderPlaced(96))  # who tries again later succeeds
    await world.bus.settle()
    assert world.seen[-1] == (96, {})


@pytest.mark.acceptance(61)
async def test_what_is_critical_waits_a_second_and_passes(world):
    await world.fill(97)
    assert await took(world, world.publish(Alarm(1))) == pytest.approx(1.0, abs=0.05)
    await world.drain()
    assert (1, {}) in world.seen
    counters = world.pressure.statistics().topics["alarms"]
    assert (counters.delayed, counters.delayed_seconds, counters.shed) == (1, 1.0, 0)


@pytest.mark.acceptance(62)
@pytest.mark.parametrize("name", ["orders", "ord*"])
async def test_a_topic_is_critical_by_its_mark_or_by_the_rules(world, name):
    world.pressure.rules = PublishRules(critical_topics=("payments", name))
    await world.fill(97)
    assert await took(world, world.publish(OrderPlaced(97))) == pytest.approx(1.0)
    assert world.pressure.decide("alarms", critical=True).delayed
    assert world.pressure.decide("others").rejected


async def test_a_decision_can_be_looked_at_without_consequences(world):
    await world.fill(96)
    world.monitor.evaluate()
    decision = world.pressure.decide("orders")
    assert decision.rejected
    assert decision.level is SHEDDING
    assert world.pressure.statistics().total.shed == 0


async def test_a_publisher_that_is_cancelled_while_it_waits_has_published_nothing(world):
    await world.fill(90)
    waiting = asyncio.ensure_future(world.publish(OrderPlaced(90)))
    await asyncio.sleep(0)
    assert world.pressure.statistics().waiting == 1
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert world.pressure.statistics().waiting == 0
    assert world.depth == 90


async def test_a_wait_ends_with_the_publishers_own_timeout(world):
    await world.fill(94)
    with pytest.raises(DeadlineExceeded):
        await world.clock.run_until(world.publish(OrderPlaced(94), timeout=0.1))
    assert world.depth == 94


async def test_a_bus_that_stops_ends_the_wait(world):
    await world.fill(94)
    waiting = asyncio.ensure_future(world.publish(OrderPlaced(94)))
    await asyncio.sleep(0)
    await world.timers.interrupt(Closed("the bus is stopped"))
    with pytest.raises(Closed):
        await waiting
    assert world.clock.monotonic() == 0


async def test_who_waited_is_refused_when_the_others_filled_the_bus_meanwhile(world):
    await world.fill(86)
    waiting = asyncio.ensure_future(world.publish(OrderPlaced(86)))
    await asyncio.sleep(0)
    await world.fill(96)
    with pytest.raises(LoadShed):
        await world.clock.run_until(waiting)
    assert world.depth == 96
    total = world.pressure.statistics().total
    assert (total.delayed, total.shed) == (1, 1)


async def test_ten_times_too_much_leaves_the_queue_bounded_and_tells_everybody(world):
    """Alarms have their say; of the orders those that do not fit are refused, none vanishes."""
    orders = [world.publish(OrderPlaced(number)) for number in range(10 * CAPACITY)]
    results = await world.clock.run_until(asyncio.gather(*orders, return_exceptions=True))
    assert world.depth <= 96
    alarm = asyncio.ensure_future(world.publish(Alarm(1)))
    await world.clock.run_until(alarm)
    refused = [one for one in results if one is not None]
    assert refused
    assert all(isinstance(one, LoadShed) for one in refused)
    assert world.pressure.statistics().total.shed == len(refused)
    await world.drain()
    numbers = [number for number, _ in world.seen]
    assert len(numbers) == len(results) - len(refused) + 2
    assert 1 in numbers


async def test_who_cannot_wait_passes_where_others_wait(world):
    await world.fill(75)
    assert world.pressure.before_publish_nowait("orders") == {"X-Backpressure": "warning"}
    await world.fill(90)
    assert world.pressure.before_publish_nowait("orders") == {}
    await world.fill(96)
    assert world.pressure.before_publish_nowait("alarms", critical=True) == {}
    with pytest.raises(LoadShed):
        world.pressure.before_publish_nowait("orders")
    total = world.pressure.statistics().total
    assert (total.warned, total.delayed, total.shed) == (1, 0, 1)


@pytest.mark.acceptance(101)
async def test_without_pressure_most_messages_are_not_looked_at(world):
    looks = 0

    def count():
        nonlocal looks
        looks += 1
        return [Reading("large", 0, 64_000)]

    world.monitor.add(count, stage="large", counted=True)
    world.monitor.add(lambda: [Reading("padding", 0, 64_000)], counted=True)
    asked = 0
    for sequence in range(1, 10_001):
        if sequence >= world.pressure.look_at:
            asked += 1
            await world.pressure.before_publish("orders", sequence=sequence)
    assert asked == looks == -(-10_000 // STEP_MAX)


@pytest.mark.acceptance(64)
async def test_new_thresholds_are_felt_by_the_next_publish(world):
    await world.fill(50)
    await world.publish(OrderPlaced(50))
    world.monitor.thresholds = BackpressureThresholds(warning=0.2, critical=0.3, shedding=0.4)
    with pytest.raises(LoadShed):
        await world.publish(OrderPlaced(51))
    world.monitor.thresholds = BackpressureThresholds()
    await world.publish(OrderPlaced(51))


# -- strategies of a bus


async def test_blocking_never_refuses(world):
    world.pressure.strategy = BackpressureStrategy.BLOCK_PRODUCER
    await world.fill(96)
    assert await took(world, world.publish(OrderPlaced(96))) == pytest.approx(1.0)


async def test_shedding_load_never_waits(world):
    world.pressure.strategy = BackpressureStrategy.SHED_LOAD
    await world.fill(86)
    with pytest.raises(LoadShed):
        await world.publish(OrderPlaced(86))


@pytest.mark.parametrize(
    "strategy", [BackpressureStrategy.DROP_OLDEST, BackpressureStrategy.DEGRADE_QUALITY]
)
async def test_a_bus_refuses_strategies_that_it_does_not_have(world, strategy):
    with pytest.raises(NotSupported):
        world.pressure.strategy = strategy
    assert world.pressure.strategy is BackpressureStrategy.ADAPTIVE


# -- a topic with a monitor of its own


async def test_a_group_that_lags_on_a_topic_presses_on_that_topic_alone(world):
    lag = 0
    own = PressureMonitor(world.clock, subsystem="orders")
    own.add(lambda: [Reading("billing", lag, 1_000)], stage="lag")
    await world.pressure.before_publish("orders", sequence=1)
    forget = world.pressure.watch_topic("orders", own)
    assert world.pressure.look_at == 0
    await world.publish(OrderPlaced(0))
    lag = 960
    with pytest.raises(LoadShed):
        await world.publish(OrderPlaced(1))
    assert await world.pressure.before_publish("others") == {}
    lag = 0
    await world.publish(OrderPlaced(2))
    lag = 960
    forget()
    forget()
    await world.publish(OrderPlaced(3))
    await world.fill(96)
    lag = 0
    world.pressure.watch_topic("orders", own)
    with pytest.raises(LoadShed):  # the worse of the two counts
        await world.publish(OrderPlaced(4))


# -- consumers


@pytest.mark.acceptance(63)
@pytest.mark.parametrize(
    ("percent", "batching"), [(50, True), (75, True), (86, False), (96, False)]
)
async def test_batches_are_off_in_critical_and_shedding_and_on_again_below(percent, batching):
    told: list[bool] = []
    world = World(on_batching=told.append)
    async with world.bus:
        world.bus.subscribe(OrderPlaced, world.handle)
        await world.bus.publish(OrderPlaced(-1))
        await asyncio.sleep(0)
        await world.fill(percent)
        world.monitor.evaluate()
        assert world.pressure.batching is batching
        await world.drain()
        assert world.pressure.batching
    assert told == ([] if batching else [False, True])


@pytest.mark.acceptance(63)
async def test_a_batch_handler_gets_events_one_by_one_in_critical():
    sizes = []

    def switch(on):
        busy.bus._dispatch.batching = on

    busy = World(on_batching=switch)
    busy.bus.subscribe(OrderPlaced, lambda events: sizes.append(len(events)), batch=10)
    for number in range(90):
        await busy.bus.publish(OrderPlaced(number))
    busy.monitor.evaluate()
    async with busy.bus:
        await busy.bus.settle()
        assert set(sizes) == {1}
        sizes.clear()
        busy.monitor.evaluate()
        for number in range(50):
            await busy.bus.publish(OrderPlaced(number))
        await busy.bus.settle()
        assert set(sizes) == {10}


async def test_a_switch_that_fails_is_logged(caplog):
    def fail(on):
        raise ValueError("no")

    world = World(on_batching=fail)
    world.monitor.add(lambda: [Reading("q", 99, 100)])
    with caplog.at_level(logging.ERROR):
        assert world.monitor.evaluate() is SHEDDING
    assert not world.pressure.batching
    assert caplog.records


# -- what it explains


async def test_statistics_name_the_level_the_bottleneck_since_when_and_what_was_done(world):
    await world.fill(75)
    await world.publish(OrderPlaced(75))
    await world.fill(86)
    await took(world, world.publish(OrderPlaced(86)))
    world.clock.advance(2)
    await world.fill(96)
    with pytest.raises(LoadShed):
        await world.publish(OrderPlaced(96))
    world.pressure.note_dropped("orders", 4)
    world.clock.advance(3)
    statistics = world.pressure.statistics()
    assert statistics.level is SHEDDING
    assert statistics.pressure.bottleneck.source == Reading("orders", 96, 100)
    assert statistics.pressure.lasted == pytest.approx(3)
    assert statistics.pressure.seconds[CRITICAL] == pytest.approx(2 + 0.050 * 20**0.1)
    total = statistics.total
    assert (total.warned, total.delayed, total.shed, total.dropped) == (1, 1, 1, 5)
    assert statistics.topics == {"orders": total}
    assert not statistics.batching
    assert statistics.explain() == (
        "bus is SHEDDING for 3.0 s (96% full); queues: orders holds 96 of 100. "
        "So far 1 messages were warned, 1 delayed, 1 shed, 5 dropped."
    )


async def test_statistics_do_not_change_afterwards(world):
    await world.fill(75)
    await world.publish(OrderPlaced(75))
    before = world.pressure.statistics()
    await world.publish(OrderPlaced(76))
    assert before.topics["orders"].warned == 1
    with pytest.raises(AttributeError):
        before.total.warned = 5


async def test_the_topics_that_are_counted_have_a_bound(world, monkeypatch):
    monkeypatch.setattr(ledger_module, "TOPICS_MAX", 2)
    await world.fill(75)
    for name in ["a", "b", "c", "d", "a"]:
        await world.pressure.before_publish(name)
    topics = world.pressure.statistics().topics
    assert {name: one.warned for name, one in topics.items()} == {"a": 2, "b": 1, "*": 2}


async def test_pressure_ends_by_itself_when_nobody_publishes(world):
    changes: list[BackpressureStateChanged] = []
    world.pressure.on_backpressure_changed(changes.append)
    await world.fill(96)
    world.monitor.evaluate()
    world.gate.set()
    await world.bus.settle()
    assert world.pressure.current_state is SHEDDING
    world.clock.advance(0.1)
    assert world.pressure.current_state is NORMAL
    assert [change.current for change in changes] == [SHEDDING, NORMAL]
    world.pressure.close()


async def test_a_situation_from_outside_is_judged_as_it_is(world):
    full = BackpressureContext(depth=99, capacity=100, topic="orders")
    with pytest.raises(LoadShed):
        await world.pressure.apply_backpressure(full)
    alarm = BackpressureContext(depth=99, capacity=100, topic="alarms", critical=True)
    decision = await world.clock.run_until(world.pressure.apply_backpressure(alarm))
    assert decision.delay == 1.0
    assert world.clock.monotonic() == pytest.approx(1.0)
    assert world.pressure.current_state is NORMAL
