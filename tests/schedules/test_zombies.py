"""Ten thousand times somebody goes on who was replaced: groups, transactions, producers, checkpoints."""

import asyncio
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from penstock.log import group_file
from penstock.log.producer_file import ProducerFile
from penstock.streaming import guarded_store
from penstock.testing import SeededSchedule
from penstock.transports import EmbeddedTransport
from tests.crash.kill_rig import processes
from tests.crash.rigs import seed_of
from tests.schedules import zombie_process, zombie_scenarios
from tests.schedules.zombie_process import ONE
from tests.schedules.zombie_scenarios import OUT, TOPIC, Tries
from tests.scoreboard import Scores, amount, short_amount
from tests.stopping import stop_between_calls

processes.set_forkserver_preload([zombie_process.__name__])

SHARES: dict[Any, float] = {
    zombie_scenarios.of_groups: 0.52,
    zombie_scenarios.of_consumers: 0.05,
    zombie_scenarios.of_producers: 0.15,
    zombie_scenarios.of_checkpoints: 0.15,
    zombie_scenarios.of_databases: 0.1,
}
ACROSS_PROCESSES = 0.03
GROUPS = 20
PARTS = 20
OWNER_LEASE_SECONDS = 120
"""However slow the machine is: a zombie may have its part back when the lease of its owner is over."""
NAMED = [pytest.param(one, id=one.__name__) for one in SHARES]
MEMORY = "/dev/shm"


@pytest.fixture
def folder() -> Iterator[Path]:
    parent = MEMORY if os.access(MEMORY, os.W_OK) else None
    made = Path(tempfile.mkdtemp(prefix="penstock-zombies-", dir=parent))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def try_late(scenario: Any, seed: int, count: int) -> Tries:
    """Zombies in the order of one seed after the other, until they have tried so often."""
    tries = Tries()
    while tries.tried < count:
        # An even seed: a schedule in which nobody is cancelled.
        SeededSchedule(2 * seed).run(lambda schedule: scenario(schedule, tries))
        seed += 1
    return tries


def test_the_shares_are_the_whole():
    assert sum(SHARES.values()) + ACROSS_PROCESSES == pytest.approx(1)


def check_late(scenario: Any, seed: int, count: int, scored: Scores) -> None:
    tries = try_late(scenario, seed, count)
    print(f"{tries.tried:,} tries of zombies {scenario.__name__}, accepted: {tries.accepted[:10]}")
    scored(14, tried=tries.tried, bad=len(tries.accepted), seed=seed)


@pytest.mark.parametrize("scenario", NAMED)
def test_who_was_replaced_commits_nothing(request, scenario, scored):
    count = round(short_amount(14) * SHARES[scenario])
    check_late(scenario, seed_of(request), count, scored)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("scenario", NAMED)
def test_who_was_replaced_commits_nothing_however_often(request, scenario, scored):
    check_late(scenario, seed_of(request), amount(14), scored)


@pytest.mark.parametrize(
    ("scenario", "owner", "name"),
    [
        (zombie_scenarios.of_groups, group_file, "fence"),
        (zombie_scenarios.of_producers, ProducerFile, "check"),
        (zombie_scenarios.of_checkpoints, guarded_store, "check_generation"),
    ],
)
def test_a_missing_fence_is_seen(monkeypatch, scenario, owner, name):
    """The rig finds what it is there to find."""
    monkeypatch.setattr(owner, name, lambda *_: None)
    try:
        seen = bool(try_late(scenario, 0, 20).accepted)
    except AssertionError:
        seen = True  # the books show it
    assert seen


class Stopped:
    """A process that holds batches of groups and names of producers, and is stopped with them."""

    def __init__(self, path: Path, groups: list[str], seed: int) -> None:
        self.groups = groups
        self.link, theirs = processes.Pipe()
        self.child = processes.Process(
            target=zombie_process.run, args=(str(path), groups, seed, theirs), daemon=True
        )
        self.child.start()
        theirs.close()
        assert heard(self.link) == "holding"
        assert self.child.pid is not None
        stop_between_calls(self.child.pid)

    def go_on(self) -> None:
        """It wakes up in the middle of what it did."""
        assert self.child.pid is not None
        os.kill(self.child.pid, signal.SIGCONT)
        self.link.send("go on")

    def end(self) -> tuple[int, list[str]]:
        tried, accepted = heard(self.link)
        self.child.join(120)
        self.link.close()
        return tried, accepted


def heard(link: Connection) -> Any:
    assert link.poll(120), "the process says nothing"
    return link.recv()


async def take_over(transport: EmbeddedTransport, stack: AsyncExitStack, group: str) -> None:
    """Wait until the lease of the one that is stopped is over; commit, and publish one record."""
    consumer = transport.subscribe(TOPIC, group, lease_seconds=OWNER_LEASE_SECONDS)
    await stack.enter_async_context(consumer)
    batch = await consumer.next_batch(120, 100)
    async with transport.queue.transaction(group) as transaction:
        await transaction.publish(OUT, b"owner")
        transaction.commit_offsets(consumer, batch)


async def replace(path: Path, number: int, chance: random.Random) -> tuple[int, list[str]]:
    """Stop a process, take over all that it has, in any order, and let it go on."""
    groups = [f"group-{number}-{one}" for one in range(GROUPS)]
    async with EmbeddedTransport(path, defaults=ONE) as transport, AsyncExitStack() as stack:
        before = len([one async for one in transport.queue.replay(OUT)])
        stopped = await asyncio.to_thread(Stopped, path, groups, chance.getrandbits(32))
        chance.shuffle(groups)
        await asyncio.gather(*(take_over(transport, stack, group) for group in groups))
        stopped.go_on()
        result = await asyncio.to_thread(stopped.end)
        for group in groups:
            assert [one.records for one in await transport.lag(TOPIC, group)] == [0]
        values = [one.value async for one in transport.queue.replay(OUT)][before:]
    assert values == [b"owner"] * GROUPS, f"accepted: {result[1]}"
    return result


async def check_processes(
    folder: Path, wanted: float, scored: Scores, seed: int, part: int = 0
) -> None:
    chance = random.Random(seed + part)
    async with EmbeddedTransport(folder, defaults=ONE) as transport:
        await transport.create_topic(OUT)
        await transport.produce(TOPIC, [b"%d" % number for number in range(10)])
    tried = 0
    accepted: list[str] = []
    while tried < wanted:
        more, wrong = await replace(folder, tried, chance)
        tried += more
        accepted += wrong
    scored(14, tried=tried, bad=len(accepted), seed=seed)


async def test_processes_that_were_stopped_and_replaced_commit_nothing(request, folder, scored):
    """Real processes, SIGSTOP, and leases that run out meanwhile."""
    wanted = short_amount(14) * ACROSS_PROCESSES
    await check_processes(folder, wanted, scored, seed_of(request))


@pytest.mark.torture
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("part", range(PARTS))
async def test_processes_that_were_replaced_commit_nothing_however_often(
    request, folder, part, scored
):
    """In parts, as each of them leaves its groups and producers in the log."""
    await check_processes(folder, amount(14) / PARTS, scored, seed_of(request), part)
