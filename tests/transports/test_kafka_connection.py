"""The way to a Kafka broker: URL, options and secrets, and what may happen to it."""

import asyncio
import logging
import signal
from collections import Counter
from contextlib import suppress

import pytest

from penstock.errors import (
    BusyError,
    DeadlineExceeded,
    Fenced,
    InvalidOption,
    TransportError,
    Unreachable,
)
from penstock.testing.transport_fixtures import WAIT_SECONDS, numbered, take, values_of
from penstock.transports import open_transport
from tests.transports.proxy import Proxy
from tests.transports.servers.kafka import KafkaServer, kafka_server
from tests.transports.servers.ports import free_port

pytest.importorskip("confluent_kafka")

from penstock.transports.kafka import KafkaTransport
from penstock.transports.kafka_producer import Batch

SECRET = "correct-horse-battery"


@pytest.fixture(scope="module")
def server():
    with kafka_server() as running:
        yield running


@pytest.fixture
async def transport(server):
    async with KafkaTransport(server.url) as opened:
        yield opened


# The URL, options and secrets


def test_a_url_chooses_it():
    transport = open_transport("kafka://one,two:9093?acks=all&partitioner=native")
    assert isinstance(transport, KafkaTransport)
    assert repr(transport) == "KafkaTransport(kafka://one:9092,two:9093)"


@pytest.mark.parametrize("url", ["kafka:", "kafka://", "kafka://host/topic", "kafka:host:9092"])
def test_a_url_that_names_no_broker_is_refused(url):
    with pytest.raises(InvalidOption, match="kafka://host:port"):
        KafkaTransport(url)


def test_a_password_in_a_url_is_refused_and_not_repeated():
    with pytest.raises(InvalidOption, match="PENSTOCK_KAFKA_PASSWORD") as refused:
        KafkaTransport(f"kafka://ada:{SECRET}@localhost")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("group.id", "subscribe"),
        ("enable.auto.commit", "commit"),
        ("sasl.password", "PENSTOCK_KAFKA_PASSWORD"),
        ("ssl.key.password", "PENSTOCK_KAFKA_KEY_PASSWORD"),
        ("on_delivery", "own"),
    ],
)
def test_native_options_that_are_not_the_callers_are_refused(option, hint):
    with pytest.raises(InvalidOption, match=hint):
        KafkaTransport("kafka://localhost", options={option: "x"})


@pytest.mark.parametrize(
    "options", [{"partitioner": "best"}, {"connect_seconds": "soon"}, {"auto_create": "perhaps"}]
)
def test_options_outside_their_range_are_refused(options):
    with pytest.raises(InvalidOption):
        KafkaTransport("kafka://localhost", **options)


@pytest.mark.parametrize("native", [{"no.such.option": 1}, {"message.timeout.ms": "much"}])
async def test_what_the_client_does_not_take_is_an_invalid_option(server, native):
    with pytest.raises(InvalidOption, match=next(iter(native))):
        await KafkaTransport(server.url, options=native).open()


def test_options_of_a_group_are_checked():
    transport = KafkaTransport("kafka://localhost")
    for wrong in ({"assignor": "best"}, {"protocol": "new"}, {"options": {"group.id": "x"}}):
        with pytest.raises(InvalidOption):
            transport.subscribe("orders", "billing", **wrong)
    with pytest.raises(InvalidOption, match="lease_seconds"):
        transport.subscribe("orders", "billing", protocol="consumer", lease_seconds=1)


async def test_secrets_come_from_the_environment_and_are_told_to_nobody(monkeypatch, caplog):
    monkeypatch.setenv("PENSTOCK_KAFKA_USERNAME", "ada")
    monkeypatch.setenv("PENSTOCK_KAFKA_PASSWORD", SECRET)
    caplog.set_level(logging.DEBUG)
    port = free_port()
    transport = KafkaTransport(
        f"kafka://127.0.0.1:{port}?security.protocol=SASL_PLAINTEXT&sasl.mechanisms=PLAIN",
        connect_seconds=0.5,
    )
    configuration = transport.settings.client("producer")
    assert configuration["sasl.password"] == SECRET
    assert configuration["sasl.username"] == "ada"
    with pytest.raises(Unreachable) as refused:
        await transport.open()
    wrong = transport.settings.make
    with pytest.raises(InvalidOption) as invalid:
        wrong(_Refusing, configuration)
    for told in (repr(transport), str(refused.value), str(invalid.value), caplog.text):
        assert SECRET not in told
    await transport.close()


class _Refusing:
    def __init__(self, configuration):
        raise ValueError(f"cannot use {configuration['sasl.password']}")


async def test_a_broker_that_is_down_is_unreachable_within_the_deadline():
    port = free_port()
    transport = KafkaTransport(f"kafka://127.0.0.1:{port}", connect_seconds=0.5)
    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(Unreachable, match=f"127.0.0.1:{port}") as refused:
            await transport.open()
    assert (refused.value.transport, refused.value.seconds) == ("kafka", 0.5)
    assert not transport.statistics().connected


# Faults


class _FixedProxy(Proxy):
    """A proxy on the port that the broker tells its clients."""

    def __init__(self, server: KafkaServer) -> None:
        super().__init__("127.0.0.1", server.side_port)
        self._own = server.proxy_port

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._own)
        return self


async def test_what_was_on_its_way_when_the_network_was_cut_arrives_once(server, topic):
    async with _FixedProxy(server) as proxy:
        async with KafkaTransport(f"kafka://{proxy.address}") as transport:
            await transport.create_topic(topic, partitions=2)
            async with transport.subscribe(topic, "billing") as consumer:
                await transport.produce(topic, numbered(10))
                await take(consumer, 10)
                proxy.cut()
                producing = asyncio.ensure_future(transport.produce(topic, numbered(100, 10)))
                async with asyncio.timeout(WAIT_SECONDS):
                    while transport.statistics().connected:
                        await asyncio.sleep(0.01)
                proxy.heal()
                assert (await producing).count == 100
                assert set(values_of(await take(consumer, 100))) == set(numbered(100, 10))
                await consumer.commit()
            seen = transport.statistics()
            assert (seen.connected, seen.reconnects >= 1, seen.errors >= 1) == (True, True, True)
            assert seen.last_error
            assert not any(one.records for one in await transport.lag(topic, "billing"))


async def test_a_half_open_connection_is_a_deadline_and_no_hang(server, transport, topic):
    await transport.create_topic(topic, partitions=1)
    async with _FixedProxy(server) as proxy:
        native = {"socket.timeout.ms": 1000, "request.timeout.ms": 1000}
        async with KafkaTransport(f"kafka://{proxy.address}", options=native) as far:
            await far.produce(topic, [b"0"])
            proxy.swallow = "down"
            with pytest.raises(DeadlineExceeded):
                await far.produce(topic, [b"1"], timeout=0.3)
            proxy.heal()
            proxy.drop()
            await far.produce(topic, [b"2"])
    async with transport.subscribe(topic, "billing") as consumer:
        assert values_of(await take(consumer, 3)) == numbered(3)


async def test_a_callback_that_fails_keeps_nobody_else_waiting(
    transport, topic, monkeypatch, caplog
):
    await transport.create_topic(topic, partitions=1)
    with monkeypatch.context() as broken:
        broken.setattr(Batch, "placed", lambda *_: 1 / 0)
        with pytest.raises(DeadlineExceeded):
            await transport.produce(topic, [b"0"], timeout=0.5)
    assert (await transport.produce(topic, [b"1"])).count == 1
    assert "a callback of the Kafka client failed" in caplog.text


async def _kills(server: KafkaServer, topic: str, rounds: int) -> None:
    """Kill the broker under load, again and again; nothing acknowledged is lost or doubled."""
    acknowledged: list[bytes] = []
    stop = asyncio.Event()

    async def produce(transport):
        while not stop.is_set():
            values = numbered(50, len(acknowledged))
            await transport.produce(topic, values, timeout=250)
            acknowledged.extend(values)

    got: Counter[bytes | None] = Counter()

    async def consume(transport):
        async with transport.subscribe(topic, "billing") as consumer:
            async for batch in consumer:
                got.update(values_of(batch.records))
                with suppress(Fenced, TransportError, BusyError):
                    # The broker may be away for longer than the lease, and than a commit waits.
                    await consumer.commit(batch)

    async with KafkaTransport(server.url) as transport:
        await transport.create_topic(topic, partitions=2)
        work = [asyncio.ensure_future(one(transport)) for one in (produce, consume)]
        for _ in range(rounds):
            await _more(acknowledged, work)
            server.kill()
            await asyncio.to_thread(server.start)
        await _more(acknowledged, work)
        stop.set()
        await work[0]
        await _until(lambda: len(got) >= len(acknowledged), work[1:])
        work[1].cancel()
        await asyncio.gather(work[1], return_exceptions=True)
        async with transport.subscribe(topic, "audit") as audit:
            kept = Counter(values_of(await take(audit, len(acknowledged))))
            with pytest.raises(DeadlineExceeded):
                await audit.next_batch(0.5)
    assert kept == Counter(acknowledged)
    assert got.keys() == set(acknowledged)


async def _more(acknowledged, work) -> None:
    before = len(acknowledged)
    await _until(lambda: len(acknowledged) > before + 500, work)


async def _until(is_so, work) -> None:
    async with asyncio.timeout(250):
        while not is_so():
            for one in work:
                if one.done():
                    one.result()
            await asyncio.sleep(0.01)


async def test_a_broker_killed_under_load_loses_and_doubles_nothing(server, topic, scored):
    await _kills(server, topic, 1)
    scored(13, tried=1, bad=0, seed="none is chosen")


@pytest.mark.torture
@pytest.mark.timeout(1800)
async def test_a_broker_killed_again_and_again_loses_and_doubles_nothing(server, topic, scored):
    await _kills(server, topic, 20)
    scored(13, tried=20, bad=0, seed="none is chosen")


async def test_a_broker_that_stands_still_for_a_while_loses_nothing(server, transport, topic):
    await transport.create_topic(topic, partitions=1)
    async with transport.subscribe(topic, "billing", lease_seconds=1.0) as consumer:
        await transport.produce(topic, numbered(5))
        batch = await consumer.next_batch(WAIT_SECONDS)
        server.send(signal.SIGSTOP)
        producing = asyncio.ensure_future(transport.produce(topic, numbered(5, 5)))
        await asyncio.sleep(1.5)
        server.send(signal.SIGCONT)
        await producing
        got = set(values_of(batch.records))
        async with asyncio.timeout(WAIT_SECONDS):
            while len(got) < 10:
                # Those that came before may come again: the broker did not answer within the lease.
                got |= set(values_of((await consumer.next_batch()).records))
        assert got == set(numbered(10))
