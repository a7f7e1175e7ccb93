"""The resilient bus on the real path: retries, stops, what a log keeps of it."""

import asyncio
import itertools
import random

import pytest

from penstock import WalMessageQueue
from penstock.bus.encoding import MessageCodec
from penstock.bus.intake import QueueOptions
from penstock.bus.timers import Timers
from penstock.errors import InvalidName, InvalidOption, NonRetryable, UsageError
from penstock.messages import Code, topic
from penstock.resilience.bus import ResilientMessageBus
from penstock.resilience.dead_letters import DeadLetterOptions, Reason
from penstock.resilience.retry import Retry
from tests.resilience.resilient_world import PLAIN, Flaky, Ordered, Pay, balanced, let_pass, turns

# ------------------------------------------------------------------------------------- retries


@pytest.mark.acceptance(107, 108)
async def test_an_event_handler_is_called_again_after_growing_waits(bus, clock):
    times = []

    @bus.on(Ordered, retry=Retry(attempts=9, jitter=False, deadline=None), breaker=None)
    async def handler(event):
        times.append(clock.monotonic())
        raise RuntimeError("never")

    await bus.publish(Ordered(customer="a"))
    await let_pass(clock, 60)
    waits = [later - before for before, later in itertools.pairwise(times)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0], abs=0.06)


@pytest.mark.acceptance(107)
async def test_a_handler_that_recovers_handles_its_event_once(bus, clock):
    handler = Flaky(2)
    bus.subscribe(Ordered, handler)
    await bus.publish(Ordered(customer="a"))
    await let_pass(clock, 1)
    await bus.settle()
    assert len(handler.calls) == 3
    assert len(bus.dead_letters) == 0
    assert bus.statistics().events_processed == 1


@pytest.mark.acceptance(107)
@pytest.mark.parametrize(("deadline", "calls"), [(1.05, 2), (0.95, 1)])
async def test_the_deadline_of_an_event_counts_from_its_first_failure(bus, clock, deadline, calls):
    begun, timers = [], Timers(clock)
    slow = Retry(attempts=9, delay=1.0, jitter=False, deadline=deadline)

    @bus.on(Ordered, retry=slow)
    async def handler(event):
        begun.append(clock.monotonic())
        await timers.sleep(5.0)
        raise RuntimeError("never")

    await bus.publish(Ordered(customer="a"))
    await let_pass(clock, 20)
    assert len(begun) == calls


@pytest.mark.acceptance(107)
async def test_a_command_is_retried_within_its_timeout(bus, clock):
    handler = Flaky(2)
    bus.handle(Pay, handler)
    paying = asyncio.ensure_future(bus.execute(Pay(amount=1)))
    await let_pass(clock, 1)
    result = await paying
    assert result.success
    assert result.result == "done"
    assert len(handler.calls) == 3


async def test_the_timeout_of_a_command_covers_its_retries(bus, clock):
    handler = Flaky(100)
    bus.handle(Pay, handler, retry=Retry(attempts=100, jitter=False))
    paying = asyncio.ensure_future(bus.execute(Pay(amount=1), timeout=1.0))
    await let_pass(clock, 1.1)
    result = await paying
    assert result.code is Code.TIMEOUT
    assert len(bus.dead_letters) == 0


@pytest.mark.acceptance(109)
@pytest.mark.parametrize("error", [UsageError, NonRetryable])
async def test_an_error_that_stays_is_final_at_once(bus, error):
    handler = Flaky(9, error)
    bus.subscribe(Ordered, handler)
    await bus.publish(Ordered(customer="a"))
    await bus.settle()
    assert len(handler.calls) == 1
    assert len(bus.dead_letters) == 1


@pytest.mark.acceptance(109)
async def test_a_command_without_a_handler_fails_at_once(bus):
    result = await bus.execute(Pay(amount=1))
    assert result.code is Code.NO_HANDLER
    assert len(bus.dead_letters) == 0


async def test_a_retry_does_not_hold_up_the_lane(bus, clock):
    handled = []

    @bus.on(Ordered)
    async def handler(event):
        if event.number == 0 and clock.monotonic() < 0.1:
            raise RuntimeError("later")
        handled.append(event.number)

    for number in range(5):
        await bus.publish(Ordered(customer="a", number=number))
    await turns()
    assert handled == [1, 2, 3, 4]
    await let_pass(clock, 0.2)
    assert handled == [1, 2, 3, 4, 0]


async def test_order_of_a_key_is_kept_through_retries_when_asked(bus, clock):
    handled = []

    @bus.on(Ordered, ordered=True)
    async def handler(event):
        if event.customer == "a" and event.number == 1 and clock.monotonic() < 0.25:
            raise RuntimeError("later")
        handled.append((event.customer, event.number))

    for number in range(4):
        await bus.publish(Ordered(customer="a", number=number))
        await bus.publish(Ordered(customer="b", number=number))
    await turns()
    assert handled == [("a", 0), ("b", 0), ("b", 1), ("b", 2), ("b", 3)]
    await let_pass(clock, 1)
    await bus.settle()
    assert [number for customer, number in handled if customer == "a"] == [0, 1, 2, 3]


async def test_only_the_handler_that_failed_is_called_again(bus, clock):
    fine, flaky = Flaky(0), Flaky(1)
    bus.subscribe(Ordered, fine)
    bus.subscribe(Ordered, flaky)
    await bus.publish(Ordered(customer="a"))
    await let_pass(clock, 0.2)
    await bus.settle()
    assert (len(fine.calls), len(flaky.calls)) == (1, 2)


async def test_parked_events_count_for_the_bound_of_the_queue(system, clock):
    async with ResilientMessageBus(
        system=system, retry=PLAIN, breaker=None, queue=QueueOptions(capacity=10)
    ) as bus:
        bus.on_error(lambda *_: None)
        bus.subscribe(Ordered, Flaky(10**6))
        for number in range(10):
            await bus.publish(Ordered(customer="a", number=number))
        await turns()
        eleventh = asyncio.ensure_future(bus.publish(Ordered(customer="a", number=10)))
        await turns()
        assert not eleventh.done()
        await let_pass(clock, 1)
        assert eleventh.done()
        await bus.settle()
        assert len(bus.dead_letters) == 11
        assert balanced(bus)


# -------------------------------------------------------------------------------------- chaos


@pytest.mark.acceptance(131)
async def test_the_books_balance_when_handlers_fail_at_random(system, clock):
    chance = random.Random(1)
    handled = 0
    async with ResilientMessageBus(
        system=system, breaker=None, dead_letters=DeadLetterOptions(letters_max=100_000)
    ) as bus:
        bus.on_error(lambda *_: None)

        @bus.on(Ordered)
        async def handler(event):
            nonlocal handled
            if chance.random() < 0.2:
                raise RuntimeError("chaos")
            handled += 1

        for second in range(60):
            for number in range(200):
                await bus.publish(Ordered(customer=str(number % 10), number=second))
            await let_pass(clock, 1.0, step=0.5)
            assert balanced(bus)
        await let_pass(clock, 5)
        await bus.settle()
        assert handled + len(bus.dead_letters) == 60 * 200
        assert len(bus.dead_letters) == pytest.approx(60 * 200 * 0.008, rel=0.5)


async def test_stop_reports_what_waits_for_a_retry(system, clock):
    bus = ResilientMessageBus(system=system, retry=PLAIN)
    bus.on_error(lambda *_: None)
    await bus.start()
    bus.subscribe(Ordered, Flaky(99), ordered=True)
    for number in range(3):
        await bus.publish(Ordered(customer="a", number=number))
    await turns()
    report = await bus.stop(drain=False)
    assert sorted(envelope.message.number for envelope in report.undrained) == [0, 1, 2]


async def test_an_unknown_option_names_the_right_ones(bus):
    with pytest.raises(UsageError, match="retry"):
        bus.subscribe(Ordered, print, retris=3)


# --------------------------------------------------------------------------------- with a log


@pytest.mark.acceptance(111)
async def test_dead_letters_survive_a_restart_and_come_back_as_their_class(tmp_path, system, clock):
    async with WalMessageQueue(tmp_path) as queue:
        async with ResilientMessageBus(system=system, retry=PLAIN, log=queue) as bus:
            bus.on_error(lambda *_: None)
            bus.subscribe(Ordered, Flaky(9), name="billing", retry=None)
            await bus.publish(Ordered(customer="a", number=7))
            await bus.settle()
            assert len(bus.dead_letters) == 1
        handler = Flaky(0)
        async with ResilientMessageBus(system=system, retry=PLAIN, log=queue) as bus:
            bus.subscribe(Ordered, handler, name="billing")
            [letter] = bus.dead_letters.list()
            await bus.dead_letters.replay(letter.id)
            await bus.settle()
            assert handler.calls == [Ordered(customer="a", number=7)]
        async with ResilientMessageBus(system=system, log=queue) as bus:
            assert len(bus.dead_letters) == 0


@pytest.mark.acceptance(146)
async def test_what_a_stop_cannot_finish_is_kept_as_dead_letters(tmp_path, system, clock):
    async with WalMessageQueue(tmp_path) as queue:
        bus = ResilientMessageBus(system=system, log=queue)
        gate = asyncio.Event()
        bus.subscribe(Ordered, lambda event: gate.wait(), name="billing")
        await bus.start()
        for number in range(3):
            await bus.publish(Ordered(customer="a", number=number))
        await turns()
        report = await bus.stop(drain=False)
        assert len(report.undrained) == 3
        codec = MessageCodec()
        codec.register(Ordered)
        async with ResilientMessageBus(system=system, log=queue, codec=codec) as bus:
            letters = bus.dead_letters.list()
            assert [letter.reason for letter in letters] == [Reason.STOPPED] * 3
            numbers = [bus.dead_letters.show(letter.id).message.number for letter in letters]
            assert sorted(numbers) == [0, 1, 2]


async def test_an_event_that_a_middleware_breaks_on_is_a_dead_letter(bus):
    calls: list[object] = []

    async def broken(envelope, call_next):
        if not calls:
            calls.append(envelope)
            raise RuntimeError("middleware")
        await call_next(envelope)

    handler = Flaky(0)
    bus.use(broken)
    bus.subscribe(Ordered, handler)
    await bus.publish(Ordered(customer="a"))
    await bus.settle()
    [letter] = bus.dead_letters.list()
    assert letter.handler == "middleware"
    assert handler.calls == []
    await bus.dead_letters.replay(letter.id)
    await bus.settle()
    assert len(handler.calls) == 1
    assert balanced(bus)


async def test_a_handler_that_swallows_its_cancellation_does_not_hold_up_a_stop(system, clock):
    bus = ResilientMessageBus(system=system)
    await bus.start()
    gate = asyncio.Event()

    @bus.on(Ordered)
    async def stubborn(event):
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    await bus.publish(Ordered(customer="a"))
    await turns()
    stopping = asyncio.ensure_future(bus.stop(drain=False))
    await turns()
    assert not stopping.done()
    clock.advance(5.0)
    await turns()
    assert stopping.done()
    gate.set()
    await turns()


@pytest.mark.parametrize(
    "option", [{"retry": 3}, {"retries": -1}, {"retries": "3"}, {"breaker": "open"}]
)
async def test_a_wrong_option_is_refused_when_the_handler_is_registered(bus, option):
    with pytest.raises(InvalidOption, match="use"):
        bus.subscribe(Ordered, print, **option)
    with pytest.raises(InvalidOption, match="use"):
        bus.handle(Pay, print, **option)


async def test_a_timeout_in_the_past_is_refused_and_runs_nothing(bus):
    handler = Flaky(0)
    bus.handle(Pay, handler)
    with pytest.raises(InvalidOption, match="timeout"):
        await bus.execute(Pay(amount=1), timeout=-1)
    assert handler.calls == []


def test_a_topic_needs_a_name():
    with pytest.raises(InvalidName):
        topic("")
