"""Groups of several members while the partition count of their topic changes."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from penstock.errors import DeadlineExceeded
from penstock.transports import EmbeddedTransport

TOPIC = "orders"
KEYS = 10
WAIT_SECONDS = 120


async def produce(transport, first, end):
    values = [b"%d" % number for number in range(first, end)]
    keys = [b"%d" % (number % KEYS) for number in range(first, end)]
    await transport.produce(TOPIC, values, keys=keys)


class Group:
    """What all members of a group were given, together."""

    def __init__(self):
        self.seen = []
        self.last = {}
        self.enough = asyncio.Event()

    def take(self, records):
        for record in records:
            number = int(record.value)
            assert self.last.get(record.key, -1) < number, f"{number} after {self.last}"
            self.last[record.key] = number
            self.seen.append(number)

    async def read(self, consumer, total):
        """Commit each batch as it comes, until the group has all."""
        while not self.enough.is_set():
            try:
                batch = await consumer.next_batch(0.2)
            except DeadlineExceeded:
                continue
            self.take(batch.records)
            await consumer.commit(batch)
            if len(self.seen) >= total:
                self.enough.set()


async def until(condition):
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


async def test_members_share_the_new_partitions_and_keep_the_order_of_each_key(tmp_path):
    group = Group()
    async with AsyncExitStack() as stack:
        one, other, admin = [
            await stack.enter_async_context(EmbeddedTransport(tmp_path)) for _ in range(3)
        ]
        await one.create_topic(TOPIC, partitions=2)
        members = [
            await stack.enter_async_context(transport.subscribe(TOPIC, "billing"))
            for transport in (one, other)
        ]
        total = 600
        reading = [asyncio.create_task(group.read(member, total)) for member in members]
        for place, count in enumerate((4, 1, 3, 6, 2, 5)):
            await produce(admin, 100 * place, 100 * place + 100)
            await admin.repartition(TOPIC, count)
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.gather(*reading)
        assert sorted(group.seen) == list(range(total))
        await until(lambda: len(parts_of(members)) == 6)
        assert parts_of(members) == list(range(6))


def parts_of(members):
    return sorted(number for one in members for number in one.assignment().partitions)


async def test_a_member_waits_until_the_others_have_committed_the_older_epoch(tmp_path):
    async with EmbeddedTransport(tmp_path) as one, EmbeddedTransport(tmp_path) as two:
        await one.create_topic(TOPIC, partitions=2)
        async with one.subscribe(TOPIC, "g") as first, two.subscribe(TOPIC, "g") as second:
            await until(lambda: len(first.assignment().partitions) == 1)
            await produce(one, 0, 40)
            owner, other = first, second
            if 0 in second.assignment().partitions:
                owner, other = second, first
            theirs = await other.next_batch(WAIT_SECONDS)
            mine = await owner.next_batch(WAIT_SECONDS)
            assert len(mine) + len(theirs) == 40
            await one.repartition(TOPIC, 1)
            await produce(one, 40, 60)
            await owner.commit(mine)
            with pytest.raises(DeadlineExceeded):
                await owner.next_batch(0.3)
            await other.commit(theirs)
            records = await owner.next_batch(WAIT_SECONDS)
            assert [record.value for record in records] == [b"%d" % one for one in range(40, 60)]


async def test_what_a_member_left_undone_comes_before_the_next_epoch(tmp_path):
    group = Group()
    async with EmbeddedTransport(tmp_path) as one, EmbeddedTransport(tmp_path) as other:
        await one.create_topic(TOPIC, partitions=2)
        async with one.subscribe(TOPIC, "g") as stays:
            async with other.subscribe(TOPIC, "g") as leaves:
                await until(lambda: len(stays.assignment().partitions) == 1)
                await produce(one, 0, 40)
                await leaves.next_batch(WAIT_SECONDS)
                await one.repartition(TOPIC, 5)
                await produce(one, 40, 100)
            await group.read(stays, 100)
    assert sorted(group.seen) == list(range(100))
    assert sorted(group.seen[:40]) == list(range(40))
