"""The Pulsar transport on a real broker: the suite, and what only it has."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pulsar  # type: ignore[import-untyped]
import pytest

from penstock.errors import InvalidName, RecordTooLarge, SubscriberBusy, UnknownTopic, UsageError
from penstock.testing import TransportConformance
from penstock.testing.transport_fixtures import numbered, take, values_of
from penstock.transports import pulsar_keys
from penstock.transports.pulsar import PulsarTransport, native_hash
from penstock.transports.pulsar_keys import KEEPER, PulsarKeys, TopicKeys
from tests.transports.application import check_application, check_page
from tests.transports.servers.pulsar import ADMIN, PLAIN, pulsar_server, token_of


@pytest.fixture(scope="module")
def server():
    with pulsar_server() as running:
        yield running


class TestPulsar(TransportConformance):
    @pytest.fixture
    def make_transport(self, server):
        return partial(PulsarTransport, server.url)

    @pytest.fixture
    def transport_url(self, server):
        return server.url

    @pytest.fixture
    def quick_lease(self):
        return {"lease_seconds": 1.0}


# Topics and records


@asynccontextmanager
async def bare_client(server):
    client = pulsar.Client(
        f"pulsar://127.0.0.1:{server.port}",
        authentication=pulsar.AuthenticationToken(token_of(ADMIN)),
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
    )
    try:
        yield client
    finally:
        await asyncio.to_thread(client.close)


async def test_messages_of_other_programs_are_records(server, topic):
    """Also in a topic without partitions, without batches, and compressed."""
    async with PulsarTransport(server.url) as transport, bare_client(server) as client:
        for batching in (True, False):
            producer = client.create_producer(
                f"persistent://public/default/{topic}",
                batching_enabled=batching,
                compression_type=pulsar.CompressionType.ZLib,
            )
            producer.send(b"hello", properties={"trace": "7"}, partition_key="k", event_timestamp=9)
            producer.send(b"again")
            producer.close()
        assert topic in await transport.topics()
        assert await transport.partitions(topic) == 1
        (lag,) = await transport.lag(topic, "billing")
        assert (lag.records, lag.milliseconds > 10**12) == (4, True)
        async with transport.subscribe(topic, "billing") as consumer:
            records = await take(consumer, 4)
            await consumer.commit({0: 2})
            (behind,) = await transport.lag(topic, "billing")
            assert (behind.records, behind.milliseconds > 10**12) == (2, True)
    for first, second in (records[:2], records[2:]):
        assert (first.key, first.value, first.timestamp) == (b"k", b"hello", 9)
        assert dict(first.headers) == {"trace": b"7"}
        assert (second.key, second.value, dict(second.headers)) == (None, b"again", {})
        assert abs(datetime.now(UTC).timestamp() - second.timestamp / 1_000) < 60
    assert [one.offset for one in records] == [0, 1, 2, 3]


async def test_any_key_any_header_and_any_time_arrives(server, topic):
    keys = [b"", b" a", b"a b", b"\x00\xff", b"a\r\nb", "ü".encode(), None]
    headers = [
        {"": b"x"},
        {"penstock.key": b"1"},
        {"a b": b"c", "ü": b"\r\n", "plain": b"text"},
        {"raw": b"\xff", "text": b"t"},
        {},
        {"empty": b""},
        None,
    ]
    times = [0, -5, 1, 10**12, 10**13, 7, 8]
    async with PulsarTransport(server.url, compression="zstd") as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, numbered(7), keys=keys, headers=headers, timestamps=times)
        async with transport.subscribe(topic, "billing") as consumer:
            records = await take(consumer, 7)
    assert [one.key for one in records] == keys
    assert [dict(one.headers) for one in records] == [one or {} for one in headers]
    assert [one.timestamp for one in records] == times


async def test_a_record_that_is_too_large_is_named(server, topic):
    async with PulsarTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        with pytest.raises(RecordTooLarge, match="6000000 bytes"):
            await transport.produce(topic, [bytes(6_000_000)])
        assert (await transport.produce(topic, [b"x"])).ranges == {0: (0, 1)}


@pytest.mark.parametrize("count", [3, 300])
async def test_what_is_no_record_is_refused_and_nothing_of_it_is_sent(server, topic, count):
    async with PulsarTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        good: dict[str, Any] = {"values": [b"x"] * count}
        for name, bad in (("values", "text"), ("values", 5), ("timestamps", "soon")):
            first = b"x" if name == "values" else 1
            columns = {**good, name: [first] * (count - 1) + [bad]}
            with pytest.raises(UsageError, match="not a record"):
                await transport.produce(topic, **columns)
        assert (await transport.produce(topic, [b"x"])).ranges == {0: (0, 1)}
        assert transport._producers.of(f"{topic}-partition-0")._pending == 0


async def test_large_records_are_read_within_bounds(server, topic):
    values = [bytes([number]) * 900_000 for number in range(40)]
    async with PulsarTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, values)
        async with transport.subscribe(topic, "billing") as consumer:
            assert values_of(await take(consumer, 40)) == values


async def test_what_is_removed_moves_the_first_offset(server, topic):
    async with PulsarTransport(server.url_of(PLAIN)) as transport:
        assert not transport.capabilities.idempotence
        await transport.create_topic(topic, partitions=1, keep=False)
        name = f"{topic}-partition-0"
        await transport.produce(topic, numbered(10))
        async with transport.subscribe(topic, "behind") as behind:
            await take(behind, 3)
            await behind.commit({0: 3})
        await _trimmed(server, name)
        await transport.produce(topic, numbered(5, 10))
        assert [(one.committed, one.end) for one in await transport.lag(topic, "new")] == [(10, 15)]
        async with transport.subscribe(topic, "new") as consumer:
            assert [one.offset for one in await take(consumer, 5)] == list(range(10, 15))
        async with transport.subscribe(topic, "behind") as behind:
            assert [one.offset for one in await take(behind, 5)] == list(range(10, 15))
        await _trimmed(server, name)
        assert [(one.committed, one.end) for one in await transport.lag(topic, "new")] == [(15, 15)]
        assert (await transport.produce(topic, [b"x"])).ranges == {0: (15, 16)}


async def _trimmed(server, name):
    """A new ledger, and without the ones before."""
    path = f"persistent/{PLAIN}/{name}"
    await asyncio.to_thread(server.call, "PUT", f"{path}/unload")
    await asyncio.to_thread(server.call, "POST", f"{path}/trim")


async def test_a_place_is_found_among_many_entries(server, topic):
    async with PulsarTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        for start in range(0, 60, 3):
            if start == 30:
                # Another ledger.
                path = f"persistent/public/default/{topic}-partition-0/unload"
                await asyncio.to_thread(server.call, "PUT", path)
            await transport.produce(topic, numbered(3, start))
        async with transport.subscribe(topic, "billing") as consumer:
            for offset in (59, 0, 29, 30, 31, 44, 60, 1):
                await consumer.seek(offset, partition=0)
                if offset < 60:
                    (record,) = await take(consumer, 1)
                    assert (record.offset, record.value) == (offset, b"%d" % offset)


async def test_several_producers_in_one_partition_know_their_places(server, topic):
    async with PulsarTransport(server.url) as one, PulsarTransport(server.url) as other:
        await one.create_topic(topic, partitions=1)
        done = await asyncio.gather(
            *(who.produce(topic, [b"%d" % n] * 3) for n in range(20) for who in (one, other))
        )
        places = sorted(made.ranges[0] for made in done)
        assert places[0][0] == 0
        assert places[-1][1] == 120
        async with one.subscribe(topic, "billing") as consumer:
            records = await take(consumer, 120)
        for number, made in enumerate(done):
            first, end = made.ranges[0]
            assert records[first].value == records[end - 1].value == b"%d" % (number // 2)


async def test_what_is_cancelled_on_its_way_goes_before_what_comes_next(server, topic):
    async with PulsarTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, [b"before"])
        producer = transport._producers.of(f"{topic}-partition-0")
        for last in (b"good", 5):
            producer._handing = None
            values: Any = [*numbered(2_500), last]
            producing = asyncio.create_task(transport.produce(topic, values))
            while producer._handing is None:
                await asyncio.sleep(0)
            producing.cancel()
            done = await transport.produce(topic, [b"after"])
            with pytest.raises(asyncio.CancelledError):
                await producing
            # What is no record is not sent, nor is what came with it.
            assert done.ranges == {0: (2_502, 2_503) if last == b"good" else (2_503, 2_504)}
        assert producer._pending == 0


async def test_a_topic_is_made_by_producing_unless_that_is_off(server, topic):
    async with PulsarTransport(server.url, auto_create=False) as transport:
        with pytest.raises(UnknownTopic, match=topic):
            await transport.produce(topic, [b"x"])
    async with PulsarTransport(server.url, partitions=3) as transport:
        await transport.produce(topic, [b"x"])
        assert await transport.partitions(topic) == 3


async def test_names_with_dots_are_kept_apart_and_those_of_partitions_are_refused(server, topic):
    names = [f"{topic}.0", f"{topic}_0", f"{topic}-0"]
    async with PulsarTransport(server.url) as transport:
        for number, name in enumerate(names, 1):
            await transport.create_topic(name, partitions=1)
            await transport.produce(name, numbered(number))
            async with transport.subscribe(name, f"g.{name}") as consumer:
                assert len(await take(consumer, number)) == number
            assert await transport.groups(name) == [f"g.{name}"]
        assert set(names) <= set(await transport.topics())
        with pytest.raises(InvalidName, match="partition"):
            await transport.create_topic("orders-partition-1")


async def test_the_native_partitioner_is_used_when_it_is_asked_for(server, topic):
    keys = [b"key-%d" % number for number in range(30)]
    async with PulsarTransport(server.url, partitioner="native") as transport:
        assert not transport.capabilities.keyed_routing
        await transport.create_topic(topic, partitions=3)
        await transport.produce(topic, numbered(30), keys=keys)
        async with transport.subscribe(topic, "billing") as consumer:
            for record in await take(consumer, 30):
                assert record.partition == native_hash(record.key or b"") % 3


# The log of the groups


async def test_keys_are_replaced_at_their_revision_only(server, topic):
    async with PulsarTransport(server.url) as transport:
        keys = TopicKeys(transport._keys, topic)
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


async def test_of_several_who_change_a_key_one_does(server, topic):
    async with PulsarTransport(server.url) as one, PulsarTransport(server.url) as other:
        stores = [TopicKeys(who._keys, topic) for who in (one, other)]
        key = ("groups", topic, "g")
        revision = 0
        for number in range(10):
            done = await asyncio.gather(
                *(store.put(key, b"%d" % number, revision) for store in stores * 2)
            )
            (revision,) = [made for made in done if made is not None]
            for store in stores:
                assert await store.get(key) == (b"%d" % number, revision)


async def test_a_snapshot_stands_for_what_was_before_it(server, topic, monkeypatch):
    monkeypatch.setattr(pulsar_keys, "SNAPSHOT_RECORDS", 10)
    async with (
        PulsarTransport(server.url_of(PLAIN)) as one,
        PulsarTransport(server.url_of(PLAIN)) as other,
    ):
        stores = [TopicKeys(who._keys, topic) for who in (one, other)]
        logs = [await who._keys.of(topic) for who in (one, other)]
        revisions = [0, 0]
        for number in range(60):
            if number == 30:
                # Another ledger: the broker removes whole ones.
                await _trimmed(server, f"{topic}~groups")
            which = number % 2
            written = await stores[which].put((str(which),), b"%d" % number, revisions[which])
            assert written is not None
            revisions[which] = written
        for log in logs:
            if log._truncating is not None:
                await log._truncating
        await _trimmed(server, f"{topic}~groups")
        # The broker has removed the beginning; those who had read it go on.
        assert KEEPER in (await logs[0]._index.ledgers()).cursors
        assert (await logs[0]._index.bounds())[0] > 0
        for store in stores:
            assert await store.get(("0",)) == (b"58", revisions[0])
    async with PulsarTransport(server.url_of(PLAIN)) as late:
        store = TopicKeys(late._keys, topic)
        assert await store.get(("0",)) == (b"58", revisions[0])
        assert await store.get(("1",)) == (b"59", revisions[1])
        assert await store.put(("1",), b"60", revisions[0]) is None
        assert await store.put(("1",), b"60", revisions[1]) is not None


async def test_a_log_that_was_made_anew_is_read_anew(server, topic):
    async with PulsarTransport(server.url) as one, PulsarTransport(server.url) as other:
        for offset in (2, 1):
            await one.create_topic(topic, partitions=1)
            await one.produce(topic, numbered(3))
            async with one.subscribe(topic, "billing") as consumer:
                await consumer.commit({0: offset})
            assert [lag.committed for lag in await other.lag(topic, "billing")] == [offset]
            assert list(await other.groups(topic)) == ["billing"]
            await one.delete_topic(topic)
            assert topic not in await other.topics()


async def test_what_others_write_to_the_log_is_passed_over(server, topic):
    async with PulsarTransport(server.url) as transport, bare_client(server) as client:
        store = TopicKeys(transport._keys, topic)
        first = await store.put(("k",), b"1", 0)
        producer = client.create_producer(f"persistent://public/default/{topic}~groups")
        producer.send(b"\xff not ours")
        assert first is not None
        assert await store.put(("k",), b"2", first) is not None
    async with PulsarTransport(server.url) as transport:
        entry = await TopicKeys(PulsarKeys(transport._connection), topic).get(("k",))
        assert entry is not None
        assert entry.value == b"2"


async def test_a_group_with_members_is_not_forgotten(server, topic):
    async with PulsarTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        async with transport.subscribe(topic, "billing"):
            with pytest.raises(SubscriberBusy):
                await transport.forget(topic, "billing")
            with pytest.raises(SubscriberBusy):
                await transport.delete_topic(topic)


# The same application as everywhere


def test_the_same_application_runs_on_it(server, tmp_path):
    check_application(server.url, tmp_path)


def test_the_example_of_its_page_runs(server):
    """docs/transports.md"""
    check_page(__file__, {"pulsar://127.0.0.1:6650?admin_url=http://127.0.0.1:8080": server.url})
