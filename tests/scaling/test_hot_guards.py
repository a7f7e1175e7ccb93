"""Whoever stands in front of a handler is asked on the hot path too, as soon as there is something to ask."""

import asyncio

import pytest

from penstock import Event, ResilientMessageBus, hot_path, topic
from penstock.resilience import BreakerOptions, Retry
from penstock.resilience.breaker import BreakerState
from penstock.resilience.retry import NO_RETRY
from penstock.system import System
from penstock.testing import VirtualClock
from tests.scaling.scalable_world import quiet

LATER = Retry(attempts=3, delay=1.0, jitter=False)
ONE_FAILURE = BreakerOptions(failures=1, recovery=1_000)


@hot_path
@topic("guarded.hot", key="key")
class Hot(Event):
    number: int
    key: str = "a"


@topic("guarded.cold")
class Cold(Event):
    number: int


@pytest.fixture
async def bus():
    clock = VirtualClock()
    async with quiet(ResilientMessageBus(system=System(clock=clock), breaker=None)) as made:
        made.on_error(lambda *_: None)
        made.clock = clock
        yield made


class Fails:
    """A handler that fails on some events, each time or once; and notes those that went well."""

    def __init__(self, *numbers, once=False, waits=False):
        self.numbers = set(numbers)
        self.once = once
        self.waits = waits
        self.handled: list[int] = []

    async def __call__(self, event):
        if self.waits:
            await asyncio.sleep(0)
        if event.number in self.numbers:
            if self.once:
                self.numbers.discard(event.number)
            raise ValueError(event.number)
        self.handled.append(event.number)


def publish(bus, count, *, enclosed):
    """Those with headers have an envelope, the others come into the ring as they are."""
    for number in range(count):
        bus.publish_nowait(Hot(number), **({"headers": {"a": "b"}} if number in enclosed else {}))


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("enclosed", [(), (1,), (3,), (1, 4)])
async def test_events_of_a_key_wait_for_the_one_before_that_is_tried_again(bus, enclosed, waits):
    handle = Fails(1, once=True, waits=waits)
    bus.subscribe(Hot, handle, ordered=True, retry=LATER)
    publish(bus, 6, enclosed=enclosed)
    await bus.clock.run_until(bus.settle())
    assert handle.handled == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("enclosed", [(), (1,), (3,), (1, 4)])
async def test_no_event_comes_to_a_handler_whose_circuit_has_opened(bus, enclosed, waits):
    handle = Fails(1, waits=waits)
    bus.subscribe(Hot, handle, retry=NO_RETRY, breaker=ONE_FAILURE)
    publish(bus, 6, enclosed=enclosed)
    await bus.settle()
    assert handle.handled == [0]
    assert bus.dead_letters.statistics().letters == 5


@pytest.mark.parametrize("enclosed", [(), (1,)])
async def test_events_of_a_key_follow_the_one_before_into_the_dead_letters(bus, enclosed):
    handle = Fails(1)
    bus.subscribe(Hot, handle, retry=NO_RETRY, ordered_dead_letters=True)
    publish(bus, 6, enclosed=enclosed)
    await bus.settle()
    assert handle.handled == [0]
    assert [one.message.number for one in bus.dead_letters.list()] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("enclosed", [(), (7,)])
async def test_a_circuit_that_others_open_while_a_handler_waits_is_seen_within_the_batch(
    bus, enclosed
):
    """Given a handler of two classes that waits with one, then what it does with the other closes the way for both."""
    states: list[BreakerState] = []

    async def handle(event):
        if isinstance(event, Cold):
            raise KeyError(event.number)
        (breaker,) = bus.breakers().values()
        states.append(breaker.state)
        await asyncio.sleep(0)

    bus.subscribe("guarded.*", handle, retry=NO_RETRY, breaker=ONE_FAILURE)
    publish(bus, 20, enclosed=enclosed)
    bus.publish_nowait(Cold(0))
    await bus.settle()
    assert set(states) == {BreakerState.CLOSED}
    assert bus.dead_letters.statistics().letters == 21 - len(states)
