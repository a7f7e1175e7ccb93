"""The one handler of an event that is waited for: what the outcome and the books say of it."""

import asyncio
from contextvars import ContextVar

import pytest

from penstock import Event, MessageBus, ResilientMessageBus
from penstock.resilience import BreakerOptions


class Ping(Event):
    number: int = 0


BUSES = [MessageBus, ResilientMessageBus]


async def at_once(_: Ping):
    return "what nobody wants"


async def after_a_wait(_: Ping):
    await asyncio.sleep(0)


def by_a_future(_: Ping):
    return asyncio.ensure_future(asyncio.sleep(0))


@pytest.mark.parametrize("make", BUSES)
@pytest.mark.parametrize("handle", [at_once, after_a_wait, by_a_future, lambda _: 1])
@pytest.mark.parametrize("session", ["BUS", "own"])
async def test_the_outcome_counts_the_handler(make, handle, session):
    async with make() as bus:
        handler = bus.subscribe(Ping, handle)
        outcomes = [await bus.publish_and_wait(Ping(), session=session) for _ in range(2)]
    assert [(one.handled, one.success, one.failures) for one in outcomes] == [(1, True, ())] * 2
    figures = bus.statistics()
    assert (figures.events_published, figures.events_processed, handler.handled) == (2, 2, 2)
    assert figures.events_unsettled == 0


@pytest.mark.parametrize("waits", [False, True])
async def test_the_outcome_of_one_that_fails(waits):
    async def fail(_: Ping):
        if waits:
            await asyncio.sleep(0)
        raise KeyError("here")

    async with MessageBus() as bus:
        handler = bus.subscribe(Ping, fail)
        outcome = await bus.publish_and_wait(Ping())
    assert (outcome.handled, outcome.success) == (0, False)
    assert [type(one.error) for one in outcome.failures] == [KeyError]
    figures = bus.statistics()
    assert (figures.events_failed, figures.events_processed, handler.failed) == (1, 0, 1)


async def test_one_that_closes_itself_has_handled_it():
    async with MessageBus() as bus:

        async def handle(_: Ping):
            handler.close()

        handler = bus.subscribe(Ping, handle)
        assert (await bus.publish_and_wait(Ping())).handled == 1
        assert (await bus.publish_and_wait(Ping())).handled == 0
    assert bus.statistics().events_unhandled == 1


async def test_events_that_are_waited_for_open_the_circuit_and_are_refused():
    def fail(_: Ping):
        raise KeyError("here")

    async with ResilientMessageBus() as bus:
        bus.subscribe(Ping, fail, retry=None, breaker=BreakerOptions(failures=2))
        outcomes = [await bus.publish_and_wait(Ping()) for _ in range(3)]
        (breaker,) = bus.breakers().values()
    assert [len(one.failures) for one in outcomes] == [1, 1, 1]
    figures = breaker.statistics()
    assert (figures.admitted, figures.failed, figures.refused) == (2, 2, 1)


async def test_the_variables_of_a_handler_end_with_its_call():
    place: ContextVar[str] = ContextVar("place", default="outside")

    async def handle(_: Ping):
        seen.append(place.get())
        place.set("inside")

    seen: list[str] = []
    async with MessageBus() as bus:
        bus.subscribe(Ping, handle)
        for _ in range(2):
            await bus.publish_and_wait(Ping())
    assert (seen, place.get()) == (["outside", "outside"], "outside")
