"""Events that wait for another call: who cancels the task in which they get it does not lose them."""

import asyncio
import gc
import weakref
from dataclasses import dataclass

import pytest

from penstock import (
    Envelope,
    Event,
    ResilientMessageBus,
    System,
    WalMessageQueue,
    current_envelope,
    topic,
)
from penstock.bus.batching import Batching
from penstock.resilience.breaker import BreakerOptions
from penstock.resilience.retry import NO_RETRY, Retry
from penstock.testing.clock import VirtualClock, until_idle

AT_ONCE = Retry(attempts=4, delay=0, jitter=False)


@topic("pings", key="key")
class Ping(Event):
    number: int
    key: str = "a"


async def cancel_me():
    """The task that calls is cancelled from outside, as it waits."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel)
    await asyncio.Event().wait()


async def test_a_retry_whose_task_is_cancelled_is_called_again():
    calls = []

    async def handle(event):
        calls.append(event.number)
        if len(calls) == 1:
            raise ValueError("once")
        if len(calls) == 2:
            await cancel_me()

    async with ResilientMessageBus(retry=AT_ONCE) as bus:
        bus.subscribe(Ping, handle)
        await bus.publish(Ping(7))
        await bus.settle()
        assert calls == [7, 7, 7]
        assert bus.statistics().events_processed == 1


async def test_those_behind_one_of_their_key_keep_their_order_when_their_task_is_cancelled():
    calls = []

    async def handle(event):
        calls.append(event.number)
        if calls == [0]:
            raise ValueError("once")
        if calls == [0, 0, 1]:
            await cancel_me()

    async with ResilientMessageBus(retry=AT_ONCE) as bus:
        bus.subscribe(Ping, handle, ordered=True)
        for number in range(3):
            bus.publish_nowait(Ping(number))
        await bus.settle()
        assert calls == [0, 0, 1, 1, 2]
        assert bus.statistics().events_processed == 3


async def test_those_that_wait_for_a_breaker_keep_their_order_when_their_task_is_cancelled():
    calls = []

    async def handle(event):
        calls.append(event.number)
        if calls == [0]:
            raise ValueError("the circuit opens")
        if calls == [0, 1]:
            await cancel_me()

    breaker = BreakerOptions(failures=1, recovery=0.01, successes=1)
    async with ResilientMessageBus(retry=NO_RETRY) as bus:
        bus.on_error(lambda *_: None)
        bus.subscribe(Ping, handle, breaker=breaker, pause=True)
        for number in range(4):
            bus.publish_nowait(Ping(number))
        await bus.settle()
        assert calls == [0, 1, 1, 2, 3]
        assert bus.statistics().events_processed == 3


async def test_a_bus_that_stops_reports_a_retry_that_it_has_cancelled():
    calls, called = [], asyncio.Event()

    async def handle(event):
        calls.append(event.number)
        if len(calls) == 1:
            raise ValueError("once")
        called.set()
        await asyncio.Event().wait()

    bus = ResilientMessageBus(retry=AT_ONCE)
    await bus.start()
    bus.subscribe(Ping, handle)
    bus.publish_nowait(Ping(7))
    await called.wait()
    report = await bus.stop(drain=False)
    assert [envelope.message for envelope in report.undrained] == [Ping(7)]
    assert calls == [7, 7]


@dataclass
class Order:
    """The garbage collector looks at it, and at its envelope."""

    key: str = "a"


class Held:
    """What only the handlers of a bus refer to."""


async def stopped(kind, *, beside=False, **options):
    """A bus that was stopped while its events waited for a handler; what is left of what that holds."""
    held = Held()
    bus = ResilientMessageBus(retry=Retry(attempts=2, delay=10, jitter=False))
    bus.on_error(lambda *_: None)

    def handle(event, held=held):
        raise ValueError

    bus.subscribe(kind, handle, breaker=BreakerOptions(failures=1, recovery=1_000), **options)
    if beside:
        bus.subscribe(kind, handle, retry=NO_RETRY)
    await bus.start()
    for _ in range(3):
        bus.publish_nowait(kind())
    await until_idle()
    report = await bus.stop(drain=False)
    return len(report.undrained), weakref.ref(held)


@topic("plain")
class Bare(Event):
    number: int = 0


@topic("keyed", key="key")
class Keyed(Event):
    key: str = "a"


@pytest.mark.parametrize("kind", [Bare, Keyed, Order])
@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, 1),
        ({"ordered": True}, None),
        ({"pause": True}, 3),
        ({"pause": True, "ordered": True}, 3),
        ({"beside": True, "pause": True}, 3),
    ],
    ids=str,
)
async def test_a_bus_that_was_stopped_is_let_go_with_the_events_that_waited(kind, options, left):
    undrained, held = await stopped(kind, **options)
    await until_idle()
    gc.collect()
    assert undrained == (left or (3 if kind is Keyed else 1))
    assert held() is None


async def test_an_event_that_waited_for_two_handlers_is_reported_once():
    bus = ResilientMessageBus(retry=Retry(attempts=2, delay=10, jitter=False))
    bus.on_error(lambda *_: None)
    for _ in range(2):
        bus.subscribe(Ping, Failing())
    await bus.start()
    bus.publish_nowait(Ping(1))
    await until_idle()
    report = await bus.stop(drain=False)
    assert [envelope.message.number for envelope in report.undrained] == [1]


class Failing:
    """A handler that always fails."""

    def __call__(self, event):
        raise ValueError


async def test_an_envelope_that_somebody_keeps_does_not_keep_its_lane():
    kept: list[Envelope] = []

    async def handle(event):
        one = current_envelope()
        assert one is not None
        kept.append(one)
        if len(kept) == 1:
            raise ValueError("once")

    async with ResilientMessageBus(retry=AT_ONCE) as bus:
        bus.on_error(lambda *_: None)
        bus.subscribe(Bare, handle)
        bus.publish_nowait(Bare())
        await bus.settle()
    assert [(one.settled, one.lane, one.delivery) for one in kept] == [(True, None, None)] * 2


async def test_one_that_waited_and_hangs_in_its_handler_is_reported_by_stop():
    """Another one was let in when it was given up, and has ended: that does not end the waiting of the first."""
    clock = VirtualClock()
    handled = []

    async def handle(event):
        if event.number == 0:
            raise ValueError("the circuit opens")
        if event.number == 1:
            await asyncio.Event().wait()
        handled.append(event.number)

    options = BreakerOptions(failures=1, recovery=1, successes=1, probes_max=1)
    bus = ResilientMessageBus(retry=NO_RETRY, breaker=options, system=System(clock=clock))
    bus.on_error(lambda *_: None)
    bus.subscribe(Ping, handle, pause=True)
    await bus.start()
    for number, seconds in ((0, 0), (1, 1), (2, 5)):
        await bus.publish(Ping(number, key=str(number)))
        await until_idle()
        for _ in range(seconds):
            clock.advance(1)
            await until_idle()
    assert handled == [2]
    report = await bus.stop(drain=False)
    assert [envelope.message.number for envelope in report.undrained] == [1]


async def test_an_event_that_waits_for_several_handlers_is_reported_once_and_has_a_letter_for_each(
    tmp_path,
):
    async with WalMessageQueue(tmp_path) as queue:
        bus = ResilientMessageBus(retry=Retry(attempts=3, delay=60, delay_max=60), log=queue)
        bus.on_error(lambda *_: None)

        def fail(event):
            raise ValueError

        async def wait(event):
            await asyncio.Event().wait()

        bus.subscribe(Ping, fail, name="fails")
        bus.subscribe(Ping, wait, name="waits")
        await bus.start()
        await bus.publish(Ping(0))
        await until_idle()
        report = await bus.stop(drain=False)
        assert [envelope.message.number for envelope in report.undrained] == [0]
        async with ResilientMessageBus(log=queue) as again:
            names = sorted(letter.handler for letter in again.dead_letters.list())
            assert names == ["fails", "waits"]


class Other(Event):
    number: int


@pytest.mark.parametrize("batch", [False, True])
async def test_nothing_is_called_any_more_while_the_bus_ends_those_in_work(batch):
    clock = VirtualClock()
    calls = []
    cleaning, clean = asyncio.Event(), asyncio.Event()

    async def slow(event):
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await clean.wait()

    def fail_once(event):
        calls.append(event)
        raise ValueError("once")

    retry = Retry(attempts=3, delay=1, jitter=False)
    bus = ResilientMessageBus(retry=retry, system=System(clock=clock))
    bus.on_error(lambda *_: None)
    bus.subscribe(Other, slow)
    if batch:
        # Its batch waits for company while another handler of the event keeps the lane busy.
        bus.subscribe(Ping, calls.append, batch=Batching(10, timeout=1), name="batch")
        bus.subscribe(Ping, slow)
    else:
        bus.subscribe(Ping, fail_once)
    await bus.start()
    await bus.publish(Other(0))
    await bus.publish(Ping(0))
    await until_idle()
    before = list(calls)
    stopping = asyncio.create_task(bus.stop(drain=False))
    await cleaning.wait()
    clock.advance(2)
    await until_idle()
    clean.set()
    report = await stopping
    assert sorted(type(envelope.message).__name__ for envelope in report.undrained) == [
        "Other",
        "Ping",
    ]
    assert calls == before


async def test_a_filter_that_failed_is_asked_again_before_the_retry():
    asked, handled = [], []

    def where(envelope):
        asked.append(envelope.message.number)
        if len(asked) == 1:
            raise ConnectionError("the server of flags")
        return envelope.message.number == 1

    async with ResilientMessageBus(retry=AT_ONCE) as bus:
        bus.on_error(lambda *_: None)
        bus.subscribe(Ping, lambda event: handled.append(event.number), where=where)
        for number in range(2):
            await bus.publish(Ping(number))
            await bus.settle(timeout=5)
        assert (asked, handled) == ([0, 0, 1], [1])
        (breaker,) = bus.breakers().values()
        found = breaker.statistics()
        assert (found.admitted, found.failed, found.succeeded) == (2, 1, 1)


@pytest.mark.parametrize("size", [1, 2, 3, 10])
async def test_a_handler_of_batches_keeps_the_order_of_a_key_through_retries(size):
    """What waited behind an event is called when that was handled, not when it has gone into a batch."""
    handled: list[int] = []
    failures = [0, 0, 2]

    async def handle(events):
        await asyncio.sleep(0)
        numbers = [event.number for event in events]
        if failures and failures[0] in numbers:
            failures.pop(0)
            raise ValueError(numbers)
        handled.extend(numbers)

    async with ResilientMessageBus(retry=AT_ONCE) as bus:
        bus.on_error(lambda *_: None)
        bus.subscribe(Ping, handle, batch=size, ordered=True)
        for number in range(8):
            bus.publish_nowait(Ping(number))
        await bus.settle(timeout=5)
        found = bus.statistics()
        assert (handled, found.events_processed) == (list(range(8)), 8)
        assert all(lane.queue.held == 0 for lane in bus._intake.all_lanes())


async def retrying(bus):
    """The task of a retry, when it has begun."""
    for _ in range(1_000):
        await until_idle()
        for task in bus._dispatch.tasks:
            if "Parking._retry" in repr(task.get_coro()):
                return task
    raise AssertionError("nothing is tried again")


@pytest.mark.parametrize("behind_another", [False, True])
async def test_a_retry_of_a_batch_that_is_cancelled_is_called_again_and_leaves_no_probe(
    behind_another,
):
    """Each admission of the breaker has its end, so a circuit that is half open does not run out of probes."""
    calls: list[int] = []
    gate = asyncio.Event()

    async def handle(events):
        (number,) = (event.number for event in events)
        calls.append(number)
        if calls.count(number) == 1 and number == 0:
            raise ValueError("once")
        if number == 1 or not behind_another:
            await gate.wait()

    async with ResilientMessageBus(retry=AT_ONCE) as bus:
        bus.on_error(lambda *_: None)
        bus.subscribe(Ping, handle, batch=1)
        bus.publish_nowait(Ping(0))
        if behind_another:
            bus.publish_nowait(Ping(1))
        await until_idle()
        (await retrying(bus)).cancel()
        await until_idle()
        gate.set()
        await bus.settle(timeout=5)
        (breaker,) = bus.breakers().values()
        found = breaker.statistics()
        assert found.admitted == found.succeeded + found.failed + found.abandoned
        assert (found.abandoned, found.failed) == (1, 1)
        assert bus.statistics().events_processed == 1 + behind_another
