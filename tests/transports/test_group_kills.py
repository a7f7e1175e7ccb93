"""Consumer processes that are killed and stopped at random: all comes, nothing is acknowledged twice."""

import asyncio
import itertools
import json
import os
import random
import signal
from collections import Counter

import pytest

from penstock.transports import open_transport
from tests.crash.rigs import Nursery, scoring, seed_of
from tests.scoreboard import amount

PARTITIONS = 6
MEMBERS = 3
LEASE = {"lease_seconds": 0.5, "release_seconds": 0.3}
RECORDS_EACH = 50
DEADLINE_SECONDS = 90
PAUSES = (0.1, 0.8, 1.2)
"""Shorter and longer than the lease."""


class Ledger:
    """What the processes said, offset by offset."""

    def __init__(self):
        self.got: Counter[tuple[int, int]] = Counter()
        self.done: Counter[tuple[int, int]] = Counter()
        self.fenced = 0

    def note(self, said, partition, first, stop):
        offsets = [(partition, offset) for offset in range(first, stop)]
        if said == "got":
            self.got.update(offsets)
        elif said == "done":
            self.done.update(offsets)
        else:
            self.fenced += 1


class Member:
    """A member in a process that was forked from a warm one."""

    def __init__(self, nursery, pid, pipe):
        self.nursery = nursery
        self.pid = pid
        self.pipe = pipe
        self.lines = asyncio.StreamReader()

    @classmethod
    async def start(cls, nursery, url):
        order = json.dumps([url, "orders", "billing", json.dumps(LEASE), str(RECORDS_EACH)])
        member = cls(nursery, *nursery.fork(f"member {order}"))
        protocol = asyncio.StreamReaderProtocol(member.lines)
        pipe = os.fdopen(member.pipe, "rb")
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await member.lines.readline() == b'["ready"]\n'
        return member

    def send(self, what):
        os.kill(self.pid, what)


class Crowd:
    """Members in processes, each listened to until its end."""

    def __init__(self, url, ledger, nursery):
        self.url = url
        self.ledger = ledger
        self.nursery = nursery
        self.listening = {}
        self.kills = 0

    async def add(self):
        member = await Member.start(self.nursery, self.url)
        self.listening[member] = asyncio.create_task(self.listen(member))

    async def listen(self, member):
        # Its last words are heard too.
        while line := await member.lines.readline():
            if line.endswith(b"\n"):
                said, *where = json.loads(line)
                self.ledger.note(said, *where)

    async def kill(self, member):
        member.send(signal.SIGKILL)
        await self.listening.pop(member)
        assert self.nursery.reap(member.pid) == -signal.SIGKILL, "the member ended by itself"
        self.kills += 1

    async def disturb(self, chance, kinds):
        member = chance.choice(list(self.listening))
        what = chance.choice(kinds)
        if what is signal.SIGKILL:
            await self.kill(member)
            await self.add()
        else:
            member.send(what)
            await asyncio.sleep(chance.choice(PAUSES))
            member.send(signal.SIGCONT)

    async def end(self):
        for member in list(self.listening):
            await self.kill(member)


async def produce(transport, portions):
    for _ in range(portions):
        await transport.produce("orders", [b"x"] * 60)
        await asyncio.sleep(0.02)


ANYTHING = (signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1)
MOSTLY_KILLS = (signal.SIGKILL,) * 8 + (signal.SIGSTOP, signal.SIGUSR1)


async def run(url, seed, disturbances, nursery, kinds=ANYTHING):
    chance = random.Random(seed)
    ledger = Ledger()
    async with open_transport(url) as transport:
        await transport.create_topic("orders", partitions=PARTITIONS)
        crowd = Crowd(url, ledger, nursery)
        for _ in range(MEMBERS):
            await crowd.add()
        for _ in range(disturbances):
            portions = chance.randint(1, 40 if kinds is ANYTHING else 8)
            producing = asyncio.create_task(produce(transport, portions))
            await asyncio.sleep(chance.uniform(0, 0.2))
            await crowd.disturb(chance, kinds)
            await producing
        await transport.produce("orders", [b"x"] * 600)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while any(one.records for one in await transport.lag("orders", "billing")):
                await asyncio.sleep(0.02)
        ends = [one.end for one in await transport.lag("orders", "billing")]
        await crowd.end()
    return ledger, {(number, at) for number, end in enumerate(ends) for at in range(end)}, crowd


def check(ledger, everything, kills_max):
    assert ledger.got.keys() == everything, "lost, or invented"
    twice = [where for where, times in ledger.done.items() if times > 1]
    assert not twice, f"acknowledged twice: {sorted(twice)[:10]}"
    # One that is killed between its commit and its report has said less than it did.
    assert len(everything - ledger.done.keys()) <= kills_max * RECORDS_EACH


@pytest.fixture
def nursery():
    with Nursery() as opened:
        yield opened


async def torment(request, scored, folder, nursery, kills, kinds):
    """Kill so many members, of one group after the other."""
    seed = seed_of(request)
    with scoring(scored, 1, seed) as tried:
        for number in itertools.count():
            url = f"log:{folder}/data-{number}"
            each = min(30, kills)
            ledger, everything, crowd = await run(url, seed + number, each, nursery, kinds)
            check(ledger, everything, kills_max=crowd.kills)
            tried.count += crowd.kills
            if tried.count >= kills:
                break


@pytest.mark.acceptance(76)
async def test_members_are_killed_and_stopped_at_random(request, scored, tmp_path, nursery):
    await torment(request, scored, tmp_path, nursery, 6, ANYTHING)


async def test_many_members_are_killed(request, scored, tmp_path, nursery):
    await torment(request, scored, tmp_path, nursery, 15, MOSTLY_KILLS)


@pytest.mark.torture
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize(
    ("kinds", "share"),
    [(ANYTHING, 333), (MOSTLY_KILLS, 100)],  # of three disturbances one is a kill, which takes three times as long
    ids=["anything", "mostly kills"],
)  # fmt: skip
async def test_members_are_killed_and_stopped_for_long(
    request, scored, tmp_path, nursery, kinds, share
):
    await torment(request, scored, tmp_path, nursery, max(10, amount(1) // share), kinds)
