"""The resilient bus: retries, circuit breakers and dead letters on the real path."""

import asyncio
import itertools
import random
from dataclasses import replace

import pytest

from penstock import WalMessageQueue
from penstock.bus.encoding import MessageCodec
from penstock.bus.intake import QueueOptions
from penstock.errors import (
    CircuitOpen,
    InvalidName,
    InvalidOption,
    NonRetryable,
    UsageError,
)
from penstock.messages import Code, Command, Event, topic
from penstock.resilience.breaker import BreakerOptions, BreakerState
from penstock.resilience.bus import ResilientMessageBus
from penstock.resilience.dead_letters import (
    DeadLetterCommandEvent,
    DeadLetterEvent,
    DeadLetterOptions,
    Reason,
)
from penstock.resilience.retry import Retry
from penstock.system import System
from penstock.testing import VirtualClock

PLAIN = Retry(jitter=False)


@topic("orders", key="customer")
class Ordered(Event):
    customer: str
    number: int = 0


class Pay(Command[str]):
    amount: int


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def system(clock):
    return System(clock=clock, random=random.Random(7))


@pytest.fixture
async def bus(system):
    async with ResilientMessageBus(system=system, retry=PLAIN) as bus:
        bus.on_error(lambda *_: None)
        yield bus
        await bus.stop(drain=False)  # time stands still: after a failure nobody would end a drain


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


async def let_pass(clock, seconds, step=0.05):
    """Let virtual time pass, and the loop keep up with it."""
    await turns()
    for _ in range(round(seconds / step)):
        clock.advance(step)
        await turns()


def balanced(bus):
    figures = bus.statistics()
    return figures.events_published == (
        figures.events_processed
        + figures.events_failed
        + figures.events_filtered
        + figures.events_unhandled
        + figures.events_dropped
        + figures.events_unsettled
    )


class Flaky:
    """A handler that fails some times, then works."""

    def __init__(self, failures, error=RuntimeError):
        self.failures = failures
        self.error = error
        self.calls = []

    async def __call__(self, message):
        self.calls.append(message)
        if len(self.calls) <= self.failures:
            raise self.error("not now")
        return "done"


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


# ------------------------------------------------------------------------------- dead letters


@pytest.mark.acceptance(110)
async def test_what_fails_for_good_is_a_dead_letter_with_its_story(bus, clock):
    bus.subscribe(Ordered, Flaky(9), name="billing")
    await bus.publish(Ordered(customer="a", number=3), headers={"trace": "t1"})
    await let_pass(clock, 1)
    await bus.settle()
    [letter] = bus.dead_letters.list()
    assert letter.message == Ordered(customer="a", number=3)
    assert (letter.topic, letter.handler, letter.key) == ("orders", "billing", "a")
    assert letter.attempts == 3
    assert "not now" in letter.error
    assert "Flaky" in letter.traceback or "test_resilient_bus" in letter.traceback
    assert letter.first_failed_ms + 300 == pytest.approx(letter.last_failed_ms, abs=60)
    assert letter.headers["trace"] == "t1"
    assert bus.statistics().events_failed == 1
    assert balanced(bus)


@pytest.mark.acceptance(111)
async def test_a_replayed_letter_goes_to_the_handler_that_failed_and_to_no_other(bus, clock):
    fine, flaky = Flaky(0), Flaky(3)
    bus.subscribe(Ordered, fine, name="fine")
    bus.subscribe(Ordered, flaky, name="flaky")
    await bus.publish(Ordered(customer="a"))
    await let_pass(clock, 1)
    await bus.settle()
    [letter] = bus.dead_letters.list()
    assert (await bus.dead_letters.replay(letter.id, dry_run=True)).replayed == 1
    assert len(bus.dead_letters) == 1
    await bus.dead_letters.replay(letter.id)
    await bus.settle()
    assert (len(fine.calls), len(flaky.calls)) == (1, 4)
    assert len(bus.dead_letters) == 0


@pytest.mark.acceptance(111)
async def test_full_dead_letters_never_block(system, clock):
    async with ResilientMessageBus(
        system=system, retry=Retry(attempts=1), dead_letters=DeadLetterOptions(letters_max=3)
    ) as bus:
        bus.on_error(lambda *_: None)
        bus.subscribe(Ordered, Flaky(10**6), breaker=None)
        for number in range(10):
            await bus.publish(Ordered(customer="a", number=number))
        await bus.settle()
        assert [letter.message.number for letter in bus.dead_letters.list()] == [7, 8, 9]
        assert bus.dead_letters.statistics().dropped == 7


@pytest.mark.acceptance(112)
async def test_a_dead_command_is_told_once_by_a_typed_event(bus, clock):
    told: list[DeadLetterCommandEvent] = []
    bus.subscribe(DeadLetterCommandEvent, told.append)
    bus.handle(Pay, Flaky(9), name="payments")
    paying = asyncio.ensure_future(bus.execute(Pay(amount=1)))
    await let_pass(clock, 1)
    result = await paying
    assert result.code is Code.HANDLER_ERROR
    await bus.settle()
    [event] = told
    assert (event.handler, event.attempts, event.reason) == ("payments", 3, Reason.FAILED)


async def test_a_dead_letter_event_that_fails_is_not_told_of_again(bus, clock):
    told = Flaky(10**6)
    bus.subscribe(DeadLetterEvent, told, retry=None)
    bus.subscribe(Ordered, Flaky(9), retry=None)
    await bus.publish(Ordered(customer="a"))
    await bus.settle()
    assert len(told.calls) == 1
    assert len(bus.dead_letters) == 2


async def test_later_events_of_a_key_follow_the_first_into_the_dead_letters(bus, clock):
    handled = []

    @bus.on(Ordered, name="strict", retry=None, ordered_dead_letters=True)
    async def handler(event, envelope):
        if event.number == 0 and "x-penstock-replay" not in envelope.headers:
            raise RuntimeError("bad")
        handled.append((event.customer, event.number))

    for number in range(3):
        await bus.publish(Ordered(customer="a", number=number))
    await bus.publish(Ordered(customer="b", number=1))
    await bus.settle()
    assert handled == [("b", 1)]
    letters = bus.dead_letters.list()
    assert [letter.message.number for letter in letters] == [0, 1, 2]
    assert [letter.reason for letter in letters] == [Reason.FAILED] + 2 * [Reason.BEHIND_ANOTHER]
    await bus.dead_letters.replay([letter.id for letter in letters])
    await bus.publish(Ordered(customer="a", number=3))
    await bus.settle()
    assert handled == [("b", 1), ("a", 0), ("a", 1), ("a", 2), ("a", 3)]


@pytest.mark.acceptance(113)
async def test_errors_are_tracked_by_handler_and_by_kind(bus, clock):
    bus.subscribe(Ordered, Flaky(2), name="flaky")
    bus.subscribe(Ordered, Flaky(1, KeyError), name="other")
    await bus.publish(Ordered(customer="a"))
    await let_pass(clock, 1)
    await bus.settle()
    figures = bus.errors()
    assert figures.by_handler["flaky"].failures == 2
    assert figures.by_handler["flaky"].ratio == pytest.approx(2 / 3)
    assert figures.by_type["KeyError"].failures == 1
    assert figures.recent[-1].handler == "flaky"


# ----------------------------------------------------------------------------------- breakers


BREAKER = BreakerOptions(failures=5, recovery=60.0, successes=3)


@pytest.mark.acceptance(118)
async def test_failing_commands_open_the_circuit_and_then_fail_fast(bus, clock):
    handler = Flaky(5)
    bus.handle(Pay, handler, retry=None, breaker=BREAKER, name="payments")
    for _ in range(5):
        assert (await bus.execute(Pay(amount=1))).code is Code.HANDLER_ERROR
    result = await bus.execute(Pay(amount=1))
    assert result.code is Code.CIRCUIT_OPEN
    assert isinstance(result.error, CircuitOpen)
    assert result.error.retry_after == pytest.approx(60.0)
    assert len(handler.calls) == 5
    clock.advance(60.0)
    for _ in range(3):
        assert (await bus.execute(Pay(amount=1))).success
    [breaker] = bus.breakers().values()
    assert breaker.state is BreakerState.CLOSED


@pytest.mark.acceptance(118)
async def test_timeouts_open_the_circuit(bus, clock):
    @bus.handles(Pay, retry=None, breaker=replace(BREAKER, failures=2))
    async def hang(command):
        await asyncio.Event().wait()

    for _ in range(2):
        paying = asyncio.ensure_future(bus.execute(Pay(amount=1), timeout=1.0))
        await let_pass(clock, 1.1)
        assert (await paying).code is Code.TIMEOUT
    assert (await bus.execute(Pay(amount=1))).code is Code.CIRCUIT_OPEN


@pytest.mark.acceptance(118)
async def test_a_half_open_circuit_admits_a_bounded_number_of_probes(bus, clock):
    gate = asyncio.Event()
    running = 0

    @bus.handles(Pay, retry=None, breaker=BREAKER)
    async def handler(command):
        nonlocal running
        if command.amount < 0:
            raise RuntimeError("no")
        running += 1
        await gate.wait()

    for _ in range(5):
        await bus.execute(Pay(amount=-1))
    clock.advance(60.0)
    calls = [asyncio.ensure_future(bus.execute(Pay(amount=1))) for _ in range(20)]
    await turns()
    assert running == 3
    gate.set()
    codes = [(await call).code for call in calls]
    assert codes.count(Code.OK) == 3
    assert codes.count(Code.CIRCUIT_OPEN) == 17


@pytest.mark.acceptance(118)
async def test_an_open_circuit_makes_dead_letters_of_events(bus, clock):
    handler = Flaky(10**6)
    bus.subscribe(Ordered, handler, retry=None, breaker=BREAKER)
    for number in range(8):
        await bus.publish(Ordered(customer="a", number=number))
    await bus.settle()
    assert len(handler.calls) == 5
    reasons = [letter.reason for letter in bus.dead_letters.list()]
    assert reasons == 5 * [Reason.FAILED] + 3 * [Reason.CIRCUIT_OPEN]
    assert balanced(bus)


async def test_an_open_circuit_pauses_when_asked_and_loses_nothing(bus, clock):
    handled = []
    broken = True

    @bus.on(Ordered, retry=None, breaker=BREAKER, pause=True)
    async def handler(event):
        if broken:
            raise RuntimeError("down")
        handled.append(event.number)

    for number in range(10):
        await bus.publish(Ordered(customer="a", number=number))
    await turns()
    assert len(bus.dead_letters) == 5
    broken = False
    await let_pass(clock, 61, step=1.0)
    await bus.settle()
    assert handled == [5, 6, 7, 8, 9]
    await bus.publish(Ordered(customer="a", number=10))
    await bus.settle()
    assert handled[-1] == 10
    assert balanced(bus)


@pytest.mark.acceptance(119)
async def test_breakers_of_handlers_and_sessions_are_independent(bus):
    changes = []
    bus.on_breaker_change(lambda *change: changes.append(change))
    bus.subscribe(Ordered, Flaky(99), name="bad", retry=None)
    bus.subscribe(Ordered, Flaky(0), name="good")
    async with bus.session("s") as session:
        session.subscribe(Ordered, Flaky(0), name="bad")
        for _ in range(6):
            await session.publish(Ordered(customer="a"))
        await bus.settle()
        states = {name: breaker.state for name, breaker in bus.breakers().items()}
    assert states == {
        "bad@BUS": BreakerState.OPEN,
        "good@BUS": BreakerState.CLOSED,
        "bad@s": BreakerState.CLOSED,
    }
    assert changes == [("bad", BreakerState.CLOSED, BreakerState.OPEN)]


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
