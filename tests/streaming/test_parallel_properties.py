"""Any mix of durations, failures and keys: order per key, each record once, nothing passed over."""

import asyncio
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Closed
from tests.streaming.parallel_world import ATTEMPTS, POISON, Run, jobs_lists

sizes = st.sampled_from([(1, 1), (2, 3), (3, 5), (8, 100)])


async def swallow(work):
    with suppress(Closed):
        await work


def in_order_per_key(jobs):
    seen: dict = {}
    for job in jobs:
        if job.key is not None:
            assert seen.get((job.partition, job.key), -1) < job.offset
            seen[(job.partition, job.key)] = job.offset


@given(jobs_lists(), sizes)
async def test_each_record_is_handled_once_and_in_the_order_of_its_key(jobs, size):
    run = Run(jobs, in_flight_max=size[0], buffered_max=size[1], buries=True)
    run.clock.on_advance(run.check_positions)
    await run.clock.run_until(run.all())
    finished = [*run.done, *run.dead]
    assert len(finished) == len(set(finished)) == len(jobs)
    assert set(run.dead) == {job for job in jobs if job.failures == POISON}
    assert run.running_most <= size[0]
    in_order_per_key(run.done)
    in_order_per_key(dict.fromkeys(run.begun))
    for partition, position in run.consumer.positions().items():
        assert position.gaps == ()
        assert position.offset == 1 + max(job.offset for job in jobs if job.partition == partition)
    assert run.consumer.statistics().buffered == 0
    for job in jobs:
        assert run.begun.count(job) == min(job.failures + 1, ATTEMPTS)


@given(
    jobs_lists(),
    sizes,
    st.sampled_from([0.0, 0.05, 0.3, 0.7, 1.5, 4.0, 20.0]),
    st.sampled_from([0.0, 0.2, 100.0]),
    st.booleans(),
)
async def test_who_resumes_handles_exactly_what_is_missing(jobs, size, moment, patience, each):
    options = {"in_flight_max": size[0], "buffered_max": size[1], "buries": True}
    first = Run(jobs, **options)

    async def interrupted():
        async with asyncio.TaskGroup() as group:
            everything = group.create_task(swallow(first.all()))
            await first.timers.sleep(moment)
            if each:
                for partition in dict(first.consumer.positions()):
                    positions[partition] = await first.consumer.remove(partition, timeout=patience)
            else:
                await first.consumer.close(timeout=patience)
                positions.update(first.consumer.positions())
            everything.cancel()

    positions: dict = {}
    await first.clock.run_until(interrupted())
    assert first.running == []
    finished = {job.place for job in (*first.done, *first.dead)}
    for job in jobs:
        assert positions[job.partition].has_handled(job.offset) == (job.place in finished)
    second = Run(jobs, positions=positions, **options)
    from_there = [job for job in jobs if job.offset >= positions[job.partition].offset]
    second.jobs = from_there
    await second.clock.run_until(second.all())
    again = {job.place for job in (*second.done, *second.dead)}
    assert again == {job.place for job in jobs} - finished
    in_order_per_key([*first.done, *second.done])
