"""The event log of a bus after a restart or a crash: what comes again, and what does not."""

from __future__ import annotations

import asyncio

import pytest

from penstock.bus import event_log as module
from penstock.bus.bus import MessageBus
from penstock.bus.encoding import MessageCodec
from penstock.bus.intake import QueueOptions
from penstock.bus.queue import Overflow
from penstock.bus.redelivery import REDELIVERY_HEADER
from penstock.messages import Envelope
from penstock.resilience.bus import ResilientMessageBus
from penstock.system import System
from penstock.testing.clock import VirtualClock
from tests.bus.kept_events import Odd, Order, Paid, crash, figures_of, kept, until

# ---------------------------------------------------------------------------------- redelivery


@pytest.mark.acceptance(152)
async def test_what_was_not_settled_comes_again_with_its_id(make):
    ids: list[str] = []
    bus = make()
    bus.subscribe(Order, lambda event: asyncio.get_running_loop().create_future())
    bus.subscribe(Paid, lambda event, envelope: ids.append(envelope.id))
    await bus.start()
    await bus.publish(Paid(1), durable=True)
    for number in range(3):
        await bus.publish(Order(number), durable=True, headers={"a": "b"})
    await until(lambda: ids)
    before = [envelope.id async for envelope in bus.history.replay(types=[Order])]
    await bus.stop(drain=False)

    again: list[Envelope] = []
    bus = make()
    bus.subscribe(Order, lambda event, envelope: again.append(envelope))
    bus.subscribe(Paid, lambda event: pytest.fail("it was settled"))
    await bus.publish(Order(99))
    async with bus:
        await bus.settle()
    assert [envelope.message.number for envelope in again] == [0, 1, 2, 99]
    assert [envelope.id for envelope in again[:3]] == before
    assert again[0].headers == {"a": "b", REDELIVERY_HEADER: "1"}
    assert REDELIVERY_HEADER not in again[3].headers
    assert figures_of(bus).redelivered == 3

    async with make() as bus:  # and not a third time
        bus.subscribe(Order, lambda event: pytest.fail("it was settled"))
        await bus.settle()
        assert figures_of(bus).redelivered == 0


async def test_after_a_crash_everything_since_the_last_mark_comes_again(make):
    seen: list[int] = []
    bus = make()
    bus.subscribe(Order, lambda event: seen.append(event.number))
    await bus.start()
    for number in range(3):
        await bus.publish(Order(number))
    await bus.settle()
    await crash(bus)
    bus = make()
    bus.subscribe(Order, lambda event: seen.append(event.number))
    async with bus:
        await bus.settle()
    assert seen == [0, 1, 2, 0, 1, 2]


async def test_how_far_it_is_handled_is_written_in_the_background(queue):
    clock = VirtualClock()
    gate = asyncio.Event()
    async with MessageBus(log=queue, event_log=True, system=System(clock=clock)) as bus:
        recorder = bus.history._recorder
        assert recorder is not None

        async def handle(event: Order) -> None:
            if event.number == 2:
                await gate.wait()

        bus.subscribe(Order, handle)
        bus.subscribe(Paid, lambda event: None)
        for event in (Order(0), Order(1), Order(2), Paid(3)):
            await bus.publish(event, durable=True)
        await until(lambda: figures_of(bus).unsettled == 1)
        clock.advance(module.COMMIT_INTERVAL_SECONDS)
        await until(lambda: recorder._committed == 2)  # nothing above the one that waits
        gate.set()
        await bus.settle()
        clock.advance(module.COMMIT_INTERVAL_SECONDS)
        await until(lambda: recorder._committed == 4)


async def test_old_events_wait_for_handlers_that_come_after_the_start(make):
    bus = make()
    await bus.start()
    bus.subscribe(Order, lambda event: asyncio.get_running_loop().create_future())
    for number in range(3):
        await bus.publish(Order(number), durable=True)
    await bus.stop(drain=False)

    seen: list[tuple[str, int]] = []
    async with make() as bus:
        await bus.settle()
        assert figures_of(bus).held == 3
        bus._codec.register(Order)
        await bus.publish(Paid(7))
        bus.subscribe(Order, lambda event: seen.append(("a", event.number)))
        bus.subscribe(Order, lambda event: seen.append(("b", event.number)))
        await bus.publish(Order(3))
        await bus.settle()
        assert figures_of(bus).held == 0
    assert seen == [(name, number) for number in range(4) for name in "ab"]


@pytest.mark.parametrize("orderly", [True, False])
async def test_what_nobody_wants_is_given_up_by_an_orderly_stop_alone(queue, orderly):
    def make() -> MessageBus:
        codec = MessageCodec()
        codec.register(Order)
        return MessageBus(log=queue, event_log=True, codec=codec)

    bus = make()
    bus.subscribe(Order, lambda event: asyncio.get_running_loop().create_future())
    await bus.start()
    await bus.publish(Order(1), durable=True)
    await bus.stop(drain=False)
    bus = make()
    await bus.start()
    assert figures_of(bus).held == 1
    await bus.stop(drain=orderly)
    async with make() as bus:
        assert figures_of(bus).held == (0 if orderly else 1)


async def test_more_old_events_than_the_queue_holds_come_in_order(make):
    bus = make()
    bus.subscribe(Order, lambda event: asyncio.get_running_loop().create_future())
    await bus.start()
    for number in range(200):
        await bus.publish(Order(number))
    await bus.stop(drain=False)
    seen: list[int] = []

    async def handle(event: Order) -> None:
        seen.append(event.number)
        await asyncio.sleep(0)

    bus = make(queue=QueueOptions(capacity=3))
    bus.subscribe(Order, handle)
    async with bus:
        await bus.publish(Order(200))
        await bus.settle()
        assert max(one.peak_depth for one in bus.statistics().queues.values()) <= 4
    assert seen == list(range(201))


async def test_start_does_not_wait_for_ever(queue, caplog):
    clock = VirtualClock()
    bus = MessageBus(log=queue, event_log=True, system=System(clock=clock))
    bus.subscribe(Order, lambda event: asyncio.get_running_loop().create_future())
    await bus.start()
    for number in range(5):
        await bus.publish(Order(number))
    await bus.stop(drain=False)

    gate = asyncio.Event()
    seen: list[int] = []

    async def handle(event: Order) -> None:
        await gate.wait()
        seen.append(event.number)

    options = QueueOptions(capacity=1)
    bus = MessageBus(log=queue, event_log=True, queue=options, system=System(clock=clock))
    bus.subscribe(Order, handle)
    starting = asyncio.ensure_future(bus.start())
    while not starting.done():
        await asyncio.sleep(0)
        clock.advance(0.1)
    assert "overtake" in caplog.text
    gate.set()
    await until(lambda: len(seen) == 5)
    await bus.stop()
    assert seen == [0, 1, 2, 3, 4]


async def test_a_stop_while_old_events_are_queued_keeps_the_rest(make):
    bus = make()
    bus.subscribe(Order, lambda event: asyncio.get_running_loop().create_future())
    await bus.start()
    for number in range(5):
        await bus.publish(Order(number))
    await bus.stop(drain=False)
    bus = make(queue=QueueOptions(capacity=1))
    bus.subscribe(Order, lambda event: asyncio.get_running_loop().create_future())
    starting = asyncio.ensure_future(bus.start())
    await until(lambda: figures_of(bus).redelivered > 0)
    # A start that is still at it is given up by who wanted it.
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await bus.stop(drain=False)
    seen: list[int] = []
    bus = make()
    bus.subscribe(Order, lambda event: seen.append(event.number))
    async with bus:
        await bus.settle()
    assert seen == [0, 1, 2, 3, 4]


async def test_redelivery_can_be_switched_off(make):
    bus = make()
    bus.subscribe(Order, lambda event: asyncio.get_running_loop().create_future())
    await bus.start()
    await bus.publish(Order(1), durable=True)
    await bus.stop(drain=False)
    for redeliver in (False, True):
        bus = make(redeliver=redeliver)
        bus.subscribe(Order, lambda event: pytest.fail("not wanted"))
        async with bus:
            await bus.settle()
            assert await kept(bus) == [Order(1)]


async def test_an_old_event_that_does_not_decode_is_told_and_passed_over(queue, caplog):
    bus = MessageBus(log=queue, event_log=True)
    bus.subscribe(Order, lambda event: asyncio.get_running_loop().create_future())
    await bus.start()
    for number in range(3):
        await bus.publish(Order(number))
    await bus.history.flush()
    await queue.publish("bus.bus.events", b"\xffno envelope")
    await bus.stop(drain=False)

    told: list[tuple[int, bytes]] = []
    seen: list[int] = []
    bus = MessageBus(log=queue, event_log=True)
    bus.history.on_invalid(lambda position, record, error: told.append((position, record)))
    bus.history.on_invalid(lambda *_: 1 / 0)  # type: ignore[arg-type]
    bus.subscribe(Order, lambda event: seen.append(event.number))
    async with bus:
        await bus.settle()
        assert told == [(3, b"\xffno envelope")]
        assert figures_of(bus).invalid == 1
    assert seen == [0, 1, 2]
    async with MessageBus(log=queue, event_log=True) as bus:
        bus._codec.register(Order)
        assert figures_of(bus).invalid == 0  # passed over once and for all
        assert len(await kept(bus)) == 3
        assert figures_of(bus).invalid == 1  # but still there, and told by a replay
        assert "does not decode" in caplog.text


async def test_nested_waits_work_in_a_redelivered_event(make):
    bus = make()
    bus.subscribe(Order, lambda event: asyncio.get_running_loop().create_future())
    await bus.start()
    await bus.publish(Order(1), durable=True)
    await bus.stop(drain=False)
    seen: list[int] = []
    bus = make()

    async def handle(event: Order) -> None:
        seen.append(event.number)
        if event.number < 3:
            await bus.publish_and_wait(Order(event.number + 1))

    bus.subscribe(Order, handle)
    async with bus:
        await bus.settle()
    assert seen == [1, 2, 3]


async def test_a_dropped_event_is_settled(make):
    gate = asyncio.Event()
    async with make(queue=QueueOptions(capacity=1, overflow=Overflow.DROP_OLDEST)) as bus:
        bus.subscribe(Order, lambda event: gate.wait())
        for number in range(5):
            await bus.publish(Order(number))
        gate.set()
        await bus.settle()
        await bus.history.flush()
        figures = figures_of(bus)
        assert figures.unsettled == 0
        assert figures.handled_position == 5


# ----------------------------------------------------------------------------------- the owner


async def test_what_comes_again_is_no_dead_letter(queue):
    def make() -> ResilientMessageBus:
        return ResilientMessageBus(log=queue, event_log=True)

    bus = make()
    for kind in (Order, Odd):
        bus.subscribe(kind, lambda event: asyncio.get_running_loop().create_future())
    await bus.start()
    await bus.publish(Order(1))
    await bus.stop(drain=False)
    seen: list[int] = []
    bus = make()
    bus.subscribe(Order, lambda event: seen.append(event.number))
    async with bus:
        await bus.settle()
        assert seen == [1]
        assert not bus.dead_letters.list()
