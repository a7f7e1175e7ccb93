"""A topic is deleted on brokers too: its records, and what its groups committed."""

from __future__ import annotations

import pytest

from penstock.errors import NotSupported, SubscriberBusy, UnknownTopic
from penstock.transports import Transport, open_transport
from tests.transports.servers.kafka import kafka_server
from tests.transports.servers.nats import nats_server
from tests.transports.servers.redis import redis_server


@pytest.fixture(params=[kafka_server, nats_server, redis_server], ids=["kafka", "nats", "redis"])
def url(request):
    with request.param() as server:
        yield server.url


async def test_all_of_a_topic_goes(url):
    async with open_transport(url) as transport:
        await transport.create_topic("orders", partitions=3)
        await transport.create_topic("others")
        await transport.produce("orders", [b"1", b"2", b"3"])
        async with transport.subscribe("orders", "billing") as billing:
            await billing.commit(await billing.next_batch(timeout=100))
            with pytest.raises(SubscriberBusy):
                await transport.delete_topic("orders")
        await transport.delete_topic("orders")
        assert await transport.topics() == ["others"]
        with pytest.raises(UnknownTopic):
            await transport.delete_topic("orders")
        await transport.create_topic("orders", partitions=2)
        assert await transport.groups("orders") == []
        assert [(one.committed, one.end) for one in await transport.lag("orders", "billing")] == [
            (0, 0),
            (0, 0),
        ]


async def test_one_that_cannot_says_so():
    class Plain(Transport):
        name = "plain"

    Plain.__abstractmethods__ = frozenset()
    with pytest.raises(NotSupported, match="cannot delete 'orders'"):
        await Plain().delete_topic("orders")  # type: ignore[abstract]
