"""The queue suite: subscribers, commits, seeking, batches, lag."""

from __future__ import annotations

import asyncio

import pytest

from penstock import FsyncPolicy, Record, RecordBatch, TopicConfig
from penstock.errors import (
    Closed,
    DeadlineExceeded,
    InvalidName,
    InvalidOption,
    SubscriberBusy,
    UnknownPartition,
    UnknownTopic,
)
from penstock.testing.queue_fixtures import (
    WAIT_SECONDS,
    MakeQueue,
    QueueFixtures,
    by_partition,
    inline,
    numbered,
    records_of,
    settle,
    take,
    values_of,
)

TWO = TopicConfig(partitions=2)


class SubscribingConformance(QueueFixtures):
    """What a subscriber can rely on."""

    @pytest.mark.acceptance(46)
    async def test_a_subscriber_resumes_behind_what_it_committed(
        self, make_queue: MakeQueue
    ) -> None:
        async with make_queue() as queue:
            await queue.publish_many("orders", numbered(10))
            async with queue.subscribe("orders", "billing") as subscription:
                records = await records_of(subscription, 7)
                await subscription.commit(records[3])
        async with make_queue() as queue:
            assert (await queue.publish("orders", b"10")).offset == 10
            async with queue.subscribe("orders", "billing") as subscription:
                assert subscription.positions() == {0: 4}
                assert await values_of(subscription, 7) == numbered(7, 4)

    async def test_what_was_not_committed_comes_again(self, make_queue: MakeQueue) -> None:
        for _ in range(2):
            async with make_queue() as queue:
                if "orders" not in await queue.topics():
                    await queue.publish_many("orders", numbered(5))
                await queue.create_topic("orders")
                async with queue.subscribe("orders", "billing") as subscription:
                    assert await values_of(subscription, 5) == numbered(5)

    @pytest.mark.acceptance(45)
    async def test_offsets_only_move_forward(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.publish_many("orders", numbered(20))
            async with queue.subscribe("orders", "billing") as subscription:
                records = await records_of(subscription, 10)
                await subscription.commit(records[9])
                await subscription.commit(records[3])
        async with make_queue() as queue:
            await queue.create_topic("orders")
            async with queue.subscribe("orders", "billing") as subscription:
                assert subscription.positions() == {0: 10}

    @pytest.mark.acceptance(45)
    async def test_subscribers_are_independent(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.publish_many("orders", numbered(10))
            async with (
                queue.subscribe("orders", "billing") as billing,
                queue.subscribe("orders", "shipping") as shipping,
            ):
                assert await values_of(billing, 10) == numbered(10)
                assert await values_of(shipping, 4) == numbered(4)
                await asyncio.gather(billing.commit(), shipping.commit())
        async with make_queue() as queue:
            await queue.create_topic("orders")
            for name, position in {"billing": 10, "shipping": 4, "new": 0}.items():
                async with queue.subscribe("orders", name) as subscription:
                    assert subscription.positions() == {0: position}

    async def test_commit_takes_a_record_a_batch_or_all(self, make_queue: MakeQueue) -> None:
        async with make_queue(defaults=TWO) as queue:
            await queue.publish_many("orders", numbered(20))
            async with queue.subscribe("orders", "billing") as subscription:
                await subscription.commit()
                assert subscription.positions() == {0: 0, 1: 0}
                records = await records_of(subscription, 3)
                await subscription.commit(records[1])
                (batch,) = await take(subscription.batches(4), 1)
                assert isinstance(batch, RecordBatch)
                await subscription.commit(batch)
            async with queue.subscribe("orders", "billing") as subscription:
                expected = {records[1].partition: records[1].offset + 1}
                expected[batch.partition] = batch.next_offset
                assert subscription.positions() == {0: 0, 1: 0, **expected}
                await take(subscription, 5)
                await subscription.commit()
                done = subscription.positions()
            async with queue.subscribe("orders", "billing") as subscription:
                assert subscription.positions() == done

    async def test_commit_refuses_what_is_not_of_this_topic(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.publish("orders", b"x")
            async with queue.subscribe("orders", "billing") as subscription:
                with pytest.raises(UnknownPartition):
                    await subscription.commit(Record("orders", 3, 0, 0, None, b""))
                with pytest.raises(InvalidOption):
                    await subscription.commit(Record("other", 0, 0, 0, None, b""))
                assert subscription.positions() == {0: 0}

    async def test_an_iteration_may_be_left_and_started_again(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.publish_many("orders", numbered(100))
            async with queue.subscribe("orders", "billing") as subscription:
                values = []
                for count in (1, 3, 7, 19, 70):
                    values += await values_of(subscription, count)
                assert values == numbered(100)

    async def test_single_records_and_batches_may_alternate(self, make_queue: MakeQueue) -> None:
        async with make_queue(defaults=TWO) as queue:
            await queue.publish_many("orders", numbered(100))
            async with queue.subscribe("orders", "billing") as subscription:
                values: list[bytes | None] = []
                while len(values) < 100:
                    values += await values_of(subscription, 1)
                    if len(values) < 100:
                        async for batch in subscription.batches(3):
                            values += [record.value for record in batch]
                            break
                assert sorted(values, key=lambda one: int(one or b"")) == numbered(100)

    @pytest.mark.parametrize("records_max", [1, 3, 10, 1_000])
    async def test_batches_have_at_most_so_many_records(
        self, make_queue: MakeQueue, records_max: int
    ) -> None:
        async with make_queue(defaults=TWO) as queue:
            await queue.publish_many("orders", numbered(20))
            async with queue.subscribe("orders", "billing") as subscription:
                records: list[Record] = []
                async with asyncio.timeout(WAIT_SECONDS):
                    async for batch in subscription.batches(records_max):
                        assert 0 < len(batch) <= records_max
                        assert {record.partition for record in batch} == {batch.partition}
                        assert batch.next_offset == batch.records[-1].offset + 1
                        assert subscription.positions()[batch.partition] == batch.next_offset
                        records += batch
                        if len(records) == 20:
                            break
        for found in by_partition(records).values():
            assert [record.offset for record in found] == list(range(10))

    async def test_a_batch_has_at_least_one_record(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.publish("orders", b"x")
            async with queue.subscribe("orders", "billing") as subscription:
                with pytest.raises(InvalidOption, match="records_max"):
                    await take(subscription.batches(0), 1)

    async def test_the_next_batch_can_be_asked_for(self, make_queue: MakeQueue) -> None:
        async with make_queue(defaults=TWO) as queue:
            await queue.create_topic("orders")
            async with queue.subscribe("orders", "billing") as subscription:
                for _ in range(3):
                    with pytest.raises(DeadlineExceeded, match="nothing is lost"):
                        await subscription.next_batch(timeout=0.001)
                waiting = asyncio.create_task(subscription.next_batch(WAIT_SECONDS))
                await settle()
                await queue.publish("orders", b"first")
                assert [record.value for record in await waiting] == [b"first"]
                await queue.publish_many("orders", numbered(20))
                sizes: list[int] = []
                while sum(sizes) < 20:
                    batch = await subscription.next_batch(WAIT_SECONDS, records_max=3)
                    assert subscription.positions()[batch.partition] == batch.next_offset
                    sizes.append(len(batch))
                assert max(sizes) <= 3

    async def test_several_tasks_may_share_a_subscription(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.publish_many("orders", numbered(50))
            async with queue.subscribe("orders", "billing") as subscription:
                shares = await asyncio.gather(*(values_of(subscription, 10) for _ in range(5)))
                assert sorted(int(one or b"") for share in shares for one in share) == list(
                    range(50)
                )

    async def test_order_is_kept_within_a_partition(self, make_queue: MakeQueue) -> None:
        async with make_queue(defaults=TopicConfig(partitions=3)) as queue:
            await queue.create_topic("orders")
            async with queue.subscribe("orders", "billing") as subscription:
                reading = asyncio.create_task(records_of(subscription, 600))
                for start in range(0, 600, 60):
                    await queue.publish_many("orders", numbered(60, start))
                found = by_partition(await reading)
        for records in found.values():
            assert [record.offset for record in records] == list(range(200))
            values = [int(record.value or b"") for record in records]
            assert values == sorted(values)

    async def test_a_waiting_subscriber_gets_what_is_published(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.create_topic("orders")
            async with queue.subscribe("orders", "billing") as subscription:
                for number in range(5):
                    waiting = asyncio.create_task(values_of(subscription, 1))
                    await settle()
                    assert not waiting.done()
                    await queue.publish("orders", b"%d" % number)
                    assert await waiting == [b"%d" % number]

    async def test_only_durable_records_are_delivered(self, make_queue: MakeQueue) -> None:
        held = inline()
        config = TopicConfig(fsync=FsyncPolicy.TIMED)
        async with make_queue(defaults=config, system=held.system) as queue:
            await queue.publish("orders", b"x")
            async with queue.subscribe("orders", "billing") as subscription:
                assert subscription.lag() == 0
                waiting = asyncio.create_task(values_of(subscription, 1))
                await settle()
                assert not waiting.done()
                held.clock.advance(1)
                assert await waiting == [b"x"]

    async def test_cancelling_an_iteration_loses_nothing(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.create_topic("orders")
            async with queue.subscribe("orders", "billing") as subscription:
                values: list[bytes | None] = []

                async def read() -> None:
                    async for record in subscription:
                        values.append(record.value)
                        await asyncio.sleep(0)

                for number in range(20):
                    reading = asyncio.create_task(read())
                    await queue.publish_many("orders", numbered(5, 5 * number))
                    for _ in range(number % 7):
                        await asyncio.sleep(0)
                    reading.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await reading
                values += await values_of(subscription, 100 - len(values))
                assert values == numbered(100)

    # Positions

    async def test_lag_counts_what_was_not_delivered(self, make_queue: MakeQueue) -> None:
        async with make_queue(defaults=TWO) as queue:
            await queue.publish_many("orders", numbered(20))
            async with queue.subscribe("orders", "billing") as subscription:
                assert subscription.lag() == 20
                seen = 0
                async for _ in subscription:
                    seen += 1
                    assert subscription.lag() == 20 - seen
                    assert sum(subscription.positions().values()) == seen
                    if seen == 20:
                        break
                await queue.publish_many("orders", numbered(6))
                assert subscription.lag() == 6

    # Names

    async def test_a_name_has_one_subscription_at_a_time(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue, make_queue() as other:
            for one in (queue, other):
                await one.create_topic("orders")
            async with queue.subscribe("orders", "billing"):
                for one in (queue, other):
                    with pytest.raises(SubscriberBusy, match="another"):
                        await one.subscribe("orders", "billing").open()
                async with other.subscribe("orders", "shipping"):
                    pass
            async with other.subscribe("orders", "billing"):
                with pytest.raises(SubscriberBusy):
                    await queue.subscribe("orders", "billing").open()
            async with queue.subscribe("orders", "billing"):
                pass

    async def test_closing_the_queue_frees_the_names(self, make_queue: MakeQueue) -> None:
        queue = make_queue()
        await queue.open()
        await queue.publish("orders", b"x")
        kept = queue.subscribe("orders", "billing")
        await kept.open()
        await queue.close()
        async with make_queue() as queue:
            await queue.create_topic("orders")
            async with queue.subscribe("orders", "billing") as subscription:
                assert await values_of(subscription, 1) == [b"x"]

    async def test_unsubscribing_forgets_the_offsets(self, make_queue: MakeQueue) -> None:
        async with make_queue(defaults=TWO) as queue:
            await queue.publish_many("orders", numbered(10))
            async with queue.subscribe("orders", "billing") as subscription:
                with pytest.raises(SubscriberBusy):
                    await queue.unsubscribe("orders", "billing")
                await take(subscription, 10)
                await subscription.commit()
            await queue.unsubscribe("orders", "billing")
            assert "billing" not in (await queue.change_topic("orders")).subscribers
            for store in (queue.store, queue.offsets):
                keys = store.list("groups/billing/")
                assert not [key for key in keys if key.endswith(".offset")]
            async with queue.subscribe("orders", "billing") as subscription:
                assert subscription.positions() == {0: 0, 1: 0}

    async def test_unsubscribing_a_stranger_does_nothing(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.create_topic("orders")
            await queue.unsubscribe("orders", "nobody")
            assert (await queue.change_topic("orders")).subscribers == {}

    # Wrong and late calls

    async def test_a_closed_subscription_refuses(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.publish_many("orders", numbered(3))
            async with queue.subscribe("orders", "billing") as subscription:
                (record,) = await records_of(subscription, 1)
            await subscription.close()
            with pytest.raises(Closed):
                await take(subscription, 1)
            with pytest.raises(Closed):
                await take(subscription.batches(), 1)
            with pytest.raises(Closed):
                await subscription.commit(record)
            with pytest.raises(Closed):
                await subscription.seek("latest")
            async with queue.subscribe("orders", "billing") as subscription:
                assert subscription.positions() == {0: 0}

    async def test_closing_ends_an_iteration(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.create_topic("orders")
            subscription = queue.subscribe("orders", "billing")
            reading = asyncio.create_task(records_of(subscription, 1))
            await settle()
            await subscription.close()
            with pytest.raises(Closed):
                await reading
            async with queue.subscribe("orders", "billing"):
                pass

    async def test_a_topic_is_opened_by_its_first_subscriber(self, make_queue: MakeQueue) -> None:
        async with make_queue(defaults=TWO) as queue:
            await queue.publish_many("orders", numbered(4))
        async with make_queue() as queue:
            subscription = queue.subscribe("orders", "billing")
            assert (subscription.positions(), subscription.lag()) == ({}, 0)
            async with queue.subscribe("orders", "shipping"), subscription:
                assert set(await values_of(subscription, 4)) == set(numbered(4))
                await queue.publish("orders", b"next")
                assert await values_of(subscription, 1) == [b"next"]

    async def test_wrong_calls_of_a_topic_that_is_not_open_yet(self, make_queue: MakeQueue) -> None:
        async with make_queue(defaults=TWO) as queue:
            await queue.create_topic("orders")
        async with make_queue() as queue:
            with pytest.raises(InvalidName):
                queue.subscribe("no/topic", "billing")
            with pytest.raises(InvalidOption, match="of one partition"):
                await queue.subscribe("orders", "billing", start=3).open()
            closed = queue.subscribe("orders", "billing")
            await closed.close()
            with pytest.raises(Closed):
                await closed.open()

    async def test_a_queue_is_closed_while_a_subscriber_opens_its_topic(
        self, make_queue: MakeQueue
    ) -> None:
        async with make_queue() as queue:
            await queue.create_topic("orders")
        for turns in range(4):
            async with make_queue() as queue:
                reading = asyncio.create_task(take(queue.subscribe("orders", "billing"), 1))
                for _ in range(turns):
                    await asyncio.sleep(0)
            with pytest.raises(Closed):
                await reading

    async def test_subscribing_makes_no_topic(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            subscription = queue.subscribe("orders", "billing")
            with pytest.raises(UnknownTopic, match="create_topic"):
                await values_of(subscription, 1)
            assert await queue.topics() == []
            await queue.publish("orders", b"x")
            assert await values_of(subscription, 1) == [b"x"], "it can be tried again"

    async def test_a_commit_opens_the_subscription(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.publish_many("orders", numbered(4))
            records = [record async for record in queue.replay("orders")]
            subscription = queue.subscribe("orders", "billing")
            await subscription.commit(records[1])
            await subscription.close()
            async with queue.subscribe("orders", "billing") as subscription:
                assert await values_of(subscription, 2) == numbered(2, 2)

    async def test_a_wait_can_be_given_up_again_and_again(self, make_queue: MakeQueue) -> None:
        async with make_queue() as queue:
            await queue.create_topic("orders")
            async with queue.subscribe("orders", "billing") as subscription:
                for _ in range(20):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.001):
                            await records_of(subscription, 1)
                with pytest.raises(DeadlineExceeded):
                    await queue.wait_durable("orders", 0, timeout=0.001)
                await queue.publish("orders", b"x")
                assert await values_of(subscription, 1) == [b"x"]
