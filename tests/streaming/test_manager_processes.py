"""Runs whose consumers are processes: they share the work, die, and are started again."""

import asyncio
import os
import signal
from collections import Counter

import pytest

from penstock.streaming import ScalabilityConfig, StreamingScalingManager, process_member
from tests.streaming import worker_handlers
from tests.streaming.manager_world import WAIT_SECONDS, take, until

QUICK: dict = {"subscribe_options": {"lease_seconds": 2.0}}
"""Who dies is noticed soon. On a busy machine one that lives may be noticed too: then events come again."""
MANY = [b"%d" % number for number in range(40)]


@pytest.fixture
async def streams(tmp_path):
    # A busy machine is late: no reason to add consumers here.
    config = ScalabilityConfig(max_lag_ms=3_600_000)
    async with StreamingScalingManager(f"log:{tmp_path}/data", config=config) as streams:
        await streams.create_topic("orders", partitions=4)
        yield streams


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "handled"
    folder.mkdir()
    return folder


def lines(folder):
    """What each process wrote, by its id."""
    return {int(one.stem): one.read_text().splitlines() for one in folder.glob("*.txt")}


def total(folder):
    return sum(map(len, lines(folder).values()))


async def publish(streams, folder, values=MANY):
    headers = [{"folder": str(folder)}] * len(values)
    await streams.publish_many("orders", values, keys=values, headers=headers)


async def pids(run):
    await until(lambda: all(place.member and place.member.pid for place in run._places))
    return [place.member.pid for place in run._places]


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def all_at_work(run, count):
    await until(lambda: run.statistics().alive == count)


@pytest.mark.acceptance(73)
async def test_processes_of_a_group_share_the_work_and_finish_it(streams, folder):
    run = streams.run("orders", "billing", worker_handlers.crunch, executor="process", consumers=2)
    async with run:
        started = await pids(run)
        await publish(streams, folder)
        await all_at_work(run, 2)
        await publish(streams, folder)
        await until(lambda: total(folder) == 80)
        await until(lambda: run.statistics().handled == 80)
        await streams.look()
        assert streams.get_scaling_metrics()["consumers"] == {"orders": 2}
    assert set(lines(folder)) <= set(started)
    handled = Counter(line.split()[1] for several in lines(folder).values() for line in several)
    assert handled == Counter([one.decode() for one in MANY] * 2)
    assert not any(map(is_alive, started)), "they are gone when the run is stopped"
    lag = await streams.transport().lag("orders", "billing")
    assert sum(one.records for one in lag) == 0, "and have committed what they handled"


async def test_a_process_that_is_killed_is_started_again_and_nothing_is_lost(streams, folder):
    run = streams.run("orders", "billing", worker_handlers.write_down, executor="process", **QUICK)
    async with run:
        [first] = await pids(run)
        await publish(streams, folder)
        await until(lambda: total(folder) >= 40)
        os.kill(first, signal.SIGKILL)
        await until(lambda: run.statistics().restarts >= 1)
        await publish(streams, folder, [b"more"] * 3)
        await until(lambda: any(pid != first for pid in lines(folder)))
        await until(
            lambda: (
                sum(line == "more more" for several in lines(folder).values() for line in several)
                >= 3
            )
        )
        assert "-9" in run.statistics().last_error
    seen = {line.split()[1] for several in lines(folder).values() for line in several}
    assert seen == {*(one.decode() for one in MANY), "more"}


async def test_a_process_that_is_silent_is_killed_and_started_again(streams, folder, monkeypatch):
    run = streams.run("orders", "billing", worker_handlers.write_down, executor="process", **QUICK)
    async with run:
        [first] = await pids(run)
        await publish(streams, folder)
        await until(lambda: total(folder) >= 40)
        # From now on: starting may take longer, and is not silence. It counts from the next heartbeat on.
        monkeypatch.setattr(process_member, "HEARTBEATS_MISSED_MAX", 5)
        member = run._places[0].member
        last = member._figures
        await until(lambda: member._figures is not last)
        os.kill(first, signal.SIGSTOP)
        await until(lambda: run.statistics().restarts >= 1)
        assert "silent" in run.statistics().last_error
        assert not is_alive(first)


async def test_what_fails_in_a_process_goes_to_the_dead_letters(streams, folder):
    run = streams.run(
        "orders",
        "billing",
        "tests.streaming.worker_handlers:fail",
        executor="process",
        attempts=1,
        dead_letter_topic="orders.dead",
    )
    async with run:
        await publish(streams, folder, MANY[:3])
        await until(lambda: run.statistics().dead_letters == 3)
    async with streams.subscribe("orders.dead", "people") as events:
        letters = await take(events, 3)
    assert {letter.value for letter in letters} == set(MANY[:3])


async def test_a_worker_stops_when_its_program_is_gone(streams, folder):
    run = streams.run("orders", "billing", worker_handlers.write_down, executor="process")
    async with run:
        [pid] = await pids(run)
        await publish(streams, folder)
        await until(lambda: total(folder) >= 40)
        member = run._places[0].member
        member._process.stdin.close()  # as it happens when the program dies
        await asyncio.wait_for(member._process.wait(), WAIT_SECONDS)
        assert member._process.returncode == 0
        lag = await streams.transport().lag("orders", "billing")
        assert sum(one.records for one in lag) == 0
    assert not is_alive(pid)
