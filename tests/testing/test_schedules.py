"""The loop whose order comes from a seed: it repeats itself, and it finds what it is there to find."""

import asyncio

import pytest

from penstock.testing import ScheduleFailed, SeededSchedule, run_schedule, run_schedules


def traced(seed):
    """What three tasks with pauses, jobs and timers do, in the order of this schedule."""
    trace: list[object] = []

    async def scenario(schedule):
        async def actor(name):
            for number in range(4):
                await schedule.pause()
                trace.append((name, number, schedule.loop.time()))
                trace.append(await asyncio.to_thread(lambda: (name, "job")))

        await asyncio.gather(*(schedule.spawn(actor(name)) for name in "abc"))

    run_schedule(scenario, seed)
    return trace


def test_a_seed_repeats_its_schedule_and_others_differ():
    assert traced(7) == traced(7)
    assert len({str(traced(seed)) for seed in range(20)}) == 20


def test_time_is_virtual():
    async def scenario(schedule):
        await asyncio.sleep(3_600)
        return schedule.loop.time(), schedule.system.clock.monotonic()

    assert run_schedule(scenario, 0) == (3_600, 3_600)


def test_who_waits_for_nothing_is_found():
    async def scenario(schedule):
        await asyncio.Event().wait()

    with pytest.raises(ScheduleFailed, match="everybody waits") as failed:
        run_schedule(scenario, 4)
    assert failed.value.seed == 4


def test_who_never_ends_is_found(monkeypatch):
    monkeypatch.setattr("penstock.testing.loop.STEPS_MAX", 1_000)

    async def scenario(schedule):
        while True:
            await asyncio.sleep(0)

    with pytest.raises(ScheduleFailed, match="no end after 1,000 steps"):
        run_schedule(scenario, 4)


def test_a_schedule_that_takes_too_long_is_found():
    async def scenario(schedule):
        await asyncio.sleep(100)

    run_schedule(scenario, 0, seconds_max=100)
    with pytest.raises(ScheduleFailed, match="it took 100 s of virtual time"):
        run_schedule(scenario, 0, seconds_max=99)


def test_a_race_between_tasks_is_found():
    """A counter that is read, and written after an await."""

    async def scenario(schedule):
        count = 0

        async def add():
            nonlocal count
            seen = count
            await schedule.pause()
            count = seen + 1

        await asyncio.gather(schedule.spawn(add()), schedule.spawn(add()))
        assert count == 2

    with pytest.raises(ScheduleFailed, match="AssertionError"):
        run_schedules(scenario, range(100))


def test_deadlocks_of_two_locks_are_found():
    async def scenario(schedule):
        first, second = asyncio.Lock(), asyncio.Lock()

        async def both(one, other):
            async with one:
                await schedule.pause()
                async with other:
                    pass

        await asyncio.gather(
            schedule.spawn(both(first, second)), schedule.spawn(both(second, first))
        )

    with pytest.raises(ScheduleFailed, match="everybody waits"):
        run_schedules(scenario, range(100))


def test_a_task_that_is_left_behind_is_found():
    async def scenario(schedule, seconds=50):
        schedule.spawn(asyncio.sleep(seconds))

    run_schedule(lambda schedule: scenario(schedule, 1), 0)
    with pytest.raises(ScheduleFailed, match="tasks are left: Task-"):
        run_schedule(scenario, 0)


def test_an_error_that_nobody_hears_of_is_found():
    async def scenario(schedule):
        schedule.loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(ScheduleFailed, match="ZeroDivisionError"):
        run_schedule(scenario, 0)


def test_plain_callbacks_keep_their_order():
    async def scenario(schedule):
        order: list[int] = []
        for number in range(20):
            schedule.loop.call_soon_threadsafe(order.append, number)
        await asyncio.sleep(1)
        return order

    for seed in range(20):
        assert run_schedule(scenario, seed) == list(range(20))


def test_victims_are_cancelled_at_every_step_and_others_never():
    places = set()

    async def scenario(schedule):
        async def walk(name):
            for place in range(5):
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    places.add((name, place))
                    raise

        tasks = [schedule.spawn(walk("victim"), victim=True), schedule.spawn(walk("other"))]
        await asyncio.gather(*tasks, return_exceptions=True)

    for cancel_at in range(40):
        run_schedule(scenario, 2, cancel_at=cancel_at)
    assert places == {("victim", place) for place in range(5)}


@pytest.mark.parametrize("seed", range(10))
def test_a_job_that_began_goes_on_when_its_caller_is_cancelled(seed):
    async def scenario(schedule):
        ran: list[int] = []
        task = schedule.spawn(asyncio.to_thread(ran.append, 1))
        while not ran:
            await asyncio.sleep(0.0001)
        task.cancel()
        await asyncio.wait([task])
        return ran

    assert run_schedule(scenario, seed) == [1]


def test_workers_do_their_jobs_in_order_and_a_job_may_wait_for_another():
    async def scenario(schedule):
        done = []
        worker, helper = schedule.system.worker("one"), schedule.system.worker("two")

        def job():
            helper.submit(lambda: done.append("helper"))
            assert done[-1] == "helper", "a thread would wait for it"
            worker.submit(lambda: done.append("last"))
            done.append("job")

        worker.submit(lambda: done.append("first"))
        worker.submit(job)
        worker.submit_after(60, lambda: done.append("later"))
        await asyncio.sleep(1)
        assert done == ["first", "helper", "job", "last"]
        worker.submit(lambda: done.append("at the end"))
        worker.close()
        helper.close()
        await asyncio.sleep(100)
        return done

    for seed in range(10):
        done = run_schedule(scenario, seed)
        assert done == ["first", "helper", "job", "last", "at the end"]


def test_a_failed_run_leaves_nothing_that_warns():
    async def scenario(schedule):
        schedule.spawn(asyncio.Event().wait())
        raise LookupError("seen")

    schedule = SeededSchedule(3)
    with pytest.raises(ScheduleFailed, match="LookupError: seen"):
        schedule.run(scenario)
    assert schedule.loop.is_closed()
