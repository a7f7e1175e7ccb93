"""Owners that are stopped until others took over, and then go on: whatever they still try is refused."""

import asyncio
import sqlite3
from collections.abc import Awaitable
from contextlib import closing
from typing import Any

from penstock.errors import Fenced
from penstock.log.group_coordinator import GroupCoordinator
from penstock.log.queue import WalMessageQueue
from penstock.log.records import Record
from penstock.log.topic import TopicConfig
from penstock.stores import MemoryStore
from penstock.streaming import CheckpointStore, DatabaseCheckpoints
from penstock.system import System, Timer
from penstock.testing import SeededSchedule, SimulatedDisk
from penstock.testing.schedules import LoopClock
from penstock.transports.embedded import EmbeddedTransport
from penstock.transports.records import StreamBatch

PATH = "/data"
TOPIC, OUT = "orders", "out"
PLACE = (TOPIC, 0)
LEASE_SECONDS = 2.0


class Tries:
    """What zombies tried, and how much of it was accepted."""

    def __init__(self) -> None:
        self.tried = 0
        self.accepted: list[str] = []

    async def late(self, what: str, doing: Awaitable[Any]) -> None:
        self.tried += 1
        try:
            await doing
        except Fenced:
            return
        self.accepted.append(what)


def _never() -> None:
    raise AssertionError("something was written for a zombie")


class StoppedClock(LoopClock):
    """The clock of a process that can be stopped: then its timers do not fire."""

    stopped = False

    def call_after(self, seconds: float, callback: Any) -> Timer:
        return super().call_after(seconds, lambda: None if self.stopped else callback())


def stoppable(schedule: SeededSchedule, disk: SimulatedDisk) -> tuple[System, StoppedClock]:
    clock = StoppedClock(schedule.loop)
    machine = schedule.machine(disk)
    return System(disk, clock, machine.random, machine.worker), clock


def transport_on(system: System) -> EmbeddedTransport:
    defaults = TopicConfig(partitions=1)
    return EmbeddedTransport(PATH, defaults=defaults, maintenance_interval=None, system=system)


async def of_groups(schedule: SeededSchedule, tries: Tries) -> None:
    """A member whose lease ran out, and what it tries with any offset."""
    store, system = MemoryStore(), schedule.system
    one, other = (
        GroupCoordinator(store, "billing", system=system, lease_seconds=LEASE_SECONDS)
        for _ in range(2)
    )
    zombie = await one.join({TOPIC: 1})
    if schedule.random.random() < 0.5:
        await zombie.commit({PLACE: 5})
    await asyncio.sleep(schedule.random.uniform(1.01, 3) * LEASE_SECONDS)
    owner = await other.join({TOPIC: 1})
    await owner.commit({PLACE: 10})
    for offset in schedule.random.sample([0, 5, 9, 10, 11, 1_000], 3):
        await tries.late("commit", zombie.commit({PLACE: offset}))
        await tries.late("commit back", zombie.commit({PLACE: offset}, backwards=True))
        await tries.late("commit with", zombie.commit({PLACE: offset}, write=_never))
    await tries.late("heartbeat", zombie.heartbeat())
    assert (await other.committed([PLACE]))[PLACE] == 10  # type: ignore[index]
    await owner.leave()


async def of_consumers(schedule: SeededSchedule, tries: Tries) -> None:
    """A consumer that was stopped with a batch in its hands: acknowledgements and transactions."""
    disk = SimulatedDisk()
    system, clock = stoppable(schedule, disk)
    async with transport_on(schedule.machine(disk)) as living, transport_on(system) as stopped:
        await living.produce(TOPIC, [b"%d" % number for number in range(6)])
        options = {"lease_seconds": LEASE_SECONDS, "release_seconds": 1.0}
        async with stopped.subscribe(TOPIC, "billing", **options) as zombie:  # type: ignore[arg-type]
            batch = await zombie.next_batch(60, schedule.random.choice([1, 3]))
            if schedule.random.random() < 0.5:
                await zombie.commit(batch)
                batch = await zombie.next_batch(60, 2)
            late = [stopped.queue.transaction(name) for name in ("own", "shared")]
            for transaction in late:
                await transaction.publish(OUT, b"zombie")
                transaction.commit_offsets(zombie, batch)
            clock.stopped = True
            async with living.subscribe(TOPIC, "billing", lease_seconds=LEASE_SECONDS) as owner:
                taken = await owner.next_batch(60, 6)
                async with living.queue.transaction("shared") as transaction:
                    await transaction.publish(OUT, b"owner")
                    transaction.commit_offsets(owner, taken)
                await _late_acknowledgements(tries, zombie, batch)
                for transaction in late:
                    await tries.late("transaction", transaction.commit())
                assert not any(one.records for one in await living.lag(TOPIC, "billing"))
            clock.stopped = False
        assert [one.value async for one in living.queue.replay(OUT)] == [b"owner"]


async def _late_acknowledgements(tries: Tries, zombie: Any, batch: StreamBatch) -> None:
    await tries.late("batch", zombie.commit(batch))
    await tries.late("offset", zombie.commit({0: batch.next_offset}))
    await tries.late("end", zombie.commit({0: 6}))


async def of_producers(schedule: SeededSchedule, tries: Tries) -> None:
    """A producer whose name was taken over: sequences, transactions, numbers."""
    disk = SimulatedDisk()
    defaults = TopicConfig(partitions=1)
    queues = [
        WalMessageQueue(PATH, defaults=defaults, maintenance_interval=None, system=machine)
        for machine in (schedule.machine(disk), schedule.machine(disk))
    ]
    async with queues[0] as one, queues[1] as other:
        zombie, owner = one.producer("outbox"), other.producer("outbox")
        await zombie.publish(OUT, b"0", sequence=0)
        begun = zombie.transaction()
        await begun.publish(OUT, b"zombie")
        await owner.open()
        if schedule.random.random() < 0.5:
            await owner.publish(OUT, b"1", sequence=1)
        # What stands already is acknowledged to anybody, as what it is: a repetition.
        sequence = schedule.random.randrange(2, 6)
        for _ in range(3):
            await tries.late("sequence", zombie.publish(OUT, b"zombie", sequence=sequence))
        for number in (None, 3, 9):
            transaction = zombie.transaction(number=number)
            await transaction.publish_many(OUT, [b"zombie"] * 2)
            await tries.late("transaction", transaction.commit())
        await tries.late("begun before", begun.commit())
        values = [one.value async for one in other.replay(OUT)]
    assert b"zombie" not in values


async def of_checkpoints(schedule: SeededSchedule, tries: Tries) -> None:
    """Positions in a store: a generation that is over commits no more, whoever knows it."""
    store = MemoryStore()
    zombie, owner = (CheckpointStore(store, system=schedule.system) for _ in range(2))
    old = schedule.random.randrange(1, 5)
    await zombie.commit("billing", TOPIC, 0, 5, generation=old)
    await owner.commit("billing", TOPIC, 0, 8, generation=old + schedule.random.randrange(1, 3))
    # What is below the zombie's own last commit stands already: that is no commit.
    for offset in schedule.random.sample([6, 7, 8, 9, 1_000], 4):
        late = zombie.commit("billing", TOPIC, 0, offset, generation=old)
        await tries.late("checkpoint", late)
    found = await CheckpointStore(store, system=schedule.system).read("billing", TOPIC, 0)
    assert found is not None
    assert found.offset == 8


def _batch(first: int, count: int) -> StreamBatch:
    records = [Record(TOPIC, 0, offset, 0, None, b"1") for offset in range(first, first + count)]
    return StreamBatch(TOPIC, 0, records, first + count)


async def of_databases(schedule: SeededSchedule, tries: Tries) -> None:
    """Positions in the user's database: who was replaced changes no row."""
    checkpoints = DatabaseCheckpoints("billing")
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        await checkpoints.create(connection)
        claim = await checkpoints.claim(connection, TOPIC, 0, start=0, generation=1)
        if schedule.random.random() < 0.5:
            claim = await checkpoints.save(connection, _batch(0, 2), claim)
        newer = schedule.random.choice([1, 2])
        mine = await checkpoints.claim(connection, TOPIC, 0, start=0, generation=newer)
        if schedule.random.random() < 0.5:
            mine = await checkpoints.save(connection, _batch(mine.next_offset, 3), mine)
        for count in (1, 3, 7):
            late = checkpoints.save(connection, _batch(claim.next_offset, count), claim)
            await tries.late("save", late)
        positions = await checkpoints.positions(connection, TOPIC)
        assert positions == {0: mine.next_offset}


SCENARIOS = [of_groups, of_consumers, of_producers, of_checkpoints, of_databases]
