"""The virtual clock, the worker without a thread, and the machine made of them."""

import asyncio
from functools import partial
from random import Random

import pytest

from penstock.system import Clock, Job, System, Worker
from penstock.testing.clock import VirtualClock
from penstock.testing.worker import InlineWorker, simulated_system


def test_time_stands_until_it_is_moved():
    clock: Clock = VirtualClock(start_ms=1_000)
    assert (clock.time_ms(), clock.monotonic()) == (1_000, 0.0)
    clock.sleep(1.5)
    assert (clock.time_ms(), clock.monotonic()) == (2_500, 1.5)


def test_many_small_steps_do_not_drift():
    clock = VirtualClock(start_ms=0)
    for _ in range(10_000):
        clock.advance(0.001)
    assert (clock.time_ms(), clock.monotonic()) == (10_000, 10.0)


@pytest.mark.parametrize("patience", [0.0, 0.001])
async def test_no_time_passes_while_somebody_waits_in_real_time(patience):
    clock, rang = VirtualClock(), asyncio.Event()
    seen: list[float] = []

    async def wait_in_real_time() -> None:
        with clock.held():
            for _ in range(5):
                await asyncio.sleep(0.002)
                seen.append(clock.monotonic())
        await rang.wait()

    clock.call_after(30.0, rang.set)
    await clock.run_until(wait_in_real_time(), patience=patience)
    assert seen == [0.0] * 5
    assert clock.monotonic() == 30.0


def test_a_jump_moves_only_the_wall_clock():
    clock = VirtualClock(start_ms=5_000)
    clock.jump(-3_000)
    assert (clock.time_ms(), clock.monotonic()) == (2_000, 0.0)


def test_time_does_not_go_back():
    with pytest.raises(ValueError, match="jump"):
        VirtualClock().advance(-1)


def test_timers_run_in_order_at_their_own_time():
    clock = VirtualClock()
    seen: list[tuple[int, float]] = []

    def note(delay: int) -> None:
        seen.append((delay, clock.monotonic()))

    for delay in (3, 1, 2, 1):
        clock.call_after(delay, partial(note, delay))
    clock.advance(2.5)
    assert seen == [(1, 1.0), (1, 1.0), (2, 2.0)]
    clock.advance(0.5)
    assert seen[3:] == [(3, 3.0)]


def test_a_timer_may_sleep_and_set_another():
    clock = VirtualClock()
    seen = []

    def again():
        seen.append(clock.monotonic())
        clock.sleep(0.25)
        clock.call_after(1, again)

    clock.call_after(1, again)
    clock.advance(4)
    assert seen == [1.0, 2.25, 3.5]
    assert clock.monotonic() == 4.0


def test_listeners_hear_every_move():
    clock = VirtualClock()
    seen = []
    clock.on_advance(lambda: seen.append(clock.monotonic()))
    clock.call_after(1, lambda: None)
    clock.advance(3)
    clock.advance(0)
    assert seen == [1.0, 3.0]


def test_a_job_runs_at_once_and_its_children_after_it():
    worker: Worker = InlineWorker()
    seen = []

    def parent():
        worker.submit(lambda: seen.append("child"))
        seen.append("parent")

    worker.submit(parent)
    assert seen == ["parent", "child"]


def test_jobs_wait_when_they_are_told_to():
    worker = InlineWorker(immediate=False)
    seen: list[int] = []
    for number in range(4):
        worker.submit(partial(seen.append, number))
    assert (seen, worker.waiting) == ([], 4)
    assert worker.run(limit=1) == 1
    assert seen == [0]
    worker.close()
    assert seen == [0, 1, 2, 3]


def test_delayed_jobs_follow_the_clock_and_are_dropped_on_close():
    clock = VirtualClock()
    worker = InlineWorker(clock=clock)
    seen = []
    worker.submit_after(1, lambda: seen.append("first"))
    worker.submit_after(9, lambda: seen.append("never"))
    clock.advance(2)
    worker.close()
    clock.advance(20)
    worker.submit(lambda: seen.append("late"))
    assert seen == ["first"]


def test_run_all_keeps_order_or_takes_a_seeded_one():
    def order(random):
        seen: list[int] = []
        jobs = [partial(seen.append, number) for number in range(8)]
        InlineWorker(random=random).run_all(jobs)
        return seen

    assert order(None) == list(range(8))
    assert order(Random(1)) == order(Random(1)) != list(range(8))
    assert sorted(order(Random(1))) == list(range(8))


def test_run_all_runs_all_and_raises_the_first_failure():
    seen: list[str] = []
    jobs: list[Job] = [partial(divmod, 1, 0), partial(seen.append, "ran")]
    with pytest.raises(ZeroDivisionError):
        InlineWorker().run_all(jobs)
    assert seen == ["ran"]


def test_a_simulated_system_repeats_itself():
    systems = [simulated_system(3), simulated_system(3), simulated_system(4)]
    numbers = [system.random.random() for system in systems]
    assert numbers[0] == numbers[1] != numbers[2]


def test_a_simulated_system_is_a_system_with_its_parts_at_hand():
    machine = simulated_system(immediate=False)
    system: System = machine
    worker = system.worker("commit")
    seen = []
    worker.submit_after(1, lambda: seen.append(system.clock.monotonic()))
    machine.clock.advance(5)
    machine.workers[0].run()
    assert seen == [5.0]
    assert machine.files.files() == []


def test_a_restart_goes_on_with_disk_and_clock():
    first = simulated_system()
    first.clock.advance(7)
    first.files.open("/data/f", create=True)
    second = simulated_system(disk=first.files.kill(), clock=first.clock)
    assert second.files.files() == ["/data/f"]
    assert second.clock.monotonic() == 7.0
