"""What the resilient bus does with what fails for good: dead letters and open circuits."""

import asyncio
from dataclasses import replace

import pytest

from penstock.errors import CircuitOpen
from penstock.messages import Code
from penstock.resilience.breaker import BreakerOptions, BreakerState
from penstock.resilience.bus import ResilientMessageBus
from penstock.resilience.dead_letters import (
    DeadLetterCommandEvent,
    DeadLetterEvent,
    DeadLetterOptions,
    Reason,
)
from penstock.resilience.retry import Retry
from tests.resilience.resilient_world import Flaky, Ordered, Pay, balanced, let_pass, turns

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
    assert "Flaky" in letter.traceback or "resilient_world" in letter.traceback
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
