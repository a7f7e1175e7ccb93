"""Events for later on a bus with a log: what survives a kill, and what it fires."""

import asyncio
import sys

import pytest

from penstock import WalMessageQueue
from penstock.bus.bus import MessageBus
from penstock.bus.firing import AGAIN_HEADER
from penstock.bus.intake import QueueOptions
from penstock.bus.recurrence import Missed
from penstock.errors import (
    InvalidMessage,
    RecordTooLarge,
    StoreFailed,
    SubscriberBusy,
    UsageError,
)
from penstock.messages import Priority
from penstock.resilience.bus import ResilientMessageBus
from penstock.resilience.retry import Retry
from penstock.system import System
from penstock.testing import MemoryJournals
from tests.bus.scheduling import (
    CountingClock,
    Other,
    Plain,
    Seen,
    Special,
    Tick,
    in_seconds,
    make_bus,
    passes,
)


@pytest.fixture
def clock():
    return CountingClock()


@pytest.fixture
def seen(clock):
    return Seen(clock)


@pytest.fixture
def journals():
    return MemoryJournals()


async def killed(bus, journals):
    """What is left of a bus after SIGKILL: nothing but its journals."""
    journals.kill()
    await bus.stop(drain=False)


@pytest.mark.acceptance(141)
async def test_what_is_scheduled_survives_a_kill(clock, seen, journals):
    bus = make_bus(clock, seen, log=journals)
    await bus.start()
    special = Special(1, note="ü", parts=(1, 2))
    first = await bus.schedule.at(special, in_seconds(clock, 10), headers={"tenant": "a"})
    await bus.schedule.after(Tick(2), 20, session="cart", priority=Priority.LOW)
    await bus.schedule.every(Tick(3), 30)
    await bus.schedule.cron(Tick(4), "*/5 * * * *", timezone="Europe/Berlin")
    gone = await bus.schedule.after(Tick(5), 20)
    await gone.cancel()
    moved = await bus.schedule.after(Tick(6), 20)
    await moved.reschedule(in_seconds(clock, 15))
    await killed(bus, journals)
    clock.advance(1)
    async with make_bus(clock, seen, log=journals) as bus:
        pending = bus.schedule.pending()
        assert [one.event.number for one in pending] == [1, 6, 2, 3, 4]
        assert pending[0].id == first.id
        assert pending[0].event == special
        assert type(pending[0].event) is Special
        await passes(clock, bus, 9)
        assert seen == [special]
        assert seen.envelopes[0].headers["tenant"] == "a"
        await passes(clock, bus, 11)
        await passes(clock, bus, 9)
        assert seen.numbers == [1, 6, 2, 3]
        assert seen.envelopes[2].session == "cart"
        assert seen.envelopes[2].priority is Priority.LOW
        await passes(clock, bus, 300)
        assert sorted(set(seen.numbers)) == [1, 2, 3, 4, 6]


@pytest.mark.acceptance(141)
async def test_it_is_on_disk_when_at_returns(clock, seen, journals):
    async with make_bus(clock, seen, log=journals) as bus:
        handle = await bus.schedule.at(Tick(1), in_seconds(clock, 10))
        assert f"s/{handle.id}" in journals.held["bus.schedule"]


@pytest.mark.acceptance(141)
async def test_what_was_missed_while_the_bus_was_down_fires_once_late(clock, seen, journals):
    bus = make_bus(clock, seen, log=journals)
    await bus.start()
    await bus.schedule.after(Tick(1), 10)
    await bus.schedule.every(Tick(2), 10)
    await bus.schedule.cron(Tick(3), "* * * * *")
    for number, method in ((4, bus.schedule.after), (5, bus.schedule.every)):
        await method(Tick(number), 10, missed=Missed.SKIP)
    await bus.stop()
    clock.advance(3_605)
    async with make_bus(clock, seen, log=journals) as bus:
        await bus.settle()
        assert sorted(seen.numbers) == [1, 2, 3]
        assert bus.schedule.statistics().skipped == 2
        assert [one.event.number for one in bus.schedule.pending()] == [2, 5, 3]
        await passes(clock, bus, 5)
        assert sorted(seen.numbers) == [1, 2, 2, 3, 5]


@pytest.mark.acceptance(141)
async def test_firing_is_recorded_before_a_handler_sees_the_event(clock, journals):
    held = []
    bus = MessageBus(system=System(clock=clock), log=journals)
    bus.subscribe(Tick, lambda event, envelope: held.append(dict(journals.held["bus.schedule"])))
    async with bus:
        one = await bus.schedule.after(Tick(1), 5)
        every = await bus.schedule.every(Tick(2), 5)
        await passes(clock, bus, 5)
        assert set(held[0]) == {f"f/{one.id}-1", f"s/{every.id}", f"f/{every.id}-1"}
        changed = [set(changes) for _, changes in journals.changes]
        assert {f"s/{one.id}", f"f/{one.id}-1", f"s/{every.id}", f"f/{every.id}-1"} in changed
    assert set(journals.held["bus.schedule"]) == {f"s/{every.id}"}, "what is handled is removed"


@pytest.mark.acceptance(141)
async def test_what_fired_and_was_not_handled_comes_again_with_its_id(clock, seen, journals):
    stuck = asyncio.Event()
    bus = MessageBus(system=System(clock=clock), log=journals)

    @bus.on(Tick)
    async def handle(event, envelope):
        seen(event, envelope)
        if event.number == 2:
            await stuck.wait()

    await bus.start()
    for number in range(4):
        await bus.schedule.after(Tick(number), 5 + number)
    clock.advance(8)
    while len(seen) < 3 or len(journals.held["bus.schedule"]) > 2:
        await asyncio.sleep(0)
    await killed(bus, journals)
    again = Seen(clock)
    async with make_bus(clock, again, log=journals) as bus:
        await bus.settle()
        assert again.numbers == [2, 3]
        assert again.ids[0] == seen.ids[2]
        assert [envelope.headers.get(AGAIN_HEADER) for envelope in again.envelopes] == ["1", "1"]
        await passes(clock, bus, 100)
        assert len(again) == 2
    assert journals.held["bus.schedule"] == {}


@pytest.mark.acceptance(141)
async def test_many_that_are_due_together_are_one_change_of_the_journal(clock, seen, journals):
    async with make_bus(clock, seen, log=journals) as bus:
        adding = (bus.schedule.after(Tick(number), 5) for number in range(1_000))
        await asyncio.gather(*adding)
        assert len(journals.changes) < 20, "those who schedule at the same time share a write"
        journals.changes.clear()
        await passes(clock, bus, 5)
    assert len(seen) == 1_000
    assert len(journals.changes[0][1]) == 2_000
    assert len(journals.changes) < 20


async def test_a_handler_that_fails_is_done_with_the_event(clock, journals):
    def fail(event):
        raise ValueError("no")

    bus = MessageBus(system=System(clock=clock), log=journals)
    bus.subscribe(Tick, fail)
    bus.on_error(lambda *_: None)
    async with bus:
        await bus.schedule.after(Tick(), 1)
        await passes(clock, bus, 1)
    assert journals.held["bus.schedule"] == {}


async def test_a_full_disk_fails_who_schedules_and_holds_back_what_is_due(
    clock, seen, journals, caplog
):
    async with make_bus(clock, seen, log=journals) as bus:
        await bus.schedule.after(Tick(1), 5)
        journals.failure = StoreFailed("the disk is full")
        with pytest.raises(StoreFailed):
            await bus.schedule.after(Tick(2), 5)
        await passes(clock, bus, 5)
        await passes(clock, bus, 1)
        assert seen == [], "it is not recorded, so it must not fire"
        journals.failure = None
        clock.wakes = 0
        await passes(clock, bus, 60)
        assert seen.numbers == [1]
        assert clock.wakes <= 5
        assert [one.event.number for one in bus.schedule.pending()] == []
    assert "cannot be recorded" in caplog.text


async def test_a_cancelled_call_schedules_nothing(clock, seen, journals):
    async with make_bus(clock, seen, log=journals) as bus:
        adding = asyncio.ensure_future(bus.schedule.after(Tick(1), 5))
        await asyncio.sleep(0)
        adding.cancel()
        await asyncio.wait([adding])
        assert bus.schedule.pending() == []
        await passes(clock, bus, 5)
    assert seen == []
    assert journals.held["bus.schedule"] == {}


async def test_a_recurring_event_that_is_cancelled_while_it_fires_stays_cancelled(
    clock, seen, journals
):
    async with make_bus(clock, seen, log=journals) as bus:
        handle = await bus.schedule.every(Tick(1), 5)
        clock.advance(5)
        await asyncio.sleep(0)  # the firing is on its way to the journal
        assert await handle.cancel()
        await passes(clock, bus, 20)
        assert len(seen) == 1
    assert journals.held["bus.schedule"] == {}


async def test_an_event_that_does_not_decode_stays_in_the_journal(clock, seen, journals, caplog):
    async with make_bus(clock, seen, log=journals) as bus:
        await bus.schedule.after(Tick(1), 5)
        await bus.schedule.every(Tick(2), 5)
    held = journals.held["bus.schedule"]
    for key, value in held.items():
        held[key] = value.replace(b"Tick", b"Tock")
    async with make_bus(clock, seen, log=journals) as bus:
        await passes(clock, bus, 60)
        assert bus.schedule.statistics().unreadable == 2
        with pytest.raises(InvalidMessage):
            _ = bus.schedule.pending()[0].event
    assert seen == []
    assert len(journals.held["bus.schedule"]) == 2
    assert "stays in the journal" in caplog.text


async def test_a_full_lane_leaves_nothing_behind_when_the_bus_stops(clock, journals):
    bus = MessageBus(system=System(clock=clock), queue=QueueOptions(capacity=2), log=journals)
    never = asyncio.Event()

    @bus.on(Tick)
    async def wait(event):
        await never.wait()

    await bus.start()
    for number in range(10):
        await bus.schedule.after(Tick(number), 1)
    clock.advance(1)
    while bus.schedule.statistics().waiting < 7:
        await asyncio.sleep(0)
    await bus.stop(drain=False)
    assert bus.schedule.statistics().waiting == 0
    seen = Seen(clock)
    async with make_bus(clock, seen, log=journals) as bus:
        await bus.settle()
    assert sorted(seen.numbers) == list(range(10))


@pytest.mark.acceptance(141)
async def test_what_was_missed_waits_for_a_handler_that_comes_after_the_start(
    clock, seen, journals
):
    bus = make_bus(clock, seen, log=journals)
    await bus.start()
    await bus.schedule.after(Tick(1), 5)
    await bus.schedule.every(Tick(2), 5)
    await bus.stop()
    clock.advance(7)
    async with MessageBus(system=System(clock=clock), log=journals) as bus:
        await bus.settle()
        await passes(clock, bus, 60)
        statistics = bus.schedule.statistics()
        assert (statistics.held, statistics.fired) == (2, 0)
    async with MessageBus(system=System(clock=clock), log=journals) as bus:
        await bus.settle()
        bus.subscribe(Other, seen)
        assert bus.schedule.statistics().held == 2
        bus.subscribe(Tick, seen)
        await bus.settle()
        assert seen.numbers == [1, 2, 2], "the recurring one, and what it missed since then"
        assert bus.schedule.statistics().held == 0
        await passes(clock, bus, 5)
        assert seen.numbers == [1, 2, 2, 2]


async def test_a_record_of_the_journal_that_is_none_keeps_no_bus_from_starting(
    clock, seen, journals, caplog
):
    journals.held["bus.schedule"] = {"s/x": b"no record", "f/y": b""}
    async with make_bus(clock, seen, log=journals) as bus:
        await bus.settle()
        assert bus.schedule.statistics().unreadable == 2
    assert len(journals.held["bus.schedule"]) == 2
    assert "stays in the journal" in caplog.text


async def test_two_buses_on_one_log_need_names(clock, seen, journals):
    async with make_bus(clock, seen, log=journals):
        with pytest.raises(SubscriberBusy, match="its own name"):
            await make_bus(clock, seen, log=journals).start()
        async with make_bus(clock, seen, log=journals, name="other") as other:
            await other.schedule.after(Tick(1), 1)


async def test_a_bus_with_a_log_must_be_started_before_it_schedules(clock, seen, journals):
    bus = make_bus(clock, seen, log=journals)
    with pytest.raises(UsageError, match="not started"):
        await bus.schedule.after(Tick(1), 1)
    assert bus.schedule.pending() == []


async def test_an_event_that_is_too_large_for_the_journal_is_refused(clock, seen, journals):
    async with make_bus(clock, seen, log=journals) as bus:
        with pytest.raises(RecordTooLarge):
            await bus.schedule.after(Special(1, note="x" * 2_000_000), 5)


async def test_dataclasses_survive_a_restart_too(clock, journals):
    seen: list[Plain] = []
    for _ in range(2):
        bus = MessageBus(system=System(clock=clock), log=journals)
        bus.subscribe(Plain, seen.append)
        async with bus:
            if not journals.changes:
                await bus.schedule.after(Plain("kept"), 5)
            else:
                await passes(clock, bus, 5)
    assert seen == [Plain("kept")]


@pytest.mark.acceptance(141)
async def test_a_schedule_on_the_real_log_survives(clock, seen, tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        async with make_bus(clock, seen, log=queue) as bus:
            adding = (bus.schedule.after(Special(at, note="x"), at + 1) for at in range(100))
            await asyncio.gather(*adding)
            await passes(clock, bus, 50)
            assert seen.numbers == list(range(50))
    async with WalMessageQueue(tmp_path) as queue:
        async with make_bus(clock, seen, log=queue) as bus:
            await passes(clock, bus, 100)
    assert seen.numbers == list(range(100))
    assert len(set(seen.ids)) == 100


async def test_a_cron_line_whose_extra_is_missing_after_a_restart_stays_in_the_journal(
    clock, seen, journals, monkeypatch, caplog
):
    async with make_bus(clock, seen, log=journals) as bus:
        await bus.schedule.cron(Tick(1), "* * * * *")
        await bus.schedule.after(Tick(2), 60)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "cronsim", None)
        async with make_bus(clock, seen, log=journals) as bus:
            await passes(clock, bus, 60)
            assert seen.numbers == [2]
    assert "penstock[cron]" in caplog.text
    async with make_bus(clock, seen, log=journals) as bus:
        await bus.settle()
    assert seen.numbers == [2, 1]


async def test_a_handler_may_schedule_while_the_bus_stops(clock, seen, journals):
    bus = make_bus(clock, seen, log=journals)

    @bus.on(Other)
    async def later(event):
        await asyncio.sleep(0)
        await bus.schedule.after(Tick(1), 5)

    bus.on_error(lambda handler, envelope, error: pytest.fail(str(error)))
    await bus.start()
    await bus.publish(Other())
    await bus.stop()
    async with make_bus(clock, seen, log=journals) as bus:
        await passes(clock, bus, 5)
    assert seen.numbers == [1]


@pytest.mark.acceptance(141)
async def test_on_the_resilient_bus_an_event_is_handled_when_its_retries_are_over(clock, journals):
    tries: list[str] = []

    def make():
        bus = ResilientMessageBus(system=System(clock=clock), log=journals, retry=Retry(attempts=3))

        @bus.on(Tick)
        async def fail_at_first(event, envelope):
            tries.append(envelope.id)
            if len(tries) < 3:
                raise ValueError("not yet")

        return bus

    bus = make()
    await bus.start()
    handle = await bus.schedule.after(Tick(1), 5)
    clock.advance(5)
    while not tries:
        await asyncio.sleep(0)
    await killed(bus, journals)
    async with make() as bus:
        while len(tries) < 2:
            await asyncio.sleep(0)
        assert f"f/{handle.id}-1" in journals.held["bus.schedule"], "a retry is still to come"
        await settle_through_time(clock, bus)
    assert tries == [f"{handle.id}-1"] * 3
    assert journals.held["bus.schedule"] == {}


async def settle_through_time(clock, bus):
    settling = asyncio.ensure_future(bus.settle(timeout=1_000))
    while not settling.done():
        await asyncio.sleep(0)
        clock.advance(0.1)
    await settling
