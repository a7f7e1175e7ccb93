"""One test for everything that presses back: the contract of BackpressureAware."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from penstock import System
from penstock.bus.timers import Timers
from penstock.errors import LoadShed
from penstock.pressure import (
    BackpressureAware,
    BackpressureContext,
    BackpressureState,
    BackpressureStateChanged,
    BackpressureStrategy,
    MessageBusBackpressure,
    PressureMonitor,
    Reading,
    StreamingBackpressureHandler,
)
from penstock.testing import VirtualClock

NORMAL, WARNING, CRITICAL, SHEDDING = BackpressureState
CAPACITY = 100


class OnABus:
    """The pressure of a bus, with a depth that is set."""

    name = "bus"
    strategies = ("ADAPTIVE", "BLOCK_PRODUCER", "SHED_LOAD")

    def __init__(self, clock):
        self.depth = 0
        self.monitor = PressureMonitor(clock)
        self.monitor.add(lambda: [Reading("q", self.depth, CAPACITY)])
        self.subject = MessageBusBackpressure(self.monitor, Timers(clock))

    async def fill_to(self, depth):
        self.depth = depth
        self.monitor.evaluate()


class OnAStream:
    """The pressure of a stream, with items that are really in it."""

    name = "streaming"
    strategies = tuple(strategy.name for strategy in BackpressureStrategy)

    def __init__(self, clock):
        self.subject = StreamingBackpressureHandler[int](
            CAPACITY, strategy=BackpressureStrategy.DEGRADE_QUALITY, system=System(clock=clock)
        )

    async def fill_to(self, depth):
        if depth < len(self.subject):
            self.subject.take_nowait(len(self.subject) - depth)
        while len(self.subject) < depth:
            await self.subject.publish(0)


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture(params=[OnABus, OnAStream])
def rig(request, clock):
    return request.param(clock)


@pytest.mark.acceptance(2)
def test_it_has_the_four_members(rig):
    assert isinstance(rig.subject, BackpressureAware)
    assert not isinstance(object(), BackpressureAware)


@pytest.mark.acceptance(2, 5)
def test_its_strategy_can_be_set_at_any_time(rig):
    for name in rig.strategies:
        rig.subject.strategy = BackpressureStrategy[name]
        assert rig.subject.strategy is BackpressureStrategy[name]


@pytest.mark.acceptance(2, 103)
async def test_each_change_is_told_once_with_name_and_time(rig, clock):
    changes: list[BackpressureStateChanged] = []
    stop = rig.subject.on_backpressure_changed(changes.append)
    assert rig.subject.current_state is NORMAL
    for depth in [10, 75, 84, 90, 96, 99, 88, 20]:
        clock.advance(1)
        await rig.fill_to(depth)
    assert [(change.previous, change.current) for change in changes] == [
        (NORMAL, WARNING),
        (WARNING, CRITICAL),
        (CRITICAL, SHEDDING),
        (SHEDDING, CRITICAL),
        (CRITICAL, NORMAL),
    ]
    assert {change.subsystem for change in changes} == {rig.name}
    assert changes[0].time == datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert changes[-1].time == datetime(2026, 1, 1, 0, 0, 8, tzinfo=UTC)
    assert rig.subject.current_state is NORMAL
    stop()
    await rig.fill_to(99)
    assert len(changes) == 5


@pytest.mark.acceptance(2)
async def test_pressure_is_applied_to_a_producer(rig, clock):
    rig.subject.strategy = BackpressureStrategy.SHED_LOAD
    calm = await rig.subject.apply_backpressure(BackpressureContext(depth=1, capacity=CAPACITY))
    assert not calm.rejected
    with pytest.raises(LoadShed) as caught:
        await rig.subject.apply_backpressure(BackpressureContext(depth=99, capacity=CAPACITY))
    assert caught.value.code == "SHED_LOAD"
    await rig.fill_to(90)
    rig.subject.strategy = BackpressureStrategy.BLOCK_PRODUCER
    waiting = asyncio.ensure_future(
        rig.subject.apply_backpressure(BackpressureContext(depth=90, capacity=CAPACITY))
    )
    await asyncio.sleep(0)
    assert not waiting.done()
    await rig.fill_to(10)
    assert (await clock.run_until(waiting)).delayed


def test_a_context_knows_its_share():
    assert BackpressureContext(depth=30, capacity=40).utilisation == 0.75
    assert BackpressureContext(depth=30, capacity=0).utilisation == 0.0
