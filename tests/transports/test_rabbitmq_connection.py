"""The way to a RabbitMQ server: what may happen to it, and what opening it asks for."""

import asyncio
import signal
import sys
from collections import Counter
from contextlib import suppress

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
from penstock.transports import TransportRegistry, open_transport
from penstock.transports.rabbitmq import RabbitTransport
from tests.transports.disturbance import (
    check_that_commits_count_once,
    check_that_who_is_cut_off_is_fenced,
    cut_and_heal,
    produced_and_read,
)
from tests.transports.patience import cannot_open
from tests.transports.proxy import Proxy
from tests.transports.servers.ports import free_port
from tests.transports.servers.rabbitmq import LOGIN, PASSWORD, STREAMS, USER, rabbit_server


@pytest.fixture(scope="module")
def server():
    with rabbit_server() as running:
        yield running


def far_url(proxy):
    return f"rabbitmq://{LOGIN}@{proxy.address}?reconnect_seconds_max=0.2"


# What may happen on the way


async def sent_and_read(transport, topic, disturb, batches=20, size=25):
    """Produce under disturbance, and read all; every produce is acknowledged in the end."""

    async def read(got, total):
        while len(got) < total:
            # Away for longer than its lease, or than a call may take: what it had comes again.
            with suppress(Fenced, Unreachable):
                async with transport.subscribe(topic, "billing") as consumer:
                    while len(got) < total:
                        batch = await consumer.next_batch(2 * WAIT_SECONDS)
                        got.update(values_of(batch.records))
                        await consumer.commit(batch)

    got = await produced_and_read(
        transport, topic, disturb, read, batches=batches, size=size, seconds=2 * WAIT_SECONDS
    )
    lag = await transport.lag(topic, "billing")
    assert sum(one.end for one in lag) == batches * size  # nothing stored twice, nothing lost
    assert got.keys() == set(numbered(batches * size))


async def test_a_broker_that_is_killed_loses_nothing_acknowledged(server, topic, scored):
    async def disturb():
        server.kill()
        await asyncio.to_thread(server.start)

    async with RabbitTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=2)
        await asyncio.to_thread(server.settle, STREAMS)
        await sent_and_read(transport, topic, disturb)
        assert transport.statistics().reconnects >= 1
    scored(13, tried=1, bad=0, seed="none is chosen")


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_a_broker_that_is_killed_again_and_again_loses_nothing(server, topic, scored):
    """Three members share the topic; some are closed and made anew while the server comes and goes."""
    kills, size = 15, 50
    got: Counter[bytes | None] = Counter()
    done = asyncio.Event()
    async with RabbitTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=6)
        await asyncio.to_thread(server.settle, STREAMS)

        async def read(records):
            while not done.is_set():
                consumer = transport.subscribe(topic, "billing", lease_seconds=5.0)
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
            server.kill()
            restarting = asyncio.create_task(asyncio.to_thread(server.start))
            while not restarting.done():
                await transport.produce(topic, numbered(size, total), timeout=60)
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


async def test_a_cut_connection_is_made_again(server, topic):
    async with (
        Proxy("127.0.0.1", server.port) as proxy,
        RabbitTransport(far_url(proxy)) as transport,
    ):
        await sent_and_read(transport, topic, lambda: cut_and_heal(proxy, transport))
        statistics = transport.statistics()
    assert statistics.reconnects >= 3
    assert statistics.connected
    assert statistics.errors
    assert statistics.records_produced == 500
    assert not transport.statistics().connected


async def test_a_slow_connection_is_slow_and_nothing_else(server, topic):
    async with (
        Proxy("127.0.0.1", server.port) as proxy,
        RabbitTransport(far_url(proxy)) as transport,
    ):

        async def disturb():
            proxy.delay = 0.05

        await sent_and_read(transport, topic, disturb, batches=8)


async def test_a_connection_that_is_half_open_is_given_up(server, topic):
    async with (
        Proxy("127.0.0.1", server.port) as proxy,
        RabbitTransport(far_url(proxy), heartbeat_seconds=1, answer_seconds=1.0) as transport,
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


@pytest.mark.parametrize("count", [1, 1_500])
async def test_what_is_sent_again_is_kept_once(server, topic, count):
    """The server stored it, and its confirm was lost: the offsets are found all the same."""
    async with (
        Proxy("127.0.0.1", server.port) as proxy,
        RabbitTransport(far_url(proxy)) as transport,
        RabbitTransport(server.url) as other,
    ):
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, [b"before"])
        proxy.swallow = "down"
        producing = asyncio.create_task(transport.produce(topic, numbered(count)))
        while (await other.lag(topic, "x"))[0].end < 1 + count:
            await asyncio.sleep(0.001)
        # Somebody else's record comes between the two attempts.
        await other.produce(topic, [b"between"])
        proxy.heal()
        proxy.drop()
        done = await producing
        assert done.ranges == {0: (1, 1 + count)}
        async with transport.subscribe(topic, "billing") as consumer:
            records = values_of(await take(consumer, count + 2))
        assert records == [b"before", *numbered(count), b"between"]
        assert (await transport.lag(topic, "billing"))[0].end == count + 2


async def test_offsets_of_a_batch_are_told_while_others_produce(server, topic):
    async with RabbitTransport(server.url) as one, RabbitTransport(server.url) as other:
        await one.create_topic(topic, partitions=1)

        async def produce(transport, start):
            told = {}
            for first in range(start, start + 1_000, 50):
                done = await transport.produce(topic, numbered(50, first))
                told[b"%d" % first], told[b"%d" % (first + 49)] = (
                    done.ranges[0][0],
                    done.ranges[0][1] - 1,
                )
            return told

        found = await asyncio.gather(produce(one, 0), produce(other, 10_000), produce(one, 20_000))
        told = found[0] | found[1] | found[2]
        async with one.subscribe(topic, "billing") as consumer:
            records = await take(consumer, 3_000)
    assert {one.value: one.offset for one in records if one.value in told} == told


async def test_who_is_cut_off_for_longer_than_its_lease_is_fenced(server, topic):
    """The other member goes on; what the first one had comes again, and its commit is refused."""
    async with (
        Proxy("127.0.0.1", server.port) as proxy,
        RabbitTransport(far_url(proxy)) as far,
        RabbitTransport(server.url) as near,
    ):
        await check_that_who_is_cut_off_is_fenced(proxy, far, near, topic)


async def test_a_stopped_server_shows_as_an_error_within_the_deadline(server, topic):
    async with RabbitTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=1)
        await transport.produce(topic, [b"x"])
        server.send(signal.SIGSTOP)
        try:
            with pytest.raises(Unreachable, match="not confirmed") as refused:
                await transport.produce(topic, [b"y"], timeout=0.5)
        finally:
            server.send(signal.SIGCONT)
        assert refused.value.address == f"rabbitmq://{server.address}"
        await transport.produce(topic, [b"z"])
        # The second may have been sent.
        assert (await transport.lag(topic, "billing"))[0].end in (2, 3)


async def test_members_come_and_go_while_the_connection_does(server, topic):
    """A commit counts once, whoever makes it, and whatever becomes of its answer."""
    async with (
        Proxy("127.0.0.1", server.port) as proxy,
        RabbitTransport(far_url(proxy)) as far,
        RabbitTransport(server.url) as near,
    ):
        await check_that_commits_count_once(proxy, far, near, topic, rounds=3, records=300)


# Opening


@pytest.mark.parametrize("mode", ["streams", "quorum"])
async def test_a_server_that_is_down_is_a_clear_error(mode):
    url = f"rabbitmq://127.0.0.1:{free_port()}"
    transport = RabbitTransport(url, mode=mode, connect_seconds=0.5)
    with pytest.raises(Unreachable, match=r"did not answer within 0\.5 s") as refused:
        await transport.open()
    assert (refused.value.transport, refused.value.address) == ("rabbitmq", url)
    await transport.close()


@pytest.mark.parametrize("mode", ["streams", "quorum"])
async def test_secrets_open_the_server_and_show_up_nowhere(server, monkeypatch, caplog, mode):
    place = server.address if mode == "streams" else f"127.0.0.1:{server.amqp_port}"
    with pytest.raises(BrokerFailed, match="refuses") as refused:
        await RabbitTransport(f"rabbitmq://{USER}:{PASSWORD}-wrong@{place}", mode=mode).open()
    monkeypatch.setenv("PENSTOCK_RABBITMQ_PASSWORD", PASSWORD)
    async with RabbitTransport(f"rabbitmq://{USER}@{place}", mode=mode) as transport:
        await transport.create_topic("secret")
        assert "secret" in await transport.topics()
        shown = f"{transport!r} {transport.statistics()} {transport._settings}"
    monkeypatch.setenv("PENSTOCK_RABBITMQ_USERNAME", USER)
    async with RabbitTransport(f"rabbitmq://{place}/%2F", mode=mode):
        pass
    with pytest.raises((BrokerFailed, Unreachable)) as lost:
        await RabbitTransport(f"rabbitmq://{place}/none", mode=mode, connect_seconds=1.0).open()
    told = [str(one.value) + repr(one.value.fields) for one in (refused, lost)]
    assert PASSWORD not in shown + "".join(told) + caplog.text


@pytest.mark.parametrize("mode", ["streams", "quorum"])
async def test_tls_checks_the_server(server, topic, mode):
    port = server.tls_port if mode == "streams" else server.amqps_port
    url = f"rabbitmqs://{LOGIN}@127.0.0.1:{port}?mode={mode}"
    async with open_transport(f"{url}&tls_ca={server.certificate}") as transport:
        await transport.create_topic(topic)
        assert topic in await transport.topics()
    await cannot_open(lambda seconds: RabbitTransport(url, connect_seconds=seconds), "ertificate")


@pytest.mark.parametrize(
    ("url", "option"),
    [
        ("rabbitmq://", "url"),
        ("rabbitmq://host:port", "url"),
        ("rabbitmq://host?wings=2", "wings"),
        ("rabbitmq://host?partitions=many", "partitions"),
        ("rabbitmq://host?partitions=0", "partitions"),
        ("rabbitmq://host?mode=tape", "mode"),
        ("rabbitmq://host?auto_create=maybe", "auto_create"),
        ("rabbitmq://host?connect_seconds=-1", "connect_seconds"),
        ("rabbitmq://host?partitioner=murmur2", "partitioner"),
        ("rabbitmq://host?mode=quorum&partitioner=native", "partitioner"),
        ("rabbitmq://host?groups=billing", "groups"),
        ("rabbitmq://host?mode=quorum&prefetch=70000", "prefetch"),
        ("rabbitmq://host?prefix=" + "x" * 33, "prefix"),
    ],
)
def test_options_are_checked(url, option):
    with pytest.raises(InvalidOption) as refused:
        open_transport(url)
    assert refused.value.option == option


def test_options_of_the_url_and_of_the_call():
    settings = RabbitTransport(
        "rabbitmqs://a,b:99,[::1]/shop?partitions=3&auto_create=no", partitioner="native"
    )._settings
    assert settings.hosts == (("a", 5551), ("b", 99), ("::1", 5551))
    assert (settings.vhost, settings.partitions, settings.auto_create) == ("shop", 3, False)
    assert RabbitTransport("rabbitmq://a", mode="quorum")._settings.hosts == (("a", 5672),)


def test_capabilities_are_those_of_the_mode():
    streams, queues = (RabbitTransport("rabbitmq://a", mode=one) for one in ("streams", "quorum"))
    assert not streams.capabilities.durable
    assert streams.capabilities.replay
    assert queues.capabilities.durable
    assert not queues.capabilities.replay


def test_without_the_client_the_error_names_the_extra(monkeypatch):
    for name in [one for one in sys.modules if one.startswith("penstock.transports.rabbitmq")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rstream", None)
    with pytest.raises(MissingExtra, match=r"penstock\[rabbitmq\]"):
        TransportRegistry().make("rabbitmq://localhost")
