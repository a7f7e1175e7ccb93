"""Memory stays flat: after a warm-up, events leave nothing behind."""

import asyncio
import gc
import logging
import sys
import weakref
from dataclasses import dataclass

import pytest

from penstock.bus.bus import MessageBus
from penstock.bus.drive import current_envelope
from penstock.errors import DeadlineExceeded
from penstock.messages import Command, Event, topic
from penstock.resilience.bus import ResilientMessageBus

WARM_UP = 10_000


@topic("memory.paid", key="account")
class Paid(Event):
    account: int
    cents: int = 0


class Refund(Command[int]):
    cents: int = 0


async def live(bus: MessageBus, count: int) -> None:
    """Publish in every way there is, with sessions and commands in between."""
    for number in range(0, count, 100):
        for cents in range(96):
            await bus.publish(Paid(number, cents))
        bus.publish_nowait(Paid(number), headers={"n": str(number)})
        await bus.publish_and_wait(Paid(number))
        async with bus.atomic() as group:
            group.publish(Paid(number))
        if number % 1_000 == 0:
            async with bus.session(f"session {number}") as session:
                session.subscribe(Paid, lambda event: None)
                await session.publish_and_wait(Paid(number))
            await bus.execute(Refund(number))
            await bus.settle()
        else:
            await bus.publish_and_wait(Paid(number), session="nobody's")
    await bus.settle()


async def growth_over(make_bus: type[MessageBus], count: int) -> tuple[int, int]:
    """Objects and bytes that are there afterwards and were not before."""
    async with make_bus() as bus:

        async def handle(event: Paid) -> None:
            pass

        bus.subscribe(Paid, handle)
        bus.subscribe(Paid, lambda event: None, concurrency=4)
        bus.subscribe("memory.*", lambda events: None, batch=10)
        bus.handle(Refund, lambda command: command.cents)
        await live(bus, WARM_UP)
        gc.collect()
        objects, blocks = len(gc.get_objects()), sys.getallocatedblocks()
        await live(bus, count)
        gc.collect()
        grown = len(gc.get_objects()) - objects, sys.getallocatedblocks() - blocks
        assert bus.statistics().events_published == count + WARM_UP
        return grown


@pytest.mark.acceptance(129)
@pytest.mark.parametrize("make_bus", [MessageBus, ResilientMessageBus])
async def test_events_leave_nothing_behind(make_bus):
    objects, blocks = await growth_over(make_bus, 200_000)
    # Other threads of the test run make some; one object for each event would be 200,000.
    assert objects < 1_000
    assert blocks < 5_000


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.acceptance(129)
@pytest.mark.parametrize("make_bus", [MessageBus, ResilientMessageBus])
async def test_a_million_events_leave_nothing_behind(make_bus):
    objects, blocks = await growth_over(make_bus, 1_000_000)
    assert objects < 1_000
    assert blocks < 1_000


class Receipt:
    """Part of an event, whose end can be seen."""


@dataclass(frozen=True)
class Printed:
    receipt: Receipt
    fails: bool = False
    waits: bool = False


async def print_out(event: Printed) -> None:
    if event.waits:
        await asyncio.Event().wait()
    await asyncio.sleep(0)
    if event.fails:
        raise ValueError("out of paper")


async def in_vain(bus: MessageBus, receipt: Receipt, how: str) -> None:
    """Publish an event that is not handled well."""
    match how:
        case "it fails":
            outcome = await bus.publish_and_wait(Printed(receipt, fails=True))
            assert not outcome.success
        case "nobody waits":
            await bus.publish(Printed(receipt, fails=True))
            await bus.settle()
        case "it takes too long":
            with pytest.raises(DeadlineExceeded):
                await bus.publish_and_wait(Printed(receipt, waits=True), timeout=0.001)
        case "who waits is cancelled":
            waiting = asyncio.create_task(bus.publish_and_wait(Printed(receipt, waits=True)))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting


async def publish_in_vain(how: str) -> weakref.ref[Receipt]:
    receipt = Receipt()
    async with MessageBus() as bus:
        bus.subscribe(Printed, print_out)
        await in_vain(bus, receipt, how)
        await bus.stop(timeout=0.01)
    return weakref.ref(receipt)


@pytest.fixture
def unlogged():
    """What is logged is kept by pytest, with the error in it."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    "how", ["it fails", "nobody waits", "it takes too long", "who waits is cancelled"]
)
async def test_an_event_that_is_not_handled_well_is_not_kept(how, unlogged):
    """An error has the frames that it went through: what they know must not stay for ever."""
    receipt = await publish_in_vain(how)
    await asyncio.sleep(0)  # who was woken goes
    gc.collect()
    assert receipt() is None


async def fail_often(bus: MessageBus, count: int) -> None:
    for number in range(count):
        await bus.publish(Paid(number))
    await bus.settle()


async def test_failed_events_of_text_and_numbers_leave_nothing_behind(unlogged):
    """Nor does the garbage collector look at them: their envelopes keep no notes that lead back to them."""

    async def refuse(event: Paid) -> None:
        raise ValueError("no cover")

    async with MessageBus() as bus:
        bus.subscribe(Paid, refuse, where=lambda envelope: True)
        await fail_often(bus, 2_000)
        gc.collect()
        blocks = sys.getallocatedblocks()
        await fail_often(bus, 5_000)
        gc.collect()
        assert bus.statistics().events_failed == 7_000
        assert sys.getallocatedblocks() - blocks < 5_000


@pytest.mark.parametrize(("event", "tracked"), [(Paid(1), False), (Printed(Receipt()), True)])
async def test_the_collector_looks_at_envelopes_of_what_it_looks_at(event, tracked):
    """Thousands of queued events of text and numbers cost it nothing."""
    seen = []
    async with MessageBus() as bus:
        bus.subscribe(type(event), lambda event: seen.append(gc.is_tracked(current_envelope())))
        await bus.publish(event)
        bus.publish_nowait(event)
        await bus.settle()
    assert seen == [tracked, tracked]
