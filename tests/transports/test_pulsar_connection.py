"""The way to a Pulsar broker: what may happen to it, and what opening it asks for."""

import asyncio
import signal
from collections import Counter
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from penstock.errors import BrokerFailed, DeadlineExceeded, Fenced, NotSupported, Unreachable
from penstock.testing.transport_fixtures import WAIT_SECONDS, numbered, take, values_of
from penstock.transports import open_transport
from penstock.transports.pulsar import PulsarTransport
from tests.transports.disturbance import (
    TIMES,
    check_that_who_is_cut_off_is_fenced,
    cut_and_heal,
    produced_and_read,
)
from tests.transports.patience import cannot_open
from tests.transports.proxy import Proxy
from tests.transports.servers.ports import free_port, free_ports
from tests.transports.servers.pulsar import pulsar_server, token_of

PATIENT: dict[str, Any] = {"lease_seconds": 600.0}
"""For members that nobody takes for dead, however busy the machine is."""
LONG_SECONDS = 250.0
"""For what waits until the client connects again: it waits longer each time, and cannot be told not to."""


@pytest.fixture(scope="module")
def server():
    with pulsar_server() as running:
        yield running


# What may happen on the way


class _FixedProxy(Proxy):
    """A proxy on the port that the broker tells its clients."""

    def __init__(self, server):
        super().__init__("127.0.0.1", server.port)
        self._own = server.proxy_port

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._own)
        return self


class _Way:
    """The two ways to a broker, disturbed together."""

    def __init__(self, *proxies):
        self.proxies = proxies

    @property
    def url(self):
        binary, http = self.proxies
        return (
            f"pulsar://{binary.address}?admin_url=http://{http.address}&listener_name=proxy"
            "&timeout=250"
        )

    def __getattr__(self, name):
        return lambda: [getattr(one, name)() for one in self.proxies]

    def set(self, name, value):
        for one in self.proxies:
            setattr(one, name, value)


@asynccontextmanager
async def the_way_to(server):
    async with _FixedProxy(server) as binary, Proxy("127.0.0.1", server.http_port) as http:
        yield _Way(binary, http)


async def sent_and_read(transport, topic, disturb, batches=40, size=25):
    """Produce under disturbance, and read all; every produce is acknowledged in the end."""

    async def read(got, total):
        async with transport.subscribe(topic, "billing", **PATIENT) as consumer:
            while len(got) < total:
                batch = await consumer.next_batch(LONG_SECONDS)
                got.update(values_of(batch.records))
                with suppress(Fenced):
                    # Away for longer than its lease: it comes again, to whoever has it.
                    await consumer.commit(batch)

    got = await produced_and_read(
        transport, topic, disturb, read, batches=batches, size=size, seconds=LONG_SECONDS
    )
    lag = await transport.lag(topic, "billing")
    assert sum(one.end for one in lag) == batches * size  # nothing stored twice
    return got


def _kill_and_start(server):
    server.kill()
    server.start()


async def test_a_broker_that_is_killed_loses_nothing_acknowledged(server, topic, scored):
    async with PulsarTransport(server.url, timeout=250.0) as transport:
        got = await sent_and_read(
            transport, topic, lambda: asyncio.to_thread(_kill_and_start, server)
        )
        assert got.keys() == set(numbered(1_000))
        assert transport.statistics().reconnects >= 1
        assert transport.capabilities.idempotence
    scored(13, tried=1, bad=0, seed="none is chosen")


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [8])
async def test_a_broker_that_is_killed_again_and_again_loses_nothing(topic, kills, scored):
    """Three members share the topic while the broker comes and goes."""
    got: Counter[bytes | None] = Counter()
    total, size = 0, 50
    with pulsar_server() as own:
        async with PulsarTransport(own.url, timeout=120.0) as transport:
            await transport.create_topic(topic, partitions=6)

            async def read():
                while True:
                    with suppress(Unreachable, Fenced):
                        async with transport.subscribe(topic, "billing", lease_seconds=5.0) as one:
                            while True:
                                batch = await one.next_batch()
                                await one.commit(batch)
                                got.update(values_of(batch.records))

            readers = [asyncio.create_task(read()) for _ in range(3)]
            for _ in range(kills):
                restarting = asyncio.create_task(asyncio.to_thread(_kill_and_start, own))
                while not restarting.done():
                    await transport.produce(topic, numbered(size, total), timeout=LONG_SECONDS)
                    total += size
                await restarting
            async with asyncio.timeout(LONG_SECONDS):
                while sum(one.records for one in await transport.lag(topic, "billing")):
                    assert not any(one.done() for one in readers), readers
                    await asyncio.sleep(0.2)
            assert sum(one.end for one in await transport.lag(topic, "billing")) == total
            for one in readers:
                one.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
    # A commit whose answer was lost may have counted, so what it held may be missing here.
    assert got.keys() <= set(numbered(total))
    assert set(got.values()) == {1}
    scored(13, tried=kills, bad=0, seed="none is chosen")


async def test_a_cut_connection_is_made_again(server, topic):
    async with the_way_to(server) as way, PulsarTransport(way.url) as transport:
        got = await sent_and_read(transport, topic, lambda: cut_and_heal(way, transport))
        statistics = transport.statistics()
    assert got.keys() == set(numbered(1_000))
    assert statistics.reconnects >= TIMES
    assert statistics.connected
    assert statistics.errors
    assert statistics.records_produced == 1_000
    assert not transport.statistics().connected


async def test_a_slow_connection_is_slow_and_nothing_else(server, topic):
    async with the_way_to(server) as way, PulsarTransport(way.url) as transport:

        async def disturb():
            way.set("delay", 0.02)

        got = await sent_and_read(transport, topic, disturb, batches=8)
    assert got == Counter(numbered(200))


async def test_a_connection_that_is_half_open_is_a_deadline_and_no_hang(server, topic):
    """The client gives it up after a minute or so. Until then, calls end at their deadlines."""
    async with the_way_to(server) as way, PulsarTransport(way.url, timeout=20.0) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, [b"before"])
        way.set("swallow", "both")
        with pytest.raises(Unreachable, match="some of them may be stored"):
            await transport.produce(topic, [b"lost?"], timeout=0.3)
        way.heal()
        way.drop()
        done = await transport.produce(topic, [b"after"], timeout=LONG_SECONDS)
        # The client has sent it again.
        assert done.ranges == {0: (2, 3)}
        async with transport.subscribe(topic, "billing") as consumer:
            assert values_of(await take(consumer, 3)) == [b"before", b"lost?", b"after"]


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_a_connection_that_is_half_open_is_given_up(server, topic):
    async with the_way_to(server) as way, PulsarTransport(way.url) as transport:

        async def disturb():
            before = way.proxies[0].connections
            way.set("swallow", "both")
            while transport.statistics().connected:
                await asyncio.sleep(0.1)
            way.heal()
            while way.proxies[0].connections == before:
                await asyncio.sleep(0.1)

        got = await sent_and_read(transport, topic, disturb)
    assert got.keys() == set(numbered(1_000))


@pytest.mark.parametrize("count", [1, 5, 2_500])
async def test_what_is_sent_again_is_kept_once(server, topic, count):
    """The broker stored it, and its answer was lost: the offsets are found all the same."""
    async with (
        the_way_to(server) as way,
        PulsarTransport(way.url) as transport,
        PulsarTransport(server.url) as other,
    ):
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, [b"before"])
        way.set("swallow", "down")
        producing = asyncio.create_task(transport.produce(topic, numbered(count)))
        while (await other.lag(topic, "x"))[0].end < 1 + count:
            await asyncio.sleep(0.01)
        # Somebody else's record comes between the two attempts.
        await other.produce(topic, [b"between"])
        way.heal()
        way.drop()
        done = await producing
        assert done.ranges == {0: (1, 1 + count)}
        async with other.subscribe(topic, "billing") as consumer:
            records = values_of(await take(consumer, count + 2))
        assert records == [b"before", *numbered(count), b"between"]
        assert (await other.lag(topic, "billing"))[0].end == count + 2
        # It knows where it is again.
        assert (await transport.produce(topic, [b"x"])).ranges == {0: (count + 2, count + 3)}


async def surely(act):
    """Do it, again while the broker cannot be reached."""
    while True:
        with suppress(Unreachable):
            return await act()


async def test_who_is_cut_off_for_longer_than_its_lease_is_fenced(server, topic):
    """The other member goes on; what the first one had comes again, and its commit is refused."""
    async with (
        the_way_to(server) as way,
        PulsarTransport(way.url) as far,
        PulsarTransport(server.url) as near,
    ):
        # The client takes up to a minute until it tries to connect again.
        await check_that_who_is_cut_off_is_fenced(way, far, near, topic, surely)


async def test_a_broker_that_stands_still_shows_as_an_error_within_the_deadline(server, topic):
    async with PulsarTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
    async with PulsarTransport(server.url, timeout=3.0) as transport:
        await surely(lambda: transport.produce(topic, [b"before"]))
        server.send(signal.SIGSTOP)
        try:
            with pytest.raises(Unreachable, match="some of them may be stored") as refused:
                await transport.produce(topic, [b"x"], timeout=0.5)
            assert refused.value.address == f"pulsar://127.0.0.1:{server.port}"
            with pytest.raises(Unreachable):
                await transport.partitions(topic)
        finally:
            server.send(signal.SIGCONT)
        await surely(lambda: transport.produce(topic, [b"y"]))


async def test_closing_while_the_broker_stands_still_ends(server, topic):
    transport = PulsarTransport(server.url)
    await transport.open()
    await transport.create_topic(topic, partitions=1)
    consumer = transport.subscribe(topic, "billing")
    await consumer.open()
    server.send(signal.SIGSTOP)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            with pytest.raises(DeadlineExceeded, match="given up after their lease"):
                await transport.close(timeout=0.3)
    finally:
        server.send(signal.SIGCONT)


# Opening


async def test_a_broker_that_is_down_is_a_clear_error():
    port, http = free_ports(2)
    transport = PulsarTransport(
        f"pulsar://127.0.0.1:{port}", admin_url=f"http://127.0.0.1:{http}", connect_seconds=0.3
    )
    with pytest.raises(Unreachable, match=r"did not answer within 0\.3 s") as refused:
        await transport.open()
    assert (refused.value.transport, refused.value.address) == (
        "pulsar",
        f"pulsar://127.0.0.1:{port}",
    )
    await transport.close()


async def test_a_wrong_place_of_the_http_is_a_clear_error(server):
    http = f"http://127.0.0.1:{free_port()}"
    url = f"pulsar://127.0.0.1:{server.port}"
    await cannot_open(
        lambda seconds: PulsarTransport(url, admin_url=http, connect_seconds=seconds),
        "admin_url says where its HTTP is",
    )


async def test_a_namespace_that_is_not_there_is_a_clear_error(server):
    url = server.url.replace("public/default", "public/nowhere")
    with pytest.raises(BrokerFailed, match="has no namespace 'public/nowhere'"):
        await PulsarTransport(url).open()


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_brokers_that_do_not_number_messages_are_refused(topic):
    with (
        pulsar_server({"brokerEntryMetadataInterceptors": ""}) as own,
        pytest.raises(NotSupported, match="brokerEntryMetadataInterceptors"),
    ):
        await PulsarTransport(own.url).open()


async def test_a_token_says_who_it_is_and_shows_up_nowhere(server, topic, monkeypatch, caplog):
    """One that may produce and consume needs no more; one that may not is refused."""
    async with PulsarTransport(server.url) as admin:
        await admin.create_topic(topic, partitions=2)
        await admin.create_topic(f"{topic}-other", partitions=2)
    shown: list[object] = []
    token = token_of("ann")
    monkeypatch.setenv("PENSTOCK_PULSAR_TOKEN", token)
    async with PulsarTransport(server.url) as ann:
        with pytest.raises(BrokerFailed, match="refuse") as refused:
            await ann.produce(topic, [b"x"])
        shown += [refused.value, refused.value.fields]
    server.call("POST", "namespaces/public/default/permissions/ann", ["produce", "consume"])
    async with PulsarTransport(server.url) as ann:
        await ann.produce(topic, numbered(10))
        async with ann.subscribe(topic, "billing") as consumer:
            assert len(await take(consumer, 10)) == 10
            await consumer.commit()
        assert [one.records for one in await ann.lag(topic, "billing")] == [0, 0]
        with pytest.raises(BrokerFailed, match="refuses this client"):
            await ann.create_topic(f"{topic}-third")
        shown += [ann, ann.statistics(), ann._settings]
    monkeypatch.setenv("PENSTOCK_PULSAR_TOKEN", token[:-4] + "AAAA")
    with pytest.raises(BrokerFailed, match="refuses this client") as wrong:
        await PulsarTransport(server.url).open()
    shown += [wrong.value, wrong.value.fields]
    monkeypatch.delenv("PENSTOCK_PULSAR_TOKEN")
    with pytest.raises(BrokerFailed, match="refuses this client"):
        await PulsarTransport(server.url).open()
    assert token[:-4] not in f"{shown!r} {[str(one) for one in shown]} {caplog.text}"


async def test_tls_checks_the_brokers(server, topic):
    url = (
        f"pulsar+ssl://127.0.0.1:{server.tls_port}?admin_url=https://127.0.0.1:{server.https_port}"
    )
    async with open_transport(f"{url}&tls_ca={server.certificate}&connect_seconds=60") as transport:
        await transport.produce(topic, [b"x"])
        async with transport.subscribe(topic, "billing") as consumer:
            assert values_of(await take(consumer, 1)) == [b"x"]
    await cannot_open(
        lambda seconds: open_transport(f"{url}&connect_seconds={seconds}"), "ertificate"
    )
