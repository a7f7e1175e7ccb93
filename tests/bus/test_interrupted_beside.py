"""Handlers that wait side by side: an event whose caller leaves is handled again when all have ended, not before."""

import asyncio

import pytest

from penstock import Event, MessageBus, ResilientMessageBus
from penstock.errors import DeadlineExceeded
from penstock.resilience.retry import Retry
from penstock.testing.bus_fixtures import check_books
from penstock.testing.clock import until_idle


class Ping(Event):
    number: int


class Slow:
    """A handler that waits, and cleans up for a while when it is cancelled; how many are in it at once."""

    def __init__(self, error=None):
        self.error = error
        self.inside = self.most = self.calls = 0
        self.go_on, self.clean = asyncio.Event(), asyncio.Event()

    async def __call__(self, event):
        self.calls += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            await self.clean.wait()
            raise (self.error or asyncio.CancelledError) from None
        finally:
            self.inside -= 1


@pytest.mark.parametrize("error", [None, ConnectionError])
@pytest.mark.parametrize("make", [MessageBus, lambda: ResilientMessageBus(retry=Retry(delay=0))])
async def test_a_handler_beside_has_ended_before_its_event_is_handled_again(make, error):
    async with make() as bus:
        bus.on_error(lambda *_: None)
        first, beside = Slow(), Slow(error)
        first.clean.set()
        bus.subscribe(Ping, first)
        bus.subscribe(Ping, beside)
        waiting = asyncio.create_task(bus.publish_and_wait(Ping(1), timeout=60))
        await until_idle()
        waiting.cancel()
        await until_idle()
        assert (first.calls, beside.calls, beside.inside) == (1, 1, 1)
        beside.clean.set()
        first.go_on.set()
        beside.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await bus.settle(timeout=5)
        assert (beside.most, bus.statistics().events_unsettled) == (1, 0)
        is_retried = error is None or isinstance(bus, ResilientMessageBus)
        assert (first.calls, beside.calls) == (2, 2 if is_retried else 1)
    check_books(bus)


async def test_who_leaves_twice_does_not_wait_for_a_handler_that_does_not_end():
    async with MessageBus() as bus:
        first, beside = Slow(), Slow()
        first.clean.set()
        bus.subscribe(Ping, first)
        bus.subscribe(Ping, beside)
        waiting = asyncio.create_task(bus.publish_and_wait(Ping(1), timeout=60))
        for _ in range(2):
            await until_idle()
            waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert beside.inside >= 1
        for event in (beside.clean, beside.go_on, first.go_on):
            event.set()
        await bus.settle(timeout=5)


async def test_a_deadline_is_told_when_all_that_waited_have_ended():
    async with MessageBus() as bus:
        first, beside = Slow(), Slow()
        for one in (first, beside):
            one.clean.set()
            bus.subscribe(Ping, one)
        with pytest.raises(DeadlineExceeded):
            await bus.publish_and_wait(Ping(1), timeout=0)
        for one in (first, beside):
            one.go_on.set()
        await bus.settle(timeout=5)
        assert (first.most, beside.most) == (1, 1)
