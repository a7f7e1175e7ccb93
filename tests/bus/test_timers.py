"""What happens later: on the clock of the bus, counted exactly, ended when the bus stops."""

import asyncio

import pytest

from penstock.bus.timers import Timers
from penstock.errors import Closed, DeadlineExceeded
from penstock.testing import VirtualClock


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def timers(clock):
    return Timers(clock)


async def test_calls_are_made_in_order(clock, timers):
    seen: list[str] = []
    timers.call_after(3, lambda: seen.append("third"))
    timers.call_after(1, lambda: seen.append("first"))
    timers.call_after(1, lambda: seen.append("second"))
    timers.call_after(2, lambda: seen.append("cancelled")).cancel()
    clock.advance(10)
    assert seen == ["first", "second", "third"]


async def test_the_count_is_exact_when_calls_are_cancelled_after_they_were_made(clock, timers):
    calls = [timers.call_after(1, int) for _ in range(200)]
    assert len(timers) == 200
    clock.advance(1)
    assert len(timers) == 0
    for call in calls:
        call.cancel()
    assert len(timers) == 0
    later = timers.call_after(1, int)
    assert len(timers) == 1
    timers.close()
    later.cancel()
    assert len(timers) == 0


async def test_sums_of_floats_are_due(clock, timers):
    """0.1 + 0.2 lies just above 0.3, which is all that the clock can show."""
    seen: list[float] = []
    clock.advance(0.1)
    timers.call_after(0.2, lambda: seen.append(clock.monotonic()))
    clock.advance(0.2)
    assert seen == [0.3]


async def test_a_call_that_raises_keeps_no_other_from_being_made(clock, timers):
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    seen: list[int] = []
    timers.call_after(1, lambda: int("x"))
    timers.call_after(1, lambda: seen.append(1))
    clock.advance(1)
    assert (seen, len(told)) == ([1], 1)


async def test_a_deadline_inside_another(clock, timers):
    async def wait():
        async with timers.deadline(5, "wait outside"):
            async with timers.deadline(3, "wait inside"):
                await asyncio.Event().wait()

    with pytest.raises(DeadlineExceeded, match="inside within 3 s"):
        await clock.run_until(wait())
    assert len(timers) == 0


async def test_a_cancellation_from_outside_stays_one(clock, timers):
    async def wait():
        async with timers.deadline(5, "wait"):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    clock.advance(5)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_interrupting_ends_all_who_wait(clock, timers):
    ended: list[str] = []

    async def wait(seconds):
        try:
            async with timers.deadline(seconds, "wait"):
                await asyncio.Event().wait()
        finally:
            ended.append("ended")

    tasks = [asyncio.ensure_future(wait(seconds)) for seconds in (1, 2, None)]
    await asyncio.sleep(0)
    await timers.interrupt(Closed("stopped"))
    assert ended == ["ended"] * 3
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in errors] == [Closed] * 3
    assert len(timers) == 0


async def test_what_ends_without_waiting_sets_no_timer(timers):
    async def count():
        return len(timers)

    assert await timers.deadline(5, "count").over(count()) == 0


async def test_the_time_before_the_first_wait_counts_for_the_deadline(clock, timers):
    began: list[float] = []

    async def work_and_wait():
        clock.advance(2)
        began.append(clock.monotonic())
        await asyncio.Event().wait()

    with pytest.raises(DeadlineExceeded, match="within 5 s"):
        await clock.run_until(timers.deadline(5, "work").over(work_and_wait()))
    assert clock.monotonic() - began[0] == pytest.approx(3)


async def test_what_swallows_its_cancellation_is_waited_for_and_returns(clock, timers):
    async def stay():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await timers.sleep(1)
            return "stayed"

    assert await clock.run_until(timers.deadline(5, "stay").over(stay())) == "stayed"
    assert (clock.monotonic(), len(timers)) == (6, 0)


async def test_what_returns_when_it_is_cancelled_while_it_waits_first(clock, timers):
    async def give_in():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "gave in"

    assert await clock.run_until(timers.deadline(5, "wait").over(give_in())) == "gave in"


async def test_what_raises_before_it_waits_raises_that(timers):
    async def fail():
        raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        await timers.deadline(5, "fail").over(fail())
    assert len(timers) == 0
