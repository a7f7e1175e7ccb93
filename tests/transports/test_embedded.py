"""What only the embedded transport does: assignment from outside, time by its own clock, processes."""

import asyncio
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from penstock import TopicConfig
from penstock.errors import Closed, Fenced, InvalidName, SubscriberBusy, UsageError
from penstock.testing.queue_fixtures import inline, settle
from penstock.testing.transport_fixtures import by_partition, numbered, take, values_of
from penstock.transports import EmbeddedTransport, MemberAssignment

MINUTE_MS = 60_000


class Coordinator:
    """Says what a member has; the test changes its mind."""

    def __init__(self, *partitions):
        self.now = MemberAssignment(1, frozenset(partitions))

    def __call__(self, partitions):
        assert self.now.partitions <= set(range(partitions))
        return self.now

    def give(self, *partitions, generations=1):
        self.now = MemberAssignment(self.now.generation + generations, frozenset(partitions))


@pytest.fixture
async def transport():
    async with EmbeddedTransport("memory:") as transport:
        await transport.create_topic("orders", partitions=4)
        await transport.produce("orders", numbered(40))
        yield transport


async def test_a_member_reads_only_what_is_assigned_to_it(transport):
    source = Coordinator(1, 3)
    async with transport.subscribe("orders", "billing", assignment=source) as consumer:
        assert consumer.assignment() == MemberAssignment(1, frozenset({1, 3}))
        assert set(by_partition(await take(consumer, 20))) == {1, 3}
        assert consumer.positions() == {1: 10, 3: 10}
        await consumer.commit()
    assert [one.records for one in await transport.lag("orders", "billing")] == [10, 0, 10, 0]


async def test_a_member_that_waits_notices_a_new_assignment(transport):
    source = Coordinator()
    async with transport.subscribe("orders", "billing", assignment=source) as consumer:
        waiting = asyncio.ensure_future(take(consumer, 10))
        await settle()
        assert not waiting.done()
        source.give(2)
        await consumer.reassign()
        assert set(by_partition(await waiting)) == {2}
        assert consumer.assignment().generation == 2


async def test_a_partition_that_was_taken_away_is_fenced(transport):
    source = Coordinator(0, 1)
    async with transport.subscribe("orders", "billing", assignment=source) as consumer:
        await take(consumer, 20)
        source.give(1)
        with pytest.raises(Fenced) as refused:
            await consumer.commit({0: 10, 1: 10})
        assert (refused.value.generation, refused.value.current) == (1, 2)
        assert refused.value.partition == 0
        with pytest.raises(Fenced):
            await consumer.seek("earliest", partition=0)
        await consumer.commit({1: 10})
    assert [one.committed for one in await transport.lag("orders", "billing")] == [0, 10, 0, 0]


async def test_a_partition_that_comes_back_starts_where_the_group_is(transport):
    source = Coordinator(0, 1)
    async with transport.subscribe("orders", "billing", assignment=source) as consumer:
        await take(consumer, 20)
        await consumer.commit({0: 4})
        source.give(1)
        await consumer.reassign()
        source.give(0, 1)
        assert [one.offset for one in await take(consumer, 6)] == list(range(4, 10))
        assert consumer.positions() == {0: 10, 1: 10}


async def test_partitions_that_may_have_been_away_are_read_from_the_commit_again(transport):
    source = Coordinator(0)
    async with transport.subscribe("orders", "billing", assignment=source) as consumer:
        await take(consumer, 10)
        await consumer.commit({0: 7})
        source.give(0)
        await consumer.reassign()
        assert consumer.positions() == {0: 10}
        source.give(0, generations=2)
        await consumer.reassign()
        assert consumer.positions() == {0: 7}


async def test_a_batch_of_a_partition_that_went_meanwhile_is_not_delivered(transport):
    source = Coordinator(0)
    async with transport.subscribe("orders", "billing", assignment=source) as consumer:
        await take(consumer, 10)
        waiting = asyncio.ensure_future(take(consumer, 10))
        await settle()
        source.give(1)  # nobody tells the member, and records come in its old partition
        await transport.produce("orders", numbered(4))
        assert {one.partition for one in await waiting} == {1}


async def test_a_pause_outlives_a_new_assignment(transport):
    source = Coordinator(0, 1)
    async with transport.subscribe("orders", "billing", assignment=source) as consumer:
        await consumer.pause(1, 2)
        source.give(1, 2, 3)
        assert set(by_partition(await take(consumer, 10))) == {3}
        await consumer.resume(0, 1)
        assert set(by_partition(await take(consumer, 10))) == {1}
        await consumer.seek("earliest")
        assert consumer.positions() == {1: 0, 2: 0, 3: 0}


async def test_a_reassignment_that_is_cancelled_is_done_by_the_next_call(transport):
    source = Coordinator(0)
    async with transport.subscribe("orders", "billing", assignment=source) as consumer:
        for steps in range(8):
            source.give(steps % 3 + 1, 0)
            changing = asyncio.ensure_future(consumer.reassign())
            for _ in range(steps):
                await asyncio.sleep(0)
            changing.cancel()
            await asyncio.gather(changing, return_exceptions=True)
            await consumer.reassign()
            assert consumer.assignment() == source.now
        assert set(by_partition(await take(consumer, 20))) == source.now.partitions


async def test_opening_that_is_cancelled_leaves_the_group_free(transport):
    for steps in range(6):
        opening = asyncio.ensure_future(transport.subscribe("orders", "billing").open())
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        if opening.cancelled():
            async with transport.subscribe("orders", "billing") as consumer:
                assert await consumer.next_batch()


async def test_time_is_that_of_the_log(tmp_path):
    held = inline()
    begin = datetime.fromtimestamp(held.clock.time_ms() / 1000, UTC)
    async with EmbeddedTransport(tmp_path / "data", system=held.system) as transport:
        await transport.create_topic("orders", partitions=1)
        for number in range(5):
            await transport.produce("orders", numbered(2, 2 * number))
            held.clock.advance(60)
        start = begin + timedelta(minutes=2)
        async with transport.subscribe("orders", "billing", start=start) as consumer:
            assert values_of(await take(consumer, 6)) == numbered(6, 4)
            await consumer.seek(begin + timedelta(seconds=30))
            assert consumer.positions() == {0: 2}
            (lag,) = await transport.lag("orders", "billing")
            assert (lag.records, lag.milliseconds) == (8, 4 * MINUTE_MS)
            await consumer.seek("latest")
            (lag,) = await transport.lag("orders", "billing")
            assert (lag.records, lag.milliseconds) == (0, 0)


async def test_topics_take_the_settings_of_the_log(tmp_path):
    defaults = TopicConfig(partitions=3, batch_records_max=99)
    async with EmbeddedTransport(tmp_path / "data", defaults=defaults) as transport:
        await transport.create_topic("plain")
        assert await transport.partitions("plain") == 3
        await transport.create_topic("orders", partitions=2, linger_ms=5, fsync="timed")
        state = await transport.queue.create_topic("orders")
        assert (state.partitions, state.config.linger_ms) == (2, 5)
        assert (state.config.fsync.value, state.config.batch_records_max) == ("timed", 99)


async def test_names_are_checked_before_anything_is_touched(transport):
    with pytest.raises(InvalidName, match="topic"):
        transport.subscribe("a/b", "billing")
    consumer = transport.subscribe("orders", "billing")
    with pytest.raises(UsageError, match="open"):
        consumer.assignment()
    await consumer.close()
    with pytest.raises(Closed):
        await consumer.open()


MEMBER = """
import asyncio, sys
from penstock.transports import EmbeddedTransport

async def main():
    async with EmbeddedTransport(sys.argv[1]) as transport:
        async with transport.subscribe("orders", "billing") as consumer:
            batch = await consumer.next_batch(records_max=6)
            await consumer.commit({0: 4})
            print(len(batch), flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_member_in_another_process_keeps_the_group_until_it_dies(tmp_path):
    place = tmp_path / "data"
    async with EmbeddedTransport(place) as transport:
        await transport.create_topic("orders", partitions=1)
        await transport.produce("orders", numbered(10))
        with subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(place)], stdout=subprocess.PIPE, text=True
        ) as member:
            try:
                assert await asyncio.to_thread(member.stdout.readline) == "6\n"  # type: ignore[union-attr]
                consumer = transport.subscribe("orders", "billing")
                with pytest.raises(SubscriberBusy, match="billing"):
                    await consumer.open()
            finally:
                member.send_signal(signal.SIGKILL)
        async with consumer:
            assert values_of(await take(consumer, 6)) == numbered(6, 4)
