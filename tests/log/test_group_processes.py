"""Groups of real processes: shared work, SIGKILL, and zombies that wake up after SIGSTOP."""

import asyncio
import os
import signal
from collections import Counter
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path

import pytest

from penstock.errors import DeadlineExceeded
from penstock.log.group_coordinator import GroupCoordinator
from penstock.stores import DirectoryStore, SqliteStore
from penstock.system import OsClock, System
from penstock.testing import VirtualClock
from tests.log.test_queue_processes import WAIT_SECONDS, started

TOPICS = {"orders": 4}
LONG, SHORT = 3_600, 600
"""Leases in seconds. The test's clock goes beyond the short one; nobody waits for it."""

OPEN = """
from penstock.errors import Fenced
from penstock.log.group_coordinator import GroupCoordinator
from penstock.log.names import group_lock_key
from penstock.stores import DirectoryStore, SqliteStore

store = SqliteStore(path) if path.endswith(".db") else DirectoryStore(path)
coordinator = GroupCoordinator(store, "billing", lease_seconds=float(sys.argv[2]))
"""

# Does what it is told, one line at a time.
OBEY = (
    OPEN
    + """
async def obey(member, word, *numbers):
    if word == "commit":
        await member.commit({("orders", int(numbers[0])): int(numbers[1])})
    elif word == "hold":
        with store.lock(group_lock_key("billing"), 1):
            say("holding")
            await hear()
    else:
        await getattr(member, word)()
    return sorted(number for _, number in member.assignment)

async def main():
    member = await coordinator.join({"orders": 4})
    say(os.getpid())
    while words := (await hear()).split():
        try:
            say(await obey(member, *words))
        except Fenced as refused:
            say(refused.reason)
"""
)

# Counts up each of its partitions, and tells every number that it was allowed to commit. It stops
# itself, when it is asked to, at the worst moment: it has read the number, and holds no lock.
COUNT = (
    OPEN
    + """
import signal
asked_to_stop = []

async def turn(member):
    await member.heartbeat()
    await member.release()
    for one in sorted(member.assignment):
        next_number = ((await coordinator.committed([one]))[one] or 0) + 1
        if asked_to_stop:
            asked_to_stop.clear()
            os.kill(os.getpid(), signal.SIGSTOP)
        await member.commit({one: next_number})
        say([one.partition, next_number])

async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, asked_to_stop.append, True)
    say(os.getpid())
    member = await coordinator.join({"orders": 4})
    while True:
        try:
            await turn(member)
        except Fenced as refused:
            if refused.reason == "removed":
                member = await coordinator.join({"orders": 4})
"""
)


@pytest.fixture(params=["data", "data.db"])
def path(request, tmp_path):
    return tmp_path / request.param


@pytest.fixture
def store(path):
    kind = SqliteStore if path.suffix else DirectoryStore
    with kind(path) as made:
        yield made


@pytest.fixture
def clock():
    return VirtualClock(OsClock().time_ms())


@pytest.fixture
def coordinator(store, clock):
    return GroupCoordinator(store, "billing", system=System(clock=clock), lease_seconds=LONG)


async def ask(process, line):
    await process.tell(line)
    return await process.hear()


async def settle(processes):
    """What each has when all have released what they should."""
    for word in ("heartbeat", "release"):
        for process in processes:
            await ask(process, word)
    return [await ask(process, "heartbeat") for process in processes]


@pytest.mark.acceptance(76)
async def test_processes_share_the_partitions(path):
    async with AsyncExitStack() as stack:
        processes = [
            await stack.enter_async_context(started(OBEY, path, str(LONG))) for _ in range(3)
        ]
        for process in processes:
            await process.hear()
        found = await settle(processes)
        assert sorted(chain.from_iterable(found)) == [0, 1, 2, 3]
        assert sorted(map(len, found)) == [1, 1, 2]
        assert await ask(processes[0], "leave") == []
        assert sorted(chain.from_iterable(await settle(processes[1:]))) == [0, 1, 2, 3]


@pytest.mark.acceptance(76)
async def test_the_work_of_a_killed_process_goes_to_the_others(path, coordinator, clock):
    async with started(OBEY, path, str(SHORT)) as victim, started(OBEY, path, str(LONG)) as other:
        await victim.hear()
        await other.hear()
        mine, others = await settle([victim, other])
        assert await ask(victim, f"commit {mine[0]} 7") == mine
        await victim.kill()
        assert await ask(other, "heartbeat") == others, "its lease holds"
        clock.advance(SHORT + 300)
        async with await coordinator.join(TOPICS) as member:
            await member.heartbeat()
        assert (await settle([other]))[0] == [0, 1, 2, 3]
        assert await coordinator.committed([("orders", mine[0])]) == {("orders", mine[0]): 7}


@pytest.mark.acceptance(76)
async def test_a_zombie_that_wakes_up_is_refused(path, coordinator, clock):
    async with started(OBEY, path, str(SHORT)) as zombie:
        pid = await zombie.hear()
        assert await ask(zombie, "commit 0 3") == [0, 1, 2, 3]
        os.kill(pid, signal.SIGSTOP)
        await zombie.tell("commit 0 99")  # it was about to
        clock.advance(SHORT + 300)
        member = await coordinator.join(TOPICS)
        assert member.assignment == {("orders", number) for number in range(4)}
        await member.commit({("orders", 0): 5})
        os.kill(pid, signal.SIGCONT)
        assert await zombie.hear() == "removed"
        assert await ask(zombie, "heartbeat") == "removed"
        assert await ask(zombie, "commit 1 99") == "removed"
        assert await coordinator.committed([("orders", 0), ("orders", 1)]) == {
            ("orders", 0): 5,
            ("orders", 1): None,
        }


async def test_a_process_that_is_stopped_with_the_lock_holds_up_and_does_no_harm(path, store):
    async with started(OBEY, path, str(SHORT)) as holder:
        pid = await holder.hear()
        assert await ask(holder, "hold") == "holding"
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(DeadlineExceeded):
            await GroupCoordinator(store, "billing", timeout=0.2).join(TOPICS)
        await holder.kill()
        member = await GroupCoordinator(store, "billing").join(TOPICS)
        # One more when the join that ran into its deadline was done all the same.
        assert member.generation in (2, 3)


class Counting:
    """A process that counts, and what it was heard to say."""

    def __init__(self, process, pid):
        self.process = process
        self.pid = pid
        self.numbers = []
        self.heard = asyncio.Event()
        self.listening = asyncio.create_task(self.listen())

    async def listen(self):
        while line := await self.process._process.stdout.readline():
            if line.endswith(b"]\n"):  # the last one of a killed process may be cut
                partition, number = map(int, line.strip(b"[]\n").split(b","))
                self.numbers.append((partition, number))
                self.heard.set()

    async def until(self, is_enough):
        """Listen until what was said since this call is enough."""
        start = len(self.numbers)
        async with asyncio.timeout(WAIT_SECONDS):
            while not is_enough(self.numbers[start:]):
                self.heard.clear()
                await self.heard.wait()


async def until_stopped(pid):
    async with asyncio.timeout(WAIT_SECONDS):
        while Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split()[2] != "T":
            await asyncio.sleep(0.01)


def some(numbers):
    return len(numbers) >= 8


def all_partitions(numbers):
    return {partition for partition, _ in numbers} == {0, 1, 2, 3}


@pytest.mark.acceptance(76)
async def test_no_number_is_counted_twice_through_kills_and_pauses(path, coordinator):
    """Two owners of a partition would read the same number and both commit the next one."""
    async with AsyncExitStack() as stack:
        counters = []
        for _ in range(3):
            process = await stack.enter_async_context(started(COUNT, path, "0.5"))
            counters.append(Counting(process, await process.hear()))
        first, second, third = counters
        await asyncio.gather(*(one.until(some) for one in counters))
        os.kill(first.pid, signal.SIGKILL)
        os.kill(second.pid, signal.SIGUSR1)
        await until_stopped(second.pid)
        await third.until(all_partitions)
        os.kill(second.pid, signal.SIGCONT)
        await second.until(some)
        os.kill(third.pid, signal.SIGKILL)
        await second.until(all_partitions)
        os.kill(second.pid, signal.SIGKILL)
        await asyncio.gather(*(one.listening for one in counters))
    said = Counter(number for one in counters for number in one.numbers)
    assert set(said.values()) == {1}
    committed = await coordinator.committed([("orders", number) for number in range(4)])
    for partition, number in said:
        assert number <= committed["orders", partition]
