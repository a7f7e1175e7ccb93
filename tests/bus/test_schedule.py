"""Events for later, on a clock that the test moves."""

import asyncio
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import WalMessageQueue
from penstock.bus import schedule as schedule_module
from penstock.bus.bus import MessageBus
from penstock.bus.drive import current_envelope
from penstock.bus.firing import AGAIN_HEADER, DUE_HEADER, SCHEDULE_HEADER
from penstock.bus.intake import QueueOptions
from penstock.bus.recurrence import Missed
from penstock.bus.schedule import ScheduledEvent
from penstock.bus.timers import Timers
from penstock.errors import (
    BufferFull,
    Closed,
    InvalidMessage,
    InvalidOption,
    MissingExtra,
    NotPending,
    RecordTooLarge,
    StoreFailed,
    SubscriberBusy,
    UsageError,
)
from penstock.messages import Event, Priority
from penstock.system import System
from penstock.testing import MemoryJournals, VirtualClock


class Tick(Event):
    number: int = 0


class Special(Tick):
    note: str = ""
    parts: tuple[int, ...] = ()


class Other(Event):
    text: str = ""


@dataclass(frozen=True)
class Plain:
    text: str


class CountingClock(VirtualClock):
    """Knows how often somebody wanted to be woken."""

    wakes = 0

    def call_after(self, seconds, callback):
        def counted():
            self.wakes += 1
            callback()

        return super().call_after(seconds, counted)


class Seen(list):
    """A handler that keeps what it was given, and when."""

    def __init__(self, clock):
        self.clock = clock
        self.envelopes = []

    def __call__(self, event, envelope):
        self.append(event)
        self.envelopes.append(envelope)

    @property
    def ids(self):
        return [envelope.id for envelope in self.envelopes]

    @property
    def numbers(self):
        return [event.number for event in self]


@pytest.fixture
def clock():
    return CountingClock()


@pytest.fixture
def seen(clock):
    return Seen(clock)


def make_bus(clock, seen, **options):
    bus = MessageBus(system=System(clock=clock), **options)
    bus.subscribe(Tick, seen, subclasses=True)
    return bus


@pytest.fixture
async def bus(clock, seen):
    async with make_bus(clock, seen) as bus:
        yield bus


def now(clock):
    return datetime.fromtimestamp(clock.time_ms() / 1000, UTC)


def in_seconds(clock, seconds):
    return now(clock) + timedelta(seconds=seconds)


async def passes(clock, bus, seconds):
    clock.advance(seconds)
    await bus.settle()


# ------------------------------------------------------------------------------- when it fires


@pytest.mark.acceptance(140)
async def test_an_event_fires_at_its_time_and_not_before(bus, clock, seen):
    handle = await bus.schedule.at(Tick(1), in_seconds(clock, 10))
    assert handle.due == in_seconds(clock, 10)
    assert handle.pending
    await passes(clock, bus, 9.999)
    assert seen == []
    await passes(clock, bus, 0.001)
    assert seen == [Tick(1)]
    assert not handle.pending
    await passes(clock, bus, 1_000)
    assert seen == [Tick(1)]


async def test_an_event_fires_after_a_while(bus, clock, seen):
    clock.advance(0.1)
    await bus.schedule.after(Tick(1), 0.2)  # 0.1 + 0.2 is a little more than 0.3
    await passes(clock, bus, 0.2)
    assert seen == [Tick(1)]


async def test_a_time_that_has_passed_is_now(bus, clock, seen):
    await bus.schedule.at(Tick(1), in_seconds(clock, -10))
    await bus.schedule.after(Tick(2), 0)
    await bus.settle()
    assert seen.numbers == [1, 2]


async def test_an_interval_recurs_without_drift(bus, clock, seen):
    handle = await bus.schedule.every(Tick(1), 0.7)
    assert handle.recurring
    for _ in range(100):
        await passes(clock, bus, 0.07)
    assert len(seen) == 10
    due = [int(envelope.headers[DUE_HEADER]) for envelope in seen.envelopes]
    assert {later - earlier for earlier, later in pairwise(due)} == {700}


async def test_a_cron_line_recurs(bus, clock, seen):
    handle = await bus.schedule.cron(Tick(1), "*/5 * * * *")
    assert handle.due == now(clock) + timedelta(minutes=5)
    for _ in range(60):
        await passes(clock, bus, 60)
    assert len(seen) == 12


async def test_a_cron_line_has_a_time_zone(bus, clock):
    handle = await bus.schedule.cron(Tick(1), "30 2 * * *", timezone="Europe/Berlin")
    assert handle.due == datetime(2026, 1, 1, 1, 30, tzinfo=UTC)
    clock.jump(200 * 24 * 3_600_000)
    await passes(clock, bus, 10)
    assert handle.due.hour == 0  # summer time


async def test_without_its_extra_cron_names_it(bus, monkeypatch):
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(MissingExtra, match=r"penstock\[cron\]"):
        await bus.schedule.cron(Tick(), "* * * * *")


@pytest.mark.parametrize(
    ("line", "timezone"),
    [("every day", "UTC"), ("61 * * * *", "UTC"), ("* * * * *", "Mars/Olympus"), ("", "UTC")],
)
async def test_a_wrong_cron_line_is_refused(bus, line, timezone):
    with pytest.raises(InvalidOption):
        await bus.schedule.cron(Tick(), line, timezone=timezone)


async def test_wrong_times_are_refused(bus):
    with pytest.raises(InvalidOption, match="time zone"):
        await bus.schedule.at(Tick(), datetime(2030, 1, 1))  # noqa: DTZ001
    for seconds in (-1, float("nan"), float("inf")):
        with pytest.raises(InvalidOption):
            await bus.schedule.after(Tick(), seconds)
    for seconds in (0, -1, float("nan")):
        with pytest.raises(InvalidOption):
            await bus.schedule.every(Tick(), seconds)
    with pytest.raises(UsageError, match="not a message"):
        await bus.schedule.after("text", 1)
    assert bus.schedule.pending() == []


@pytest.mark.acceptance(140)
async def test_a_hundred_thousand_pending_events_cost_one_timer(bus, clock, seen):
    count = 100_000
    for number in range(count):
        place = number * 7_919 % count  # in no order
        await bus.schedule.after(Tick(place), 7_200 + place // 10 / 100)
    assert bus.statistics().timers == 1
    assert bus.schedule.statistics().pending == count
    clock.wakes = 0
    await passes(clock, bus, 7_199)
    assert clock.wakes <= 3, "nothing is due, so nothing happens"
    clock.wakes = 0
    await passes(clock, bus, 51)
    assert sorted(seen.numbers) == list(range(50_010))
    assert clock.wakes <= 5_001
    await passes(clock, bus, 50)
    assert sorted(seen.numbers) == list(range(count))
    times = [number // 10 for number in seen.numbers]
    assert times == sorted(times)
    assert bus.schedule.pending() == []
    assert bus.statistics().timers == 0


@pytest.mark.acceptance(140)
async def test_times_of_the_wall_clock_cost_a_look_every_few_seconds(bus, clock):
    for number in range(1_000):
        await bus.schedule.at(Tick(number), in_seconds(clock, 36_000 + number))
    clock.wakes = 0
    clock.advance(3_600)
    assert clock.wakes <= 360


@pytest.mark.acceptance(140)
async def test_a_full_lane_delays_no_other_event_and_loses_none(clock, seen):
    gate = asyncio.Event()
    handled = []

    async def slow(event):
        await gate.wait()
        handled.append(event.number)

    bus = MessageBus(system=System(clock=clock), queue=QueueOptions(capacity=10))
    bus.subscribe(Tick, slow)
    bus.subscribe(Other, seen)
    async with bus:
        for number in range(100):
            await bus.schedule.after(Tick(number), 1)
        await bus.schedule.every(Tick(1_000), 2)
        await bus.schedule.after(Other("in time"), 10)
        for _ in range(10):
            clock.advance(1)
            await asyncio.sleep(0)
        while not seen:
            await asyncio.sleep(0)
        waiting = bus.schedule.statistics().waiting
        assert 85 < waiting <= 91, "the recurring one waits for its turn, once"
        clock.wakes = 0
        clock.advance(100)
        assert clock.wakes <= 1, "a full lane is not asked again and again"
        gate.set()
        await bus.settle()
        assert handled[:100] == list(range(100))
        assert set(handled[100:]) == {1_000}
        assert len(handled) <= 102


async def test_a_timer_that_was_due_counts_no_more(clock):
    """The core's timers: a call that was made is not cancelled afterwards."""
    timers = Timers(clock)
    for _ in range(10):
        sleeping = asyncio.ensure_future(timers.sleep(0.1))
        await asyncio.sleep(0)
        clock.advance(0.1)
        await sleeping
    assert len(timers) == 0


# ---------------------------------------------------------------------------- the wall clock


async def test_a_wall_clock_that_jumps_ahead_is_followed(bus, clock, seen):
    await bus.schedule.at(Tick(1), in_seconds(clock, 3_600))
    await bus.schedule.after(Tick(2), 3_600)
    clock.jump(3_600_000)
    await passes(clock, bus, 10)
    assert seen.numbers == [1]


async def test_a_wall_clock_that_jumps_back_is_followed(bus, clock, seen):
    handle = await bus.schedule.after(Tick(2), 60)
    await bus.schedule.at(Tick(1), in_seconds(clock, 60))
    clock.jump(-3_600_000)
    assert handle.due == in_seconds(clock, 60)
    await passes(clock, bus, 60)
    assert seen.numbers == [2]
    await passes(clock, bus, 3_600)
    assert seen.numbers == [2, 1]


@pytest.mark.acceptance(141)
async def test_times_that_were_missed_fire_once_or_not_at_all(bus, clock, seen):
    await bus.schedule.cron(Tick(1), "*/5 * * * *")
    await bus.schedule.cron(Tick(2), "*/5 * * * *", missed=Missed.SKIP)
    await bus.schedule.at(Tick(3), in_seconds(clock, 600))
    await bus.schedule.at(Tick(4), in_seconds(clock, 600), missed=Missed.SKIP)
    clock.jump(3_700_000)  # the machine slept
    await passes(clock, bus, 10)
    assert sorted(seen.numbers) == [1, 3]
    statistics = bus.schedule.statistics()
    assert (statistics.late, statistics.skipped, statistics.pending) == (4, 2, 2)
    await passes(clock, bus, 300)
    assert sorted(seen.numbers) == [1, 1, 2, 3]


# ---------------------------------------------------------------------- changing one's mind


@pytest.mark.acceptance(141)
async def test_a_cancelled_event_does_not_fire(bus, clock, seen):
    handles = [await bus.schedule.after(Tick(number), 1 + number) for number in range(300)]
    for handle in handles[::2]:
        assert await handle.cancel()
        assert not await handle.cancel()
    assert not await bus.schedule.cancel("nobody")
    await passes(clock, bus, 400)
    assert seen.numbers == list(range(1, 300, 2))
    assert not await handles[1].cancel()


@pytest.mark.acceptance(141)
async def test_a_recurring_event_ends_when_its_handler_cancels_it(clock, seen):
    async with make_bus(clock, seen) as bus:

        @bus.on(Tick)
        async def stop_at_three(event):
            if len(seen) == 3:
                await handle.cancel()

        handle = await bus.schedule.every(Tick(1), 1)
        for _ in range(10):
            await passes(clock, bus, 1)
        assert len(seen) == 3


@pytest.mark.acceptance(141)
async def test_an_event_can_be_moved(bus, clock, seen):
    later = await bus.schedule.after(Tick(1), 5)
    sooner = await bus.schedule.at(Tick(2), in_seconds(clock, 50))
    await later.reschedule(in_seconds(clock, 20))
    await sooner.reschedule(in_seconds(clock, 10))
    assert [handle.event.number for handle in bus.schedule.pending()] == [2, 1]
    await passes(clock, bus, 10)
    assert seen.numbers == [2]
    await passes(clock, bus, 10)
    assert seen.numbers == [2, 1]
    with pytest.raises(NotPending):
        await later.reschedule(in_seconds(clock, 5))


async def test_a_recurring_event_goes_on_from_where_it_was_moved(bus, clock, seen):
    handle = await bus.schedule.every(Tick(1), 10)
    await handle.reschedule(in_seconds(clock, 3))
    await passes(clock, bus, 3)
    assert len(seen) == 1
    assert handle.due == in_seconds(clock, 10)
    await passes(clock, bus, 10)
    assert len(seen) == 2


async def test_the_number_of_pending_events_is_bounded(bus, clock, monkeypatch):
    monkeypatch.setattr(schedule_module, "PENDING_MAX", 3)
    handles = [await bus.schedule.after(Tick(), 1) for _ in range(3)]
    with pytest.raises(BufferFull):
        await bus.schedule.after(Tick(), 1)
    await handles[0].cancel()
    await bus.schedule.after(Tick(), 1)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("after"), st.integers(0, 60)),
        st.tuples(st.just("at"), st.integers(-5, 60)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("move"), st.integers(0, 30)),
        st.tuples(st.just("pass"), st.integers(1, 40)),
    ),
    max_size=40,
)


@given(steps=STEPS)
async def test_every_event_fires_once_in_order_whatever_is_changed(steps):
    clock = VirtualClock()
    seen = Seen(clock)
    plan: dict[int, float] = {}
    expected: list[int] = []
    handles: list[ScheduledEvent] = []
    async with make_bus(clock, seen) as bus:
        for verb, amount in [*steps, ("pass", 100)]:
            if verb in ("after", "at"):
                number = len(handles)
                plan[number] = clock.monotonic() + amount
                if verb == "after":
                    handles.append(await bus.schedule.after(Tick(number), amount))
                else:
                    handles.append(await bus.schedule.at(Tick(number), in_seconds(clock, amount)))
            elif verb == "cancel" and amount < len(handles):
                assert await handles[amount].cancel() is (plan.pop(amount, None) is not None)
            elif verb == "move" and amount in plan:
                await handles[amount].reschedule(in_seconds(clock, 30))
                plan[amount] = clock.monotonic() + 30
            elif verb == "pass":
                await passes(clock, bus, amount)
            await bus.settle()
            due = [one for one in plan if plan[one] <= clock.monotonic()]
            expected += sorted(due, key=lambda one: plan[one])
            for one in due:
                del plan[one]
            assert sorted(seen.numbers) == sorted(expected)
            assert {handle.event.number for handle in bus.schedule.pending()} == set(plan)


# ------------------------------------------------------------------------------ the envelope


async def test_an_event_tells_where_it_comes_from(bus, clock, seen):
    handle = await bus.schedule.after(
        Tick(1), 5, session="cart", priority=Priority.HIGH, headers={"tenant": "a"}
    )
    await passes(clock, bus, 5)
    (envelope,) = seen.envelopes
    assert envelope.id == f"{handle.id}-1"
    assert envelope.session == "cart"
    assert envelope.priority is Priority.HIGH
    assert envelope.headers["tenant"] == "a"
    assert envelope.headers[SCHEDULE_HEADER] == handle.id
    assert AGAIN_HEADER not in envelope.headers
    assert envelope.time_ms == clock.time_ms()


async def test_an_event_follows_from_the_one_whose_handler_scheduled_it(bus, clock, seen):
    @bus.on(Other)
    async def later(event):
        await bus.schedule.after(Tick(1), 5)

    fired_in = []
    bus.subscribe(Tick, lambda event: fired_in.append(current_envelope()))
    await bus.publish(Other(), correlation_id="chain")
    await bus.settle()
    await passes(clock, bus, 5)
    assert seen.envelopes[0].correlation == "chain"
    assert fired_in == seen.envelopes, "not part of the handler that scheduled it"


async def test_middleware_and_filters_see_scheduled_events(bus, clock, seen):
    passed = []

    async def note(envelope, following):
        passed.append(envelope.id)
        return await following(envelope)

    bus.use(note, commands=False)
    bus.add_filter(lambda envelope: envelope.message.number < 5)
    handle = await bus.schedule.after(Tick(1), 1)
    await bus.schedule.after(Tick(9), 1)
    await passes(clock, bus, 1)
    assert seen.numbers == [1]
    assert passed == [f"{handle.id}-1"]


async def test_settling_does_not_wait_for_what_is_due_later(bus):
    await bus.schedule.after(Tick(1), 5)
    await bus.settle()


async def test_a_stopped_bus_schedules_and_fires_nothing(clock, seen):
    async with make_bus(clock, seen) as bus:
        await bus.schedule.after(Tick(1), 5)
    with pytest.raises(Closed):
        await bus.schedule.after(Tick(2), 5)
    clock.advance(10)
    await asyncio.sleep(0)
    assert seen == []


async def test_events_that_are_due_before_the_start_wait_for_it(clock, seen):
    bus = make_bus(clock, seen)
    await bus.schedule.after(Tick(1), 5)
    clock.advance(6)
    async with bus:
        await bus.settle()
        assert seen == [Tick(1)]


# ---------------------------------------------------------------------------------- with a log


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
