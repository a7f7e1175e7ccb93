"""The parallel consumer: poison keys, a full buffer, redelivery, and the end with work in flight."""

import asyncio

import pytest

from penstock.errors import (
    Closed,
    DeadlineExceeded,
    HandlerFailed,
    InvalidOption,
    NonRetryable,
    UnknownPartition,
)
from penstock.resilience import Retry
from penstock.stores import MemoryStore
from penstock.streaming import AutoCommit, CheckpointStore, ParallelConsumer, Position
from penstock.system import System
from penstock.testing import VirtualClock
from penstock.testing.clock import until_idle
from tests.streaming.parallel_world import POISON, Job, Run
from tests.streaming.streaming_world import inline, ranges


def offsets(jobs):
    return [job.offset for job in jobs]


async def everything(run):
    await run.clock.run_until(run.all())


async def test_many_are_in_flight_at_once():
    run = Run([Job(0, offset, seconds=0.001) for offset in range(1_000)], in_flight_max=100)
    await everything(run)
    assert run.running_most == 100
    assert run.clock.monotonic() == pytest.approx(0.010)


async def test_a_slow_key_holds_up_neither_other_keys_nor_the_gaps():
    jobs = [Job(0, 0, "slow", 10.0), *(Job(0, offset, f"k{offset}") for offset in range(1, 6))]
    run = Run([*jobs, Job(0, 6, "slow")])
    submitted = asyncio.ensure_future(run.all())
    await until_idle()
    assert offsets(run.done) == [1, 2, 3, 4, 5]
    assert run.consumer.positions() == {0: Position(0, ranges((1, 6)))}
    await run.clock.run_until(submitted)
    assert offsets(run.done)[5:] == [0, 6]
    assert run.consumer.positions() == {0: Position(7)}


async def test_a_key_in_two_partitions_is_two_keys():
    run = Run([Job(0, 0, "k", 5.0), Job(1, 0, "k", 5.0)])
    await everything(run)
    assert run.clock.monotonic() == 5.0


async def test_a_record_that_fails_is_tried_again_while_others_go_on():
    run = Run([Job(0, 0, "a", failures=2), Job(0, 1, "a"), Job(0, 2, "b")], in_flight_max=1)
    await everything(run)
    assert offsets(run.begun) == [0, 2, 0, 0, 1]
    assert run.clock.monotonic() == 1.5
    assert run.consumer.statistics().failures == 2


POISONED = [Job(0, 0, "bad", failures=POISON), Job(0, 1, "bad"), Job(0, 2, "good")]


async def test_a_dead_letter_is_handled_and_its_key_follows():
    run = Run(POISONED, buries=True)
    await everything(run)
    assert (offsets(run.dead), offsets(run.done)) == ([0], [2, 1])
    assert run.consumer.positions() == {0: Position(3)}
    statistics = run.consumer.statistics()
    assert (statistics.handled, statistics.dead_letters, statistics.failures) == (2, 1, 3)


async def test_a_dead_letter_is_handled_and_its_key_waits_when_that_was_asked():
    run = Run(POISONED, buries=True, after_poison="wait")
    await everything(run)
    assert (offsets(run.dead), offsets(run.done)) == ([0], [2])
    assert run.consumer.positions() == {0: Position(1, ranges((2, 3)))}
    (parked,) = run.consumer.parked()
    assert (parked.record.offset, parked.dead_letter, parked.waiting) == (0, True, 1)
    assert run.consumer.statistics().buffered == 2
    assert run.consumer.release(0, "bad") == 1
    await until_idle()
    assert offsets(run.done) == [2, 1]
    assert run.consumer.positions() == {0: Position(3)}
    assert run.consumer.statistics().buffered == 0


@pytest.mark.parametrize(("after", "done"), [("follow", [2, 1]), ("wait", [2])])
async def test_without_dead_letters_a_poison_record_is_parked_and_never_passed(after, done):
    run = Run(POISONED, after_poison=after)
    await everything(run)
    assert offsets(run.done) == done
    assert run.consumer.positions()[0].offset == 0
    (parked,) = run.consumer.parked()
    assert (parked.record.offset, parked.dead_letter) == (0, False)
    assert isinstance(parked.error, ValueError)
    run.tried[POISONED[0]] = POISON  # whatever was wrong is mended
    run.consumer.release(0, "bad")
    await until_idle()
    assert sorted(offsets(run.done)) == [0, 1, 2]
    assert run.consumer.positions() == {0: Position(3)}
    assert run.consumer.parked() == []


@pytest.mark.parametrize("after", ["follow", "wait"])
async def test_records_without_a_key_wait_for_nobody(after):
    jobs = [Job(0, 0, failures=POISON), Job(0, 1, failures=POISON), Job(0, 2)]
    run = Run(jobs, after_poison=after)
    await everything(run)
    assert offsets(run.done) == [2]
    run.tried.update({jobs[0]: POISON, jobs[1]: POISON})
    assert run.consumer.release(0, None) == 2
    await until_idle()
    assert run.consumer.positions() == {0: Position(3)}
    dead = Run(jobs, after_poison=after, buries=True)
    await everything(dead)
    assert dead.consumer.positions() == {0: Position(3)}


async def test_a_dead_letter_that_cannot_be_written_leaves_the_record_unhandled():
    async def bury(job, error):
        raise OSError("no room for dead letters")

    run = Run(POISONED, on_poison=bury)
    await everything(run)
    assert run.consumer.positions()[0].offset == 0
    (parked,) = run.consumer.parked()
    assert isinstance(parked.error, OSError)


async def test_an_error_that_stays_is_not_tried_again():
    tries = []

    async def handle(job):
        tries.append(job)
        raise NonRetryable("no use")

    consumer = ParallelConsumer(handle, system=System(clock=VirtualClock()))
    consumer.assign(0)
    await consumer.submit([Job(0, 0, "k")])
    await consumer.drain()
    assert len(tries) == 1
    assert consumer.release(0, "other") == 0
    await consumer.close()


async def test_what_the_handler_waits_for_may_be_cancelled_without_the_consumer():
    async def handle(job):
        waited_for = asyncio.ensure_future(asyncio.sleep(0))
        waited_for.cancel()
        await waited_for

    consumer = ParallelConsumer(handle, retry=Retry(attempts=1))
    consumer.assign(0)
    await consumer.submit([Job(0, 0, "k")])
    await consumer.drain()
    (parked,) = consumer.parked()
    assert isinstance(parked.error, HandlerFailed)
    await consumer.close()


async def test_a_full_buffer_makes_submit_wait_and_then_raise():
    jobs = [Job(0, offset, "k", 1.0) for offset in range(8)]
    run = Run(jobs, in_flight_max=2, buffered_max=3)
    with pytest.raises(DeadlineExceeded):
        await run.clock.run_until(run.consumer.submit(jobs, timeout=2.5))
    assert run.consumer.statistics().buffered == 3
    assert offsets(run.done) == [0, 1]
    # The same records again: those that were taken are passed over.
    await everything(run)
    assert offsets(run.done) == list(range(8))
    assert run.consumer.statistics().passed_over == 5


async def test_the_number_of_gaps_is_bounded_by_the_buffer():
    jobs = [
        Job(0, offset, f"k{offset}", failures=(offset + 1) % 2 * POISON) for offset in range(99)
    ]
    run = Run(jobs, in_flight_max=4, buffered_max=10, retry=Retry(attempts=1))
    with pytest.raises(DeadlineExceeded):
        await run.clock.run_until(run.consumer.submit(jobs, timeout=60))
    position = run.consumer.positions()[0]
    assert position == Position(0, tuple(ranges(*((at, at + 1) for at in range(1, 19, 2)))))
    assert len(position.gaps) < 10


async def test_handlers_that_never_wait_do_not_hold_the_loop():
    run = Run([Job(0, offset) for offset in range(1_000)], in_flight_max=1)
    turns = 0

    async def look():
        nonlocal turns
        while run.consumer.statistics().handled < 1_000:
            turns += 1
            await asyncio.sleep(0)

    await run.consumer.submit(run.jobs)
    await look()
    assert turns >= 10


async def test_records_that_come_twice_are_handled_once():
    run = Run([Job(0, offset) for offset in range(5)])
    await everything(run)
    await everything(run)
    assert len(run.done) == 5
    assert run.consumer.statistics().passed_over == 5


async def test_records_of_a_partition_that_was_never_assigned_are_refused():
    run = Run([Job(0, 0)])
    with pytest.raises(UnknownPartition):
        await run.consumer.submit([Job(4, 0)])
    with pytest.raises(UnknownPartition):
        await run.consumer.remove(4)
    with pytest.raises(InvalidOption):
        run.consumer.assign(0)


async def test_a_removed_partition_is_passed_over_until_it_comes_back():
    run = Run([Job(0, 0, "k", 1.0), Job(0, 1, "k"), Job(1, 0, "k", 2.0)])
    await run.consumer.submit(run.jobs)
    await until_idle()
    assert await run.clock.run_until(run.consumer.remove(0)) == Position(1)
    await run.consumer.submit([Job(0, 2)])
    await run.clock.run_until(run.consumer.drain())
    assert [job.place for job in run.done] == [(0, 0), (1, 0)]
    run.consumer.assign(0, 1)
    await run.consumer.submit([Job(0, 1, "k")])
    await run.consumer.drain()
    assert run.consumer.positions() == {0: Position(2), 1: Position(1)}


async def test_close_cancels_what_takes_too_long_and_that_is_not_handled():
    run = Run([Job(0, 0, "a", 100.0), Job(0, 1, "b", 1.0), Job(0, 2, "b")])
    await run.consumer.submit(run.jobs)
    await until_idle()
    await run.clock.run_until(run.consumer.close(timeout=5.0))
    assert run.clock.monotonic() == 5.0
    assert offsets(run.done) == [1]
    assert run.running == []
    assert run.consumer.positions() == {0: Position(0, ranges((1, 2)))}
    with pytest.raises(Closed):
        await run.consumer.submit([Job(0, 3)])
    with pytest.raises(Closed):
        run.consumer.assign(7)
    await run.consumer.close()


async def test_a_cancelled_close_cancels_the_handlers():
    run = Run([Job(0, 0, seconds=100.0)])
    await run.consumer.submit(run.jobs)
    await until_idle()
    closing = asyncio.ensure_future(run.consumer.close())
    await until_idle()
    closing.cancel()
    await until_idle()
    assert run.running == []
    assert run.consumer.positions() == {0: Position(0)}


@pytest.mark.parametrize(("deadline", "calls"), [(6.05, 2), (5.95, 1)])
async def test_the_deadline_of_a_record_counts_from_its_first_call(deadline, calls):
    slow = Retry(attempts=9, delay=1.0, jitter=False, deadline=deadline)
    run = Run([Job(0, 0, seconds=5.0, failures=POISON)], buries=True, retry=slow)
    await everything(run)
    assert len(run.begun) == calls


async def test_close_does_not_wait_for_retries_and_wakes_who_waits():
    run = Run(
        [Job(0, offset, f"k{offset}", failures=POISON) for offset in range(4)],
        in_flight_max=2,
        buffered_max=2,
        retry=Retry(attempts=9, delay=60, delay_max=60, deadline=None),
    )
    submitting = asyncio.ensure_future(run.consumer.submit(run.jobs))
    draining = asyncio.ensure_future(run.consumer.drain())
    await until_idle()
    await run.consumer.close()
    with pytest.raises(Closed):
        await submitting
    await draining
    assert run.clock.monotonic() == 0.0
    assert not run.clock.advance_to_next()


async def test_with_auto_commit_a_restart_handles_exactly_what_is_missing():
    store, jobs = (
        MemoryStore(),
        [
            Job(0, 0, "slow", 100.0),
            *(Job(0, offset, f"k{offset}", 1.0) for offset in range(1, 9)),
        ],
    )
    run = Run(jobs, in_flight_max=4)
    checkpoints = CheckpointStore(store, runner=inline, system=System(clock=run.clock))

    async def commit(partition: int, position: Position) -> None:
        await checkpoints.commit("g", "t", partition, position, generation=1)

    auto = AutoCommit(run.consumer.positions, commit, system=System(clock=run.clock))
    auto.begin()
    await run.consumer.submit(jobs)
    await run.clock.run_until(run.timers.sleep(6))
    found = await CheckpointStore(store, runner=inline).read("g", "t", 0)
    assert found is not None
    assert found.position == Position(0, ranges((1, 9)))
    await run.clock.run_until(run.consumer.close(timeout=1))
    await auto.close()
    second = Run(jobs, positions={0: found.position})
    await everything(second)
    assert offsets(second.done) == [0]


@pytest.mark.parametrize(
    "options",
    [{"in_flight_max": 0}, {"in_flight_max": 5, "buffered_max": 4}, {"after_poison": "explode"}],
)
def test_options_that_cannot_be_are_refused(options):
    with pytest.raises(InvalidOption):
        ParallelConsumer(until_idle, **options)


async def test_a_worker_that_is_cancelled_from_outside_makes_no_dead_letter():
    run = Run([Job(0, 0, "k", 9.0), Job(0, 1, "k")], buries=True, retry=Retry(attempts=1))
    before = asyncio.all_tasks()
    await run.consumer.submit(run.jobs)
    for task in asyncio.all_tasks() - before:  # as a loop does that comes to its end
        await until_idle()
        task.cancel()
    await until_idle()
    assert (run.dead, run.done) == ([], [])
    assert run.consumer.statistics().failures == 0
    assert run.consumer.positions() == {0: Position(0)}


async def test_a_record_that_fails_while_its_partition_stops_comes_again_elsewhere():
    run = Run([Job(0, 0, "k", 1.0, POISON)], buries=True, retry=Retry(attempts=1))
    await run.consumer.submit(run.jobs)
    await until_idle()
    assert await run.clock.run_until(run.consumer.remove(0)) == Position(0)
    assert run.dead == []
