"""The way of an event that nobody looks at, compiled or not: what handlers, books and awaiters see is the same."""

import asyncio
import gc
import inspect
import itertools
import warnings
import weakref
from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from unittest.mock import create_autospec

import msgspec
import pytest

from penstock import Envelope, Event, MessageBus, Priority, ResilientMessageBus, current_envelope
from penstock.bus.batching import Batching
from penstock.bus.turns import TURN_EVENTS, TURN_EVENTS_MAX
from penstock.errors import InvalidOption
from penstock.observe import Observer
from penstock.resilience.breaker import BreakerOptions, BreakerState
from penstock.resilience.retry import NO_RETRY
from penstock.speedups import compiled

seen: ContextVar[int] = ContextVar("seen", default=-1)


class Ping(Event):
    number: int


class Alert(Event):
    number: int


class Open(msgspec.Struct, weakref=True):
    """What is put into it later, the garbage collector looks at."""

    number: int
    more: object = None


@dataclass
class Order:
    """The garbage collector looks at it."""

    lines: list = field(default_factory=list)


@pytest.fixture(params=[MessageBus, ResilientMessageBus])
async def bus(request):
    async with request.param() as made:
        made.on_error(lambda *_: None)
        yield made


def mine() -> Envelope:
    one = current_envelope()
    assert one is not None
    return one


def figures(bus):
    found = bus.statistics()
    return (
        found.events_published,
        found.events_processed,
        found.events_failed,
        found.events_unsettled,
    )


async def test_the_books_are_exact_in_the_middle_of_a_burst(bus):
    told = []

    @bus.on(Ping)
    async def handle(event):
        told.append((figures(bus), bus.statistics().queues))

    for number in range(3):
        bus.publish_nowait(Ping(number))
    await bus.settle()
    assert [found for found, _ in told] == [(3, done, 0, 3 - done) for done in range(3)]
    assert [next(iter(queues.values())).depth for _, queues in told] == [2, 1, 0]
    assert figures(bus) == (3, 3, 0, 0)
    assert bus.statistics().handlers[0].handled == 3


async def test_each_event_has_an_envelope_of_its_own_when_somebody_looks(bus):
    kept = []

    @bus.on(Ping)
    async def handle(event):
        one = mine()
        kept.append((one, mine() is one, one.message is event, one.settled))

    before = bus._intake.now_ms()
    for number in range(3):
        bus.publish_nowait(Ping(number))
    await bus.publish(Ping(3))
    await bus.settle()
    await bus.publish_and_wait(Ping(4))
    after = bus._intake.now_ms()
    assert [rest for _, *rest in kept] == [[True, True, False]] * 5
    assert [one.sequence for one, *_ in kept] == sorted({one.sequence for one, *_ in kept})
    assert all(before <= one.time_ms <= after and one.settled for one, *_ in kept)
    assert current_envelope() is None


async def test_a_task_of_a_handler_keeps_the_envelope_of_its_event(bus):
    go, tasks = asyncio.Event(), []

    async def later():
        await go.wait()
        return mine().message.number

    @bus.on(Ping)
    async def handle(event):
        tasks.append(asyncio.create_task(later()))

    for number in range(3):
        bus.publish_nowait(Ping(number))
    await bus.settle()
    go.set()
    assert await asyncio.gather(*tasks) == [0, 1, 2]


async def test_what_a_handler_publishes_follows_from_its_event(bus):
    ids = []

    @bus.on(Ping)
    async def handle(event):
        one = mine()
        ids.append((one.id, one.causation_id, one.correlation))
        if event.number:
            bus.publish_nowait(Ping(event.number - 1))

    bus.publish_nowait(Ping(2))
    await bus.settle()
    (first, no_cause, chain), (second, cause, same), (_, last_cause, also) = ids
    assert (no_cause, cause, last_cause) == (None, first, second)
    assert chain == same == also == first


async def test_what_a_handler_sets_in_its_context_ends_with_it(bus):
    found = []

    @bus.on(Ping)
    async def handle(event):
        found.append(seen.get())
        seen.set(event.number)
        if event.number == 1:
            await asyncio.sleep(0)
        found.append(seen.get())

    for number in range(3):
        bus.publish_nowait(Ping(number))
    await bus.settle()
    await bus.publish_and_wait(Ping(3))
    assert found == [-1, 0, -1, 1, -1, 2, -1, 3]
    assert seen.get() == -1


async def test_events_of_all_kinds_in_one_lane_keep_their_order(bus):
    handled = []
    bus.subscribe(Ping, lambda event: handled.append(event.number))
    for number in range(0, 30, 3):
        bus.publish_nowait(Ping(number))
        bus.publish_nowait(Ping(number + 1), headers={"a": "b"})
        await bus.publish(Ping(number + 2), session="other")
    bus.publish_nowait(Ping(-1), priority=Priority.FIRST)
    await bus.settle()
    assert handled == [-1, *range(30)]


async def test_one_that_fails_does_not_hold_up_the_others():
    async with MessageBus() as bus:
        errors, handled = [], []
        bus.on_error(
            lambda handler, envelope, error: errors.append((envelope.message.number, str(error)))
        )

        @bus.on(Ping)
        async def handle(event):
            if event.number % 2:
                raise ValueError("odd")
            handled.append(event.number)

        for number in range(4):
            bus.publish_nowait(Ping(number))
        await bus.settle()
        outcome = await bus.publish_and_wait(Ping(5))
        assert (handled, errors) == ([0, 2], [(1, "odd"), (3, "odd"), (5, "odd")])
        assert [str(one.error) for one in outcome.failures] == ["odd"]
        assert figures(bus) == (5, 2, 3, 0)


@pytest.mark.parametrize("stopping", [False, True])
@pytest.mark.parametrize("waits", [False, True])
async def test_what_is_published_about_a_failure_follows_from_the_event_that_failed(
    stopping, waits
):
    causes, alerts = list[str](), list[tuple[int, str | None]]()
    bus = MessageBus()

    @bus.on(Alert)
    async def hear(event):
        alerts.append((event.number, mine().causation_id))

    @bus.on(Ping)
    async def handle(event):
        causes.append(mine().id)
        if waits:
            await asyncio.sleep(0)
        raise ValueError

    bus.on_error(lambda _, envelope, error: bus.publish_nowait(Alert(envelope.message.number)))
    await bus.start()
    for number in range(3):
        bus.publish_nowait(Ping(number))
    if not stopping:
        await bus.settle()
    assert (await bus.stop()).undrained == ()
    assert alerts == list(enumerate(causes))
    assert figures(bus) == (6, 3, 3, 0)


@pytest.mark.parametrize("wrong", [-0.5, -1, float("nan"), "soon"])
async def test_a_timeout_that_is_none_is_refused_before_the_handler_is_called(bus, wrong):
    handled = []

    @bus.on(Ping)
    async def handle(event):
        handled.append(event.number)
        await asyncio.sleep(0)

    for number in range(2):  # the first one is not known to the twin
        with pytest.raises((InvalidOption, TypeError)):
            await bus.publish_and_wait(Ping(number), timeout=wrong)
        await bus.publish_and_wait(Ping(10 + number), timeout=5)
        await bus.publish(Ping(20 + number))
        await bus.settle()
    assert handled == [10, 20, 11, 21]


async def test_handlers_that_change_with_each_event_let_others_use_the_loop(bus):
    handled, turns = list[int](), list[int]()

    @bus.on(Ping)
    async def handle(event):
        handled.append(event.number)
        async with bus.session(f"session-{event.number}") as session:
            session.subscribe(Alert, print)
        if event.number < 2_000:
            bus.publish_nowait(Ping(event.number + 1))

    async def others():
        while True:
            turns.append(len(handled))
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    bus.publish_nowait(Ping(0))
    await bus.settle()
    task.cancel()
    assert len(handled) == 2_001
    assert max(after - before for before, after in itertools.pairwise(turns)) <= TURN_EVENTS


async def test_a_message_that_may_refer_to_its_own_task_later_is_let_go(bus):
    left = []

    @bus.on(Open)
    async def handle(event):
        async def child():
            return event.number

        event.more = asyncio.create_task(child())
        left.append(weakref.ref(event))

    for _ in range(2):
        bus.publish_nowait(Open(1))
        await bus.settle()
        await bus.publish_and_wait(Open(2))
    await asyncio.sleep(0)
    gc.collect()
    assert [one() for one in left] == [None] * 4


async def test_a_call_of_publish_is_a_coroutine_that_begins_when_it_is_awaited(bus):
    handled = []
    bus.subscribe(Ping, lambda event: handled.append(event.number))
    await bus.publish_and_wait(Ping(0))
    call = bus.publish(Ping(1))
    assert asyncio.iscoroutine(call)
    assert bus.statistics().events_published == 1
    await asyncio.create_task(call)
    await asyncio.wait_for(bus.publish(Ping(2)), 5)
    await asyncio.gather(bus.publish(Ping(3)), bus.publish_and_wait(Ping(4)))
    await bus.settle()
    assert handled == [0, 1, 2, 3, 4]
    task = asyncio.create_task(bus.publish(Ping(5)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bus.statistics().events_published == 5


async def test_a_call_that_nobody_awaits_is_told(bus):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        bus.publish(Ping(1))
        bus.publish_and_wait(Ping(1))
        gc.collect()
    assert ["never awaited" in str(one.message) for one in told] == [True, True]
    assert bus.statistics().events_published == 0


async def test_a_message_is_let_go_when_it_is_handled(bus):
    class Body:
        """Something that a weak reference can be to."""

    left = []
    bus.subscribe(Order, lambda order: left.append(weakref.ref(order.lines[0])))
    bus.publish_nowait(Order([Body()]))
    await bus.publish(Order([Body()]))
    await bus.settle()
    await bus.publish_and_wait(Order([Body()]))
    gc.collect()
    assert [one() for one in left] == [None, None, None]


async def test_a_handler_that_is_slow_lets_others_use_the_loop_after_a_hundred_events(bus):
    turns = list[int]()
    handled = list[int]()

    async def others():
        while True:
            turns.append(len(handled))
            await asyncio.sleep(0)

    bus.subscribe(Ping, lambda event: handled.append(sum(range(2_000))))
    task = asyncio.create_task(others())
    for number in range(2_000):
        bus.publish_nowait(Ping(number))
    await bus.settle()
    task.cancel()
    steps = [after - before for before, after in itertools.pairwise(turns)]
    assert max(steps) <= TURN_EVENTS_MAX
    assert TURN_EVENTS in steps


async def test_an_event_that_is_refused_beside_an_open_batch_leaves_its_lane_free():
    """Given a batch that an interrupted publisher left open, then its lane goes on after the next event."""
    async with MessageBus() as bus:
        got: list[int] = []
        calls, began = itertools.count(), asyncio.Event()

        async def gather(events):
            if not next(calls):
                began.set()
                await asyncio.Event().wait()
            got.extend(event.number for event in events)

        batch = Batching(10, timeout=3_600)
        bus.subscribe(Ping, gather, batch=batch, where=lambda one: one.message.number >= 0)
        left = asyncio.create_task(bus.publish_and_wait(Ping(0)))
        await began.wait()
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        assert (await bus.publish_and_wait(Ping(-1))).filtered
        assert bus._intake.lanes[Ping].pumps == 0
        bus.publish_nowait(Ping(5))
        await bus.settle()
        assert got == [0, 5]


@pytest.mark.parametrize("name", ["publish", "publish_and_wait"])
async def test_who_asks_is_told_that_publishing_is_a_coroutine_function(bus, name):
    function = getattr(bus, name)
    assert inspect.iscoroutinefunction(function)
    assert next(iter(inspect.signature(function).parameters)) == "event"
    assert function.__module__.startswith("penstock.")
    call = getattr(create_autospec(bus), name)(Ping(1))
    assert isinstance(call, Coroutine)
    call.close()


@pytest.mark.parametrize("name", ["publish", "publish_nowait", "publish_and_wait"])
@pytest.mark.parametrize("before", [True, False])
async def test_a_function_of_the_class_that_is_wrapped_sees_every_event(monkeypatch, name, before):
    seen_by, usual = [], getattr(MessageBus, name)

    def spy(self, event, **options):
        seen_by.append(event.number)
        return usual(self, event, **options)

    if before:
        monkeypatch.setattr(MessageBus, name, spy)
    async with MessageBus() as bus:
        bus.subscribe(Ping, lambda _: None)
        monkeypatch.setattr(MessageBus, name, spy)
        for number in range(3):
            done = getattr(bus, name)(Ping(number))
            if done is not None:
                await done
        await bus.settle()
    assert seen_by == [0, 1, 2]


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("way", ["waits", "returns", "raises"])
async def test_a_call_that_began_before_the_circuit_opened_does_not_probe_it(way, queued):
    async with ResilientMessageBus(retry=NO_RETRY) as bus:
        bus.on_error(lambda *_: None)

        async def handle(event):
            if event.number == 1:
                raise ValueError
            if event.number == 0:
                await bus.publish_and_wait(Ping(1))
                if way == "waits":
                    await asyncio.sleep(0)
                if way == "raises":
                    raise KeyError

        options = BreakerOptions(failures=1, recovery=0, successes=1)
        bus.subscribe(Ping, handle, breaker=options)
        breaker = next(iter(bus.breakers().values()))
        changes = []
        breaker.on_change(lambda _, now: changes.append(now))
        for number in (2, 0):
            if queued:
                bus.publish_nowait(Ping(number))
            else:
                await bus.publish_and_wait(Ping(number))
        await bus.settle()
        assert changes == [BreakerState.OPEN]
        assert (breaker.statistics().admitted, breaker.statistics().refused) == (3, 0)


async def test_calls_that_went_well_before_the_circuit_opened_are_no_probes():
    """Given a run whose first event went well, and one in the second that opened the circuit, the third is the probe."""
    async with ResilientMessageBus(retry=NO_RETRY) as bus:
        bus.on_error(lambda *_: None)

        async def handle(event):
            if event.number == 1:
                await bus.publish_and_wait(Ping(100))
            if event.number in (100, 2):
                raise ValueError

        bus.subscribe(Ping, handle, breaker=BreakerOptions(failures=1, recovery=0, successes=1))
        breaker = next(iter(bus.breakers().values()))
        changes = []
        breaker.on_change(lambda _, now: changes.append(now))
        for number in range(3):
            bus.publish_nowait(Ping(number))
        await bus.settle()
        assert changes == [BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.OPEN]
        found = breaker.statistics()
        assert (found.admitted, found.succeeded, found.failed) == (4, 2, 2)


@pytest.mark.parametrize("watched", [False, True])
async def test_a_handler_that_becomes_slow_is_looked_at_within_a_long_turn(
    bus, monkeypatch, watched
):
    """Given turns that grew long, then one with slow events ends at the next look; also of a bus with metrics."""
    loop, slow, clock = asyncio.get_running_loop(), False, 0.0
    turns: list[int] = []
    handled: list[int] = []
    count = 20 * TURN_EVENTS_MAX

    def handle(event):
        nonlocal clock
        handled.append(event.number)
        if slow and len(handled) % TURN_EVENTS == 0:
            clock += 1.0

    def turn():
        turns.append(len(handled))
        if len(handled) < count:
            loop.call_soon(turn)

    if watched:
        Observer().watch(bus)
    bus.subscribe(Ping, handle)
    monkeypatch.setattr(loop, "time", lambda: clock)
    for slow in (False, True):
        handled.clear()
        turns.clear()
        for number in range(count):
            bus.publish_nowait(Ping(number))
        loop.call_soon(turn)
        await bus.settle()
        gaps = [after - one for one, after in itertools.pairwise(turns)]
        assert max(gaps) == (TURN_EVENTS if slow or compiled is None else TURN_EVENTS_MAX)
