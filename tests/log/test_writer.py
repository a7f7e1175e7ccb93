"""Group commit: when batches close, who shares them, and what publishers hear when it goes wrong."""

import asyncio
import errno
import threading
from contextlib import asynccontextmanager

import pytest

from penstock import (
    Acknowledgement,
    Codec,
    FsyncPolicy,
    Receipt,
    TopicConfig,
    WalMessageQueue,
)
from penstock.errors import Closed, PenstockError, Poisoned, RetentionFull, StoreFailed
from penstock.testing.queue_fixtures import everything, numbered, settle
from penstock.testing.worker import simulated_system

LOG = "*/orders/0/*.log"


@asynccontextmanager
async def opened(config=None, *, immediate=True):
    """A simulated machine, a queue on it and the writer of its topic."""
    system = simulated_system(immediate=True)
    queue = WalMessageQueue("/data/log", system=system, maintenance_interval=None)
    async with queue:
        await queue.create_topic("orders", config or TopicConfig())
        worker = system.workers[0]
        worker._immediate = immediate
        try:
            yield system, queue, queue._opened["orders"].writer
        finally:
            worker._immediate = True
            worker.run()


def syncs(system):
    """How often segments were synced. The head is, too, but only now and then."""
    return sum(
        call.operation == "sync" and call.path.endswith(".log") for call in system.files.journal
    )


# When batches close


async def test_a_lone_record_is_committed_at_once():
    async with opened() as (_, queue, _writer):
        assert queue.publish_nowait("orders", b"x").done


async def test_a_batch_lingers_for_company():
    async with opened(TopicConfig(linger_ms=20)) as (system, queue, _):
        receipts = {queue.publish_nowait("orders", value) for value in numbered(5)}
        (receipt,) = receipts
        system.clock.advance(0.019)
        assert not receipt.done
        system.clock.advance(0.001)
        assert receipt.done
        assert queue.statistics().topics["orders"].commits == 1


@pytest.mark.parametrize(
    "config",
    [
        TopicConfig(linger_ms=60_000, batch_records_max=3),
        TopicConfig(linger_ms=60_000, batch_bytes_max=500),
    ],
    ids=["records", "bytes"],
)
async def test_a_full_batch_lingers_no_longer(config):
    async with opened(config) as (_, queue, _writer):
        first = queue.publish_nowait("orders", bytes(100))
        queue.publish_nowait("orders", bytes(100))
        assert not first.done
        queue.publish_nowait("orders", bytes(100))
        queue.publish_nowait("orders", bytes(100))
        assert first.done


async def test_publish_many_lingers_with_the_others_and_stays_in_order():
    async with opened(TopicConfig(linger_ms=50)) as (system, queue, _):
        queue.publish_nowait("orders", b"0")
        many = asyncio.create_task(queue.publish_many("orders", [b"1", b"2"]))
        await settle()
        queue.publish_nowait("orders", b"3")
        assert not many.done()
        system.clock.advance(0.05)
        assert (await many).ranges == {0: (1, 3)}
        assert [one.value for one in await everything(queue, "orders")] == numbered(4)


async def test_a_stale_linger_timer_does_no_harm():
    async with opened(TopicConfig(linger_ms=20, batch_records_max=2)) as (system, queue, _):
        for value in numbered(5):
            queue.publish_nowait("orders", value)
        system.clock.advance(1)
        assert [one.value for one in await everything(queue, "orders")] == numbered(5)


# Durability: which sync covers what


@pytest.mark.acceptance(53)
async def test_an_acknowledgement_follows_the_sync_that_covers_it():
    async with opened() as (system, queue, _):
        # What a publisher could know at each moment, beside what the disk has.
        seen = []
        receipts: list[Receipt] = []

        def look(point):
            if point.path.endswith(".log"):
                seen.append((point.done, [receipt.done for receipt in receipts]))

        system.files.on_sync(look)
        for number in range(3):
            receipts.append(queue.publish_nowait("orders", b"%d" % number))
            assert receipts[-1].done
        assert [done for done, _ in seen] == [False, True] * 3
        for number in range(3):
            assert seen[2 * number + 1][1] == [True] * number


@pytest.mark.acceptance(53)
async def test_concurrent_publishers_share_one_sync():
    async with opened(immediate=False) as (system, queue, _):
        await queue.create_topic("orders")
        tasks = [asyncio.create_task(queue.publish("orders", b"x")) for _ in range(64)]
        await settle()
        before = syncs(system)
        system.workers[0].run()
        assert all(one.durable for one in await asyncio.gather(*tasks))
        assert syncs(system) == before + 1


@pytest.mark.acceptance(54)
async def test_a_sync_every_hundred_records():
    config = TopicConfig(fsync=FsyncPolicy.EVERY_N_MESSAGES)
    async with opened(config) as (system, queue, _):
        before = syncs(system)
        counts = []
        for _ in range(350):
            await queue.publish("orders", b"x")
            counts.append(syncs(system) - before)
        assert [counts.index(count) + 1 for count in (1, 2, 3)] == [100, 200, 300]
        await queue.publish_many("orders", [b"x"] * 49)
        assert syncs(system) - before == 3
        assert (await queue.publish_many("orders", [b"x"] * 250)).durable
        assert syncs(system) - before == 4


@pytest.mark.acceptance(55)
async def test_a_sync_every_second_while_there_is_something_to_sync():
    config = TopicConfig(fsync=FsyncPolicy.TIMED, partitions=2)
    async with opened(config) as (system, queue, _):
        before = syncs(system)
        for _ in range(10):
            await queue.publish_many("orders", [b"x"] * 2)
            system.clock.advance(0.5)
        # Five seconds, two partitions.
        assert syncs(system) - before == 10
        system.clock.advance(100)
        assert syncs(system) - before == 10
        assert [queue.durable_offset("orders", number) for number in range(2)] == [10, 10]


async def test_a_durable_record_among_others_syncs_its_partition_once():
    config = TopicConfig(fsync=FsyncPolicy.TIMED)
    async with opened(config, immediate=False) as (system, queue, _):
        tasks = [
            asyncio.create_task(queue.publish("orders", b"x", durable=number == 2))
            for number in range(5)
        ]
        await settle()
        before = syncs(system)
        system.workers[0].run()
        assert [one.durable for one in await asyncio.gather(*tasks)] == [True] * 5
        assert syncs(system) == before + 1


async def test_a_locked_partition_is_synced_later():
    """Another process held the lock for too long: nothing is poisoned, the next second tries again."""
    config = TopicConfig(fsync=FsyncPolicy.TIMED)
    async with opened(config) as (system, queue, _):
        await queue.publish("orders", b"x")
        descriptor = system.files.open("/data/log/topics/orders/0/head")
        assert system.files.try_lock(descriptor)
        system.clock.advance(1)
        assert queue.durable_offset("orders") == 0
        system.files.close(descriptor)
        system.clock.advance(60)
        await settle()
        assert queue.durable_offset("orders") == 1
        await queue.publish("orders", b"y")


# Failures


async def test_a_failed_commit_is_heard_by_all_who_share_it():
    async with opened(immediate=False) as (system, queue, _):
        system.files.fail("sync", path=LOG)
        tasks = [asyncio.create_task(queue.publish("orders", b"x")) for _ in range(5)]
        tasks.append(asyncio.create_task(queue.publish_many("orders", numbered(3))))
        await settle()
        receipt = queue.publish_nowait("orders", b"x")
        system.workers[0].run()
        for task in tasks:
            with pytest.raises(StoreFailed):
                await task
        with pytest.raises(StoreFailed):
            await receipt.wait()
        statistics = queue.statistics().topics["orders"]
        assert (statistics.records_committed, statistics.records_failed) == (0, 9)
        assert statistics.pending_bytes == 0


async def test_receipts_after_a_failure_that_passes_are_good_again():
    async with opened(immediate=False) as (system, queue, _):
        first = queue.publish_nowait("orders", b"x")
        descriptor = system.files.open("/data/log/topics/orders/0/head")
        assert system.files.try_lock(descriptor)
        system.workers[0].run()
        with pytest.raises(PenstockError, match="locked"):
            await first.wait()
        system.files.close(descriptor)
        queue.publish_nowait("orders", b"x")
        system.workers[0].run()
        second = queue.publish_nowait("orders", b"x")
        system.workers[0].run()
        assert (await second.wait()).ranges == {0: (1, 2)}


async def test_an_unforeseen_error_reaches_the_publishers_and_the_worker_lives_on(monkeypatch):
    async with opened(immediate=False) as (system, queue, writer):
        monkeypatch.setattr(writer._routing, "route", lambda *_: 1 // 0)
        publishing = asyncio.create_task(queue.publish("orders", b"x"))
        many = asyncio.create_task(queue.publish_many("orders", [b"x"]))
        await settle()
        receipt = queue.publish_nowait("orders", b"x")
        system.workers[0].run()
        for waiting in (publishing, many, receipt.wait()):
            with pytest.raises(ZeroDivisionError):
                await waiting
        monkeypatch.undo()
        publishing = asyncio.create_task(queue.publish("orders", b"x"))
        await settle()
        system.workers[0].run()
        assert (await publishing).offset == 0


async def test_one_bad_partition_does_not_spoil_the_others():
    async with opened(TopicConfig(partitions=4)) as (system, queue, _):
        await queue.publish_many("orders", numbered(4))
        system.files.fail("sync", path="*/orders/2/*.log")
        with pytest.raises(StoreFailed):
            await queue.publish_many("orders", numbered(40))
        outcomes = await asyncio.gather(
            *(queue.publish("orders", b"x") for _ in range(8)), return_exceptions=True
        )
        assert sum(isinstance(one, Poisoned) for one in outcomes) == 2
        assert sorted(one.partition for one in outcomes if isinstance(one, Acknowledgement)) == [
            0, 0, 1, 1, 3, 3,
        ]  # fmt: skip
        poisoned = [one.poisoned for one in queue.statistics().topics["orders"].partitions]
        assert [reason is not None for reason in poisoned] == [False, False, True, False]


# Refusals


async def test_records_that_come_in_beside_a_close_are_refused():
    """A publisher that had passed the check when the worker ended hears of it at once."""
    async with opened() as (_, queue, writer):
        pass
    writer._room = 1_000_000
    receipt = queue._opened["orders"].writer.add_nowait(b"x")
    assert receipt.done
    with pytest.raises(Closed):
        await receipt.wait()
    later = writer.add_nowait(b"y")
    assert later is not receipt
    assert later.done


async def test_records_that_come_in_beside_a_close_while_lingering_are_refused():
    async with opened(TopicConfig(linger_ms=1_000)) as (_, _queue, writer):
        pass
    writer._room = 1_000_000
    receipts = [writer.add_nowait(b"x") for _ in range(3)]
    assert all(receipt.done and receipt.errors for receipt in receipts)


async def test_a_refusal_stands_whatever_the_worker_does():
    """The worker gives room back at the end of each commit; a refusal in between must stay."""
    async with opened(immediate=False) as (system, queue, writer):
        refused = threading.Event()

        def refuse(operation, path):
            if operation == "write" and not refused.is_set():
                refused.set()
                writer.refuse_from_now_on(Closed("now"))

        queue.publish_nowait("orders", b"x")
        system.files.on_call(refuse)
        system.workers[0].run()
        with pytest.raises(Closed, match="now"):
            queue.publish_nowait("orders", b"y")


async def test_retention_rejects_and_takes_again_but_never_reopens():
    async with opened() as (_, queue, writer):
        writer.reject_while_full(True)
        with pytest.raises(RetentionFull, match="retention size"):
            await queue.publish("orders", b"x")
        writer.reject_while_full(False)
        await queue.publish("orders", b"x")
    writer.reject_while_full(False)
    with pytest.raises(Closed):
        writer.add_nowait(b"x")


@pytest.mark.parametrize("call", ["publish", "publish_many"])
async def test_who_finds_no_room_while_retention_takes_a_refusal_back_is_added(monkeypatch, call):
    """Given one who comes when nothing is refused any more, and before there is room again."""
    value = [b"x"] if call == "publish_many" else b"x"
    async with opened() as (_, queue, writer):
        between, go_on = threading.Event(), threading.Event()
        set_room = writer._set_room

        def slowly():
            between.set()
            go_on.wait(60)
            set_room()

        writer.reject_while_full(True)
        monkeypatch.setattr(writer, "_set_room", slowly)
        taking_back = asyncio.create_task(asyncio.to_thread(writer.reject_while_full, False))
        await asyncio.to_thread(between.wait, 60)
        publishing = asyncio.create_task(getattr(queue, call)("orders", value, timeout=3_600))
        await settle()
        assert queue._engine.waiters._waiting
        go_on.set()
        await taking_back
        await settle()
        assert (await publishing if publishing.done() else None) is not None, "nobody tells it"


# Batches on the disk


@pytest.mark.parametrize("codec", list(Codec))
async def test_every_codec_is_read_back(codec):
    async with opened(TopicConfig(codec=codec, partitions=2)) as (_, queue, _writer):
        values = [bytes([number]) * 1_000 for number in range(50)]
        await queue.publish_many("orders", values, keys=values)
        read = await everything(queue, "orders")
        assert sorted(one.value or b"" for one in read) == values


async def test_a_batch_larger_than_its_limit_is_split():
    config = TopicConfig(batch_records_max=10, batch_bytes_max=3_000)
    async with opened(config, immediate=False) as (system, queue, _):
        for value in numbered(95):
            queue.publish_nowait("orders", value * 10)
        system.workers[0].run()
        assert queue.statistics().topics["orders"].commits == 1
        assert [one.value for one in await everything(queue, "orders")] == [
            value * 10 for value in numbered(95)
        ]


async def test_a_full_disk_poisons_and_reopening_goes_on():
    system = simulated_system()
    async with WalMessageQueue("/data/log", system=system) as queue:
        await queue.publish("orders", b"kept")
        system.files.fail("write", errno.ENOSPC, path=LOG, forever=True)
        with pytest.raises(StoreFailed, match="No space"):
            await queue.publish("orders", bytes(1_000))
        with pytest.raises(Poisoned, match="open the queue again"):
            await queue.publish("orders", b"x")
        assert [one.value for one in await everything(queue, "orders")] == [b"kept"]
        system.files.heal()
        with pytest.raises(Poisoned):
            await queue.publish("orders", b"x")
    async with WalMessageQueue("/data/log", system=system) as queue:
        assert (await queue.publish("orders", b"next")).offset == 1
