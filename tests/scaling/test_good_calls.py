"""Calls that went well are counted before others can ask: a breaker that looks at rates opens neither early nor late."""

import asyncio

import pytest

from penstock import Event, ResilientMessageBus, hot_path, topic
from penstock.resilience import BreakerOptions
from penstock.resilience.breaker import BreakerState
from penstock.resilience.retry import NO_RETRY
from penstock.testing.bus_fixtures import Gate
from penstock.testing.clock import until_idle
from tests.scaling.scalable_world import quiet

GOOD, BAD = 10, 6
LAST = GOOD + BAD
"""The number of the event that waits until the test lets it go."""
HALF = BreakerOptions(failures=None, failure_rate=0.5, minimum_calls=4)


@topic("good.usual")
class Usual(Event):
    number: int


@hot_path
@topic("good.hot")
class Hot(Event):
    number: int


@topic("good.other")
class Other(Event):
    number: int


class One:
    """A bus with one handler: it waits with each event, or with one alone."""

    def __init__(self, *, waits):
        self.bus = quiet(ResilientMessageBus(retry=NO_RETRY, breaker=HALF))
        self.bus.on_error(lambda *_: None)
        self.waits = waits
        self.gate = Gate()

    async def handle(self, event):
        if self.waits:
            await asyncio.sleep(0)
        if event.number == LAST:
            await self.gate.wait()
        elif event.number >= GOOD:
            raise ValueError(event.number)

    @property
    def breaker(self):
        (breaker,) = self.bus.breakers().values()
        return breaker


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("kind", [Usual, Hot])
async def test_those_before_one_that_waits_are_in_the_books_of_handler_and_breaker(
    kind, mixed, waits
):
    one = One(waits=waits)
    async with one.bus as bus:
        handler = bus.subscribe(kind, one.handle)
        for number in (*range(GOOD), LAST):
            bus.publish_nowait(kind(number), **({"headers": {}} if mixed and number == 3 else {}))
        await until_idle()
        found = one.breaker.statistics()
        assert (handler.handled, found.succeeded) == (GOOD, GOOD)
        one.gate.open()
        await bus.settle()
        found = one.breaker.statistics()
        assert (handler.handled, found.succeeded, found.admitted) == (GOOD + 1,) * 3


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("kind", [Usual, Hot])
async def test_what_fails_elsewhere_meanwhile_is_a_share_of_all_calls(kind, waits):
    one = One(waits=waits)
    async with one.bus as bus:
        bus.subscribe("good.*", one.handle)
        for number in (*range(GOOD), LAST):
            bus.publish_nowait(kind(number))
        await until_idle()
        for number in range(GOOD, GOOD + BAD):
            bus.publish_nowait(Other(number))
        await until_idle()
        assert one.breaker.state is BreakerState.CLOSED
        one.gate.open()
        await bus.settle()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("kind", [Usual, Hot])
async def test_what_fails_in_the_same_lane_is_a_share_of_all_calls(kind, waits):
    one = One(waits=waits)
    async with one.bus as bus:
        bus.subscribe(kind, one.handle)
        for number in range(GOOD + BAD):
            bus.publish_nowait(kind(number))
        await bus.settle()
        found = one.breaker.statistics()
        assert found.state is BreakerState.CLOSED
        assert (found.succeeded, found.failed, found.admitted) == (GOOD, BAD, GOOD + BAD)
