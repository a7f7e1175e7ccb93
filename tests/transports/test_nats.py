"""The NATS transport on a real server: the suite, and what only it has."""

import asyncio
import sys
from datetime import UTC, datetime
from functools import partial

import nats
import pytest

from penstock.errors import DeadlineExceeded, MissingExtra, RecordTooLarge, UnknownTopic
from penstock.testing import TransportConformance
from penstock.testing.transport_fixtures import numbered, take, values_of
from penstock.transports import TransportRegistry, nats_consumer
from penstock.transports.nats import NatsTransport
from penstock.transports.nats_keys import NatsKeys
from penstock.transports.nats_records import delivered
from tests.transports.application import check_application, check_page
from tests.transports.disturbance import check_that_commits_count_once
from tests.transports.proxy import Proxy
from tests.transports.servers.nats import nats_server


@pytest.fixture(scope="module")
def server():
    with nats_server() as running:
        yield running


class TestNats(TransportConformance):
    @pytest.fixture
    def make_transport(self, server):
        return partial(NatsTransport, server.url)

    @pytest.fixture
    def transport_url(self, server):
        return server.url

    @pytest.fixture
    def quick_lease(self):
        return {"lease_seconds": 1.0}


# Topics and records


async def test_names_with_dots_and_underscores_are_kept_apart(server):
    names = ["a", "a.0", "a_0", "a_0.0", "a.0.b"]
    async with NatsTransport(server.url, prefix="names") as transport:
        for number, name in enumerate(names):
            await transport.create_topic(name, partitions=2)
            await transport.produce(name, numbered(number + 1), keys=[b"k"] * (number + 1))
            async with transport.subscribe(name, f"g.{name}") as consumer:
                assert len(await take(consumer, number + 1)) == number + 1
                await consumer.commit()
            assert await transport.groups(name) == [f"g.{name}"]
        assert await transport.topics() == sorted(names)


async def test_streams_of_others_whose_names_cannot_be_used_are_not_told(server):
    async with NatsTransport(server.url, prefix="odd") as transport:
        await transport.create_topic("usual", partitions=1)
        client = await nats.connect(server.url)
        await client.jetstream().add_stream(name="odd_-a_0", subjects=["odd.-a.0"])
        await client.close()
        assert await transport.topics() == ["usual"]


async def test_messages_of_other_programs_are_records(server, topic):
    async with NatsTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        client = await nats.connect(server.url)
        headers = {"trace": "7", "Status": "ok"}
        await client.jetstream().publish(f"penstock.{topic}.0", b"hello", headers=headers)
        await client.close()
        async with transport.subscribe(topic, "billing") as consumer:
            (record,) = await take(consumer, 1)
    assert (record.key, record.value) == (None, b"hello")
    assert dict(record.headers) == {"trace": b"7", "Status": b"ok"}
    assert abs(datetime.now(UTC).timestamp() - record.timestamp / 1_000) < 60


async def test_any_key_and_any_header_arrives(server, topic):
    keys = [b"", b" a", b"a b", b"\x00\xff", b"a\r\nb", "ü".encode(), None]
    headers = [
        {"": b"x"},
        {"Nats-Msg-Id": b"1"},
        {"Penstock-Key": b"2"},
        {"a b": b"c", "ü": b"\r\n", "plain": b"text"},
        {"Status": b"503"},
        {"nats-batch-id": b"x"},
        {"tail": b"blank "},
    ]
    async with NatsTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, numbered(7), keys=keys, headers=headers)
        async with transport.subscribe(topic, "billing") as consumer:
            records = await take(consumer, 7)
    assert [one.key for one in records] == keys
    assert [dict(one.headers) for one in records] == headers


async def test_a_record_that_is_too_large_is_named(server, topic):
    async with NatsTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        for values in ([bytes(2_000_000)], [b"a", bytes(2_000_000), b"c"]):
            with pytest.raises(RecordTooLarge, match="2000000 bytes"):
                await transport.produce(topic, values)
        assert (await transport.produce(topic, [b"x"])).ranges == {0: (0, 1)}


async def test_large_records_are_read_within_bounds(server, topic):
    values = [bytes([number]) * 900_000 for number in range(40)]
    async with NatsTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, values)
        async with transport.subscribe(topic, "billing") as consumer:
            assert values_of(await take(consumer, 40)) == values


async def test_what_is_kept_moves_the_first_offset(server, topic):
    async with NatsTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1, max_records=3, max_age_seconds=3_600)
        await transport.produce(topic, numbered(10))
        async with transport.subscribe(topic, "billing") as consumer:
            assert consumer.positions() == {0: 7}
            assert [one.offset for one in await take(consumer, 3)] == [7, 8, 9]
            await transport.produce(topic, numbered(10))
            # What it was going to read is gone: it goes on at the first that is kept.
            got = [(await take(consumer, 1))[0].offset]
            while got[-1] < 19:
                got += [one.offset for one in await take(consumer, 1)]
            assert got == sorted(got)


async def test_a_topic_is_made_by_producing_unless_that_is_off(server, topic):
    async with NatsTransport(server.url, auto_create=False) as transport:
        with pytest.raises(UnknownTopic, match=topic):
            await transport.produce(topic, [b"x"])
    async with NatsTransport(server.url, partitions=3) as transport:
        await transport.produce(topic, [b"x"])
        assert await transport.partitions(topic) == 3


async def test_a_topic_that_goes_away_is_told(server, topic):
    async with NatsTransport(server.url, auto_create=False) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, [b"x"])
        await transport._connection.api(f"STREAM.DELETE.penstock_{topic}_0")
        with pytest.raises(UnknownTopic, match=topic):
            await transport.produce(topic, [b"x"])


async def test_several_who_make_a_topic_agree(server, topic):
    async with (
        NatsTransport(server.url) as one,
        NatsTransport(server.url) as other,
    ):
        await asyncio.gather(
            one.create_topic(topic, partitions=3), other.create_topic(topic, partitions=5)
        )
        assert await one.partitions(topic) == await other.partitions(topic)
        await one.produce(topic, numbered(30))
        async with other.subscribe(topic, "billing") as consumer:
            assert len(await take(consumer, 30)) == 30


async def test_readers_leave_nothing_on_the_server(server, topic):
    async with NatsTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, numbered(3))
        async with transport.subscribe(topic, "billing") as consumer:
            await take(consumer, 3)
            await consumer.seek("earliest")
            await take(consumer, 3)
            with pytest.raises(DeadlineExceeded):
                await consumer.next_batch(0.01)
            names = await transport._connection.api(f"CONSUMER.NAMES.penstock_{topic}_0")
            assert len(names["consumers"]) == 1
        names = await transport._connection.api(f"CONSUMER.NAMES.penstock_{topic}_0")
        assert names["consumers"] in ([], None)


async def test_what_gets_lost_on_the_way_is_read_again(server, topic, monkeypatch):
    """The consumers acknowledge nothing: a gap in their numbers is all that shows it."""
    lost: list[object] = []

    def lossy(message):
        where = delivered(message)
        if where is not None and where.sequence == 4 and not lost:
            lost.append(where)
            return where._replace(consumer_sequence=where.consumer_sequence + 1)
        return where

    monkeypatch.setattr(nats_consumer, "delivered", lossy)
    async with NatsTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, numbered(10))
        async with transport.subscribe(topic, "billing") as consumer:
            assert values_of(await take(consumer, 10)) == numbered(10)
    assert lost


async def test_members_come_and_go_while_the_connection_does(server, topic):
    """A commit counts once, whoever makes it, and whatever becomes of its answer."""
    async with (
        Proxy("127.0.0.1", server.port) as proxy,
        NatsTransport(f"nats://{proxy.address}", reconnect_seconds_max=0.1) as far,
        NatsTransport(server.url) as near,
    ):
        await check_that_commits_count_once(proxy, far, near, topic, rounds=4, records=600)


def test_without_the_client_the_error_names_the_extra(monkeypatch):
    for name in [one for one in sys.modules if one.startswith("penstock.transports.nats")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nats.aio.client", None)
    with pytest.raises(MissingExtra, match=r"penstock\[nats\]"):
        TransportRegistry().make("nats://localhost")


async def test_keys_are_replaced_at_their_revision_only(server):
    async with NatsTransport(server.url, prefix="keys") as transport:
        keys = NatsKeys(transport._connection)
        key = ("groups", "a.b", "g")
        assert await keys.get(key) is None
        first = await keys.put(key, b"1", 0)
        assert first is not None
        assert await keys.put(key, b"2", 0) is None
        assert await keys.put(key, b"2", first + 1) is None
        second = await keys.put(key, b"2", first)
        assert second is not None
        assert await keys.get(key) == (b"2", second)
        assert list(await keys.keys(("groups",))) == [key]
        await keys.delete(key)
        assert await keys.get(key) is None
        assert await keys.put(key, b"3", second) is None
        assert await keys.put(key, b"3", 0) is not None
        # A tool of NATS leaves a mark where it deletes.
        bucket = await transport._connection.client.jetstream().key_value("keys-groups")
        await bucket.delete("groups.a=b.g")
        assert await keys.get(key) is None
        assert await keys.put(key, b"4", 0) is not None


# The same application as everywhere


def test_the_same_application_runs_on_it(server, tmp_path):
    check_application(server.url, tmp_path)


def test_the_example_of_its_page_runs(server):
    """docs/transports.md"""
    check_page(__file__, {"127.0.0.1:4222?replicas=3": server.address})
