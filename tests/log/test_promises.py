"""What flush, close, retention and the tier promise, each seen where it was once broken."""

import errno
import os
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import product
from types import SimpleNamespace

import pyarrow as pa
import pytest

from penstock import FsyncPolicy, Retention, TopicConfig, WalMessageQueue, WhenFull
from penstock.errors import (
    BufferFull,
    DeadlineExceeded,
    InvalidOption,
    NotSupported,
    Poisoned,
    RetentionFull,
    StoreFailed,
    UnknownTopic,
)
from penstock.log.names import PartitionKeys
from penstock.stores import MemoryStore
from penstock.testing.queue_fixtures import numbered
from penstock.testing.worker import simulated_system

TIMED = TopicConfig(fsync=FsyncPolicy.TIMED)


def queue_on(system, **options):
    options.setdefault("maintenance_interval", None)
    return WalMessageQueue("/data/log", system=system, **options)


def held(queue):
    """Somebody else holds the lock of the partition, as a stopped process does."""
    return queue.store.lock(PartitionKeys("orders", 0).head, 1)


async def test_flush_tells_of_records_that_nobody_waited_for():
    """Given a failing disk, when a record was only handed over, then flush raises, once."""
    system = simulated_system()
    async with queue_on(system) as queue:
        await queue.create_topic("orders")
        await queue.create_topic("sound")
        system.files.fail("write", errno.EIO, path="*/orders/0/*.log")
        queue.publish_nowait("orders", b"lost")
        with pytest.raises(StoreFailed):
            await queue.flush()
        with pytest.raises(Poisoned):
            await queue.flush()


async def test_close_tells_of_records_that_nobody_waited_for():
    system = simulated_system()
    queue = queue_on(system)
    await queue.open()
    await queue.create_topic("orders")
    system.files.fail("write", errno.EIO, path="*/orders/0/*.log")
    queue.publish_nowait("orders", b"lost")
    with pytest.raises(StoreFailed):
        await queue.close()


async def test_close_is_silent_about_what_the_publisher_heard():
    system = simulated_system()
    async with queue_on(system) as queue:
        await queue.create_topic("orders")
        system.files.fail("write", errno.EIO, path="*/orders/0/*.log")
        with pytest.raises(StoreFailed):
            await queue.publish("orders", b"lost")


async def test_flush_fails_while_a_lock_keeps_records_from_being_synced():
    """A partition locked by a stopped process: flush must not call its records durable."""
    system = simulated_system()
    seldom = TopicConfig(fsync=FsyncPolicy.TIMED, fsync_interval_ms=3_600_000)
    async with queue_on(system, defaults=seldom) as queue:
        written = await queue.publish("orders", b"x")
        assert not written.durable
        # Another store: the threads of one share their locks.
        other = queue_on(system)
        with held(other), pytest.raises(DeadlineExceeded):
            await queue.flush()
        await queue.flush()
        assert queue.durable_offset("orders") == 1


async def test_a_receipt_without_a_record_of_its_own_claims_nothing():
    """The receipt after the one that held the record says durable only if everything is."""
    system = simulated_system()
    async with queue_on(system, defaults=TIMED) as queue:
        await queue.create_topic("orders")
        writer = queue._opened["orders"].writer
        queue.publish_nowait("orders", b"x")
        later = writer._receipt
        writer.commit()
        assert not (await later.wait()).durable
        await queue.flush()
        last = writer._receipt
        writer.commit()
        assert (await last.wait()).durable


async def test_records_of_a_dead_writer_become_durable():
    """A writer dies before its timed sync; a process that only reads has it done."""
    system = simulated_system()
    dead = queue_on(system, defaults=TIMED)
    await dead.open()
    await dead.publish_many("orders", numbered(5))
    reader_system = simulated_system(disk=system.files.kill(), clock=system.clock)
    async with queue_on(reader_system) as queue:
        await queue.create_topic("orders")
        # What an open makes durable is undone, as if the writer had lived a little longer.
        head_file = queue._opened["orders"].logs[0]._head_file
        head = head_file.read()
        head_file.write(head._replace(durable_offset=0, durable_position=0, durable_checksum=0))
        await queue.maintain()
        assert queue._opened["orders"].logs[0].read_head().durable_offset == 0
        await queue.maintain()
        assert queue._opened["orders"].logs[0].read_head().durable_offset == 5


def test_a_tier_is_as_durable_as_the_store(tmp_path):
    with pytest.raises(NotSupported, match="power cut"):
        WalMessageQueue(tmp_path, tier=MemoryStore())


def in_small_segments(retention):
    """Settings under which a few records fill a segment."""
    return TopicConfig(segment_bytes_max=2_000, fsync=FsyncPolicy.TIMED, retention=retention)


@pytest.mark.acceptance(49)
async def test_a_full_topic_keeps_within_its_size_by_itself():
    """Given a cap, when five times as much is written, then no more than a segment is over it."""
    system = simulated_system()
    config = in_small_segments(Retention(bytes_max=10_000))
    async with queue_on(system, defaults=config, maintenance_interval=60.0) as queue:
        for _ in range(100):
            await queue.publish("orders", bytes(500))
            (info,) = await queue.retention("orders")
            assert info.bytes <= 10_000 + 2 * 2_600


@pytest.mark.acceptance(49)
async def test_a_topic_that_rejects_does_so_at_its_size_and_after_a_restart():
    system = simulated_system()
    retention = Retention(bytes_max=10_000, when_full=WhenFull.REJECT)
    config = in_small_segments(retention)
    published = 0

    async def fill(queue):
        nonlocal published
        while published < 1_000:
            await queue.publish("orders", bytes(500))
            published += 1

    async with queue_on(system, defaults=config, maintenance_interval=60.0) as queue:
        await queue.create_topic("orders")
        async with queue.subscribe("orders", "slow"):
            with pytest.raises(RetentionFull):
                await fill(queue)
        assert 10_000 / 700 < published < 10_000 / 500 + 10
    async with queue_on(system, maintenance_interval=60.0) as queue:
        with pytest.raises(RetentionFull):
            await queue.publish("orders", bytes(500))


async def test_what_lingers_does_not_fill_the_buffer_for_long():
    """A buffer full of records that linger is committed at once."""
    system = simulated_system()
    config = TopicConfig(linger_ms=60_000, record_bytes_max=500, buffer_bytes_max=1_000)
    async with queue_on(system, defaults=config) as queue:
        await queue.create_topic("orders")
        receipt = queue.publish_nowait("orders", bytes(500))
        with pytest.raises(BufferFull):
            queue.publish_nowait("orders", bytes(500))
        assert receipt.done


async def test_poison_is_told_anew_each_time():
    """An error that is raised again and again must not keep what it met on the way."""
    system = simulated_system()
    async with queue_on(system) as queue:
        await queue.create_topic("orders")
        system.files.fail("sync", errno.EIO, path="*/orders/0/*.log")
        with pytest.raises(StoreFailed):
            await queue.publish("orders", b"x")
        errors = []
        for _ in range(2):
            with pytest.raises(Poisoned) as raised:
                await queue.flush()
            errors.append(raised.value)
        assert errors[0] is not errors[1]


async def test_a_range_comes_as_arrow_in_batches(tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        for start in range(0, 50, 10):
            await queue.publish_many("orders", numbered(10, start))
        batches = [one async for one in queue.replay_arrow("orders", start=3, end=41)]
        table = pa.Table.from_batches(batches)
        assert table["value"].to_pylist() == numbered(38, 3)


async def test_reading_makes_no_topic(tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        reads = SimpleNamespace(
            replay=lambda: anext(queue.replay("typo")),
            retention=lambda: queue.retention("typo"),
            recovery=lambda: queue.recovery("typo"),
            arrow=lambda: queue.read_arrow("typo"),
            durable=lambda: queue.wait_durable("typo", 0),
            subscribe=lambda: queue.subscribe("typo", "me").open(),
            iterate=lambda: anext(queue.subscribe("typo", "me")),
            unsubscribe=lambda: queue.unsubscribe("typo", "me"),
            change=lambda: queue.change_topic("typo", linger_ms=1),
        )
        for read in vars(reads).values():
            with pytest.raises(UnknownTopic, match="create_topic"):
                await read()
        assert await queue.topics() == []
        assert not os.path.exists(tmp_path / "topics" / "typo")


async def test_a_timeout_is_a_number_of_seconds(tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        await queue.create_topic("orders")
        waits: list[Callable[..., Awaitable[object]]] = [
            partial(queue.publish, "orders", b"x"),
            partial(queue.publish, "absent", b"x"),
            partial(queue.publish_many, "orders", [b"x"]),
            partial(queue.flush),
            partial(queue.wait_durable, "orders", 0),
            partial(queue.close),
        ]
        for wait, wrong in product(waits, (None, -1)):
            with pytest.raises(InvalidOption, match="seconds"):
                await wait(timeout=wrong)
        assert (await queue.publish("orders", b"x")).offset == 0, "it is still open, and empty"
        assert await queue.topics() == ["orders"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreFailed, match="cannot make the directory"):
        WalMessageQueue(tmp_path / "file" / "log")
