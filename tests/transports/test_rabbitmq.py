"""The RabbitMQ transport on streams of a real server: the suite, and what only it has."""

import asyncio
from collections import Counter
from datetime import UTC, datetime
from functools import partial

import aio_pika
import mmh3
import pytest
from rstream import AMQPMessage, CompressionType, Producer

from penstock.errors import (
    InvalidOption,
    NotSupported,
    RecordTooLarge,
    SubscriberBusy,
    UnknownTopic,
)
from penstock.testing import TransportConformance
from penstock.testing.transport_fixtures import WAIT_SECONDS, numbered, take, values_of
from penstock.transports import rabbitmq_connection, rabbitmq_keys
from penstock.transports.rabbitmq import RabbitTransport
from penstock.transports.rabbitmq_keys import KeyLog, RabbitKeys
from penstock.transports.rabbitmq_reader import bounds
from penstock.transports.rabbitmq_streams import StreamsMode
from penstock.transports.rabbitmq_wire import Link
from tests.transports.application import check_application, check_page
from tests.transports.servers.rabbitmq import LOGIN, PASSWORD, USER, rabbit_server


@pytest.fixture(scope="module")
def server():
    with rabbit_server() as running:
        yield running


def mode_of(transport):
    assert isinstance(transport._mode, StreamsMode)
    return transport._mode


class TestRabbitStreams(TransportConformance):
    @pytest.fixture
    def make_transport(self, server):
        return partial(RabbitTransport, server.url)

    @pytest.fixture
    def transport_url(self, server):
        return server.url

    @pytest.fixture
    def quick_lease(self):
        return {"lease_seconds": 1.0}


@pytest.mark.acceptance(68)
def test_the_same_application_runs_on_it(server, tmp_path):
    check_application(server.url, tmp_path)


def test_the_example_of_its_page_runs(server):
    """docs/transports.md"""
    check_page(
        __file__,
        {
            "rabbitmq://127.0.0.1:5552": server.url,
            "rabbitmq://127.0.0.1:5672?mode=quorum": server.quorum_url,
        },
    )


# Topics and records


async def test_names_that_look_alike_are_kept_apart(server):
    names = ["a", "a-0", "a.groups", "a-0-0", "topics"]
    async with RabbitTransport(server.url, prefix="names") as transport:
        for number, name in enumerate(names):
            await transport.create_topic(name, partitions=2)
            await transport.produce(name, numbered(number + 1), keys=[b"k"] * (number + 1))
            async with transport.subscribe(name, f"g.{name}") as consumer:
                assert len(await take(consumer, number + 1)) == number + 1
                await consumer.commit()
        assert await transport.topics() == sorted(names)
        for name in names:
            assert await transport.groups(name) == [f"g.{name}"]
    async with RabbitTransport(server.url, prefix="others") as transport:
        assert await transport.topics() == []


async def test_records_of_other_clients_are_read(server, topic):
    async with RabbitTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, [b"ours"], keys=[b"k"])
        stream = f"penstock.{topic}-0"
        async with Producer(
            "127.0.0.1", port=server.port, username=USER, password=PASSWORD
        ) as producer:
            await producer.send_wait(stream, b"no message at all")
            await producer.send_wait(
                stream,
                AMQPMessage(body=b"theirs", application_properties={"name": "text", "n": 7}),
            )
            await producer.send_sub_entry(
                stream,
                [AMQPMessage(body=one) for one in numbered(3)],
                compression_type=CompressionType.Gzip,
            )
        await transport.produce(topic, [b"last"])
        async with transport.subscribe(topic, "billing") as consumer:
            records = await take(consumer, 7)
    assert values_of(records) == [
        b"ours",
        b"no message at all",
        b"theirs",
        *numbered(3),
        b"last",
    ]
    assert [one.offset for one in records] == list(range(7))
    assert dict(records[2].headers) == {"name": b"text", "n": b"7"}
    assert abs(records[2].timestamp - datetime.now(UTC).timestamp() * 1_000) < 600_000


async def test_odd_records_arrive_as_they_were(server, topic):
    headers = {
        "long": b"x" * 300,
        "n" * 200: b"",
        "ü": b"\xff",
        **{f"h{n}": b"v" for n in range(200)},
    }
    async with RabbitTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(
            topic,
            [b"v" * 300, None, b""],
            keys=[b"k" * 300, b"\x00", b""],
            headers=[headers, {"h": b""}, None],
            timestamps=[0, 2**41, 5],
        )
        async with transport.subscribe(topic, "billing") as consumer:
            records = await take(consumer, 3)
        assert [(one.key, one.value, one.timestamp) for one in records] == [
            (b"k" * 300, b"v" * 300, 0),
            (b"\x00", None, 2**41),
            (b"", b"", 5),
        ]
        assert [dict(one.headers) for one in records] == [headers, {"h": b""}, {}]
        with pytest.raises(RecordTooLarge) as refused:
            await transport.produce(topic, [bytes(2**21)])
        assert refused.value.topic == topic
        with pytest.raises(InvalidOption, match="one for each"):
            await transport.produce(topic, [b"x"], keys=[])


async def test_what_is_kept_moves_the_first_offset(server, topic):
    async with RabbitTransport(server.url) as transport:
        await transport.create_topic(
            topic, partitions=1, max_bytes=200_000, segment_bytes=50_000, max_age_seconds=3_600
        )
        async with transport.subscribe(topic, "behind") as behind:
            for start in range(0, 1_000, 50):
                await transport.produce(topic, [b"x" * 1_000] * 50)
                if not start:
                    await behind.commit(await behind.next_batch(WAIT_SECONDS, records_max=1))
                    await behind.pause(0)
            async with asyncio.timeout(WAIT_SECONDS):
                # The server looks at what it keeps a moment later.
                while (first := (await transport.lag(topic, "new"))[0].committed) == 0:
                    await asyncio.sleep(0.01)
            async with transport.subscribe(topic, "late") as late:
                assert (await take(late, 1))[0].offset >= first
            # What it was going to read is gone: it goes on at the first that is kept.
            await behind.resume(0)
            offsets = [one.offset for one in await take(behind, 100)]
            assert offsets == sorted(offsets)


async def test_a_topic_is_made_by_producing_unless_that_is_off(server, topic):
    async with RabbitTransport(server.url, auto_create=False) as transport:
        with pytest.raises(UnknownTopic, match=topic):
            await transport.produce(topic, [b"x"])
    async with RabbitTransport(server.url, partitions=3) as transport:
        await transport.produce(topic, [b"x"])
        assert await transport.partitions(topic) == 3


async def test_a_topic_is_deleted_with_its_groups(server, topic):
    async with RabbitTransport(server.url, auto_create=False) as transport:
        with pytest.raises(UnknownTopic, match=topic):
            await transport.delete_topic(topic)
        await transport.create_topic(topic, partitions=2)
        await transport.produce(topic, numbered(10))
        async with transport.subscribe(topic, "billing") as consumer:
            await take(consumer, 10)
            await consumer.commit()
            with pytest.raises(SubscriberBusy):
                await transport.delete_topic(topic)
        await transport.delete_topic(topic)
        assert topic not in await transport.topics()
        with pytest.raises(UnknownTopic, match=topic):
            await transport.produce(topic, [b"x"])
        await transport.create_topic(topic, partitions=1)
        assert (await transport.produce(topic, [b"new"])).ranges == {0: (0, 1)}
        async with transport.subscribe(topic, "billing") as consumer:
            assert values_of(await take(consumer, 1)) == [b"new"]


async def test_a_stream_that_goes_away_is_told(server, topic):
    async with RabbitTransport(server.url, auto_create=False) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, [b"x"])
        await mode_of(transport)._delete_one(topic, 0)
        with pytest.raises(UnknownTopic, match=topic):
            await transport.produce(topic, [b"x"])


async def test_several_who_make_a_topic_agree(server, topic):
    async with RabbitTransport(server.url) as one, RabbitTransport(server.url) as other:
        await asyncio.gather(
            one.create_topic(topic, partitions=3), other.create_topic(topic, partitions=5)
        )
        assert await one.partitions(topic) == await other.partitions(topic)
        await one.produce(topic, numbered(30))
        async with other.subscribe(topic, "billing") as consumer:
            assert len(await take(consumer, 30)) == 30


async def test_the_native_partitioner_is_that_of_super_streams(server, topic):
    async with RabbitTransport(server.url, partitioner="native") as transport:
        await transport.create_topic(topic, partitions=3)
        await transport.produce(topic, numbered(40), keys=[*numbered(30), *[None] * 10])
        async with transport.subscribe(topic, "billing") as consumer:
            records = await take(consumer, 40)
    for one in records:
        if one.key is not None:
            assert one.partition == mmh3.hash(one.key, 104_729, signed=False) % 3
    spread = Counter(one.partition for one in records if one.key is None)
    assert sorted(spread.values()) == [3, 3, 4]


async def test_topics_are_super_streams_for_other_clients(server, topic):
    async with RabbitTransport(server.url, amqp_port=server.amqp_port) as transport:
        await transport.create_topic(topic, partitions=3)
        await transport.produce(topic, numbered(3))
        url = f"amqp://{LOGIN}@127.0.0.1:{server.amqp_port}/"
        async with await aio_pika.connect(url) as connection, connection.channel() as channel:
            exchange = await channel.get_exchange(f"penstock.{topic}")
            for number in range(3):
                message = aio_pika.Message(b"theirs", headers={"n": number})
                await exchange.publish(message, str(number))
        async with transport.subscribe(topic, "billing") as consumer:
            records = await take(consumer, 6)
    theirs = [one for one in records if one.value == b"theirs"]
    assert sorted((one.partition, one.offset, dict(one.headers)["n"]) for one in theirs) == [
        (number, 1, b"%d" % number) for number in range(3)
    ]


async def test_a_log_of_keys_that_is_made_anew_is_read_anew(server):
    async with RabbitTransport(server.url, prefix="anew") as transport:
        connection = mode_of(transport)._connection
        log = KeyLog(connection, "anew.log")
        await log.write("p", ["a"], b"1", 0)
        log._next += 1_000  # as if the server had forgotten what it had
        assert (await log.write("p", ["b"], b"2", 0)).revision == 2
        assert log.entry(("a",)) == (b"1", 1)
        await log.close()


async def test_more_partitions_than_a_connection_has_numbers(server, topic, monkeypatch):
    monkeypatch.setattr(rabbitmq_connection, "SLOTS_MAX", 4)
    async with RabbitTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=6)
        await transport.produce(topic, numbered(60))
        async with transport.subscribe(topic, "billing") as consumer:
            assert {one.value for one in await take(consumer, 60)} == set(numbered(60))
        lines = mode_of(transport)._connection._lines
        assert len(lines) > 3
        assert transport.statistics().connected


async def test_cancelled_calls_leave_numbers_behind_that_work(server, topic):
    async with RabbitTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, numbered(5))
        for steps in range(12):
            asking = asyncio.ensure_future(transport.lag(topic, "billing"))
            for _ in range(steps):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        async with transport.subscribe(topic, "billing") as consumer:
            for _ in range(5):
                await consumer.seek("earliest")  # which cancels who reads
            assert values_of(await take(consumer, 5)) == numbered(5)
        assert (await transport.lag(topic, "billing"))[0].end == 5


async def test_what_is_cancelled_leaves_no_gap(server, topic, monkeypatch):
    async def drain(self):
        for _ in range(3):  # as when the server takes its time
            await asyncio.sleep(0)

    monkeypatch.setattr(Link, "drain", drain)
    async with RabbitTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, [b"first"])
        values = [one.ljust(1_000) for one in numbered(2_500)]
        writer, _ = mode_of(transport)._writers[topic, 0]
        for steps in range(6):
            before = writer._number
            producing = asyncio.ensure_future(transport.produce(topic, values))
            while writer._number == before:
                await asyncio.sleep(0)
            for _ in range(steps):
                await asyncio.sleep(0)
            producing.cancel()
            await asyncio.gather(producing, return_exceptions=True)
            await transport.produce(topic, [b"between"])
        last = await transport.produce(topic, [b"last"])
        async with transport.subscribe(topic, "billing") as consumer:
            records = await take(consumer, last.ranges[0][1])
    found = Counter(values_of(records))
    assert found[b"between"] == 6
    assert {found[one] for one in values} == {6}


async def test_a_start_that_is_not_there_is_refused(server, topic):
    async with RabbitTransport(server.url) as transport:
        with pytest.raises(NotSupported, match="transactions"):
            transport.subscribe(topic, "billing", requires=["transactions"])
        with pytest.raises(InvalidOption, match="wings"):
            await transport.create_topic(topic, wings=2)
        with pytest.raises(InvalidOption, match="max_bytes"):
            await transport.create_topic(topic, max_bytes="much")


# Keys


async def test_keys_of_others_that_are_no_names_are_not_told(server):
    async with RabbitTransport(server.url, prefix="odd") as transport:
        await transport.create_topic("usual", partitions=1)
        keys = mode_of(transport)._keys
        for key in (
            ("topics", "../x"),
            ("offsets", "usual", "<b>", "0"),
            ("offsets", "usual", "g", "0"),
        ):
            await keys.put(key, b"1", 0)
        assert await transport.topics() == ["usual"]
        assert await transport.groups("usual") == ["g"]


async def test_keys_are_replaced_at_their_revision_only(server):
    async with RabbitTransport(server.url, prefix="keys") as transport:
        connection = mode_of(transport)._connection
        keys, others = RabbitKeys(connection), RabbitKeys(connection)
        key = ("groups", "a.b", "g")
        assert await keys.get(key) is None
        first = await keys.put(key, b"1", 0)
        assert first is not None
        assert await others.put(key, b"2", 0) is None
        assert await others.put(key, b"2", first + 1) is None
        second = await others.put(key, b"2", first)
        assert second is not None
        assert await keys.get(key) == (b"2", second)
        assert list(await keys.keys(("groups", "a.b"))) == [key]
        await keys.delete(key)
        assert await others.get(key) is None
        assert await others.put(key, b"3", second) is None
        outcomes = await asyncio.gather(
            *(one.put(key, b"4", 0) for one in (keys, others) for _ in range(5))
        )
        assert sum(one is not None for one in outcomes) == 1
        assert abs(await keys.time_ms() - datetime.now(UTC).timestamp() * 1_000) < 60_000
        await keys.close()
        await others.close()


async def test_keys_outlive_the_entries_that_wrote_them(server, monkeypatch):
    """The stream keeps little: who comes later finds all keys in what others wrote down again."""
    monkeypatch.setattr(rabbitmq_keys, "LOG_BYTES", 60_000)
    monkeypatch.setattr(rabbitmq_keys, "SEGMENT_BYTES", 10_000)
    monkeypatch.setattr(rabbitmq_keys, "SUMMARY_EVERY_BYTES", 5_000)
    monkeypatch.setattr(rabbitmq_keys, "PART_BYTES", 100)
    async with RabbitTransport(server.url, prefix="summed") as transport:
        connection = mode_of(transport)._connection
        keys = RabbitKeys(connection)
        held = {("offsets", "t", "g", str(n)): await keys.put(
            ("offsets", "t", "g", str(n)), b"%d" % n, 0) for n in range(20)}  # fmt: skip
        gone = ("offsets", "t", "g", "gone")
        await keys.put(gone, b"x", 0)
        await keys.delete(gone)
        busy, revision = ("groups", "t", "g"), 0
        log = keys._log(busy)
        for number in range(250):
            revision = await keys.put(busy, b"%d" % number * 300, revision) or -1
        async with asyncio.timeout(WAIT_SECONDS):
            while (await bounds(connection, log._stream))[0] < 100:
                await asyncio.sleep(0.01)
        late = RabbitKeys(connection)
        assert await late.get(busy) == (b"249" * 300, revision)
        for key, at in held.items():
            assert await late.get(key) == (key[-1].encode(), at)
        assert await late.get(gone) is None
        assert await late.put(busy, b"new", revision) is not None
        assert (await keys.get(busy) or [b""])[0] == b"new"
        await keys.close()
        await late.close()


async def test_who_missed_entries_that_are_gone_begins_anew(server, monkeypatch):
    async with RabbitTransport(server.url, prefix="missed") as transport:
        connection = mode_of(transport)._connection
        log = KeyLog(connection, "missed.log")
        await log.write("p", ["a"], b"1", 0)
        restarted = []
        real = log._restart

        async def restart():
            restarted.append(True)
            await real()

        monkeypatch.setattr(log, "_restart", restart)
        log._next = -100  # as if the server had dropped what is before the first entry
        await log.write("l", ["a"])
        assert restarted
        assert log.entry(("a",)) == (b"1", 1)
        await log.close()
