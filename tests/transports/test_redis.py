"""The Redis transport on a real server: the suite, and what only it has."""

import asyncio
import contextlib
import os
import random
import re
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.errors import (
    BrokerFailed,
    DeadlineExceeded,
    Fenced,
    InvalidName,
    InvalidOption,
    MissingExtra,
    NotSupported,
    SubscriberBusy,
    TransportError,
    UnknownTopic,
    Unreachable,
)
from penstock.system import System
from penstock.testing import TransportConformance
from penstock.testing.transport_fixtures import WAIT_SECONDS, numbered, take, values_of
from penstock.transports import TransportRegistry, open_transport
from tests.crash.rigs import Nursery
from tests.transports.application import check_application, check_page
from tests.transports.patience import cannot_open
from tests.transports.proxy import Proxy
from tests.transports.servers.ports import free_port
from tests.transports.servers.redis import DURABLE, redis_server
from tests.transports.test_group_kills import check, run

pytest.importorskip("redis")
from penstock.transports import redis_consumer
from penstock.transports.redis import RedisTransport
from penstock.transports.redis_groups import RedisGroup

SECRET = "correct-horse-battery"
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


# Being let in


async def test_a_server_that_is_down_is_an_error_within_the_deadline():
    address = f"127.0.0.1:{free_port()}"
    transport = RedisTransport(f"redis://me:{SECRET}@{address}/3", connect_seconds=0.3)
    with pytest.raises(Unreachable) as refused:
        await transport.open()
    error = refused.value
    assert (error.transport, error.address) == ("redis", f"redis://{address}/3")
    assert address in str(error)
    for text in (str(error), repr(transport), repr(transport.address), str(transport.statistics())):
        assert SECRET not in text
    assert not transport.statistics().connected
    await transport.close()


async def test_the_password_comes_from_the_url_or_the_environment(monkeypatch):
    with redis_server((*DURABLE, "--requirepass", SECRET)) as closed:
        for url in (closed.url, closed.url.replace("//", "//:wrong@")):
            with pytest.raises(BrokerFailed, match="refused") as refused:
                await RedisTransport(url).open()
            assert "wrong" not in str(refused.value)
        async with RedisTransport(closed.url.replace("//", f"//:{SECRET}@")) as transport:
            assert transport.statistics().connected
        monkeypatch.setenv("PENSTOCK_REDIS_PASSWORD", SECRET)
        monkeypatch.setenv("PENSTOCK_REDIS_USERNAME", "default")
        async with RedisTransport(closed.url) as transport:
            await transport.produce("orders", [b"x"])


async def test_the_user_of_the_page_is_allowed_what_is_needed_and_no_more(topic):
    page = (Path(__file__).parents[2] / "docs" / "transports.md").read_text()
    (words,) = re.findall(r"^user (app .*?)^```", page, re.DOTALL | re.MULTILINE)
    with redis_server((*DURABLE, "--user", *words.split())) as strict:
        url = strict.url.replace("//", "//app:the-password@")
        async with RedisTransport(url, synced=True) as transport:
            assert transport.capabilities.durable
            await transport.create_topic(topic, partitions=2, records_max=5, age_ms_max=1_000)
            async with transport.subscribe(topic, "billing") as consumer:
                await transport.produce(topic, numbered(10), timestamps=range(10))
                await take(consumer, 10)
                await consumer.commit()
            assert await transport.groups(topic) == ["billing"]
            assert await transport.trim(topic) == 10
            await transport.forget(topic, "billing")
            assert topic in await transport.topics()
            assert transport.statistics().errors == 0
        with pytest.raises(BrokerFailed):
            async with RedisTransport(url, prefix="other") as transport:
                await transport.create_topic(topic)


async def test_tls_asks_for_a_certificate_that_it_knows(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    with redis_server((*DURABLE, *files, "--tls-auth-clients", "no"), tls=True) as secure:
        known = {"ssl_ca_certs": str(certificate)}
        async with RedisTransport(secure.url, options=known) as transport:
            await transport.produce("orders", [b"x"])
        await cannot_open(
            lambda seconds: RedisTransport(secure.url, connect_seconds=seconds),
            "CERTIFICATE_VERIFY_FAILED",
        )


@pytest.mark.parametrize(
    "url",
    [
        "redis:",
        "redis://",
        "redis://host:port/0",
        f"redis://:{SECRET}@host/x",
        "redis://h/0?prefix",
    ],
)
def test_a_wrong_url_is_not_repeated(url):
    with pytest.raises(InvalidOption, match="redis://host:6379/0") as refused:
        open_transport(url)
    assert SECRET not in str(refused.value)


def test_options_are_checked_wherever_they_come_from(server):
    RedisTransport(f"{server.url}?partitions=3&auto_create=no&answer_seconds=2.5")
    for query in (
        "wings=2",
        "partitions=0",
        "partitions=many",
        "auto_create=maybe",
        "partitioner=x",
    ):
        with pytest.raises(InvalidOption, match=query.partition("=")[0]):
            RedisTransport(f"{server.url}?{query}")
    with pytest.raises(InvalidName, match="prefix"):
        RedisTransport(server.url, prefix="a b")
    with pytest.raises(InvalidOption, match="ssl_ca_certs"):
        RedisTransport(server.url, options={"ssl_ca_certs": "x"})
    with pytest.raises(InvalidOption, match="socket_keepalive"):
        RedisTransport(server.url, options={"socket_keepaliv": True})


def test_without_the_client_the_error_names_the_extra(monkeypatch):
    import sys

    for name in [one for one in sys.modules if one.startswith("penstock.transports.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtra, match=r"penstock\[redis\]"):
        TransportRegistry().make("redis://localhost/0")


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


# When the connection is lost


async def _until(condition):
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_batch_whose_answer_is_lost_is_kept_once(server, topic):
    async with Proxy("127.0.0.1", server.port) as proxy:
        async with RedisTransport(f"redis://{proxy.address}/0?answer_seconds=1") as transport:
            await transport.create_topic(topic, partitions=2)
            await transport.produce(topic, numbered(10))
            proxy.swallow = "down"
            producing = asyncio.ensure_future(transport.produce(topic, numbered(10, 10)))
            await _until(lambda: transport.statistics().errors)
            proxy.heal()
            assert dict((await producing).ranges) == {0: (5, 10), 1: (5, 10)}
            assert transport.statistics().sent_again >= 1
            async with transport.subscribe(topic, "billing") as consumer:
                got = values_of(await take(consumer, 20))
    assert sorted(int(value or b"") for value in got) == list(range(20))


async def test_a_piece_that_comes_late_is_not_kept_again(server, topic):
    """As from a connection that was given up, and whose bytes arrive all the same."""
    from penstock.transports import redis_scripts as scripts
    from penstock.transports.redis_producer import _Piece

    async with RedisTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)

        async def send(sequence: int, value: bytes) -> object:
            part = _Piece([value], None, None, None).packed()
            return await transport.client.script(
                scripts.PRODUCE, transport.key_of(topic), "lane", sequence, HOUR_MS, 1, 0, *part,
                seconds=5, what="produce",
            )  # fmt: skip

        assert [await send(1, b"a"), await send(1, b"a"), await send(2, b"b")] == [[0], [0], [1]]
        assert await send(1, b"a") == [b"late"]
        assert [one.end for one in await transport.lag(topic, "billing")] == [2]


async def test_members_go_on_when_the_connection_is_back(server, topic):
    async with Proxy("127.0.0.1", server.port) as proxy:
        async with RedisTransport(f"redis://{proxy.address}/0?answer_seconds=1") as transport:
            await transport.create_topic(topic, partitions=2)
            async with transport.subscribe(topic, "billing", lease_seconds=600.0) as consumer:
                for round_, harm in enumerate(("cut", "drop", "swallow")):
                    if harm == "swallow":
                        proxy.swallow = "both"
                    else:
                        getattr(proxy, harm)()
                    producing = asyncio.ensure_future(
                        transport.produce(topic, numbered(20, 20 * round_))
                    )
                    if harm != "drop":
                        await _until(lambda: not transport.statistics().connected)
                        proxy.heal()
                    await producing
                    got = values_of(await take(consumer, 20))
                    assert sorted(int(value or b"") for value in got) == list(
                        range(20 * round_, 20 * round_ + 20)
                    )
                    await consumer.commit()
            statistics = transport.statistics()
            assert statistics.connected
            assert statistics.reconnects >= 2
            assert not any(one.records for one in await transport.lag(topic, "billing"))


async def test_a_slow_network_is_only_slow(server, topic):
    async with Proxy("127.0.0.1", server.port) as proxy:
        proxy.delay = 0.02
        async with RedisTransport(f"redis://{proxy.address}/0") as transport:
            await transport.create_topic(topic, partitions=2)
            async with transport.subscribe(topic, "billing") as consumer:
                await transport.produce(topic, numbered(3_000))
                assert len(await take(consumer, 3_000)) == 3_000
                await consumer.commit()
            assert transport.statistics().errors == 0


async def test_what_cannot_be_acknowledged_in_time_says_so(server, topic):
    async with Proxy("127.0.0.1", server.port) as proxy:
        async with RedisTransport(f"redis://{proxy.address}/0?answer_seconds=1") as transport:
            await transport.create_topic(topic, partitions=1)
            proxy.cut()
            with pytest.raises(Unreachable, match=topic):
                await transport.produce(topic, [b"x"], timeout=0.5)
            proxy.heal()
            assert (await transport.produce(topic, [b"y"])).ranges == {0: (0, 1)}


async def test_closing_while_the_server_is_away_ends(server, topic):
    async with Proxy("127.0.0.1", server.port) as proxy:
        transport = RedisTransport(f"redis://{proxy.address}/0?answer_seconds=0.2")
        await transport.open()
        await transport.create_topic(topic, partitions=1)
        consumer = transport.subscribe(topic, "billing", lease_seconds=0.5)
        await consumer.open()
        proxy.cut()
        await _until(lambda: not transport.statistics().connected)
        async with asyncio.timeout(WAIT_SECONDS):
            await transport.close()
        proxy.heal()


async def test_a_server_that_stood_still_for_longer_than_the_lease_loses_nothing(topic):
    with redis_server() as own:
        async with RedisTransport(f"{own.url}?answer_seconds=1") as transport:
            await transport.create_topic(topic, partitions=4)
            members = [transport.subscribe(topic, "billing", lease_seconds=0.5) for _ in range(2)]
            async with members[0], members[1]:
                await transport.produce(topic, numbered(40))
                own.send(signal.SIGSTOP)
                await _until(lambda: transport.statistics().errors > 3)
                own.send(signal.SIGCONT)
                got: set[bytes | None] = set()
                reading = [asyncio.ensure_future(_consume(one, got)) for one in members]
                async with asyncio.timeout(2 * WAIT_SECONDS):
                    while any(one.records for one in await transport.lag(topic, "billing")):
                        await asyncio.sleep(0.01)
                for one in reading:
                    one.cancel()
                await asyncio.gather(*reading, return_exceptions=True)
            assert got == set(numbered(40))


async def _consume(member, got):
    """Commit batch by batch; what is refused comes again."""
    while True:
        with contextlib.suppress(DeadlineExceeded, Fenced, TransportError):
            batch = await member.next_batch(0.1, records_max=7)
            got.update(values_of(batch.records))
            await member.commit(batch)


# When the server is killed


async def _kills(own, topic, times: int) -> None:
    """Kill the server while it is produced to and consumed from; what was acknowledged is there, once."""
    acknowledged: list[bytes] = []
    consumed: list[bytes | None] = []
    ended = asyncio.Event()

    async def produce(transport, who: int) -> None:
        number = 0
        while not ended.is_set():
            values = [b"%d-%d" % (who, number + n) for n in range(50)]
            keys = [b"%d" % who] * 50
            await transport.produce(topic, values, keys=keys, timeout=WAIT_SECONDS)
            acknowledged.extend(values)
            number += 50

    async def consume(consumer) -> None:
        while True:
            batch = await consumer.next_batch()
            await consumer.commit(batch)
            consumed.extend(values_of(batch.records))

    async with RedisTransport(f"{own.url}?answer_seconds=1") as transport:
        await transport.create_topic(topic, partitions=3)
        async with transport.subscribe(topic, "billing", lease_seconds=600.0) as consumer:
            producing = [asyncio.create_task(produce(transport, who)) for who in range(4)]
            consuming = asyncio.create_task(consume(consumer))
            for _ in range(times):
                enough = len(acknowledged) + 2_000
                await _until(lambda enough=enough: len(acknowledged) >= enough)
                own.kill()
                await asyncio.to_thread(own.start)
            ended.set()
            await asyncio.gather(*producing)
            await _until(lambda: len(consumed) >= len(acknowledged) or consuming.done())
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
        assert transport.statistics().reconnects >= 1
        assert not any(one.records for one in await transport.lag(topic, "billing"))
    assert len(consumed) == len(set(consumed))
    assert set(consumed) == set(acknowledged)
    for who in range(4):
        mine = [one for one in consumed if (one or b"").startswith(b"%d-" % who)]
        assert mine == [b"%d-%d" % (who, n) for n in range(len(mine))]


async def test_a_server_killed_under_load_loses_and_doubles_nothing(topic, scored):
    with redis_server() as own:
        await _kills(own, topic, 2)
    scored(13, tried=2, bad=0, seed="none is chosen")


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_a_server_killed_again_and_again_loses_and_doubles_nothing(topic, scored):
    with redis_server() as own:
        await _kills(own, topic, 40)
    scored(13, tried=40, bad=0, seed="none is chosen")


@pytest.mark.torture
@pytest.mark.timeout(1_800)
async def test_members_are_killed_and_stopped_for_long():
    seed = int(os.environ.get("PENSTOCK_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"PENSTOCK_SEED={seed}")
    with redis_server() as own, Nursery() as nursery:
        for number in range(10):
            url = f"{own.url}?prefix=kills-{number}"
            ledger, everything, crowd = await run(url, seed + number, 20, nursery)
            check(ledger, everything, kills_max=crowd.kills)


# The same application as everywhere


def test_the_same_application_runs_on_it(server, tmp_path):
    check_application(server.url, tmp_path)


def test_the_example_of_its_page_runs(server):
    """docs/transports.md"""
    check_page(__file__, {"redis://127.0.0.1:6379/0": server.url})
