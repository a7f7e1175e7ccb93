"""A handler that raises what is no Exception: it has failed, its event is in the books, and ``sys.exit`` ends the loop."""

import asyncio
import itertools
from typing import Any

import pytest

from penstock import (
    Command,
    Event,
    MessageBus,
    ResilientMessageBus,
    ScalableMessageBus,
    hot_path,
    topic,
)
from penstock.bus.intake import QueueOptions
from penstock.resilience.breaker import BreakerOptions, BreakerState
from penstock.resilience.retry import NO_RETRY, Retry
from penstock.testing.bus_fixtures import Gate, check_books
from penstock.testing.clock import until_idle


@topic("exits.usual", key="key")
class Usual(Event):
    number: int
    key: str = "a"


@hot_path
@topic("exits.hot")
class Hot(Event):
    number: int


class Ask(Command[None]):
    pass


class Fail(BaseException):
    """As that of ``pytest.fail``."""


BAD = 1
"""The number of the event on which handlers fail."""


class One:
    """A handler that fails on one event, with what it is given; it may wait before."""

    def __init__(self, error=Fail, *, waits=False):
        self.error = error
        self.waits = waits
        self.handled: list[int] = []

    async def __call__(self, event):
        if self.waits:
            await asyncio.sleep(0)
        if event.number == BAD:
            raise self.error
        self.handled.append(event.number)


def scalable(inner):
    return ScalableMessageBus(inner, backpressure=False)


MAKE = {
    "plain": MessageBus,
    "resilient": ResilientMessageBus,
    "scalable": lambda: scalable(MessageBus()),
    "scalable, resilient": lambda: scalable(ResilientMessageBus()),
}


@pytest.fixture(params=list(MAKE))
async def bus(request):
    async with MAKE[request.param]() as made:
        made.on_error(lambda *_: None)
        yield made
    check_books(made)


def ended(bus):
    found = bus.statistics()
    return found.events_processed, found.events_failed, found.events_unsettled


CASES = list(itertools.product([Usual, Hot], [False, True], [1, 2]))


@pytest.mark.parametrize(("kind", "waits", "handlers"), CASES)
async def test_its_event_has_failed_and_the_others_are_handled(bus, kind, waits, handlers):
    ones = [One(waits=waits) for _ in range(handlers)]
    for one in ones:
        bus.subscribe(kind, one)
    for number in range(4):
        bus.publish_nowait(kind(number))
    await bus.settle(timeout=5)
    assert [one.handled for one in ones] == [[0, 2, 3]] * handlers
    assert ended(bus) == (3, 1, 0)
    assert (await bus.stop()).undrained == ()


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize(("kind", "waits", "handlers"), CASES)
async def test_who_waits_for_its_event_is_told(bus, kind, waits, handlers, queued):
    gate = Gate()
    for _ in range(handlers):
        bus.subscribe(kind, One(waits=waits))
    if queued:
        bus.subscribe(kind, lambda event: gate.wait() if not event.number else None)
        bus.publish_nowait(kind(0))
        await until_idle()
    waiting = asyncio.create_task(bus.publish_and_wait(kind(BAD), timeout=5))
    await until_idle()
    gate.open()
    outcome = await waiting
    assert [type(one.error) for one in outcome.failures] == [Fail] * handlers
    await bus.settle(timeout=5)
    assert ended(bus) == (int(queued), 1, 0)


async def test_it_becomes_a_dead_letter_and_is_not_tried_again():
    async with ResilientMessageBus(retry=Retry(attempts=3)) as bus:
        bus.on_error(lambda *_: None)
        bus.subscribe(Usual, One(), ordered=True)
        for number in range(3):
            bus.publish_nowait(Usual(number))
        await bus.settle(timeout=5)
        assert [one.attempts for one in bus.dead_letters.list()] == [1]


async def test_one_that_fails_so_in_its_retry_lets_those_behind_it_go_on():
    errors = [ValueError, Fail]
    handled: list[int] = []

    def handle(event):
        if errors:
            raise errors.pop(0)
        handled.append(event.number)

    async with ResilientMessageBus(retry=Retry(attempts=3, delay=0)) as bus:
        bus.on_error(lambda *_: None)
        bus.subscribe(Usual, handle, ordered=True)
        for number in range(3):
            bus.publish_nowait(Usual(number))
        await bus.settle(timeout=5)
        assert handled == [1, 2]


@pytest.mark.parametrize("command", [False, True])
async def test_a_probe_that_ends_so_is_over(command):
    errors = [ValueError, Fail]

    def handle(message):
        if errors:
            raise errors.pop(0)

    async def call(one):
        await (one.execute(Ask()) if command else one.publish_and_wait(Usual(0)))

    async with ResilientMessageBus(retry=NO_RETRY) as bus:
        bus.on_error(lambda *_: None)
        options = BreakerOptions(failures=1, recovery=0, successes=1)
        add = bus.handle if command else bus.subscribe
        add(Ask if command else Usual, handle, breaker=options)
        (breaker,) = bus.breakers().values()
        for _ in range(3):
            await asyncio.gather(call(bus), return_exceptions=True)
        assert breaker.state is BreakerState.CLOSED
        if command:
            found = bus.statistics()
            assert (found.commands_succeeded, found.commands_failed) == (1, 2)


@pytest.mark.parametrize("where", ["filter", "middleware", "batch"])
async def test_one_that_comes_from_elsewhere_fails_its_event_too(where):
    async with MessageBus() as bus:
        bus.on_error(lambda *_: None)
        handled: list[int] = []

        def check(number):
            if number == BAD:
                raise Fail
            return True

        async def middleware(envelope, go_on):
            check(envelope.message.number)
            await go_on(envelope)

        def take(events):
            handled.extend(event.number for event in events if check(event.number))

        if where == "batch":
            bus.subscribe(Usual, take, batch=1)
        else:
            asks = (lambda one: check(one.message.number)) if where == "filter" else None
            bus.subscribe(Usual, lambda event: handled.append(event.number), where=asks)
        if where == "middleware":
            bus.use(middleware, commands=False)
        for number in range(3):
            bus.publish_nowait(Usual(number))
        await bus.settle(timeout=5)
        assert handled == [0, 2]
        assert ended(bus) == (2, 1, 0)


@pytest.mark.parametrize("name", list(MAKE))
@pytest.mark.parametrize(("kind", "waits", "handlers"), CASES)
def test_an_exit_ends_the_loop_before_another_event_begins(name, kind, waits, handlers):
    """Who runs the loop again finds the event failed and the others handled."""
    loop = asyncio.new_event_loop()
    ones = [One(SystemExit(3), waits=waits) for _ in range(handlers)]

    async def begin():
        bus = MAKE[name]()
        bus.on_error(lambda *_: None)
        await bus.start()
        for one in ones:
            bus.subscribe(kind, one)
        return bus

    async def live():
        for number in range(4):
            bus.publish_nowait(kind(number))
        await asyncio.Event().wait()

    async def end():
        task.cancel()
        return await bus.stop()

    bus = loop.run_until_complete(begin())
    task = loop.create_task(live())
    with pytest.raises(SystemExit, match="3"):
        loop.run_until_complete(task)
    assert [one.handled for one in ones] == [[0]] * handlers
    assert loop.run_until_complete(end()).undrained == ()
    loop.close()
    assert [one.handled for one in ones] == [[0, 2, 3]] * handlers
    assert ended(bus) == (3, 1, 0)


# ------------------------------------------------------------------- what is done about failures


def exits(*_):
    raise SystemExit(3)


def fails_at(number):
    def handle(event):
        if event.number == number:
            raise ValueError(number)

    return handle


async def in_a_loop_of_its_own(bus, publish):
    """Publish events, the second of which fails; what stop reports, when the loop has ended."""
    await bus.start()
    for number in range(3):
        await publish(bus, Usual(number))
    await until_idle()


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("name", list(MAKE))
def test_a_callback_of_errors_may_end_the_program(name, awaited):
    """Its event is in the books before the loop ends, and nobody is left waiting for it."""
    bus = MAKE[name]()
    bus.on_error(exits)
    bus.subscribe(Usual, fails_at(BAD), **({} if "resilient" not in name else {"retry": NO_RETRY}))

    async def publish(bus, event):
        await (bus.publish_and_wait(event) if awaited else bus.publish(event))

    async def stopped():
        return await bus.stop(timeout=5)

    with asyncio.Runner() as runner:
        with pytest.raises(SystemExit) as ended_by:
            runner.run(in_a_loop_of_its_own(bus, publish))
        assert ended_by.value.code == 3
        assert runner.run(stopped()).undrained == ()
    assert ended(bus)[1:] == (1, 0)
    if "resilient" in name:
        assert len(bus.dead_letters) == 1
    check_books(bus)


def test_a_callback_of_the_pressure_may_end_the_program():
    bus = MessageBus(queue=QueueOptions(capacity=2))
    bus.on_pressure(lambda _, started: exits() if started else None)
    handled: list[Usual] = []
    bus.subscribe(Usual, handled.append)

    async def run():
        await bus.start()
        for number in range(2):
            bus.publish_nowait(Usual(number))
        await until_idle()

    async def stopped():
        return await bus.stop(timeout=5)

    with asyncio.Runner() as runner:
        with pytest.raises(SystemExit):
            runner.run(run())
        assert runner.run(stopped()).undrained == ()
    assert len(handled) == 2
    check_books(bus)


def test_a_callback_ends_the_program_where_no_bus_runs():
    bus = MessageBus(queue=QueueOptions(capacity=1))
    bus.on_pressure(exits)
    with pytest.raises(SystemExit):
        bus.publish_nowait(Usual(0))


class Broken:
    """A policy that fails itself."""

    def failed(self, *_):
        raise TypeError("unhashable")

    refused = broken = failed


@pytest.mark.parametrize("waits", [False, True])
async def test_a_policy_that_fails_leaves_no_event_unsettled_and_no_lane_shut(waits):
    async with MessageBus() as bus:
        bus._dispatch.failures = Broken()
        one = One(waits=waits)
        bus.subscribe(Usual, one)
        outcomes = [await bus.publish_and_wait(Usual(number), timeout=5) for number in range(3)]
        assert [len(outcome.failures) for outcome in outcomes] == [0, 1, 0]
        bus.publish_nowait(Usual(BAD))
        bus.publish_nowait(Usual(3))
        await bus.settle(timeout=5)
        assert one.handled == [0, 2, 3]
        assert ended(bus) == (3, 2, 0)
    check_books(bus)


class BrokenNotes:
    """What the twin hands over to Python for, and which fails there."""

    def __init__(self, dispatch):
        self._dispatch = dispatch

    def __getattr__(self, name):
        return getattr(self._dispatch, name)

    def end_alone(self, *_):
        raise MemoryError


async def test_a_lane_goes_on_after_what_is_left_of_an_event_could_not_be_begun():
    async with MessageBus() as bus:
        one = One()
        handler = bus.subscribe(Usual, one)
        await bus.publish_and_wait(Usual(0))
        lane = bus._intake.lanes[Usual]
        dispatch: Any = lane.dispatch
        broken: Any = BrokenNotes(dispatch)
        lane.dispatch = broken
        lane.pumps += 1
        envelope = bus._intake.enclose(Usual(1))
        with pytest.raises(MemoryError):
            lane.go_on_in_place(handler, envelope, None, ValueError(), None)
        lane.dispatch = dispatch
        await bus.publish_and_wait(Usual(2), timeout=5)
        assert (one.handled, lane.pumps) == ([0, 2], 0)
