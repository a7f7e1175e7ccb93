"""Members of a group on the embedded transport: sharing, hand-over, leases, fences."""

import asyncio
import threading
from typing import Any

import pytest

from penstock.errors import (
    DamagedFile,
    DeadlineExceeded,
    Fenced,
    InvalidName,
    InvalidOption,
    OffsetOutOfRange,
    SubscriberBusy,
)
from penstock.log import fetched
from penstock.log.fetched import fetch
from penstock.log.names import group_state_key, offset_key
from penstock.stores import MemoryStore
from penstock.system import System
from penstock.testing import VirtualClock
from penstock.testing.clock import until_idle
from penstock.testing.transport_fixtures import by_partition, numbered, take, values_of
from penstock.transports import EmbeddedTransport

WAIT = 120.0
LEASE = 10.0


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def store():
    with MemoryStore() as store:
        yield store


@pytest.fixture
async def transport(store, clock):
    async with EmbeddedTransport(store, system=System(clock=clock)) as transport:
        await transport.create_topic("orders", partitions=4)
        await transport.produce("orders", numbered(40))
        yield transport


async def until(is_so):
    """Wait for what threads and tasks are about to do."""
    async with asyncio.timeout(WAIT):
        while not is_so():
            await asyncio.sleep(0.001)


def has(consumer, *partitions):
    return lambda: consumer.assignment().partitions == set(partitions)


async def shared(*members):
    """All partitions are with the members, an equal part each."""

    def is_so():
        parts = [member.assignment().partitions for member in members]
        return sum(map(len, parts)) == 4 == len(frozenset().union(*parts)) and all(parts)

    await until(is_so)


async def test_members_share_and_give_back_what_they_have(transport):
    async with transport.subscribe("orders", "billing", member="anna") as first:
        assert first.assignment().partitions == {0, 1, 2, 3}
        async with transport.subscribe("orders", "billing", member="berta") as second:
            await shared(first, second)
            assert first.assignment().generation == second.assignment().generation == 2
            assert len(first.assignment().partitions) == 2
        await until(has(first, 0, 1, 2, 3))
        assert first.assignment().generation == 3


async def test_a_member_without_partitions_wakes_when_it_gets_one(transport):
    members = [transport.subscribe("orders", "billing") for _ in range(5)]
    for member in members:
        await member.open()
    # Who of them has to wait depends on who was still being served when the last one came.
    await until(
        lambda: sorted(len(one.assignment().partitions) for one in members) == [0, 1, 1, 1, 1]
    )
    [idle] = [one for one in members if not one.assignment().partitions]
    busy = next(one for one in members if one is not idle)
    with pytest.raises(DeadlineExceeded):
        await idle.next_batch(timeout=0)
    assert idle.positions() == {}
    waiting = asyncio.ensure_future(take(idle, 10))
    await busy.close()
    got = await waiting
    assert [one.offset for one in got] == list(range(10))
    for member in members:
        await member.close()


async def test_what_was_delivered_is_committed_before_a_partition_goes(transport):
    async with transport.subscribe("orders", "billing") as first:
        batches = [await first.next_batch() for _ in range(4)]
        second = transport.subscribe("orders", "billing")
        await second.open()
        await until(lambda: len(first.assignment().partitions) == 2)
        # The other two are held for a commit: neither has them, and the first may still commit them.
        assert second.assignment().partitions == frozenset()
        for batch in batches:
            await first.commit(batch)
        await until(lambda: len(second.assignment().partitions) == 2)
        assert set(second.positions().values()) == {10}
        await second.close()
    assert [one.records for one in await transport.lag("orders", "billing")] == [0] * 4


async def test_a_partition_is_taken_when_its_release_takes_too_long(transport, clock):
    async with transport.subscribe("orders", "billing", release_seconds=3) as first:
        batches = [await first.next_batch() for _ in range(4)]
        second = transport.subscribe("orders", "billing")
        await second.open()
        await until(lambda: first._session._handing_over)
        await until_idle()  # its time runs
        clock.advance(2.9)
        assert second.assignment().partitions == frozenset()
        clock.advance(0.2)
        await until(lambda: len(second.assignment().partitions) == 2)
        moved = second.assignment().partitions
        for batch in batches:
            if batch.partition in moved:
                with pytest.raises(Fenced) as refused:
                    await first.commit(batch)
                assert refused.value.reason == "partition"
                assert refused.value.partition == batch.partition
                assert refused.value.fields.keys() >= {"group", "member", "generation", "current"}
            else:
                await first.commit(batch)
        assert set(by_partition(await take(second, 20))) == moved
        await second.close()


async def test_the_hook_may_commit_what_goes(transport):
    revoked = []

    async def on_revoke(partitions):
        revoked.append(partitions)
        await first.commit(dict.fromkeys(partitions, 7))

    async with transport.subscribe("orders", "billing", on_revoke=on_revoke) as first:
        await take(first, 40)
        async with transport.subscribe("orders", "billing") as second:
            await until(lambda: len(second.assignment().partitions) == 2)
            assert revoked == [second.assignment().partitions]
            assert set(second.positions().values()) == {7}


async def test_a_hook_that_fails_gives_the_partition_away_and_is_heard_of(transport):
    async def on_revoke(partitions):
        raise ZeroDivisionError

    async with transport.subscribe("orders", "billing", on_revoke=on_revoke) as first:
        await take(first, 40)
        async with transport.subscribe("orders", "billing") as second:
            await until(lambda: len(second.assignment().partitions) == 2)
            with pytest.raises(ZeroDivisionError):
                await first.next_batch()
            with pytest.raises(DeadlineExceeded):
                await first.next_batch(timeout=0)


async def test_commits_go_on_while_the_generation_changes(transport):
    async with transport.subscribe("orders", "billing") as first:
        batch = await first.next_batch()
        second = transport.subscribe("orders", "billing")
        opening = asyncio.ensure_future(second.open())
        for offset in range(1, 11):
            await first.commit({batch.partition: offset})
        await opening
        await second.close()
    committed = [one.committed for one in await transport.lag("orders", "billing")]
    assert committed[batch.partition] == 10


class World:
    """Two transports on one store, each with a clock of its own: one can stand still."""

    def __init__(self, store):
        self.clocks = [VirtualClock(), VirtualClock()]
        self.first, self.second = (
            EmbeddedTransport(store, system=System(clock=clock)) for clock in self.clocks
        )


@pytest.fixture
async def world(store):
    world = World(store)
    async with world.first, world.second:
        await world.first.create_topic("orders", partitions=1)
        await world.first.create_topic("copies", partitions=1)
        await world.first.produce("orders", numbered(10))
        yield world


async def advanced(clock, seconds, is_so):
    """Let time pass, bit by bit, until something is so."""
    async with asyncio.timeout(WAIT):
        while not is_so():
            clock.advance(seconds)
            await asyncio.sleep(0.002)


def deafen(member):
    """It hears nothing of its group any more, as a process that was stopped."""
    session = member._session
    session._bells.forget(session._coordinator.group, session._wake.set)


async def test_a_member_that_is_away_loses_its_partitions_and_is_fenced(world):
    zombie = world.first.subscribe("orders", "billing")
    await zombie.open()
    batch = await zombie.next_batch(records_max=6)
    deafen(zombie)
    async with world.second.subscribe("orders", "billing") as other:
        await advanced(world.clocks[1], 1, lambda: other.assignment().partitions == {0})
        await other.commit(await other.next_batch(records_max=8))
        # It wakes up in the middle of a batch, and its clock stood still.
        with pytest.raises(Fenced) as refused:
            await zombie.commit(batch)
        assert refused.value.reason == "removed"
        assert refused.value.group == "billing"
        await world.first.produce("orders", numbered(2, 10))
        assert [one.offset for one in await take(other, 4)] == [8, 9, 10, 11]
        await other.commit()
    # It has joined again by itself, and gets what the other one has left.
    await advanced(world.clocks[0], 0.01, lambda: zombie.assignment().partitions == {0})
    assert zombie.positions() == {0: 12}
    with pytest.raises(Fenced) as refused:
        await zombie.commit(batch)
    assert refused.value.reason == "partition"
    await zombie.close()


@pytest.mark.parametrize("said", ["before", "after"])
async def test_a_transaction_with_what_was_delivered_before_is_fenced_when_the_partition_is_back(
    world, said
):
    """Of a process that was stopped: others have done that meanwhile, and are gone."""
    zombie = world.first.subscribe("orders", "billing")
    await zombie.open()
    batch = await zombie.next_batch(records_max=6)
    producer = world.first.queue.producer("zombie")
    transaction = producer.transaction()
    await transaction.publish("copies", b"a copy")
    if said == "before":
        transaction.commit_offsets(zombie, batch)
    deafen(zombie)
    async with world.second.subscribe("orders", "billing") as other:
        await advanced(world.clocks[1], 1, lambda: other.assignment().partitions == {0})
        await other.commit(await other.next_batch(records_max=6))
        with pytest.raises(Fenced):
            await zombie.commit(batch)
    await advanced(world.clocks[0], 0.01, lambda: zombie.assignment().partitions == {0})
    if said == "after":
        with pytest.raises(Fenced):
            transaction.commit_offsets(zombie, batch)
        await transaction.abort()
    else:
        with pytest.raises(Fenced) as refused:
            await transaction.commit()
        assert refused.value.reason == "partition"
    assert [one async for one in world.first.queue.replay("copies")] == []
    await zombie.close()
    await producer.close()


async def test_nothing_is_delivered_after_the_lease(world):
    """The clock of the one that was away tells that its lease is over before it asks the group."""
    zombie = world.first.subscribe("orders", "billing")
    await zombie.open()
    await take(zombie, 4, 4)
    for clock in world.clocks:
        clock._timers.clear()  # no heartbeats
        clock.advance(2 * LEASE)
    assert zombie.assignment().partitions == frozenset()
    # Nobody else came, so it gets on where it was, once the group has said so.
    assert values_of(await take(zombie, 6)) == numbered(6, 4)
    await zombie.commit()
    await zombie.close()


async def test_a_batch_that_was_committed_late_does_not_come_again(world):
    """It went away, came back to its partition before anybody committed, and then commits."""
    zombie = world.first.subscribe("orders", "billing")
    await zombie.open()
    batch = await zombie.next_batch(records_max=6)
    async with world.second.subscribe("orders", "billing") as other:
        await advanced(world.clocks[1], 1, lambda: other.assignment().partitions == {0})
        zombie._session.renew()
        await until(lambda: zombie.assignment().generation > 2)
    await until(has(zombie, 0))
    await zombie.commit(batch)
    assert values_of(await take(zombie, 4)) == numbered(4, 6)
    await zombie.close()


@pytest.mark.parametrize("assignor", ["range", "round-robin", "sticky"])
async def test_the_assignor_is_the_groups(transport, assignor):
    async with transport.subscribe("orders", "billing", assignor=assignor) as first:
        async with transport.subscribe("orders", "billing") as second:
            await shared(first, second)
        other = "range" if assignor == "sticky" else "sticky"
        with pytest.raises(InvalidOption, match="strategy"):
            await transport.subscribe("orders", "billing", assignor=other).open()


async def test_wrong_options_are_refused_when_subscribing(transport):
    for options in (
        {"assignor": "fair"},
        {"lease_seconds": 0},
        {"release_seconds": -1},
        {"no_such_option": 1},
    ):
        with pytest.raises(InvalidOption, match=next(iter(options))):
            transport.subscribe("orders", "billing", **options)
    with pytest.raises(InvalidName, match="member"):
        transport.subscribe("orders", "billing", member="a/b")


async def test_a_name_is_a_groups_or_a_subscribers_at_a_time(transport):
    queue = transport.queue
    async with transport.subscribe("orders", "billing") as consumer:
        await consumer.commit(await consumer.next_batch(records_max=3))
        with pytest.raises(SubscriberBusy, match="group with 1 members"):
            await queue.subscribe("orders", "billing").open()
        with pytest.raises(SubscriberBusy, match="group with 1 members"):
            await transport.forget("orders", "billing")
    async with queue.subscribe("orders", "billing") as subscription:
        assert sorted(subscription.positions().values()) == [0, 0, 0, 3]
        consumer = transport.subscribe("orders", "billing")
        with pytest.raises(SubscriberBusy, match="billing"):
            await consumer.open()
    await consumer.open()
    assert sorted(consumer.positions().values()) == [0, 0, 0, 3]
    await consumer.close()


async def test_groups_read_several_topics_apart(transport):
    await transport.create_topic("bills", partitions=2)
    async with (
        transport.subscribe("orders", "billing") as orders,
        transport.subscribe("bills", "billing") as bills,
    ):
        assert orders.assignment().partitions == {0, 1, 2, 3}
        assert bills.assignment().partitions == {0, 1}
        await take(orders, 40)
        await orders.commit()
    assert [one.committed for one in await transport.lag("bills", "billing")] == [0, 0]


async def test_a_damaged_offset_stops_its_owner_until_it_seeks(transport, store):
    async with transport.subscribe("orders", "billing") as consumer:
        await consumer.commit(await consumer.next_batch())
    store.write(offset_key("billing", "orders", 2), b"\xff" * 1024)
    async with transport.subscribe("orders", "billing") as consumer:
        for _ in range(2):
            with pytest.raises(DamagedFile, match="orders-2"):
                await consumer.next_batch()
        await consumer.seek(4, partition=2)
        assert consumer.positions()[2] == 4
        assert await consumer.next_batch()


async def test_trouble_of_the_group_is_heard_of_by_who_reads(transport, store, clock):
    async with transport.subscribe("orders", "billing") as consumer:
        await take(consumer, 40)
        waiting = asyncio.ensure_future(consumer.next_batch())
        await asyncio.sleep(0)
        sound = store.read(group_state_key("billing"))
        store.write(group_state_key("billing"), b"nonsense")
        clock.advance(LEASE / 2)
        with pytest.raises(DamagedFile, match="reset"):
            await waiting
        store.write(group_state_key("billing"), sound)
        await advanced(clock, 1, lambda: not consumer._is_failing)
        await transport.produce("orders", numbered(1))
        assert len(await take(consumer, 1)) == 1


async def test_something_of_ones_own_is_written_with_the_commit(transport):
    written = []
    async with transport.subscribe("orders", "billing") as consumer:
        batch = await consumer.next_batch(records_max=3)
        await consumer.commit_with(batch, lambda: written.append("first"))
        second = await consumer.next_batch(records_max=3)
        with pytest.raises(ZeroDivisionError):
            await consumer.commit_with(second, lambda: written.append(str(1 // 0)))
        assert written == ["first"]
    committed = [one.committed for one in await transport.lag("orders", "billing")]
    assert sum(committed) == 3


async def test_offsets_that_have_moved_are_known_also_to_who_did_not_wait_for_what_follows(
    transport,
):
    """Or a rebalance would wait for records that are committed."""
    following, go_on = threading.Event(), threading.Event()

    def follow():
        following.set()
        assert go_on.wait(30)

    async with transport.subscribe("orders", "billing") as consumer:
        batch = await consumer.next_batch(records_max=3)
        committing = asyncio.ensure_future(consumer.commit_with(batch, lambda: follow))
        assert await asyncio.to_thread(following.wait, 30)
        committing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await committing
        go_on.set()
        assert consumer._owned[batch.partition].committed == batch.next_offset


async def test_what_was_read_and_not_delivered_is_not_committed_with_the_rest(store, monkeypatch):
    """The partition is taken away while a thread reads it; the hook commits all that was delivered."""
    reading, go_on = threading.Event(), threading.Event()

    def slow_fetch(*arguments):
        reading.set()
        assert go_on.wait(WAIT)
        return fetch(*arguments)

    async def on_revoke(partitions):
        go_on.set()
        for _ in range(50):
            await asyncio.sleep(0.001)
        await first.commit()

    async with EmbeddedTransport(store, tail_cache_bytes=0) as transport:
        await transport.create_topic("orders", partitions=2)
        await transport.produce("orders", numbered(20))
        async with transport.subscribe("orders", "billing", on_revoke=on_revoke) as first:
            await first.pause(0)
            monkeypatch.setattr(fetched, "fetch", slow_fetch)
            waiting = asyncio.ensure_future(first.next_batch())
            await asyncio.to_thread(reading.wait, WAIT)
            async with transport.subscribe("orders", "billing") as second:
                await until(has(second, 1))
                assert [one.offset for one in await take(second, 10)] == list(range(10))
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


async def test_what_was_read_can_be_committed_before_the_loop_has_heard_of_it(
    transport, store, clock, monkeypatch
):
    """Another process produces. The disk is asked for records later than the loop was told of an end."""
    async with (
        EmbeddedTransport(store, system=System(clock=clock)) as other,
        other.subscribe("orders", "billing") as consumer,
    ):
        batch = await consumer.next_batch()
        source: Any = consumer._subscription
        topic = source._topic
        monkeypatch.setattr(topic, "durable", [0] * 4)
        monkeypatch.setattr(topic, "note_commits", lambda: None)
        await consumer.commit(batch)
        with pytest.raises(OffsetOutOfRange, match=f"use 0 to {batch.next_offset}"):
            await consumer.commit({batch.partition: batch.next_offset + 1})


async def test_who_takes_partitions_over_waits_for_what_was_decided_there(transport, monkeypatch):
    waited: list[Any] = []
    settle = transport.queue.settle_entries

    def noted(group, partitions):
        waited.append((group, sorted(partitions)))
        settle(group, partitions)

    monkeypatch.setattr(transport.queue, "settle_entries", noted)
    async with transport.subscribe("orders", "billing") as consumer:
        await until(has(consumer, 0, 1, 2, 3))
    assert waited == [("billing", [("orders", number) for number in range(4)])]
