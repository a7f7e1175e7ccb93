"""The way to a NATS server: what may happen to it, and what opening it asks for."""

import asyncio
import signal
import subprocess
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from penstock.errors import (
    BrokerFailed,
    DeadlineExceeded,
    Fenced,
    InvalidOption,
    MissingExtra,
    Unreachable,
)
from penstock.testing.transport_fixtures import WAIT_SECONDS, numbered, take, values_of
from penstock.transports import nats_connection, open_transport
from penstock.transports.nats import NatsTransport
from penstock.transports.nats_connection import NatsConnection
from tests.transports.disturbance import (
    check_that_who_is_cut_off_is_fenced,
    cut_and_heal,
    produced_and_read,
)
from tests.transports.patience import cannot_open
from tests.transports.proxy import Proxy
from tests.transports.servers.nats import nats_server
from tests.transports.servers.ports import free_port

SECRET = "canary-of-the-tests"
PATIENT: dict[str, Any] = {"lease_seconds": 600.0}
"""For members that nobody takes for dead, however busy the machine is."""


@pytest.fixture(scope="module")
def server():
    with nats_server() as running:
        yield running


@pytest.fixture
def own_server():
    """For tests that kill it."""
    with nats_server() as running:
        yield running


# What may happen on the way


async def sent_and_read(transport, topic, disturb, batches=40, size=25):
    """Produce under disturbance, and read all; every produce is acknowledged in the end."""

    async def read(got, total):
        async with transport.subscribe(topic, "billing", **PATIENT) as consumer:
            while got.total() < total:
                batch = await consumer.next_batch(WAIT_SECONDS)
                got.update(values_of(batch.records))
                await consumer.commit(batch)

    got = await produced_and_read(
        transport, topic, disturb, read, batches=batches, size=size, seconds=WAIT_SECONDS
    )
    lag = await transport.lag(topic, "billing")
    assert sum(one.end for one in lag) == batches * size  # nothing stored twice
    return got


async def test_a_broker_that_is_killed_loses_nothing_acknowledged(own_server, topic, scored):
    async def disturb():
        own_server.kill()
        await asyncio.to_thread(own_server.start)

    async with NatsTransport(own_server.url) as transport:
        got = await sent_and_read(transport, topic, disturb)
        assert got == Counter(numbered(1_000))
        assert transport.statistics().reconnects >= 1
    scored(13, tried=1, bad=0, seed="none is chosen")


@pytest.mark.torture
async def test_a_broker_that_is_killed_again_and_again_loses_nothing(own_server, topic, scored):
    """Three members share the topic; some are closed and made anew while the server comes and goes."""
    kills, size = 100, 50
    got: Counter[bytes | None] = Counter()
    done = asyncio.Event()
    async with NatsTransport(own_server.url) as transport:
        await transport.create_topic(topic, partitions=6)

        async def read(records):
            while not done.is_set():
                consumer = transport.subscribe(topic, "billing", lease_seconds=2.0)
                with suppress(Unreachable, Fenced, DeadlineExceeded):
                    async with consumer:
                        left = records
                        while left > 0 and not done.is_set():
                            batch = await consumer.next_batch(1.0)
                            await consumer.commit(batch)
                            got.update(values_of(batch.records))
                            left -= len(batch)

        readers = [asyncio.create_task(read(count)) for count in (200, 1_000, 10**9)]
        total = 0
        for _ in range(kills):
            restarting = asyncio.create_task(asyncio.to_thread(_kill_and_start, own_server))
            while not restarting.done():
                await transport.produce(topic, numbered(size, total), timeout=WAIT_SECONDS)
                total += size
            await restarting
        async with asyncio.timeout(WAIT_SECONDS):
            while sum(one.records for one in await transport.lag(topic, "billing")):
                await asyncio.sleep(0.05)
        done.set()
        await asyncio.gather(*readers)
        assert sum(one.end for one in await transport.lag(topic, "billing")) == total
    # A commit whose answer was lost may have counted, so what it held may be missing here.
    assert got.keys() <= set(numbered(total))
    assert set(got.values()) == {1}
    scored(13, tried=kills, bad=0, seed="none is chosen")


def _kill_and_start(server):
    server.kill()
    server.start()


async def test_a_cut_connection_is_made_again(server, topic):
    async with (
        Proxy("127.0.0.1", server.port) as proxy,
        NatsTransport(f"nats://{proxy.address}", reconnect_seconds_max=0.2) as transport,
    ):
        got = await sent_and_read(transport, topic, lambda: cut_and_heal(proxy, transport))
        statistics = transport.statistics()
    assert got == Counter(numbered(1_000))
    assert statistics.reconnects >= 3
    assert statistics.connected
    assert statistics.errors
    assert statistics.records_produced == 1_000
    assert not transport.statistics().connected


async def test_a_slow_connection_is_slow_and_nothing_else(server, topic):
    async with (
        Proxy("127.0.0.1", server.port) as proxy,
        NatsTransport(f"nats://{proxy.address}") as transport,
    ):

        async def disturb():
            proxy.delay = 0.05

        got = await sent_and_read(transport, topic, disturb, batches=8)
    assert got == Counter(numbered(200))


async def test_a_connection_that_is_half_open_is_given_up(server, topic):
    async with (
        Proxy("127.0.0.1", server.port) as proxy,
        NatsTransport(f"nats://{proxy.address}", ping_interval=0.2) as transport,
    ):

        async def disturb():
            before = proxy.connections
            proxy.swallow = "both"
            while transport.statistics().connected:
                await asyncio.sleep(0.01)
            proxy.heal()
            while proxy.connections == before:
                await asyncio.sleep(0.01)

        got = await sent_and_read(transport, topic, disturb)
    assert got == Counter(numbered(1_000))


@pytest.mark.parametrize("count", [1, 5, 2_500])
async def test_what_is_sent_again_is_kept_once(server, topic, count):
    """The server stored it, and its answer was lost: the offsets are found all the same."""
    async with (
        Proxy("127.0.0.1", server.port) as proxy,
        NatsTransport(f"nats://{proxy.address}") as transport,
        NatsTransport(server.url) as other,
    ):
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, [b"before"])
        proxy.swallow = "down"
        producing = asyncio.create_task(transport.produce(topic, numbered(count)))
        while (await other.lag(topic, "x"))[0].end < 1 + min(count, 1_000):
            await asyncio.sleep(0.001)
        # Somebody else's record comes between the two attempts.
        await other.produce(topic, [b"between"])
        proxy.heal()
        proxy.drop()
        done = await producing
        assert done.ranges == {0: (1, 2 + count if count > 1_000 else 1 + count)}
        assert transport.statistics().sent_again
        async with transport.subscribe(topic, "billing") as consumer:
            records = values_of(await take(consumer, count + 2))
        assert Counter(records) == Counter([b"before", b"between", *numbered(count)])
        assert records[: min(count, 1_000)] == [b"before", *numbered(min(count, 1_000) - 1)]
        assert (await transport.lag(topic, "billing"))[0].end == count + 2


async def test_who_is_cut_off_for_longer_than_its_lease_is_fenced(server, topic):
    """The other member goes on; what the first one had comes again, and its commit is refused."""
    async with (
        Proxy("127.0.0.1", server.port) as proxy,
        NatsTransport(f"nats://{proxy.address}", reconnect_seconds_max=0.2) as far,
        NatsTransport(server.url) as near,
    ):
        await check_that_who_is_cut_off_is_fenced(proxy, far, near, topic)


async def test_a_stopped_server_shows_as_an_error_within_the_deadline(own_server, topic):
    async with NatsTransport(own_server.url) as patient:
        await patient.create_topic(topic, partitions=1)
    async with NatsTransport(own_server.url, timeout=1.0) as transport:
        await surely(lambda: transport.produce(topic, [b"before"]))
        own_server.send(signal.SIGSTOP)
        with pytest.raises(Unreachable, match="did not acknowledge") as refused:
            await transport.produce(topic, [b"x"], timeout=0.5)
        assert refused.value.address == own_server.url
        with pytest.raises(Unreachable):
            await transport.partitions(topic)
        own_server.send(signal.SIGCONT)
        await surely(lambda: transport.produce(topic, [b"y"]))


async def surely(act):
    """Do it, again while the server takes too long."""
    while True:
        with suppress(Unreachable):
            return await act()


# Opening


async def test_a_server_that_is_down_is_a_clear_error(topic):
    url = f"nats://127.0.0.1:{free_port()}"
    transport = NatsTransport(url, connect_seconds=0.5)
    with pytest.raises(Unreachable, match=r"did not answer within 0\.5 s") as refused:
        await transport.open()
    assert (refused.value.transport, refused.value.address) == ("nats", url)
    await transport.close()


@pytest.mark.timeout(30)
async def test_a_client_that_misses_a_cancellation_is_given_up_all_the_same(monkeypatch):
    """As its own wait_for may, when the connection is refused at that very moment."""

    async def connect(connection, client):
        with suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(NatsConnection, "_connect", connect)
    with pytest.raises(Unreachable, match="did not answer"):
        await NatsTransport("nats://127.0.0.1:1?connect_seconds=0.05").open()


@pytest.mark.parametrize("name", ["NKEY_SEED", "CREDENTIALS"])
async def test_secrets_that_want_another_package_name_it(monkeypatch, name):
    monkeypatch.setenv(f"PENSTOCK_NATS_{name}", SECRET)
    monkeypatch.setattr(nats_connection, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="pip install nkeys"):
        await NatsTransport("nats://127.0.0.1:1").open()


async def test_a_server_without_jetstream_is_a_clear_error(tmp_path):
    with nats_server("# none") as server:
        server.stop()
        server.jetstream = False
        server.start()
        await cannot_open(
            lambda seconds: NatsTransport(server.url, connect_seconds=seconds), "JetStream"
        )


@pytest.mark.parametrize("way", ["environment", "url", "token"])
async def test_secrets_open_the_server_and_show_up_nowhere(monkeypatch, caplog, way):
    login = f'token: "{SECRET}"' if way == "token" else f'user: ann, password: "{SECRET}"'
    with nats_server(f"authorization {{ {login} }}") as server:
        with pytest.raises(BrokerFailed, match="refuses"):
            await NatsTransport(server.url).open()
        url = server.url
        if way == "token":
            monkeypatch.setenv("PENSTOCK_NATS_TOKEN", SECRET)
        elif way == "environment":
            monkeypatch.setenv("PENSTOCK_NATS_PASSWORD", SECRET)
            url = f"nats://ann@{server.address}"
        else:
            url = f"nats://ann:{SECRET}@{server.address}"
        async with NatsTransport(url) as transport:
            await transport.create_topic("orders")
            assert await transport.topics() == ["orders"]
            shown = f"{transport!r} {transport.statistics()} {transport._settings}"
        with pytest.raises(BrokerFailed) as refused:
            await NatsTransport(f"nats://bob:{SECRET}-wrong@{server.address}").open()
    assert SECRET not in shown + str(refused.value) + repr(refused.value.fields) + caplog.text


async def test_tls_checks_the_server(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    files = ["-keyout", key, "-out", certificate]
    subprocess.run([*command, *subject, *files], check=True, capture_output=True)
    with nats_server(f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}') as server:
        async with open_transport(f"{server.url}?tls_ca={certificate}") as transport:
            await transport.produce("orders", [b"x"])
        await cannot_open(
            lambda seconds: NatsTransport(server.url, tls=True, connect_seconds=seconds),
            "ertificate",
        )


@pytest.mark.parametrize(
    ("url", "option"),
    [
        ("nats://", "url"),
        ("nats://host/path", "url"),
        ("nats://host?wings=2", "wings"),
        ("nats://host?replicas=many", "replicas"),
        ("nats://host?replicas=7", "replicas"),
        ("nats://host?storage=tape", "storage"),
        ("nats://host?auto_create=maybe", "auto_create"),
        ("nats://host?prefix=a.b", "prefix"),
        ("nats://host?timeout=-1", "timeout"),
        ("nats://host?partitioner=murmur2", "partitioner"),
    ],
)
def test_options_are_checked(url, option):
    with pytest.raises(InvalidOption) as refused:
        open_transport(url)
    assert refused.value.option == option


def test_options_of_the_url_and_of_the_call():
    settings = NatsTransport(
        "nats://a,b:99?replicas=3&synced=true&timeout=2.5", partitioner="native"
    )._settings
    assert settings.servers == ("nats://a:4222", "nats://b:99")
    assert (settings.replicas, settings.synced, settings.timeout) == (3, True, 2.5)


def test_durable_is_what_the_operator_says():
    assert not NatsTransport("nats://a").capabilities.durable
    assert NatsTransport("nats://a?synced=1").capabilities.durable
    assert not NatsTransport("nats://a?synced=1&storage=memory").capabilities.durable
