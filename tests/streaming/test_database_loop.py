"""The loop around checkpoints in a database: rebalances, zombies, idle time."""

import asyncio

import pytest

from penstock.errors import Fenced, OffsetOutOfRange
from penstock.streaming import exactly_once
from penstock.system import System
from penstock.testing import VirtualClock
from penstock.transports import EmbeddedTransport, MemberAssignment
from tests.streaming.database_world import Database, batch_of, paid


class Scripted:
    """A consumer whose group does what the test says; a partition has no end."""

    topic = "orders"

    def __init__(self, *partitions):
        self.has = MemberAssignment(1, frozenset(partitions))
        self.places = dict.fromkeys(partitions, 0)
        self.committed = {}
        self.before_batch = []

    def give(self, *partitions):
        """A rebalance: what is new starts where the log was committed."""
        self.has = MemberAssignment(self.has.generation + 1, frozenset(partitions))
        old, self.places = self.places, {}
        for number in partitions:
            self.places[number] = old.get(number, self.committed.get(number, 0))

    def assignment(self):
        return self.has

    def positions(self):
        return dict(self.places)

    async def seek(self, to, *, partition=None):
        assert partition in self.places
        self.places[partition] = to

    async def commit(self, done):
        self.committed.update(done)

    async def next_batch(self, timeout=None, records_max=10):
        if self.before_batch:
            self.give(*self.before_batch.pop(0))
        partition = min(self.places, key=lambda number: (self.places[number], number))
        first = self.places[partition]
        self.places[partition] += records_max
        return batch_of(first, first + records_max, partition)


async def saved(loop, connection):
    batch = await anext(loop)
    with connection:
        await batch.save(connection)
    return batch


async def test_a_partition_that_comes_back_goes_on_where_the_database_is(plain, checkpoints):
    await checkpoints.create(plain)
    consumer = Scripted(0, 1)
    loop = exactly_once(consumer, checkpoints, plain, records_max=2)
    assert (await saved(loop, plain)).partition == 0
    consumer.give(1)
    assert (await saved(loop, plain)).partition == 1
    # Meanwhile another member goes on with partition 0.
    claim = await checkpoints.claim(plain, "orders", 0, start=0, generation=2)
    with plain:
        await checkpoints.save(plain, batch_of(2, 7), claim)
    consumer.give(0)
    batch = await saved(loop, plain)
    assert (batch.partition, batch.records[0].offset) == (0, 7)


async def test_a_rebalance_while_it_waits_is_seen_before_the_batch_is_used(plain, checkpoints):
    """The log may be behind the database: such a batch must not be delivered."""
    await checkpoints.create(plain)
    await checkpoints.claim(plain, "orders", 0, start=6)
    consumer = Scripted(1)
    consumer.before_batch = [(0,)]
    batch = await anext(exactly_once(consumer, checkpoints, plain, records_max=2))
    assert (batch.partition, batch.records[0].offset) == (0, 6)


@pytest.mark.parametrize("rebalances", [1, 3])
async def test_a_partition_that_comes_while_it_waits_begins_at_its_first_record(
    plain, checkpoints, rebalances
):
    """The database does not know it yet, and the first batch of it is not delivered."""
    await checkpoints.create(plain)
    consumer = Scripted(1)
    consumer.before_batch = [(0,), *[(0, 2)] * (rebalances - 1)]
    batch = await anext(exactly_once(consumer, checkpoints, plain, records_max=2))
    assert (batch.partition, batch.records[0].offset) == (0, 0)


class SlowToSeek(Scripted):
    """Seeks when the test lets it."""

    def __init__(self, *partitions):
        super().__init__(*partitions)
        self.sought = []
        self.allowed = asyncio.Semaphore(0)

    async def seek(self, to, *, partition=None):
        self.sought.append(partition)
        await self.allowed.acquire()
        await super().seek(to, partition=partition)


async def test_a_loop_that_is_cancelled_again_and_again_comes_forward(plain, checkpoints):
    """Each call has time for one partition; the ones before it are not begun again."""
    await checkpoints.create(plain)
    for partition in range(3):
        await checkpoints.claim(plain, "orders", partition, start=6)
    consumer = SlowToSeek(0, 1, 2)
    loop = exactly_once(consumer, checkpoints, plain, records_max=2)
    for partition in range(2):
        call = asyncio.ensure_future(anext(loop))
        assert not await turns(call)
        assert consumer.sought[-1] == partition
        consumer.allowed.release()
        await turns(call)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    consumer.allowed.release()
    batch = await anext(loop)
    assert (batch.partition, batch.records[0].offset) == (0, 6)
    assert consumer.sought == [0, 1, 1, 2, 2]


async def turns(task):
    for _ in range(20):
        await asyncio.sleep(0)
    return task.done()


async def test_a_zombie_waits_until_it_hears_of_its_group(plain, checkpoints):
    """It neither claims what a newer generation has nor keeps the loop busy meanwhile."""
    await checkpoints.create(plain)
    clock, consumer = VirtualClock(), Scripted(0, 1)
    await checkpoints.claim(plain, "orders", 0, start=0, generation=2)
    loop = exactly_once(consumer, checkpoints, plain, system=System(clock=clock))
    waiting = asyncio.ensure_future(anext(loop))
    assert not await turns(waiting)
    consumer.give(1)
    clock.advance(1)
    assert await turns(waiting)
    assert (await waiting).partition == 1


async def test_a_zombie_that_never_hears_of_its_group_is_fenced(plain, checkpoints):
    await checkpoints.create(plain)
    clock = VirtualClock()
    await checkpoints.claim(plain, "orders", 0, start=0, generation=2)
    loop = exactly_once(Scripted(0), checkpoints, plain, system=System(clock=clock))
    waiting = asyncio.ensure_future(anext(loop))
    assert not await turns(waiting)
    clock.advance(31)
    with pytest.raises(Fenced):
        await waiting


async def test_a_rebalance_between_batch_and_save_fences(plain, checkpoints):
    await checkpoints.create(plain)
    async with EmbeddedTransport("memory:") as transport:
        await transport.produce("orders", [b"1"] * 20)
        async with transport.subscribe("orders", "billing") as consumer:
            loop = exactly_once(consumer, checkpoints, plain, records_max=2)
            batch = await anext(loop)
            now = consumer.assignment().generation
            await checkpoints.claim(plain, "orders", batch.partition, start=0, generation=now)
            with pytest.raises(Fenced):
                await paid(Database("sqlite3", "", []), plain, batch.save(plain))
            assert plain.execute("SELECT COUNT(*) FROM balances").fetchone() == (0,)
            again = exactly_once(consumer, checkpoints, plain, records_max=2)
            assert (await anext(again)).records[0].offset == batch.records[0].offset


async def test_taken_over_after_the_save_is_told_at_the_next_batch(plain, checkpoints):
    await checkpoints.create(plain)
    async with EmbeddedTransport("memory:") as transport:
        await transport.produce("orders", [b"1"] * 20)
        async with transport.subscribe("orders", "billing") as consumer:
            loop = exactly_once(consumer, checkpoints, plain, records_max=2)
            await saved(loop, plain)
            now = consumer.assignment().generation
            await checkpoints.claim(plain, "orders", 0, start=0, generation=now)
            with pytest.raises(Fenced):
                await anext(loop)
            assert (await anext(loop)).records[0].offset == 2


async def test_a_database_beyond_the_end_of_the_log_is_an_error(plain, checkpoints):
    await checkpoints.create(plain)
    await checkpoints.claim(plain, "orders", 0, start=50)
    async with EmbeddedTransport("memory:") as transport:
        await transport.produce("orders", [b"1"] * 20)
        async with transport.subscribe("orders", "billing") as consumer:
            with pytest.raises(OffsetOutOfRange):
                await anext(exactly_once(consumer, checkpoints, plain))


async def test_idle_time_lets_the_log_follow(plain, checkpoints):
    await checkpoints.create(plain)
    async with EmbeddedTransport("memory:") as transport:
        await transport.produce("orders", [b"1"] * 20)
        async with transport.subscribe("orders", "billing") as consumer:
            loop = exactly_once(consumer, checkpoints, plain, follow_seconds=0.01)
            await saved(loop, plain)
            waiting = asyncio.ensure_future(anext(loop))
            async with asyncio.timeout(30):
                while (await transport.lag("orders", "billing"))[0].records:
                    await asyncio.sleep(0.001)
            await transport.produce("orders", [b"2"])
            assert [record.value for record in await waiting] == [b"2"]
