"""Who listens to dead letters is told of each; where that cannot be, the events are settled all the same."""

import asyncio
import itertools
from contextlib import AsyncExitStack

import pytest

from penstock import Command, Event, ResilientMessageBus, WalMessageQueue
from penstock.bus.delivery import Attempts
from penstock.resilience.breaker import BreakerOptions
from penstock.resilience.dead_letters import Reason
from penstock.resilience.letters import DeadLetterCommandEvent, DeadLetterEvent
from penstock.resilience.retry import NO_RETRY, Retry
from penstock.system import System
from penstock.testing import VirtualClock


class Ping(Event):
    number: int


class Fail(Command[None]):
    pass


class Failing:
    """A bus whose handler fails, and who is told of the dead letters."""

    def __init__(self, *, waits=False, **options):
        self.bus = ResilientMessageBus(**options)
        self.bus.on_error(lambda *_: None)
        self.told: list[str] = []
        self.waits = waits
        self.called, self.go = asyncio.Event(), asyncio.Event()
        self.bus.subscribe(DeadLetterEvent, lambda event: self.told.append(event.error))
        self.bus.subscribe(Ping, self.handle)

    async def handle(self, event):
        self.called.set()
        if self.waits:
            await self.go.wait()
        raise ValueError(event.number)

    @property
    def letters(self):
        return self.bus.dead_letters.statistics().letters


@pytest.mark.parametrize("waits", [False, True])
async def test_a_handler_that_fails_while_the_bus_drains_has_dead_letters_that_are_told(waits):
    one = Failing(waits=waits, retry=NO_RETRY)
    await one.bus.start()
    for number in range(3):
        one.bus.publish_nowait(Ping(number))
    one.go.set()
    report = await one.bus.stop()
    statistics = one.bus.statistics()
    assert report.undrained == ()
    assert (statistics.events_failed, statistics.events_unsettled) == (3, 0)
    assert one.told == ["0", "1", "2"]


async def test_a_last_retry_that_fails_while_the_bus_drains_settles_its_event():
    one = Failing(retry=Retry(attempts=2, delay=0.01))
    await one.bus.start()
    one.bus.publish_nowait(Ping(0))
    report = await one.bus.stop()
    assert report.undrained == ()
    assert (one.bus.statistics().events_unsettled, one.letters) == (0, 1)


async def test_who_waits_for_an_event_that_fails_while_the_bus_drains_gets_its_outcome():
    one = Failing(waits=True, retry=NO_RETRY)
    await one.bus.start()
    waiting = asyncio.create_task(one.bus.publish_and_wait(Ping(0)))
    await one.called.wait()
    stopping = asyncio.create_task(one.bus.stop())
    await asyncio.sleep(0)
    one.go.set()
    assert [str(failure.error) for failure in (await waiting).failures] == ["0"]
    assert (await stopping).undrained == ()
    assert one.letters == 1


async def test_a_bus_with_a_log_that_stops_at_once_keeps_each_event_as_a_letter(tmp_path):
    async with WalMessageQueue(tmp_path) as log:
        one = Failing(waits=True, log=log, retry=NO_RETRY)
        await one.bus.start()
        for number in range(3):
            one.bus.publish_nowait(Ping(number))
        report = await one.bus.stop(drain=False)
        assert (len(report.undrained), one.letters) == (3, 3)
        async with ResilientMessageBus(log=log) as another:
            assert another.dead_letters.statistics().letters == 3


async def test_a_filter_that_fails_on_what_is_told_leaves_the_event_settled(caplog):
    one = Failing(retry=NO_RETRY)
    one.bus.add_filter(lambda envelope: envelope.message.number == 0)
    async with one.bus as bus:
        await bus.publish(Ping(0))
        await bus.settle()
        outcome = await bus.publish_and_wait(Ping(0))
        assert [str(failure.error) for failure in outcome.failures] == ["0"]
        assert bus.statistics().events_unsettled == 0
    assert (one.told, one.letters) == ([], 2)
    assert "nobody is told of dead letter" in caplog.text


WAYS = list(itertools.product(["queued", "waited"], [1, 2], [1, 2], [False, True]))


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("draining", [False, True])
@pytest.mark.parametrize(("way", "attempts", "handlers", "waits"), WAYS)
async def test_each_letter_is_told_and_follows_from_its_event(
    tmp_path, way, attempts, handlers, waits, draining, durable
):
    clock, patience = VirtualClock(), 0.05 if durable else 0.0
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(WalMessageQueue(tmp_path)) if durable else None
        retry = Retry(attempts=attempts, delay=1, jitter=False)
        one = Failing(waits=waits, retry=retry, breaker=None, log=log, system=System(clock=clock))
        causes, ids = list[str | None](), set[str]()
        one.bus.subscribe(DeadLetterEvent, lambda _, told: causes.append(told.causation_id))
        one.bus.on_error(lambda _, envelope, error: ids.add(envelope.id))
        for _ in range(1, handlers):
            one.bus.subscribe(Ping, lambda event: None)
        await one.bus.start()
        task = asyncio.create_task(publish(one.bus, way))
        await (one.called.wait() if waits else asyncio.sleep(0))
        one.go.set()
        if not draining:
            await clock.run_until(one.bus.settle(), patience=patience)
        assert (await clock.run_until(one.bus.stop(), patience=patience)).undrained == ()
        await task
        assert len(ids) == 1
        assert causes == list(ids)


async def publish(bus, way):
    await (bus.publish(Ping(0)) if way == "queued" else bus.publish_and_wait(Ping(0), timeout=1e6))


async def test_a_letter_of_an_event_that_is_refused_follows_from_it():
    one = Failing(retry=NO_RETRY, breaker=BreakerOptions(failures=1))
    causes = list[str | None]()
    one.bus.subscribe(DeadLetterEvent, lambda _, told: causes.append(told.causation_id))
    async with one.bus as bus:
        for number in range(3):
            bus.publish_nowait(Ping(number))
    letters = [letter.message_id for letter in bus.dead_letters.list()]
    assert len(letters) == 3
    assert causes == letters


async def test_a_letter_of_a_command_follows_from_it():
    async with ResilientMessageBus(retry=NO_RETRY) as bus:
        causes = list[str | None]()
        bus.on_error(lambda *_: None)
        bus.subscribe(DeadLetterCommandEvent, lambda _, told: causes.append(told.causation_id))

        @bus.handles(Fail)
        def fail(command):
            raise ValueError

        result = await bus.execute(Fail())
        await bus.settle()
        assert causes == [result.metadata["id"]]


class Stamps:
    """An observer that expects each message to have a number."""

    def stamp(self, message):
        return {"number": str(message.number)}

    async def middleware(self, envelope, go_on):
        await go_on(envelope)


async def test_an_observer_that_fails_on_what_tells_of_a_letter_leaves_its_event_settled():
    one = Failing(retry=NO_RETRY)
    async with one.bus as bus:
        bus.observe(Stamps())
        await bus.publish(Ping(0))
        await bus.settle(timeout=5)
        assert (bus.statistics().events_failed, one.letters, one.told) == (1, 1, [])


@pytest.mark.parametrize("command", [False, True])
async def test_a_letter_is_kept_where_the_bus_stops_before_it_could_be_written(tmp_path, command):
    async with WalMessageQueue(tmp_path) as queue:
        bus = ResilientMessageBus(retry=NO_RETRY, log=queue)
        bus.on_error(lambda *_: None)

        def handle(message):
            raise ValueError

        bus.subscribe(Ping, handle)
        bus.handle(Fail, handle)
        await bus.start()
        handler, envelope = _failed(bus, Fail() if command else Ping(0))
        attempts = Attempts(1, 0, 0, 0.0)
        if command:
            bus._burial.bury_command(handler, envelope, ValueError(), attempts)
        else:
            bus._burial.bury(handler, envelope, ValueError(), attempts, Reason.FAILED)
        for task in bus._dispatch.tasks:
            task.cancel()  # as the stop does, when it comes in the same turn of the loop
        report = await bus.stop(drain=False)
        assert report.undrained == ()
        async with ResilientMessageBus(log=queue) as again:
            assert [letter.reason for letter in again.dead_letters.list()] == [Reason.FAILED]


def _failed(bus, message):
    (handler,) = (one for one in bus._registry.handlers() if one.target is type(message))
    return handler, bus._intake.enclose(message)


async def test_an_event_that_failed_as_the_bus_stops_is_settled_and_its_letter_is_kept(tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        bus = ResilientMessageBus(retry=NO_RETRY, log=queue)
        bus.on_error(lambda *_: None)

        def handle(event):
            raise ValueError

        bus.subscribe(Ping, handle)
        await bus.start()
        await bus.publish(Ping(0))
        await bus.stop(drain=False)
        found = bus.statistics()
        assert (found.events_failed, found.events_unsettled) == (1, 0)
        async with ResilientMessageBus(log=queue) as again:
            assert len(again.dead_letters) == 1
