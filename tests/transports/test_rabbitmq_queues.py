"""The RabbitMQ transport on quorum queues of a real server: the suite, and what only it has."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import aio_pika
import pytest

from penstock.errors import (
    BrokerFailed,
    DeadlineExceeded,
    Fenced,
    InvalidOption,
    NotSupported,
    OffsetOutOfRange,
    SubscriberBusy,
    UnknownTopic,
    Unreachable,
)
from penstock.testing import TransportConformance
from penstock.testing.transport_fixtures import WAIT_SECONDS, numbered, take, values_of
from penstock.transports.rabbitmq import RabbitTransport
from penstock.transports.rabbitmq_amqp import AmqpConnection
from penstock.transports.rabbitmq_settings import settings_from
from tests.transports.disturbance import cut_and_heal, produced_and_read
from tests.transports.proxy import Proxy
from tests.transports.servers.rabbitmq import LOGIN, rabbit_server

GROUPS = "billing,shipping,Billing-2.eu,_x"


@pytest.fixture(scope="module")
def server():
    with rabbit_server() as running:
        yield running


@pytest.fixture
def make(server):
    return partial(RabbitTransport, server.quorum_url, groups="billing")


def far(proxy, **options):
    url = f"rabbitmq://{LOGIN}@{proxy.address}?mode=quorum&groups=billing"
    return RabbitTransport(url, reconnect_seconds_max=0.2, **options)


class TestRabbitQueues(TransportConformance):
    @pytest.fixture
    def make_transport(self, server):
        return partial(RabbitTransport, server.quorum_url, groups=GROUPS, prefetch=65_535)

    async def test_large_batches_and_large_values_arrive_whole(self, make_transport, topic):
        """A few thousand: the client takes a message at a time."""
        values, large = numbered(3_000), bytes(500_000)
        async with make_transport() as transport:
            await transport.create_topic(topic, partitions=2)
            assert (await transport.produce(topic, [*values, large])).count == 3_001
            async with transport.subscribe(topic, "billing") as consumer:
                records = await take(consumer, 3_001)
        assert {one.value for one in records} == {*values, large}


# What may happen on the way


async def sent_and_read(transport, topic, disturb, batches=20, size=10):
    """Produce under disturbance and read all: everything comes, some of it twice."""

    async def read(got, total):
        async with transport.subscribe(topic, "billing") as consumer:
            while len(got) < total:
                batch = await consumer.next_batch(2 * WAIT_SECONDS)
                got.update(values_of(batch.records))
                with suppress(Fenced):
                    await consumer.commit(batch)

    got = await produced_and_read(
        transport, topic, disturb, read, batches=batches, size=size, seconds=2 * WAIT_SECONDS
    )
    assert got.keys() == set(numbered(batches * size))


async def test_a_broker_that_is_killed_loses_nothing_acknowledged(server, make, topic):
    async def disturb():
        server.kill()
        await asyncio.to_thread(server.start)

    async with make() as transport:
        await transport.create_topic(topic, partitions=2)
        queues = [f"penstock:{topic}:billing:{number}" for number in range(2)]
        await asyncio.to_thread(server.settle, "penstock:topics", *queues)
        await sent_and_read(transport, topic, disturb)
        assert transport.statistics().reconnects >= 1


async def test_a_cut_connection_is_made_again(server, topic):
    async with Proxy("127.0.0.1", server.amqp_port) as proxy, far(proxy) as transport:
        await sent_and_read(transport, topic, lambda: cut_and_heal(proxy, transport))
        statistics = transport.statistics()
    assert statistics.reconnects >= 3
    assert statistics.errors
    assert statistics.records_produced == 200
    assert not transport.statistics().connected


async def test_a_slow_connection_is_slow_and_nothing_else(server, topic):
    async with Proxy("127.0.0.1", server.amqp_port) as proxy, far(proxy) as transport:

        async def disturb():
            proxy.delay = 0.05

        await sent_and_read(transport, topic, disturb, batches=6)


async def test_a_connection_that_is_half_open_is_given_up(server, topic):
    async with (
        Proxy("127.0.0.1", server.amqp_port) as proxy,
        far(proxy, answer_seconds=1.0) as transport,
    ):

        async def disturb():
            before = proxy.connections
            proxy.swallow = "both"
            while transport.statistics().connected:
                await asyncio.sleep(0.01)
            proxy.heal()
            while proxy.connections == before:
                await asyncio.sleep(0.01)

        await sent_and_read(transport, topic, disturb)


async def test_what_a_lost_connection_had_comes_again_and_its_commit_is_refused(server, topic):
    async with Proxy("127.0.0.1", server.amqp_port) as proxy, far(proxy) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, numbered(5))
        async with transport.subscribe(topic, "billing") as consumer:
            (first,) = await take(consumer, 1)
            before = await take(consumer, 4)
            generation = consumer.assignment().generation
            await consumer.commit({0: 2})
            proxy.drop()
            again = await take(consumer, 3)
            assert values_of(again) == numbered(3, 2)
            assert [one.offset for one in again] == [5, 6, 7]
            assert consumer.assignment().generation > generation
            with pytest.raises(Fenced):
                await consumer.commit({0: 5})
            with pytest.raises(Fenced):
                await consumer.acknowledge(before[-1])
            await consumer.commit({0: 2})  # which is done
            await consumer.commit()
            with pytest.raises(Fenced):
                await consumer.acknowledge(first)
        async with transport.subscribe(topic, "billing") as consumer:
            with pytest.raises(DeadlineExceeded):
                await consumer.next_batch(0.2)


async def test_a_channel_that_the_server_closes_is_taken_again(make, topic):
    """As it does when a member does not commit for half an hour."""
    async with make() as transport:
        await transport.create_topic(topic, partitions=2)
        await transport.produce(topic, numbered(10))
        async with transport.subscribe(topic, "billing") as consumer:
            await take(consumer, 10)
            before = consumer.assignment().generation
            channel = await consumer._queues[0].channel.get_underlay_channel()
            await channel.basic_ack(delivery_tag=10**6)  # which it never gave
            assert set(values_of(await take(consumer, 10))) == set(numbered(10))
            assert consumer.assignment().generation > before
            await consumer.commit()
        assert transport.statistics().reconnects == 0


async def test_queues_that_are_removed_are_told(server, make, topic):
    async with make() as transport:
        await transport.create_topic(topic)
        async with transport.subscribe(topic, "billing") as consumer:
            url = f"amqp://{LOGIN}@127.0.0.1:{server.amqp_port}/"
            async with await aio_pika.connect(url) as connection, connection.channel() as channel:
                await channel.queue_delete(f"penstock:{topic}:billing:0")
            with pytest.raises(NotSupported, match="subscribe again"):
                await consumer.next_batch(WAIT_SECONDS)


async def test_no_answer_is_an_error_within_the_deadline(server, topic):
    async with Proxy("127.0.0.1", server.amqp_port) as proxy, far(proxy) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, [b"x"])
        proxy.swallow = "down"
        with pytest.raises(Unreachable, match="not confirmed"):
            await transport.produce(topic, [b"y"], timeout=0.3)
        proxy.heal()
        proxy.drop()
        await transport.produce(topic, [b"z"])


# Groups


async def test_who_does_not_read_on_is_not_in_the_way_of_another_group(make, topic):
    async with make() as transport:
        await transport.create_topic(topic, partitions=2, groups=["shipping"])
        await transport.produce(topic, numbered(20))
        async with (
            transport.subscribe(topic, "billing", prefetch=3) as billing,
            transport.subscribe(topic, "shipping") as shipping,
        ):
            got = await take(billing, 6)
            with pytest.raises(DeadlineExceeded):
                await billing.next_batch(0.2)  # three of each partition are not committed
            assert len(await take(shipping, 20)) == 20
            await billing.commit()
            got += await take(billing, 6)
        assert len({one.value for one in got}) == 12


async def test_a_group_gets_what_is_produced_after_it_was_made(make, topic):
    async with make(groups="") as transport:
        await transport.create_topic(topic, partitions=2)
        with pytest.raises(NotSupported, match="no group has queues"):
            await transport.produce(topic, [b"for nobody"])
        with pytest.raises(NotSupported, match="start='latest'") as refused:
            await transport.subscribe(topic, "billing").open()
        assert refused.value.missing == ("replay",)
        async with transport.subscribe(topic, "billing", start="latest"):
            await transport.produce(topic, numbered(4))
        # It is there now, whether it has members or not.
        await transport.produce(topic, numbered(4, 4))
        async with transport.subscribe(topic, "billing") as consumer:
            assert {one.value for one in await take(consumer, 8)} == set(numbered(8))


@pytest.mark.parametrize("start", [5, datetime(2001, 1, 1, tzinfo=UTC)])
async def test_there_is_no_place_to_start_at_or_go_to(make, topic, start):
    async with make() as transport:
        await transport.create_topic(topic)
        with pytest.raises(NotSupported):
            transport.subscribe(topic, "billing", start=start)
        with pytest.raises(NotSupported):
            await transport.lag(topic, "billing")
        with pytest.raises(NotSupported):
            await transport.groups(topic)
        with pytest.raises(NotSupported):
            await transport.delete_topic(topic)
        async with transport.subscribe(topic, "billing") as consumer:
            with pytest.raises(NotSupported):
                await consumer.seek("earliest")


async def test_one_member_of_all_processes_reads(server, make, topic):
    async with make() as one, make() as other:
        await one.create_topic(topic, partitions=2)
        await one.produce(topic, numbered(10))
        async with one.subscribe(topic, "billing") as first:
            await take(first, 10)
            for transport in (one, other):
                with pytest.raises(SubscriberBusy, match="ordered"):
                    await transport.subscribe(topic, "billing").open()
            with pytest.raises(SubscriberBusy):
                await other.forget(topic, "billing")
        async with other.subscribe(topic, "billing") as second:
            assert {one.value for one in await take(second, 10)} == set(numbered(10))


async def test_members_without_an_order_share_the_work(make, topic):
    async with make(ordered=False) as transport:
        await transport.create_topic(topic, partitions=1)
        async with (
            transport.subscribe(topic, "billing", prefetch=10) as first,
            transport.subscribe(topic, "billing", prefetch=10) as second,
        ):
            await transport.produce(topic, numbered(20))
            got = await take(first, 10) + await take(second, 10)
            assert sorted(values_of(got), key=repr) == sorted(numbered(20), key=repr)


async def test_single_records_are_acknowledged_and_rejected(make, topic):
    async with make() as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, numbered(5))
        async with transport.subscribe(topic, "billing") as consumer:
            records = await take(consumer, 5)
            await consumer.acknowledge(records[4], records[1])
            await consumer.reject(records[3], requeue=False)
            await consumer.reject(records[0])
            assert values_of(await take(consumer, 1)) == [b"0"]
        async with transport.subscribe(topic, "billing") as consumer:
            assert sorted(values_of(await take(consumer, 2)), key=repr) == [b"0", b"2"]
            with pytest.raises(DeadlineExceeded):
                await consumer.next_batch(0.2)
            with pytest.raises(OffsetOutOfRange):
                await consumer.commit({0: 3})


async def test_a_group_that_is_forgotten_is_gone_with_its_records(make, topic):
    async with make() as transport:
        await transport.create_topic(topic, partitions=2)
        await transport.produce(topic, numbered(4))
        await transport.forget(topic, "billing")
        await transport.forget(topic, "billing")
        with pytest.raises(NotSupported):
            await transport.subscribe(topic, "billing").open()
        with pytest.raises(UnknownTopic):
            await transport.forget("none", "billing")


# Topics and records


async def test_topics_are_told_to_all_who_make_them_at_once(make, topic):
    names = [f"{topic}-{number}" for number in range(4)]
    async with make(prefix="many") as one, make(prefix="many") as other:
        await asyncio.gather(
            *(one.create_topic(name, partitions=2) for name in names),
            *(other.create_topic(name, partitions=2) for name in names),
        )
        assert await one.topics() == await other.topics() == sorted(names)


async def test_a_full_queue_refuses(make, topic):
    async with make() as transport:
        await transport.create_topic(topic, partitions=1, max_records=10)
        with pytest.raises(BrokerFailed, match="full"):
            await transport.produce(topic, numbered(1_000))
        with pytest.raises(InvalidOption):
            await transport.create_topic(f"{topic}-2", max_records=0)


async def test_names_and_headers_that_do_not_fit_are_refused(make, topic):
    async with make() as transport:
        await transport.create_topic(topic)
        with pytest.raises(InvalidOption, match="header"):
            await transport.produce(topic, [b"x"], headers=[{"n" * 200: b""}])
        with pytest.raises(InvalidOption, match="longer"):
            await transport.create_topic("t" * 200, groups=["g" * 200])
        with pytest.raises(InvalidOption, match="prefetch"):
            transport.subscribe(topic, "billing", prefetch=0)


async def test_records_of_other_clients_are_read(server, make, topic):
    async with make() as transport:
        await transport.create_topic(topic)
        url = f"amqp://{LOGIN}@127.0.0.1:{server.amqp_port}/"
        async with await aio_pika.connect(url) as connection, connection.channel() as channel:
            exchange = await channel.get_exchange(f"penstock:{topic}")
            message = aio_pika.Message(b"theirs", headers={"name": "text", "n": 7}, timestamp=1_000)
            await exchange.publish(message, "0")
        async with transport.subscribe(topic, "billing") as consumer:
            (record,) = await take(consumer, 1)
    assert (record.value, record.key, record.timestamp) == (b"theirs", None, 1_000_000)
    assert dict(record.headers) == {"name": b"text", "n": b"7"}


async def test_a_topic_is_made_by_producing_unless_that_is_off(make, topic):
    async with make(auto_create=False) as transport:
        with pytest.raises(UnknownTopic, match=topic):
            await transport.produce(topic, [b"x"])
    async with make(partitions=3) as transport:
        await transport.produce(topic, [b"x"])
        assert await transport.partitions(topic) == 3


async def test_a_deadline_is_heard_although_the_client_tells_of_something_else(monkeypatch):
    """Of a cancellation that comes in the same moment as a failure, the client tells the failure."""

    async def refused(host, port):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise aio_pika.exceptions.AMQPConnectionError(111, "refused") from None

    settings = settings_from("rabbitmq://127.0.0.1:1?mode=quorum&connect_seconds=0.01", {})
    connection = AmqpConnection(settings)
    monkeypatch.setattr(connection, "_attempt", refused)
    with pytest.raises(Unreachable):
        await connection.open()
