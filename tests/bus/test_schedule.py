"""Events for later, on a clock that the test moves."""

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    InvalidOption,
    MissingExtra,
    NotPending,
    UsageError,
)
from penstock.messages import Priority
from penstock.system import System
from penstock.testing import VirtualClock
from tests.bus.scheduling import (
    CountingClock,
    Other,
    Seen,
    Tick,
    in_seconds,
    make_bus,
    now,
    passes,
)


@pytest.fixture
def clock():
    return CountingClock()


@pytest.fixture
def seen(clock):
    return Seen(clock)


@pytest.fixture
async def bus(clock, seen):
    async with make_bus(clock, seen) as bus:
        yield bus


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
        assert bus.schedule.statistics().waiting == 0
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
