"""What fills the lanes of a scalable bus, or takes their room away, is noticed soon, whichever way it comes."""

import asyncio
from threading import Thread

import pytest

from penstock.bus.bus import MessageBus
from penstock.bus.intake import QueueOptions
from penstock.errors import LoadShed
from penstock.pressure.monitor import LOOKS_PER_CAPACITY
from penstock.pressure.readings import Reading
from penstock.pressure.states import BackpressureState, BackpressureThresholds
from penstock.resilience.bus import ResilientMessageBus
from penstock.resilience.letters import DeadLetterFilter
from penstock.resilience.retry import NO_RETRY, Retry
from penstock.scaling.bus import ScalableMessageBus
from tests.scaling.scalable_world import Ordered, Plain, Stuck, Tick, turns


def grouped(bus):
    async def run():
        async with bus.atomic() as group:
            for _ in range(80):
                group.publish(Plain())

    return run()


async def by_a_thread(bus):
    def run():
        for _ in range(80):
            bus.publish_nowait(Plain())

    await asyncio.to_thread(run)
    await turns()


async def by_a_thread_that_the_loop_has_not_heard_of(bus):
    thread = Thread(target=lambda: [bus.publish_nowait(Plain()) for _ in range(80)])
    thread.start()
    thread.join()
    bus.publish_nowait(Plain())  # looks too early: they are still in the inbox
    await turns()


async def by_the_schedule(bus):
    for _ in range(80):
        await bus.schedule.after(Plain(), 0)
    await turns()


async def by_what_is_in_a_log(bus):
    intake = bus._inner._intake
    for _ in range(80):
        intake.deliver(intake.enclose(Plain()))


async def by_smaller_limits(bus):
    for _ in range(6):
        bus._inner.publish_nowait(Plain())
    bus.reconfigure_limits(bus.current_limits.with_(max_message_queue_size=10))


async def by_a_lower_mark(bus):
    for _ in range(30):
        bus._inner.publish_nowait(Plain())
    bus.backpressure.monitor.thresholds = BackpressureThresholds(warning=0.32)


@pytest.mark.parametrize(
    "fill_up",
    [
        grouped,
        by_a_thread,
        by_a_thread_that_the_loop_has_not_heard_of,
        by_the_schedule,
        by_what_is_in_a_log,
        by_smaller_limits,
        by_a_lower_mark,
    ],
)
@pytest.mark.acceptance(13)
async def test_what_fills_otherwise_than_by_a_publish_is_noticed_soon(system, fill_up):
    """Far from its mark the bus looks rarely: these bring the mark near at once."""
    inner = MessageBus(system=system, queue=QueueOptions(capacity=100))
    async with ScalableMessageBus(inner) as bus:
        handler = Stuck()
        bus.subscribe(Plain, handler)
        await bus.publish(Plain())
        await turns()
        assert bus._way.look_at > 10
        await fill_up(bus)
        for _ in range(3):
            bus.publish_nowait(Plain())
        level = bus.backpressure.monitor.level
        handler.gate.set()
        await bus.settle()
    assert level is BackpressureState.WARNING


async def looked(bus, event=None):
    """Publish an event for which the pressure is looked at; how many follow before somebody looks again."""
    bus.backpressure.monitor.look_soon()
    await bus.publish(event or Plain())
    await turns()
    return bus._way.look_at - bus._way.published


@pytest.mark.acceptance(13)
async def test_dead_letters_that_are_replayed_are_noticed_soon(system):
    inner = ResilientMessageBus(system=system, queue=QueueOptions(capacity=100))
    async with ScalableMessageBus(inner) as bus:
        gate = asyncio.Event()

        async def handle(event):
            if event.number:
                raise ValueError(event.number)
            await gate.wait()

        bus.subscribe(Plain, handle, retry=NO_RETRY, breaker=None)
        for _ in range(80):
            await bus.publish(Plain(number=1))
            await bus.settle()
        ahead = await looked(bus)
        await bus.dead_letters.replay(DeadLetterFilter())
        bus.publish_nowait(Plain())
        level = bus.backpressure.monitor.level
        gate.set()
        await bus.settle()
    assert (level, ahead > 10) == (BackpressureState.WARNING, True)


@pytest.mark.acceptance(13)
async def test_what_fills_otherwise_is_noticed_by_those_who_have_a_ring_open(system):
    inner = MessageBus(system=system, queue=QueueOptions(capacity=100))
    async with ScalableMessageBus(inner, ring_capacity=128) as bus:
        handler = Stuck()
        bus.subscribe(Plain, handler)
        bus.subscribe(Tick, handler)
        for number in range(2):
            await bus.publish(Plain(number=number))
            await bus.publish(Tick("a", number))
        ring = bus.lanes.hot[Tick].ring
        was_open = ring.open_to > ring.value
        for _ in range(240):
            inner._intake.deliver(inner._intake.enclose(Plain()))
        await bus.publish(Tick("a", 2))
        level = bus.backpressure.monitor.level
        handler.gate.set()
        await bus.settle()
    assert (level, was_open) == (BackpressureState.WARNING, True)


@pytest.mark.acceptance(13)
async def test_room_that_goes_with_a_ring_is_missed_soon(system):
    inner = MessageBus(system=system, queue=QueueOptions(capacity=100))
    async with ScalableMessageBus(inner, hot_topics=["plain"], ring_capacity=128) as bus:
        first, others = asyncio.Event(), asyncio.Event()

        async def handle(event):
            await (others if event.number else first).wait()

        bus.subscribe(Plain, handle)
        await bus.publish(Plain())
        await turns()
        bus.set_hot(Plain, hot=False)
        for number in range(1, 80):
            bus.publish_nowait(Plain(number=number))
        ahead = await looked(bus, Plain(number=80))
        first.set()
        await turns()
        bus.publish_nowait(Plain(number=81))
        level = bus.backpressure.monitor.level
        others.set()
        await bus.settle()
    assert (level, ahead > 1) == (BackpressureState.WARNING, True)


@pytest.mark.acceptance(13)
async def test_room_that_goes_with_members_of_a_group_is_missed_soon(system):
    inner = MessageBus(system=system, queue=QueueOptions(capacity=100))
    async with ScalableMessageBus(inner) as bus:
        handler = Stuck()
        members = [bus.subscribe(Ordered, handler, group="shippers") for _ in range(4)]
        bus.subscribe(Plain, handler)
        for _ in range(220):
            inner._intake.deliver(inner._intake.enclose(Ordered("a")))
        ahead = await looked(bus)
        for member in members[1:]:
            member.close()
        bus.publish_nowait(Plain())
        level = bus.backpressure.monitor.level
        handler.gate.set()
        await bus.settle()
    assert (level, ahead > 1) == (BackpressureState.WARNING, True)


@pytest.mark.acceptance(13)
async def test_a_stage_of_the_program_that_fills_by_itself_is_noticed_soon(system):
    depth = 0
    async with ScalableMessageBus(MessageBus(system=system)) as bus:
        bus.subscribe(Plain, lambda _: None)
        bus.backpressure.monitor.add(lambda: [Reading("imports", depth, 6_400)], stage="imports")
        await bus.publish(Plain())
        depth = 6_400
        for _ in range(6_400 // LOOKS_PER_CAPACITY - 1):
            bus.publish_nowait(Plain())
        with pytest.raises(LoadShed):
            bus.publish_nowait(Plain())


@pytest.mark.acceptance(13)
async def test_an_event_that_several_handlers_keep_is_noticed_as_often(system):
    """Each keeps it in a place of its own: one that is published may fill eight."""
    retry = Retry(attempts=3, delay=60, delay_max=60, jitter=False)
    inner = ResilientMessageBus(system=system, queue=QueueOptions(capacity=100), retry=retry)
    async with ScalableMessageBus(inner) as bus:
        bus.on_error(lambda *_: None)

        def fail(event):
            raise ValueError

        for number in range(8):
            bus.subscribe(Plain, fail, name=f"handler {number}", breaker=None)
        ahead = await looked(bus)
        for _ in range(9):
            bus.publish_nowait(Plain())
            await turns()
        bus.publish_nowait(Plain())
        level = bus.backpressure.monitor.level
        await bus.stop(drain=False)
    assert (level, ahead > 10) == (BackpressureState.WARNING, True)
