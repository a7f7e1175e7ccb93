"""The way to a Redis server: being let in, a connection that is lost, a server that is killed."""

import asyncio
import contextlib
import os
import random
import re
import signal
import subprocess
from pathlib import Path

import pytest

from penstock.errors import (
    BrokerFailed,
    DeadlineExceeded,
    Fenced,
    InvalidName,
    InvalidOption,
    MissingExtra,
    TransportError,
    Unreachable,
)
from penstock.testing.transport_fixtures import WAIT_SECONDS, numbered, take, values_of
from penstock.transports import TransportRegistry, open_transport
from tests.crash.rigs import Nursery
from tests.transports.patience import cannot_open
from tests.transports.proxy import Proxy
from tests.transports.servers.ports import free_port
from tests.transports.servers.redis import DURABLE, redis_server
from tests.transports.test_group_kills import check, run

pytest.importorskip("redis")
from penstock.transports.redis import RedisTransport

SECRET = "correct-horse-battery"
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def server():
    with redis_server() as running:
        yield running


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
