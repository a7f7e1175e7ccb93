"""A topic is removed with all that belongs to it, and nobody is told a lie about it."""

from __future__ import annotations

import pytest

from penstock import WalMessageQueue, verify
from penstock.errors import Poisoned, SubscriberBusy, UnknownTopic, UsageError
from penstock.log.deletion import delete_topic
from penstock.log.topic import TopicConfig
from penstock.stores import open_store
from penstock.transports import EmbeddedTransport


async def filled(path, partitions: int = 2) -> None:
    async with WalMessageQueue(path) as queue:
        config = TopicConfig(partitions=partitions, segment_bytes_max=256)
        await queue.create_topic("orders", config)
        await queue.create_topic("others")
        for number in range(20):
            await queue.publish("orders", b"x" * 50, key=b"%d" % number)
        await queue.publish("others", b"kept")
        async with queue.subscribe("orders", "billing") as billing:
            await billing.commit(await billing.next_batch())


async def test_all_of_it_goes_and_nothing_else(tmp_path):
    await filled(tmp_path)
    async with EmbeddedTransport(tmp_path) as transport:
        await transport.delete_topic("orders")
        assert await transport.topics() == ["others"]
        with pytest.raises(UnknownTopic):
            await transport.delete_topic("orders")
    left = [str(path) for path in tmp_path.rglob("*") if path.is_file() and "orders" in str(path)]
    assert [name for name in left if not name.endswith(".lock")] == []
    assert verify(tmp_path).problems == []
    async with WalMessageQueue(tmp_path) as queue:
        assert [record.value async for record in queue.replay("others")] == [b"kept"]
        await queue.publish("orders", b"new")
        assert [record.offset async for record in queue.replay("orders")] == [0]
        async with queue.subscribe("orders", "billing") as billing:
            assert (await billing.next_batch()).records[0].value == b"new"


async def test_a_topic_that_is_read_stays(tmp_path):
    await filled(tmp_path)
    async with WalMessageQueue(tmp_path) as queue, EmbeddedTransport(tmp_path) as transport:
        async with queue.subscribe("orders", "billing") as billing:
            with pytest.raises(SubscriberBusy, match="'billing' reads it"):
                await transport.delete_topic("orders")
            assert await billing.next_batch()
        async with transport.subscribe("orders", "billing"):
            async with EmbeddedTransport(tmp_path) as other:
                with pytest.raises(SubscriberBusy, match="'billing' reads it"):
                    await other.delete_topic("orders")


async def test_a_producer_that_goes_on_is_told(tmp_path):
    await filled(tmp_path, partitions=1)
    async with EmbeddedTransport(tmp_path) as transport:
        queue = WalMessageQueue(tmp_path)
        await queue.open()
        await queue.publish("orders", b"before")
        await transport.delete_topic("orders")
        with pytest.raises(Poisoned, match="the topic was deleted"):
            await queue.publish("orders", b"after")
        await queue.close()


async def test_what_a_crash_left_is_removed(tmp_path):
    await filled(tmp_path)
    (tmp_path / "topics/orders/topic.json").unlink()
    with open_store(tmp_path) as store:
        delete_topic(store, "orders")
        assert store.list("topics/orders/") == []


async def test_it_is_refused_where_the_topic_is_open(tmp_path):
    await filled(tmp_path)
    async with EmbeddedTransport(tmp_path) as transport:
        await transport.partitions("orders")
        with pytest.raises(UsageError, match="in use by this transport"):
            await transport.delete_topic("orders")
    async with EmbeddedTransport(tmp_path, read_only=True) as transport:
        with pytest.raises(UsageError, match="read-only"):
            await transport.delete_topic("orders")
