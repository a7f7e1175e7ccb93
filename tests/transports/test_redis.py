"""The Redis transport on a real server: the suite, and what only it has."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from msgspec.structs import replace

from penstock.errors import InvalidOption, NotSupported, SubscriberBusy, UnknownTopic
from penstock.system import System
from penstock.testing import TransportConformance
from penstock.testing.transport_fixtures import numbered, take, values_of
from tests.transports.application import check_application, check_page
from tests.transports.proxy import Proxy
from tests.transports.servers.redis import DURABLE, redis_server

pytest.importorskip("redis")
from penstock.transports import redis_consumer
from penstock.transports.redis import RedisTransport
from penstock.transports.redis_groups import RedisGroup

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def server():
    with redis_server() as running:
        yield running


class TestRedis(TransportConformance):
    @pytest.fixture
    def make_transport(self, server):
        return partial(RedisTransport, server.url)

    @pytest.fixture
    def transport_url(self, server):
        return server.url

    @pytest.fixture
    def quick_lease(self):
        return {"lease_seconds": 1.0}


# What the server's settings promise


async def test_it_is_durable_on_a_server_that_is_said_to_sync(server):
    async with RedisTransport(server.url, synced=True) as transport:
        assert transport.capabilities.durable
        assert (await transport.produce("durable", [b"x"])).durable
    async with RedisTransport(server.url) as transport:
        assert not transport.capabilities.durable
        assert not (await transport.produce("durable", [b"x"])).durable


async def test_a_server_that_does_not_tell_is_taken_for_what_it_is_said_to_be():
    with redis_server((*DURABLE, "--rename-command", "CONFIG", "")) as other:
        async with RedisTransport(other.url, synced=True) as transport:
            assert (await transport.produce("orders", [b"x"])).durable


@pytest.mark.parametrize(
    "settings",
    [
        ("--appendonly", "yes", "--appendfsync", "everysec"),
        ("--appendonly", "no", "--save", ""),
        (*DURABLE, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"),
        (*DURABLE, "--no-appendfsync-on-rewrite", "yes"),
    ],
    ids=["once-a-second", "in-memory", "evicting", "not-while-rewriting"],
)
async def test_it_promises_no_more_than_the_server_tells(settings):
    with redis_server(settings) as other:
        transport = RedisTransport(f"{other.url}?synced=true")
        with pytest.raises(NotSupported, match="or leave synced out") as refused:
            await transport.open()
        assert refused.value.missing == ("durable",)
        await transport.close()


# What is in Redis


async def test_other_clients_can_read_the_records(server, topic):
    import redis

    async with RedisTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(
            topic,
            [b"a", None],
            keys=[b"k", b"k"],
            headers=[{"trace": b"7"}, None],
            timestamps=[5, 6],
        )
    with redis.Redis.from_url(server.url) as plain:
        assert plain.xrange(f"penstock:{{{topic}}}:0") == [
            (b"0-1", {b"t": b"5", b"k": b"k", b"v": b"a", b"h:trace": b"7"}),
            (b"1-1", {b"t": b"6", b"k": b"k"}),
        ]


async def test_what_others_deleted_is_passed_over(server, topic):
    import redis

    async with RedisTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, numbered(10))
        with redis.Redis.from_url(server.url) as plain:
            plain.xdel(f"penstock:{{{topic}}}:0", "0-1", "4-1", "9-1")
        async with transport.subscribe(topic, "billing") as consumer:
            records = await take(consumer, 7)
            assert [one.offset for one in records] == [1, 2, 3, 5, 6, 7, 8]
            assert values_of(records) == [b"%d" % one.offset for one in records]
        assert (await transport.produce(topic, [b"10"])).ranges == {0: (10, 11)}


async def test_prefixes_keep_programs_apart(server, topic):
    async with (
        RedisTransport(server.url, prefix="one") as one,
        RedisTransport(f"{server.url}?prefix=two") as two,
    ):
        await one.produce(topic, [b"x"])
        assert topic in await one.topics()
        assert topic not in await two.topics()


async def test_a_topic_is_made_by_producing_only_where_that_is_allowed(server, topic):
    async with RedisTransport(server.url, auto_create=False) as strict:
        with pytest.raises(UnknownTopic, match=topic):
            await strict.produce(topic, [b"x"])
    async with RedisTransport(server.url, partitions=3) as transport:
        await transport.produce(topic, numbered(3))
        assert await transport.partitions(topic) == 3


async def test_a_topic_that_was_made_anew_has_its_new_partitions(server, topic):
    import redis

    async with RedisTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=4)
        await transport.produce(topic, numbered(4))
        with redis.Redis.from_url(server.url) as plain:
            plain.delete(*plain.keys(f"penstock:{{{topic}}}*"))
        await transport.create_topic(topic, partitions=2)
        assert (await transport.produce(topic, numbered(4))).ranges == {0: (0, 2), 1: (0, 2)}


async def test_the_native_partitioner_is_that_of_a_cluster(server, topic):
    from redis.crc import key_slot

    async with RedisTransport(server.url, partitioner="native") as transport:
        assert not transport.capabilities.keyed_routing
        await transport.create_topic(topic, partitions=5)
        keys = [*numbered(30), None]
        await transport.produce(topic, numbered(31), keys=keys)
        async with transport.subscribe(topic, "billing") as consumer:
            records = await take(consumer, 31)
    for one in records:
        assert one.key is None or one.partition == key_slot(one.key) % 5


async def test_a_time_is_found_among_many_records(server, topic):
    day = datetime(2026, 5, 1, tzinfo=UTC)
    times = [int((day + timedelta(minutes=n)).timestamp() * 1000) for n in range(300)]
    async with RedisTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, numbered(300), timestamps=times)
        async with transport.subscribe(topic, "billing") as consumer:
            for minutes in (0, 1, 123, 298, 299):
                await consumer.seek(day + timedelta(minutes=minutes))
                assert consumer.positions() == {0: minutes}
            await consumer.seek(day + timedelta(minutes=122, seconds=1))
            assert (await take(consumer, 1))[0].offset == 123


async def test_a_group_with_members_is_not_forgotten(server, topic):
    async with RedisTransport(server.url) as transport:
        await transport.create_topic(topic)
        async with transport.subscribe(topic, "billing"):
            with pytest.raises(SubscriberBusy, match="billing"):
                await transport.forget(topic, "billing")
        await transport.forget(topic, "billing")
        assert await transport.groups(topic) == []


async def test_changes_of_a_group_do_not_overwrite_each_other(server, topic):
    async with RedisTransport(server.url) as transport:
        await transport.create_topic(topic)
        key = transport.key_of(topic)
        groups = [RedisGroup(transport.client, key, topic, "billing", 10.0) for _ in range(20)]
        one_more = lambda state, now: replace(state, generation=state.generation + 1)  # noqa: E731
        await asyncio.gather(*(group.change(one_more) for group in groups))
        assert (await groups[0].describe()).generation == 20


async def test_what_was_asked_for_before_a_move_is_not_delivered(server, topic):
    async with RedisTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, numbered(10))
    async with Proxy("127.0.0.1", server.port) as proxy:
        async with RedisTransport(f"redis://{proxy.address}/0") as transport:
            async with transport.subscribe(topic, "billing") as consumer:
                consumer._subscription.go_to({0: 10})
                proxy.delay = 0.1
                await asyncio.sleep(0)
                consumer._subscription.go_to({0: 2})
                await asyncio.sleep(0)
                consumer._subscription.go_to({0: 6})
                assert values_of(await take(consumer, 4)) == numbered(4, 6)


async def test_a_member_hears_of_new_records_at_once(server, topic, monkeypatch):
    monkeypatch.setattr(redis_consumer, "POLL_SECONDS", 1_000.0)
    async with RedisTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=2)
        # A heartbeat looks too.
        async with transport.subscribe(topic, "billing", lease_seconds=600.0) as consumer:
            for start in range(0, 50, 10):
                for _ in range(5):
                    # Meanwhile it has looked, and found nothing.
                    await transport.lag(topic, "billing")
                await transport.produce(topic, numbered(10, start))
                assert len(await take(consumer, 10)) == 10


# Retention


async def test_trimming_keeps_the_newest_records(server, topic):
    async with RedisTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1, records_max=150)
        for start in range(0, 1_000, 100):
            await transport.produce(topic, numbered(100, start))
        (lag,) = await transport.lag(topic, "billing")
        # While producing, whole nodes of the stream go, of a hundred records each.
        assert 700 <= lag.committed <= 850
        assert await transport.trim(topic) == 850 - lag.committed
        async with transport.subscribe(topic, "billing") as consumer:
            assert values_of(await take(consumer, 150)) == numbered(150, 850)


async def test_trimming_waits_for_groups_unless_it_is_told_not_to(server, topic):
    async with RedisTransport(server.url) as transport:
        for name, protects in ((topic, True), (f"{topic}-not", False)):
            await transport.create_topic(
                name, partitions=1, records_max=10, protect_groups=protects
            )
            await transport.produce(name, numbered(10))
            async with transport.subscribe(name, "billing") as consumer:
                await take(consumer, 10)
                await consumer.commit({0: 3})
            await transport.produce(name, numbered(20, 10))
            assert await transport.trim(name) == (3 if protects else 20)
            async with transport.subscribe(name, "billing") as consumer:
                first = 3 if protects else 20
                assert (await take(consumer, 1))[0].offset == first


async def test_trimming_by_age_goes_by_the_time_of_the_records(server, topic):
    now = System().clock.time_ms()
    times = [now - HOUR_MS * (10 - n) for n in range(10)]
    async with RedisTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1, age_ms_max=round(3.5 * HOUR_MS))
        await transport.produce(topic, numbered(10), timestamps=times)
        assert await transport.trim(topic) == 7
        assert [one.committed for one in await transport.lag(topic, "billing")] == [7]
        with pytest.raises(InvalidOption, match="age_ms_max"):
            await transport.create_topic(topic, age_ms_max=0)


# The same application as everywhere


def test_the_same_application_runs_on_it(server, tmp_path):
    check_application(server.url, tmp_path)


def test_the_example_of_its_page_runs(server):
    """docs/transports.md"""
    check_page(__file__, {"redis://127.0.0.1:6379/0": server.url})
