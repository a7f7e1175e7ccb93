"""The queue suite: publishing, acknowledgements, routing, limits, durability."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from penstock import Acknowledgement, FsyncPolicy, Receipt, TopicConfig, WalMessageQueue
from penstock.errors import BufferFull, DeadlineExceeded, InvalidOption, RecordTooLarge
from penstock.hashing import fnv1a
from penstock.testing.clock import START_MS
from penstock.testing.queue_fixtures import (
    WAIT_SECONDS,
    MakeQueue,
    QueueFixtures,
    by_partition,
    everything,
    held_back,
    inline,
    numbered,
    settle,
)

FOUR = TopicConfig(partitions=4)
TIMED = TopicConfig(fsync=FsyncPolicy.TIMED)
KEYS = [b"", b"a", b"foobar", b"order-17", bytes(range(256)), "Grüße".encode()]


class PublishingConformance(QueueFixtures):
    """What a publisher can rely on."""

    async def test_an_acknowledgement_tells_where_the_record_went(
        self, make_queue: MakeQueue
    ) -> None:
        held = inline()
        async with make_queue(system=held.system) as queue:
            first = await queue.publish("orders", b"one")
            held.clock.advance(5)
            second = await queue.publish("orders", b"two", key=b"k")
        assert first == Acknowledgement("orders", 0, 0, START_MS, durable=True)
        assert second == Acknowledgement("orders", 0, 1, START_MS + 5_000, durable=True)

    async def test_offsets_go_on_after_reopening(self, make_queue: MakeQueue) -> None:
        for number in range(3):
            async with make_queue() as queue:
                assert (await queue.publish("orders", b"x")).offset == number

    async def test_publish_many_tells_the_range_of_each_partition(
        self, make_queue: MakeQueue
    ) -> None:
        async with make_queue(defaults=FOUR) as queue:
            first = await queue.publish_many("orders", numbered(400))
            second = await queue.publish_many("orders", numbered(40))
        assert (first.topic, first.count, first.durable) == ("orders", 400, True)
        assert dict(first.ranges) == dict.fromkeys(range(4), (0, 100))
        assert dict(second.ranges) == dict.fromkeys(range(4), (100, 110))

    async def test_publish_many_of_nothing_writes_nothing(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            done = await queue.publish_many("orders", [])
            assert (done.count, dict(done.ranges)) == (0, {})
            assert await everything(queue, "orders") == []

    async def test_publish_many_is_split_into_batches_and_stays_in_order(
        self, make_queue: MakeQueue
    ) -> None:
        config = TopicConfig(batch_records_max=7, batch_bytes_max=40)
        async with make_queue(defaults=config) as queue:
            done = await queue.publish_many("orders", numbered(100))
            assert dict(done.ranges) == {0: (0, 100)}
            assert [one.value for one in await everything(queue, "orders")] == numbered(100)

    async def test_a_receipt_covers_all_records_of_a_commit(self, make_queue: MakeQueue) -> None:
        held = held_back()
        async with make_queue(defaults=FOUR, system=held.system) as queue, held:
            await queue.create_topic("orders")
            receipts = {
                queue.publish_nowait("orders", b"%d" % number, KEYS[number % len(KEYS)])
                for number in range(60)
            }
            await held.commit()
            (receipt,) = receipts
            acknowledgement = await receipt.wait()
            assert acknowledgement.count == receipt.count == 60
            found = by_partition(await everything(queue, "orders"))
            assert acknowledgement.ranges == {
                partition: (0, len(records)) for partition, records in found.items()
            }

    async def test_a_receipt_says_nothing_before_the_commit(self, make_queue: MakeQueue) -> None:
        held = held_back()
        async with make_queue(system=held.system) as queue, held:
            await queue.create_topic("orders")
            receipt = queue.publish_nowait("orders", b"x")
            waiting = asyncio.create_task(receipt.wait())
            await settle()
            assert not receipt.done
            assert not waiting.done()
            await held.commit()
            assert (await waiting).ranges == {0: (0, 1)}
            assert receipt.done

    async def test_threads_may_publish(self, make_queue: MakeQueue) -> None:
        """Each thread's records stay in the order in which it published them."""
        receipts: list[Receipt] = []

        def publish(queue: WalMessageQueue, name: int) -> None:
            receipts.extend(
                queue.publish_nowait("orders", b"%d:%d" % (name, number)) for number in range(250)
            )

        async with make_queue() as queue:
            await queue.create_topic("orders")
            threads = [threading.Thread(target=publish, args=(queue, name)) for name in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                await asyncio.to_thread(thread.join)
            for receipt in receipts:
                await receipt.wait()
            values = [one.value or b"" for one in await everything(queue, "orders")]
        for name in range(4):
            own = [value for value in values if value.startswith(b"%d:" % name)]
            assert own == [b"%d:%d" % (name, number) for number in range(250)]
        assert len(values) == 1000

    @pytest.mark.acceptance(22, 23)
    async def test_a_key_keeps_its_partition(self, make_queue: MakeQueue) -> None:
        """By every way of publishing, and after reopening."""
        expected = [fnv1a(key) % 4 for key in KEYS]
        async with make_queue(defaults=FOUR) as queue:
            one_by_one = [(await queue.publish("orders", key, key=key)).partition for key in KEYS]
            await queue.publish_many("orders", KEYS * 5, keys=KEYS * 5)
        async with make_queue() as queue:
            await queue.create_topic("orders")
            for key in KEYS:
                await queue.publish_nowait("orders", key, key).wait()
            records = await everything(queue, "orders")
        assert one_by_one == expected
        assert {(one.key, one.partition) for one in records} == set(
            zip(KEYS, expected, strict=True)
        )
        assert len(records) == 7 * len(KEYS)

    @pytest.mark.acceptance(24)
    async def test_keyless_records_are_spread_evenly(self, make_queue: MakeQueue) -> None:
        config = TopicConfig(partitions=4, fsync=FsyncPolicy.TIMED)
        async with make_queue(defaults=config) as queue:
            await queue.create_topic("orders")
            for number in range(2_001):
                queue.publish_nowait("orders", b"%d" % number)
            await queue.publish_many("orders", numbered(7_990))
            for number in range(9):
                await queue.publish("orders", b"%d" % number)
            await queue.flush()
            durable = [queue.durable_offset("orders", partition) for partition in range(4)]
        assert durable == [2_500] * 4

    async def test_keyless_records_among_keyed_ones_are_spread_evenly(
        self, make_queue: MakeQueue
    ) -> None:
        keys = [b"k" if number % 3 else None for number in range(120)]
        async with make_queue(defaults=FOUR) as queue:
            await queue.publish_many("orders", numbered(120), keys=keys)
            records = await everything(queue, "orders")
        loose = by_partition([one for one in records if one.key is None])
        assert [len(loose[partition]) for partition in range(4)] == [10] * 4

    async def test_many_publishers_get_dense_offsets(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            done = await asyncio.gather(*(queue.publish("orders", b"%d" % n) for n in range(200)))
            records = await everything(queue, "orders")
        assert sorted(one.offset for one in done) == list(range(200))
        by_offset = {one.offset: one.value for one in records}
        assert [by_offset[one.offset] for one in done] == numbered(200)

    @pytest.mark.acceptance(53)
    async def test_concurrent_publishers_share_a_commit(self, make_queue: MakeQueue) -> None:
        held = held_back()
        async with make_queue(system=held.system) as queue, held:
            await queue.create_topic("orders")
            tasks = [asyncio.create_task(queue.publish("orders", b"x")) for _ in range(64)]
            await settle()
            assert not any(task.done() for task in tasks)
            await held.commit()
            done = await asyncio.gather(*tasks)
            assert [one.offset for one in done] == list(range(64))
            assert queue.statistics().topics["orders"].commits == 1

    # Durability

    @pytest.mark.acceptance(53, 66)
    async def test_every_message_is_durable_when_it_is_acknowledged(
        self, make_queue: MakeQueue
    ) -> None:
        assert TopicConfig().fsync is FsyncPolicy.EVERY_MESSAGE
        async with make_queue() as queue:
            for number in range(3):
                assert (await queue.publish("orders", b"x")).durable
                assert queue.durable_offset("orders") == number + 1
            receipt = queue.publish_nowait("orders", b"x")
            assert (await receipt.wait()).durable
            assert queue.durable_offset("orders") == 4

    @pytest.mark.acceptance(54, 66)
    async def test_every_hundredth_message_makes_all_durable(self, make_queue: MakeQueue) -> None:
        assert TopicConfig().fsync_messages == 100
        config = TopicConfig(fsync=FsyncPolicy.EVERY_N_MESSAGES)
        held = inline()
        async with make_queue(defaults=config, system=held.system) as queue:
            done = [await queue.publish("orders", b"x") for _ in range(99)]
            assert not any(one.durable for one in done)
            assert queue.durable_offset("orders") == 0
            assert (await queue.publish("orders", b"x")).durable
            assert queue.durable_offset("orders") == 100
            assert not (await queue.publish("orders", b"x")).durable
            held.clock.advance(1)
            await settle()
            assert queue.durable_offset("orders") == 101

    @pytest.mark.acceptance(55, 66)
    async def test_timed_makes_all_durable_after_a_second(self, make_queue: MakeQueue) -> None:
        assert TIMED.fsync_interval_ms == 1_000
        held = inline()
        async with make_queue(defaults=TIMED, system=held.system) as queue:
            for _ in range(120):
                assert not (await queue.publish("orders", b"x")).durable
            waiting = asyncio.create_task(queue.wait_durable("orders", 119))
            held.clock.advance(0.999)
            await settle()
            assert queue.durable_offset("orders") == 0
            assert not waiting.done()
            held.clock.advance(0.001)
            await waiting
            assert queue.durable_offset("orders") == 120
            assert not (await queue.publish("orders", b"x")).durable
            held.clock.advance(1)
            await settle()
            assert queue.durable_offset("orders") == 121

    async def test_a_publisher_may_ask_for_more(self, make_queue: MakeQueue) -> None:
        async with make_queue(defaults=TIMED, system=inline().system) as queue:
            assert not (await queue.publish("orders", b"x")).durable
            assert (await queue.publish("orders", b"x", durable=True)).durable
            assert queue.durable_offset("orders") == 2
            assert not (await queue.publish("orders", b"x")).durable
            assert (await queue.publish_many("orders", numbered(5), durable=True)).durable
            assert queue.durable_offset("orders") == 8

    async def test_flush_makes_all_durable(self, make_queue: MakeQueue) -> None:
        config = TopicConfig(fsync=FsyncPolicy.TIMED, partitions=2, linger_ms=60_000)
        async with make_queue(defaults=config, system=inline().system) as queue:
            await queue.create_topic("orders")
            for _ in range(10):
                queue.publish_nowait("orders", b"x")
            await queue.flush()
            assert [queue.durable_offset("orders", number) for number in range(2)] == [5, 5]
            assert len(await everything(queue, "orders")) == 10

    async def test_waiting_for_what_is_durable_returns_at_once(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.publish("orders", b"x")
            await queue.wait_durable("orders", 0)
            with pytest.raises(DeadlineExceeded):
                await queue.wait_durable("orders", 1, timeout=0.01)

    # Limits

    async def test_a_full_buffer_is_an_error_or_a_wait(self, make_queue: MakeQueue) -> None:
        config = TopicConfig(record_bytes_max=100, buffer_bytes_max=1_000)
        held = held_back()
        async with make_queue(defaults=config, system=held.system) as queue, held:
            await queue.create_topic("orders")
            receipts: list[Receipt] = []

            def fill() -> None:
                while len(receipts) < 100:
                    receipts.append(queue.publish_nowait("orders", bytes(100)))

            with pytest.raises(BufferFull, match="buffer_bytes_max"):
                fill()
            assert 1 < len(receipts) <= 10
            with pytest.raises(DeadlineExceeded):
                await queue.publish("orders", bytes(100), timeout=0.01)
            waiting = asyncio.create_task(queue.publish("orders", bytes(100)))
            many = asyncio.create_task(queue.publish_many("orders", [bytes(100)] * 3))
            await settle()
            assert not waiting.done()
            await held.commit()
            await held.commit()
            first, end = (await many).ranges[0]
            taken = {(await waiting).offset, *range(first, end)}
            assert taken == set(range(len(receipts), len(receipts) + 4))
            assert all(receipt.done for receipt in receipts)

    async def test_publish_many_needs_no_buffer_for_all_of_it(self, make_queue: MakeQueue) -> None:
        """A buffer that is smaller than a batch may be makes the batches smaller."""
        config = TopicConfig(record_bytes_max=100, buffer_bytes_max=250)
        async with make_queue(defaults=config) as queue:
            done = await queue.publish_many("orders", [bytes(100)] * 20, timeout=WAIT_SECONDS)
            assert done.ranges == {0: (0, 20)}

    async def test_a_record_has_a_largest_size(self, make_queue: MakeQueue) -> None:
        config = TopicConfig(record_bytes_max=100)
        async with make_queue(defaults=config) as queue:
            await queue.create_topic("orders")
            with pytest.raises(RecordTooLarge, match="record_bytes_max"):
                await queue.publish("orders", bytes(101))
            with pytest.raises(RecordTooLarge):
                queue.publish_nowait("orders", bytes(60), bytes(41))
            with pytest.raises(RecordTooLarge):
                queue.publish_nowait("orders", bytes(60), None, {"name": bytes(37)})
            for many in ([bytes(101)], [bytes(101), b"x"], [*numbered(50), bytes(101), b"x"]):
                with pytest.raises(RecordTooLarge):
                    await queue.publish_many("orders", many)
            assert await everything(queue, "orders") == []
            await queue.publish("orders", bytes(60), key=bytes(40))
            await queue.publish_many("orders", [bytes(100)] * 3)
            assert len(await everything(queue, "orders")) == 4

    @pytest.mark.parametrize(
        "wrong",
        [
            {"value": "text"},
            {"value": bytearray(b"x")},
            {"value": 5},
            {"key": "text"},
            {"headers": {"name": "text"}},
            {"headers": {b"name": b"x"}},
            {"headers": {"name": None}},
            {"headers": {"\ud800": b"x"}},
            {"timestamp": "now"},
            {"timestamp": 1.5},
            {"timestamp": 1 << 63},
            {"timestamp": -(1 << 63) - 1},
        ],
        ids=str,
    )
    async def test_what_is_not_a_record_is_refused(
        self, make_queue: MakeQueue, wrong: dict[str, Any]
    ) -> None:
        """By the call that brings it, before anything is written; the queue goes on."""
        async with make_queue() as queue:
            await queue.create_topic("orders")
            arguments: dict[str, Any] = {"value": b"x", **wrong}
            with pytest.raises(InvalidOption):
                await queue.publish("orders", **arguments, timeout=WAIT_SECONDS)
            with pytest.raises(InvalidOption):
                queue.publish_nowait("orders", **arguments)
            columns: dict[str, Any] = {f"{name}s": [one] for name, one in arguments.items()}
            columns["headers"] = columns.pop("headerss", None)
            with pytest.raises(InvalidOption):
                await queue.publish_many("orders", **columns, timeout=WAIT_SECONDS)
            assert (await queue.publish("orders", b"good", timeout=WAIT_SECONDS)).offset == 0

    async def test_columns_have_one_length(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            for name, column in {
                "keys": [b"k"],
                "headers": [{}],
                "timestamps": [1, 2, 3],
            }.items():
                with pytest.raises(InvalidOption, match=name):
                    await queue.publish_many("orders", [b"a", b"b"], **{name: column})  # type: ignore[arg-type]

    # What a publisher does afterwards

    async def test_headers_may_be_used_again(self, make_queue: MakeQueue) -> None:
        held = held_back()
        headers = {"n": b"1"}
        async with make_queue(system=held.system) as queue, held:
            await queue.create_topic("orders")
            async with queue.subscribe("orders", "billing") as subscription:
                queue.publish_nowait("orders", b"a", None, headers)
                waiting = asyncio.create_task(queue.publish("orders", b"b", headers=headers))
                many = asyncio.create_task(queue.publish_many("orders", [b"c"], headers=[headers]))
                await settle()
                headers["n"] = b"2"
                headers["m"] = b"3"
                await held.commit()
                await asyncio.gather(waiting, many)
                headers.clear()
                read = [record async for record in queue.replay("orders")]
                async for record in subscription:
                    assert dict(record.headers) == {"n": b"1"}
                    if record.offset == 2:
                        break
        assert [dict(record.headers) for record in read] == [{"n": b"1"}] * 3

    async def test_cancelling_a_publish_leaves_the_queue_working(
        self, make_queue: MakeQueue
    ) -> None:
        held = held_back()
        config = TopicConfig(record_bytes_max=10, buffer_bytes_max=300)
        async with make_queue(system=held.system, defaults=config) as queue, held:
            await queue.create_topic("orders")
            on_their_way = [asyncio.create_task(queue.publish("orders", bytes(9))) for _ in "1234"]
            await settle()
            waiting = asyncio.create_task(queue.publish("orders", bytes(9)))
            await settle()
            for task in (on_their_way[1], waiting):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            later = asyncio.create_task(queue.publish("orders", b"later"))
            await held.commit()
            await held.commit()
            assert [(await on_their_way[place]).offset for place in (0, 2, 3)] == [0, 2, 3]
            assert (await later).offset == 4
