"""What is over is let go at once: handlers that were closed, events that were interrupted and have been handled since."""

import asyncio
import gc
import weakref

import pytest

from penstock import Event, MessageBus, ResilientMessageBus
from penstock.testing.clock import until_idle


class Ping(Event, weakref=True):
    number: int


class Big:
    """A handler that holds on to something."""

    def __call__(self, event):
        pass


@pytest.fixture(params=[MessageBus, ResilientMessageBus])
async def bus(request):
    async with request.param() as made:
        yield made


@pytest.mark.parametrize("target", [Ping, "*"])
@pytest.mark.parametrize("waited", [False, True])
async def test_a_handler_that_is_closed_is_let_go_before_the_next_event(bus, waited, target):
    kept = Big()
    left = weakref.ref(kept)
    handler = bus.subscribe(target, kept)
    for number in range(3):
        await (bus.publish_and_wait(Ping(number)) if waited else bus.publish(Ping(number)))
        await bus.settle()
    handler.close()
    del handler, kept
    gc.collect()
    assert left() is None
    assert (await bus.publish_and_wait(Ping(3))).handled == 0


async def test_an_event_that_was_interrupted_is_let_go_when_it_was_handled(bus):
    calls: list[int] = []

    async def handle(event):
        calls.append(event.number)
        if len(calls) == 1:
            # From now on the lane goes another way.
            bus.subscribe(Ping, lambda event: None)
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await asyncio.sleep(0)

    bus.subscribe(Ping, handle)
    event = Ping(1)
    left = weakref.ref(event)
    bus.publish_nowait(event)
    del event
    await bus.settle()
    await until_idle()
    gc.collect()
    assert calls == [1, 1]
    assert left() is None


async def test_an_event_that_a_stop_interrupts_keeps_nothing_of_its_bus(bus):
    """The bus keeps the report, and a bus that is not used any more is let go with it."""
    bus.subscribe(Ping, lambda event: asyncio.Event().wait())
    bus.publish_nowait(Ping(1))
    await until_idle()
    (left,) = (await bus.stop(drain=False)).undrained
    assert (left.message.number, left.lane, left.delivery) == (1, None, None)
