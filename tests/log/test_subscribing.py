"""Subscribing: registration, positions, deadlines, and how much is read at once."""

import asyncio

import pytest

from penstock import Codec, TopicConfig, WalMessageQueue
from penstock.errors import Closed, DeadlineExceeded, InvalidOption, OffsetOutOfRange
from penstock.log import fetched
from penstock.log.names import PartitionKeys
from penstock.log.places import fetch, resolve_start
from penstock.log.reader import PartitionReader
from penstock.log.sealed import maintenance
from penstock.log.topic import TopicFile
from penstock.stores.memory import MemoryStore
from penstock.testing.queue_fixtures import numbered, settle, values_of
from penstock.testing.worker import simulated_system
from tests.log.small_log import KEYS, SmallLog, on_disk, remove_first_segment


def make(system, **options):
    return WalMessageQueue("/data/log", system=system, maintenance_interval=None, **options)


# ------------------------------------------------------------------------------- registration


async def test_nobody_registers_while_another_process_removes_segments():
    system = simulated_system()
    async with make(system) as queue:
        await queue.publish("orders", b"x")
        other = on_disk(system.files)
        with maintenance(other, PartitionKeys("orders", 0)) as held:
            assert held
            with pytest.raises(DeadlineExceeded, match=r"not registered.*Try again"):
                await queue.subscribe("orders", "billing").open()
        assert not TopicFile(queue.store, "orders").read().subscribers
        assert not [key for key in queue.store.list("groups/") if key.endswith(".offset")]
        async with queue.subscribe("orders", "billing") as subscription:
            assert await values_of(subscription, 1) == [b"x"]


async def test_the_start_is_looked_up_once(monkeypatch):
    """What retention is told and what the offset file says are the same, though the log grows."""
    system = simulated_system()
    asked = []

    def growing(reader, to):
        asked.append(to)
        return len(asked)

    async with make(system) as queue:
        await queue.publish_many("orders", numbered(5))
        monkeypatch.setattr("penstock.log.membership.resolve_start", growing)
        async with queue.subscribe("orders", "billing", start="latest") as subscription:
            assert subscription.positions() == {0: 1}
        state = TopicFile(queue.store, "orders").read()
        assert state.subscribers == {"billing": {0: 1}}
        assert asked == ["latest"]


async def test_an_open_subscription_can_be_forgotten():
    system = simulated_system()
    async with make(system) as queue:
        await queue.publish_many("orders", numbered(5))
        subscription = queue.subscribe("orders", "billing")
        await subscription.open()
        waiting = asyncio.ensure_future(values_of(subscription, 6))
        await settle()
        await subscription.forget()
        with pytest.raises(Closed):
            await waiting
        assert not TopicFile(queue.store, "orders").read().subscribers
        assert not [key for key in queue.store.list("groups/") if key.endswith(".offset")]
        async with queue.subscribe("orders", "billing", start=3) as subscription:
            assert subscription.positions() == {0: 3}


def fill_up(file):
    """Register subscribers, the first of which needs little room, until there is no room."""
    file.add_subscriber("small", {0: 1})
    for number in range(40):
        file.add_subscriber(f"s{number}", dict.fromkeys(range(4096), 123_456_789))


def test_a_topic_never_locks_itself_out(monkeypatch):
    monkeypatch.setattr("penstock.log.topic.TOPIC_BYTES_MAX", 400_000)
    file = TopicFile(MemoryStore(), "orders")
    file.create(TopicConfig(partitions=4096), 0)
    with pytest.raises(InvalidOption, match=r"at most 400000 .*Unsubscribe"):
        fill_up(file)
    known = list(file.read().subscribers)
    assert known[0] == "small"
    # There is always a way back, also when the one who goes needed little room.
    for name in known:
        file.remove_subscriber(name)
    assert not file.read().subscribers


# ---------------------------------------------------------------------------------- positions


async def test_a_seek_ends_at_the_durable_end():
    system = simulated_system()
    async with make(system) as queue:
        await queue.publish_many("orders", numbered(5))
        async with queue.subscribe("orders", "billing") as subscription:
            with pytest.raises(OffsetOutOfRange, match="not written yet: use 0 to 5") as caught:
                await subscription.seek(10**9)
            assert (caught.value.fields["earliest"], caught.value.fields["end"]) == (0, 5)
            assert subscription.positions() == {0: 0}
            await subscription.seek(5)
            await queue.publish("orders", b"next")
            assert await values_of(subscription, 1) == [b"next"]
        with pytest.raises(OffsetOutOfRange):
            await queue.subscribe("orders", "shipping", start=7).open()
        assert list(TopicFile(queue.store, "orders").read().subscribers) == ["billing"]


def test_a_start_that_retention_removed_is_refused():
    log = SmallLog()
    log.append_segments(3)
    remove_first_segment(log.store)
    with pytest.raises(OffsetOutOfRange, match="gone: use 1 to 3"):
        resolve_start(log.reader(), 0)
    assert resolve_start(log.reader(), 1) == 1


async def test_an_offset_to_start_at_is_of_one_partition():
    system = simulated_system()
    async with make(system, defaults=TopicConfig(partitions=2)) as queue:
        await queue.publish_many("orders", numbered(10))
        with pytest.raises(InvalidOption, match="of one partition"):
            queue.subscribe("orders", "billing", start=3)


# ---------------------------------------------------------------------------------- deadlines


async def test_an_iteration_goes_on_after_a_wait_that_was_given_up():
    system = simulated_system()
    async with make(system) as queue:
        await queue.create_topic("orders")
        async with queue.subscribe("orders", "billing") as subscription:
            records, batches = aiter(subscription), aiter(subscription.batches(2))
            for number in range(3):
                for waiting in (records, batches):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(anext(waiting), 0)
                await queue.publish_many("orders", numbered(3, 3 * number))
                assert (await anext(records)).value == b"%d" % (3 * number)
                batch = await anext(batches)
                assert [one.value for one in batch] == numbered(2, 3 * number + 1)


async def test_a_batch_with_a_deadline():
    system = simulated_system()
    async with make(system) as queue:
        await queue.publish_many("orders", numbered(5))
        async with queue.subscribe("orders", "billing") as subscription:
            batch = await subscription.next_batch(timeout=0, records_max=3)
            assert [one.value for one in batch] == numbered(3)
            assert subscription.positions() == {0: 3}
            assert len(await subscription.next_batch(timeout=0)) == 2
            with pytest.raises(DeadlineExceeded, match=r"no record of 'orders' came within 0 s"):
                await subscription.next_batch(timeout=0)
            with pytest.raises(InvalidOption, match="at least 1"):
                await subscription.next_batch(records_max=0)
            waiting = asyncio.ensure_future(subscription.next_batch())
            await settle()
            await queue.publish("orders", b"next")
            assert [one.value for one in await waiting] == [b"next"]


async def test_two_who_read_share_the_records():
    system = simulated_system()
    async with make(system, tail_cache_bytes=0) as queue:
        await queue.publish_many("orders", numbered(100))
        async with queue.subscribe("orders", "billing") as subscription:
            both = await asyncio.gather(*(values_of(subscription, 50) for _ in range(2)))
            assert set(both[0] + both[1]) == set(numbered(100))


# ------------------------------------------------------------------------------------- memory


def test_a_fetch_stops_before_it_fills_the_memory(monkeypatch):
    """Compressed entries are small on disk and large in memory."""
    monkeypatch.setattr(fetched, "FETCHED_BYTES_MAX", 25_000)
    log = SmallLog()
    for _ in range(10):
        log.append((None, bytes(10_000)), codec=Codec.ZLIB)
    log.append((None, bytes(60_000)), codec=Codec.ZLIB)
    cursor = PartitionReader(log.store, KEYS).cursor(0)
    found = []
    while records := fetch(cursor):
        found.append([record.offset for record in records])
    assert found == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10]]


def test_a_fetch_that_failed_can_be_repeated(monkeypatch):
    log = SmallLog()
    log.append((None, b"0"))
    cursor = PartitionReader(log.store, KEYS).cursor(0)
    with monkeypatch.context() as broken:
        broken.setattr(fetched, "_part", lambda *_: pytest.fail("no memory"))
        with pytest.raises(pytest.fail.Exception):
            fetch(cursor)
    assert [record.offset for record in fetch(cursor)] == [0]
