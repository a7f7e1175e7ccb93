"""The queue suite: opening, closing, statistics, what errors say."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from penstock import FsyncPolicy, Receipt, TopicConfig, WalMessageQueue
from penstock.errors import BusyError, Closed, UsageError
from penstock.testing.queue_fixtures import (
    WAIT_SECONDS,
    MakeQueue,
    QueueFixtures,
    everything,
    held_back,
    inline,
    numbered,
    records_of,
    settle,
    values_of,
)


def calls_of(queue: WalMessageQueue) -> dict[str, Callable[[], Awaitable[object]]]:
    """Every call of a queue that needs it to be open."""

    async def now(call: Callable[[], object]) -> object:
        return call()

    return {
        "publish": lambda: queue.publish("orders", b"x"),
        "publish_nowait": lambda: now(lambda: queue.publish_nowait("orders", b"x")),
        "publish_many": lambda: queue.publish_many("orders", [b"x"]),
        "flush": queue.flush,
        "create_topic": lambda: queue.create_topic("orders"),
        "create_topic of another": lambda: queue.create_topic("other"),
        "change_topic": lambda: queue.change_topic("orders", linger_ms=1),
        "recovery": lambda: queue.recovery("orders"),
        "wait_durable": lambda: queue.wait_durable("orders", 100),
        "subscribe": lambda: now(lambda: queue.subscribe("orders", "billing")),
        "unsubscribe": lambda: queue.unsubscribe("orders", "billing"),
        "replay": lambda: anext(queue.replay("orders")),
        "read_arrow": lambda: queue.read_arrow("orders"),
    }


async def outcome(call: Callable[[], Awaitable[object]]) -> object:
    """What the call returns or raises."""
    try:
        return await call()
    except Exception as error:
        return error


class LifeConformance(QueueFixtures):
    """From opening to closing."""

    async def test_a_closed_queue_says_so(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.publish("orders", b"x")
        await queue.close()
        for name, call in {**calls_of(queue), "topics": queue.topics, "open": queue.open}.items():
            assert isinstance(await outcome(call), Closed), name
        with pytest.raises(Closed):
            queue.durable_offset("orders")

    async def test_a_queue_is_opened_first(self, make_queue: MakeQueue) -> None:
        queue = make_queue()
        for name, call in calls_of(queue).items():
            refusal = await outcome(call)
            assert isinstance(refusal, UsageError), name
            assert "open" in str(refusal)
        await queue.open()
        await queue.open()
        assert (await queue.publish("orders", b"x")).offset == 0
        await queue.close()

    async def test_a_queue_that_was_never_opened_closes(self, make_queue: MakeQueue) -> None:
        queue = make_queue()
        await queue.close()
        await queue.close()
        with pytest.raises(Closed):
            await queue.open()

    async def test_closing_commits_and_syncs_what_was_accepted(self, make_queue: MakeQueue) -> None:
        config = TopicConfig(fsync=FsyncPolicy.TIMED, linger_ms=60_000, partitions=2)
        async with make_queue(defaults=config, system=inline().system) as queue:
            await queue.create_topic("orders")
            receipts = {queue.publish_nowait("orders", value) for value in numbered(100)}
        assert all(receipt.done and not receipt.errors for receipt in receipts)
        async with make_queue() as queue:
            read = await everything(queue, "orders")
            assert sorted(int(one.value or b"") for one in read) == list(range(100))
            assert all(report.clean for report in await queue.recovery("orders"))

    async def test_everybody_who_closes_waits_for_the_end(self, make_queue: MakeQueue) -> None:
        held = held_back()
        queue = make_queue(system=held.system)
        await queue.open()
        await queue.create_topic("orders")
        publishing = asyncio.create_task(queue.publish("orders", b"x"))
        await settle()
        closing = [asyncio.create_task(queue.close()) for _ in range(3)]
        await settle()
        assert not any(task.done() for task in closing)
        async with held:
            pass
        await asyncio.gather(*closing)
        assert (await publishing).offset == 0

    async def test_publishers_that_meet_a_close_are_told(self, make_queue: MakeQueue) -> None:
        """Each record is acknowledged and there, or refused and not there; nobody hangs."""
        accepted: list[tuple[bytes, Receipt]] = []
        refused = 0
        stop = threading.Event()

        def publish(queue: WalMessageQueue, name: int) -> None:
            nonlocal refused
            number = 0
            while not stop.is_set():
                value = b"%d:%d" % (name, number)
                try:
                    accepted.append((value, queue.publish_nowait("orders", value)))
                except Closed:
                    refused += 1
                    return
                except BusyError:
                    stop.wait(0.001)
                    continue
                number += 1

        config = TopicConfig(fsync=FsyncPolicy.TIMED, record_bytes_max=100, buffer_bytes_max=20_000)
        queue = make_queue(defaults=config)
        await queue.open()
        await queue.create_topic("orders")
        threads = [threading.Thread(target=publish, args=(queue, name)) for name in range(3)]
        for thread in threads:
            thread.start()
        acknowledged = [await queue.publish("orders", b"%d" % n) for n in range(20)]
        try:
            await queue.close()
            for thread in threads:
                await asyncio.to_thread(thread.join, WAIT_SECONDS)
        finally:
            stop.set()
        assert refused == 3
        assert all(receipt.done for _, receipt in accepted)
        async with make_queue() as queue:
            found = {one.value for one in await everything(queue, "orders")}
        assert found >= {b"%d" % number for number in range(len(acknowledged))}
        for value, receipt in accepted:
            assert (value in found) == (not receipt.errors), value

    async def test_waits_end_when_the_queue_closes(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.create_topic("orders")
            subscription = queue.subscribe("orders", "billing")
            waits = [
                asyncio.create_task(records_of(subscription, 1)),
                asyncio.create_task(queue.wait_durable("orders", 5, timeout=WAIT_SECONDS)),
            ]
            await settle()
        for wait in waits:
            with pytest.raises(Closed):
                await wait

    async def test_a_topic_that_is_being_opened_meets_a_close(self, make_queue: MakeQueue) -> None:
        for turns in range(0, 12, 2):
            queue = make_queue()
            await queue.open()
            calls = [
                asyncio.create_task(queue.publish(f"topic-{number}", b"x", timeout=WAIT_SECONDS))
                for number in range(3)
            ]
            for _ in range(turns):
                await asyncio.sleep(0)
            await queue.close()
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                assert not isinstance(outcome, BaseException) or isinstance(outcome, Closed)
        async with make_queue() as queue:
            for topic in await queue.topics():
                assert (await queue.publish(topic, b"y", timeout=WAIT_SECONDS)).offset <= 6

    async def test_a_refusal_does_not_grow(self, make_queue: MakeQueue) -> None:
        """A loop that publishes to a closed queue keeps nothing alive."""
        async with make_queue() as queue:
            await queue.create_topic("orders")
        depths = set()
        for _ in range(5):
            try:
                queue.publish_nowait("orders", b"x")
            except Closed as refusal:
                depth, trace = 0, refusal.__traceback__
                while trace is not None:
                    depth, trace = depth + 1, trace.tb_next
                depths.add(depth)
        assert len(depths) == 1

    async def test_statistics_are_exact(self, make_queue: MakeQueue) -> None:
        held = held_back()
        config = TopicConfig(partitions=2, fsync=FsyncPolicy.TIMED)
        async with make_queue(defaults=config, system=held.system) as queue, held:
            await queue.create_topic("orders")
            await queue.create_topic("empty")
            for _ in range(6):
                queue.publish_nowait("orders", bytes(10))
            many = asyncio.create_task(queue.publish_many("orders", [bytes(20)] * 4))
            await settle()
            assert queue.statistics().topics["orders"].pending_bytes >= 140
            await held.commit()
            await many
            statistics = queue.statistics()
            assert set(statistics.topics) == {"orders", "empty"}
            orders = statistics.topics["orders"]
            assert (orders.records_accepted, orders.records_committed) == (10, 10)
            assert (orders.records_failed, orders.commits, orders.pending_bytes) == (0, 1, 0)
            assert [one.partition for one in orders.partitions] == [0, 1]
            assert [one.next_offset for one in orders.partitions] == [5, 5]
            assert [one.durable_offset for one in orders.partitions] == [0, 0]
            assert [one.poisoned for one in orders.partitions] == [None, None]
            held.clock.advance(1)
            await held.commit()
            orders = queue.statistics().topics["orders"]
            assert [one.durable_offset for one in orders.partitions] == [5, 5]
            assert orders.commits == 1
            empty = queue.statistics().topics["empty"]
            assert (empty.records_accepted, empty.commits) == (0, 0)

    async def test_statistics_are_true_when_a_publish_returns(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.create_topic("orders")
            for number in range(1, 30):
                receipt = queue.publish_nowait("orders", b"x")
                await receipt.wait()
                (partition,) = queue.statistics().topics["orders"].partitions
                assert partition.next_offset == partition.durable_offset == number
                assert queue.durable_offset("orders") == number

    async def test_the_store_is_counted(self, make_queue: MakeQueue) -> None:
        async with make_queue(defaults=TopicConfig()) as queue:
            await queue.publish("orders", bytes(1_000))
            before = queue.statistics().store
            await queue.publish("orders", bytes(1_000))
            after = queue.statistics().store
        assert after.syncs == before.syncs + 1
        assert after.bytes_written >= before.bytes_written + 1_000

    async def test_subscribers_that_keep_up_read_from_memory(self, make_queue: MakeQueue) -> None:
        async with make_queue(system=inline().system) as queue:
            await queue.create_topic("orders")
            async with queue.subscribe("orders", "billing") as subscription:
                for number in range(5):
                    await queue.publish_many("orders", numbered(10, 10 * number))
                    assert await values_of(subscription, 10) == numbered(10, 10 * number)
            (partition,) = queue.statistics().topics["orders"].partitions
            assert partition.tail_cache_hits == 5
