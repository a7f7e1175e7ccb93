"""What one process does to another's log: failed syncs, busy containers, segments that move away."""

import sqlite3
from datetime import UTC, datetime

import pytest

from penstock import FsyncPolicy, TopicConfig, WalMessageQueue
from penstock.errors import DeadlineExceeded, Poisoned, StoreFailed
from penstock.log.columns import Columns
from penstock.log.frame import draft
from penstock.log.names import PartitionKeys, SegmentName
from penstock.log.partition import PartitionLog
from penstock.log.reader import PartitionReader
from penstock.stores import MemoryStore, SqliteStore
from penstock.testing.queue_fixtures import everything, values_of
from penstock.testing.worker import simulated_system

TIMED = TopicConfig(fsync=FsyncPolicy.TIMED)
KEYS = PartitionKeys("orders", 0)
LOG = "*/orders/0/*.log"
NEW = [b"new0", b"new1", b"new2"]


def entry(value):
    flags, body = Columns([value]).encode()
    return draft(flags, body, 1)


def make(system):
    return WalMessageQueue("/data/log", system=system, defaults=TIMED, maintenance_interval=None)


async def lose_and_replace(disk):
    """Another process's sync fails and the bytes are gone; a third gives their offsets away."""
    other = make(simulated_system(disk=disk))
    await other.open()
    disk.fail("sync", path=LOG)
    with pytest.raises(StoreFailed):
        await other.publish("orders", b"x")
    await other.close()
    disk.drop_caches()
    async with make(simulated_system(disk=disk)) as third:
        for value in NEW:
            await third.publish("orders", value, durable=True)
        assert [one.value for one in await everything(third, "orders")] == NEW


# A failed sync of another process


async def test_what_another_process_lost_is_not_delivered_from_memory():
    system = simulated_system()
    queue = make(system)
    await queue.open()
    await queue.create_topic("orders")
    subscription = queue.subscribe("orders", "billing")
    await subscription.open()
    for number in range(3):
        await queue.publish("orders", b"old%d" % number)
    await lose_and_replace(system.files)
    assert await values_of(subscription, 3) == NEW
    with pytest.raises(Poisoned):
        await queue.close()


@pytest.mark.parametrize("call", ["publish", "flush", "close"])
async def test_whose_records_may_be_lost_hears_of_it(call):
    system = simulated_system()
    queue = make(system)
    await queue.open()
    for number in range(3):
        await queue.publish("orders", b"old%d" % number)
    await lose_and_replace(system.files)
    with pytest.raises(Poisoned, match="may be lost"):
        await (queue.publish("orders", b"x") if call == "publish" else getattr(queue, call)())
    if call != "close":
        with pytest.raises(Poisoned):
            await queue.publish("orders", b"y")
        with pytest.raises(Poisoned):
            await queue.close()
    async with make(simulated_system(disk=system.files)) as again:
        assert [one.value for one in await everything(again, "orders")] == NEW


async def test_who_had_synced_everything_goes_on():
    system = simulated_system()
    async with make(system) as queue:
        await queue.publish("orders", b"old", durable=True)
        other = make(simulated_system(disk=system.files))
        await other.open()
        await other.publish("orders", b"x")
        system.files.fail("sync", path=LOG)
        with pytest.raises(StoreFailed):
            await other.flush()
        with pytest.raises((StoreFailed, Poisoned)):
            await other.close()
        system.files.drop_caches()
        assert (await queue.publish("orders", b"y", durable=True)).offset == 1
        assert [one.value for one in await everything(queue, "orders")] == [b"old", b"y"]


def test_an_attach_that_cuts_what_the_head_spoke_of_counts_a_failure():
    """Whoever lost the bytes may have died, or failed, before it could tell."""
    store = MemoryStore()
    first, second = PartitionLog(store, KEYS), PartitionLog(store, KEYS)
    first.attach()
    first.append([entry(b"kept")], sync=True)
    size = store.size(KEYS.log(SegmentName(0)))
    first.append([entry(b"lost")], sync=False)
    store.truncate(KEYS.log(SegmentName(0)), size)
    second.attach()
    second.append([entry(b"other")], sync=True)
    with pytest.raises(Poisoned, match="from offset 1 to before 2"):
        first.sync()
    assert second.head.failures == 1
    assert PartitionLog(store, KEYS).attach().clean


# A busy store


def test_a_busy_container_does_not_poison(tmp_path):
    path = tmp_path / "log.db"
    with SqliteStore(path, busy_seconds=0) as store:
        log = PartitionLog(store, KEYS)
        log.attach()
        log.append([entry(b"a")], sync=False)
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(DeadlineExceeded, match="nothing was written"):
            log.append([entry(b"b")], sync=True)
        with pytest.raises(DeadlineExceeded):
            log.sync()
        holder.execute("ROLLBACK")
        holder.close()
        assert log.append([entry(b"b")], sync=True).base_offsets == [1]
        log.close()


class SlowServer(MemoryStore):
    """One call on a key is not answered in time; nobody knows whether it happened."""

    slow = ("", "")

    def _wait(self, call, key):
        if call == self.slow[0] and key.endswith(self.slow[1]):
            raise DeadlineExceeded("no answer; a change may still happen", seconds=1)

    def size(self, key):
        self._wait("size", key)
        return super().size(key)

    def write_at(self, key, position, buffers):
        self._wait("write_at", key)
        super().write_at(key, position, buffers)

    def sync(self, key):
        self._wait("sync", key)
        super().sync(key)


@pytest.mark.parametrize("slow", [("write_at", ".log"), ("sync", ".log"), ("write_at", "head")])
def test_a_change_that_may_still_happen_poisons(slow):
    store = SlowServer()
    log = PartitionLog(store, KEYS)
    log.append([entry(b"a")], sync=True)
    store.slow = slow
    with pytest.raises(DeadlineExceeded):
        log.append([entry(b"b")], sync=True)
    store.slow = ("", "")
    with pytest.raises(Poisoned):
        log.append([entry(b"c")], sync=True)


def test_a_look_that_takes_too_long_does_not_poison():
    store = SlowServer()
    log = PartitionLog(store, KEYS)
    log.append([entry(b"a")], sync=True)
    store.slow = ("size", ".log")
    with pytest.raises(DeadlineExceeded):
        log.append([entry(b"b")], sync=True)
    store.slow = ("", "")
    assert log.append([entry(b"b")], sync=True).base_offsets == [1]


def test_an_index_that_cannot_be_written_in_time_is_done_without():
    store = SlowServer()
    log = PartitionLog(store, KEYS)
    store.slow = ("write_at", ".index")
    for number in range(4):
        assert log.append([entry(bytes(100_000))], sync=True).base_offsets == [number]
    assert log.poison is None


# Segments that move away between a listing and a read


class Retained(MemoryStore):
    """Removes the oldest segment right after a listing of the partition."""

    def __init__(self):
        super().__init__()
        self.listings = None
        self.gone = KEYS.log(SegmentName(0))

    def list(self, prefix=""):
        found = super().list(prefix)
        if self.listings is not None and prefix.startswith(KEYS.folder):
            self.listings -= 1
            if self.listings == 0:
                self.delete(self.gone)
        return found


def filled(count=5):
    store = Retained()
    log = PartitionLog(store, KEYS, segment_bytes_max=256)
    for _ in range(count):
        log.append([entry(bytes(300))], sync=True)
    return store, log


@pytest.mark.parametrize("listings", [1, 2, 3])
def test_a_time_is_found_though_segments_move_away(listings):
    store, _ = filled()
    store.listings = listings
    assert PartitionReader(store, KEYS).offset_at(1) in {0, 1}


async def test_a_replay_by_time_goes_on_though_segments_move_away():
    store = Retained()
    config = TopicConfig(segment_bytes_max=256)
    async with WalMessageQueue(store, defaults=config, maintenance_interval=None) as queue:
        for _ in range(5):
            await queue.publish("orders", bytes(300))
        store.listings = 2
        start = datetime(2020, 1, 1, tzinfo=UTC)
        assert [one.offset async for one in queue.replay("orders", start=start)] == [1, 2, 3, 4]


def test_an_attach_goes_on_though_segments_move_away():
    store, log = filled()
    store.delete(KEYS.head)
    store.listings = 1
    store.gone = KEYS.log(SegmentName(4))
    assert PartitionLog(store, KEYS).attach().next_offset == 4
    assert log.head.next_offset == 5


def test_a_segment_that_is_never_there_is_not_looked_for_for_ever():
    class Haunted(MemoryStore):
        def list(self, prefix=""):
            return [KEYS.log(SegmentName(0))] if prefix.startswith(KEYS.folder) else []

    with pytest.raises(KeyError):
        PartitionLog(Haunted(), KEYS).attach()
