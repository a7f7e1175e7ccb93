"""Consumer processes that are killed and stopped at random: all comes, nothing is acknowledged twice."""

import asyncio
import json
import os
import random
import signal
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from penstock.testing.transport_processes import member_process
from penstock.transports import open_transport

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


class Crowd:
    """Members in processes, each listened to until its end."""

    def __init__(self, url, ledger):
        self.url = url
        self.ledger = ledger
        self.listening = {}

    async def add(self, stack):
        member = await stack.enter_async_context(
            member_process(self.url, "orders", "billing", LEASE, RECORDS_EACH)
        )
        self.listening[member] = asyncio.create_task(self.listen(member))

    async def listen(self, member):
        # Its last words are heard too.
        while line := await member._process.stdout.readline():
            if line.endswith(b"\n"):
                said, *where = json.loads(line)
                self.ledger.note(said, *where)

    async def disturb(self, stack, chance):
        member = chance.choice(list(self.listening))
        what = chance.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1])
        member.send(what)
        if what is signal.SIGKILL:
            await self.listening.pop(member)
            await self.add(stack)
        else:
            await asyncio.sleep(chance.choice(PAUSES))
            member.send(signal.SIGCONT)

    async def end(self):
        for member, listening in self.listening.items():
            member.send(signal.SIGKILL)
            await listening


async def produce(transport, portions):
    for _ in range(portions):
        await transport.produce("orders", [b"x"] * 60)
        await asyncio.sleep(0.02)


async def run(url, seed, disturbances):
    chance = random.Random(seed)
    ledger = Ledger()
    async with AsyncExitStack() as stack:
        transport = await stack.enter_async_context(open_transport(url))
        await transport.create_topic("orders", partitions=PARTITIONS)
        crowd = Crowd(url, ledger)
        await asyncio.gather(*(crowd.add(stack) for _ in range(MEMBERS)))
        for _ in range(disturbances):
            producing = asyncio.create_task(produce(transport, chance.randint(1, 40)))
            await asyncio.sleep(chance.uniform(0, 0.2))
            await crowd.disturb(stack, chance)
            await producing
        await transport.produce("orders", [b"x"] * 600)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while any(one.records for one in await transport.lag("orders", "billing")):
                await asyncio.sleep(0.02)
        ends = [one.end for one in await transport.lag("orders", "billing")]
        await crowd.end()
    return ledger, {(number, at) for number, end in enumerate(ends) for at in range(end)}


def check(ledger, everything, kills_max):
    assert ledger.got.keys() == everything, "lost, or invented"
    twice = [where for where, times in ledger.done.items() if times > 1]
    assert not twice, f"acknowledged twice: {sorted(twice)[:10]}"
    # One that is killed between its commit and its report has said less than it did.
    assert len(everything - ledger.done.keys()) <= kills_max * RECORDS_EACH


@pytest.fixture
def seed(request):
    chosen = int(os.environ.get("PENSTOCK_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"{request.node.name}: PENSTOCK_SEED={chosen}")
    return chosen


@pytest.mark.acceptance(76)
async def test_members_are_killed_and_stopped_at_random(tmp_path, seed):
    ledger, everything = await run(f"log:{tmp_path / 'data'}", seed, 6)
    check(ledger, everything, kills_max=6 + MEMBERS)


@pytest.mark.torture
@pytest.mark.timeout(3_600)
async def test_members_are_killed_and_stopped_for_long(tmp_path, seed):
    for number in range(40):
        ledger, everything = await run(f"log:{tmp_path}/data-{number}", seed + number, 30)
        check(ledger, everything, kills_max=30 + MEMBERS)
