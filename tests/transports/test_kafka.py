"""The Kafka transport on a real broker: the suite, and what only Kafka has."""

import asyncio
import logging
import signal
from collections import Counter
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest

from penstock.errors import (
    BusyError,
    Closed,
    DeadlineExceeded,
    Fenced,
    InvalidOption,
    NotSupported,
    PenstockError,
    RecordTooLarge,
    SubscriberBusy,
    TransportError,
    UnknownTopic,
    Unreachable,
)
from penstock.testing import TransportConformance
from penstock.testing.transport_fixtures import WAIT_SECONDS, numbered, take, values_of
from penstock.transports import open_transport
from tests.transports.application import check_application, check_page
from tests.transports.proxy import Proxy
from tests.transports.servers.kafka import KafkaServer, kafka_server
from tests.transports.servers.ports import free_port

pytest.importorskip("confluent_kafka")
from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException

from penstock.transports.kafka import KafkaTransport
from penstock.transports.kafka_member import ASSIGN_TRIES, KafkaMember, raising
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


class TestKafka(TransportConformance):
    @pytest.fixture
    def make_transport(self, server):
        return partial(KafkaTransport, server.url)

    @pytest.fixture
    def transport_url(self, server):
        return server.url

    @pytest.fixture
    def quick_lease(self):
        return {"lease_seconds": 1.0}


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


# Producing


async def test_the_native_partitioner_is_that_of_kafkas_own_clients(server, topic):
    # As the Java client: murmur2 of the key, the sign bit off, modulo the partitions.
    known = {b"21": -973932308 & 0x7FFFFFFF, b"foobar": -790332482 & 0x7FFFFFFF}
    async with KafkaTransport(server.url, partitioner="native") as transport:
        await transport.create_topic(topic, partitions=7)
        done = await transport.produce(topic, [b"a", b"b"], keys=list(known))
        assert set(done.ranges) == {value % 7 for value in known.values()}


async def test_a_record_that_is_too_large_is_an_error_and_the_rest_goes_on(transport, topic):
    await transport.create_topic(topic, partitions=1)
    with pytest.raises(RecordTooLarge):
        await transport.produce(topic, [bytes(3_000_000)])
    assert (await transport.produce(topic, [b"x"])).count == 1


async def test_columns_of_different_lengths_are_refused(transport, topic):
    with pytest.raises(InvalidOption, match="keys"):
        await transport.produce(topic, [b"a", b"b"], keys=[b"k"])


async def test_a_topic_is_made_when_it_is_produced_to_unless_that_is_off(server, transport, topic):
    assert (await transport.produce(topic, [b"x"])).count == 1
    async with KafkaTransport(server.url, auto_create=False) as strict:
        with pytest.raises(UnknownTopic):
            await strict.produce(f"{topic}-other", [b"x"])


async def test_statistics_count(transport, topic):
    await transport.create_topic(topic, partitions=1)
    await transport.produce(topic, numbered(5))
    async with transport.subscribe(topic, "billing") as consumer:
        await take(consumer, 5)
        seen = transport.statistics()
        assert (seen.records_produced, seen.records_consumed) == (5, 5)
        assert (seen.transport, seen.consumers, seen.connected) == ("kafka", 1, True)
    await transport.close()
    assert not transport.statistics().connected
    with pytest.raises(Closed):
        await transport.open()


# Topics and groups


async def test_partitions_are_added_and_never_taken_away(transport, topic):
    await transport.create_topic(topic, partitions=1, retention_ms=60_000)
    await transport.produce(topic, numbered(4))
    await transport.repartition(topic, 3)
    assert await transport.partitions(topic) == 3
    assert set((await transport.produce(topic, numbered(6, 4))).ranges) == {0, 1, 2}
    with pytest.raises(NotSupported, match="takes none away"):
        await transport.repartition(topic, 2)


async def test_a_setting_of_a_topic_that_kafka_refuses_is_an_invalid_option(transport, topic):
    with pytest.raises(InvalidOption):
        await transport.create_topic(topic, config={"retention.ms": "soon"})


async def test_a_group_with_members_is_not_forgotten(transport, topic):
    await transport.create_topic(topic, partitions=1)
    await transport.produce(topic, numbered(1))
    async with transport.subscribe(topic, topic) as consumer:
        await consumer.commit(await consumer.next_batch(WAIT_SECONDS))
        with pytest.raises(SubscriberBusy):
            await transport.forget(topic, topic)


async def test_forgetting_a_topic_leaves_the_other_topics_of_a_group(transport, topic):
    group, other = topic, f"{topic}-other"
    for name in (topic, other):
        await transport.create_topic(name, partitions=1)
        await transport.produce(name, numbered(3))
        async with transport.subscribe(name, group) as consumer:
            await take(consumer, 3)
            await consumer.commit()
    await transport.forget(topic, group)
    assert [one.records for one in await transport.lag(topic, group)] == [3]
    assert [one.records for one in await transport.lag(other, group)] == [0]
    assert (await transport.groups(topic), await transport.groups(other)) == ([], [group])
    async with transport.subscribe(topic, group, start="latest") as consumer:
        assert consumer.positions() == {0: 3}


async def test_a_group_that_starts_at_the_end_skips_nothing_after_a_crash(transport, topic):
    await transport.create_topic(topic, partitions=1)
    await transport.produce(topic, numbered(3))
    async with transport.subscribe(topic, "billing", start="latest"):
        pass  # It dies before its first commit.
    await transport.produce(topic, numbered(3, 3))
    async with transport.subscribe(topic, "billing", start="latest") as consumer:
        assert values_of(await take(consumer, 3)) == numbered(3, 3)


@pytest.mark.parametrize(
    "options", [{"protocol": "consumer"}, {"assignor": "range"}, {"assignor": "round-robin"}]
)
async def test_members_share_with_every_protocol_and_assignor(transport, topic, options):
    await transport.create_topic(topic, partitions=4)
    await transport.produce(topic, numbered(40))
    async with (
        transport.subscribe(topic, "billing", **options) as first,
        transport.subscribe(topic, "billing", **options) as second,
    ):
        async with asyncio.timeout(WAIT_SECONDS):
            while {len(one.assignment().partitions) for one in (first, second)} != {2}:
                await asyncio.sleep(0.01)
        got = [await take(one, 20) for one in (first, second)]
        for one in (first, second):
            await one.commit()
    assert {record.value for records in got for record in records} == set(numbered(40))
    assert not any(one.records for one in await transport.lag(topic, "billing"))


async def test_a_member_whose_buffer_is_full_answers_the_group(transport, topic, monkeypatch):
    monkeypatch.setattr("penstock.transports.kafka_consumer.BUFFER_RECORDS_MAX", 10)
    monkeypatch.setattr("penstock.transports.kafka_consumer.OVERSHOOT_MAX", 2)
    await transport.create_topic(topic, partitions=2)
    await transport.produce(topic, numbered(400))
    async with transport.subscribe(topic, "billing", release_seconds=0.1) as slow:
        got = set(values_of((await slow.next_batch(WAIT_SECONDS, 1)).records))
        async with transport.subscribe(topic, "billing") as other:
            got |= set(values_of(await take(other, 200)))
            await other.commit()
        assert slow._owned.buffered <= 13
        async with asyncio.timeout(WAIT_SECONDS):
            while len(got) < 400:
                got |= set(values_of((await slow.next_batch()).records))
    assert got == set(numbered(400))


def failing_lookups(monkeypatch, times, code=KafkaError.NOT_COORDINATOR):
    """Let so many looks for committed offsets fail, as they do while a broker starts; what is left of them."""
    left = [times]
    starts = KafkaMember._starts

    def fail(member, partitions, *seconds):
        if partitions and left[0] > 0:
            left[0] -= 1
            raise KafkaException(KafkaError(code))
        return starts(member, partitions, *seconds)

    monkeypatch.setattr(KafkaMember, "_starts", fail)
    return left


@pytest.mark.parametrize("options", [{}, {"assignor": "range"}, {"protocol": "consumer"}])
async def test_a_member_that_is_not_told_its_place_looks_again(
    transport, topic, monkeypatch, caplog, options
):
    """Without an error for the reader, and from the place where the group is."""
    await transport.create_topic(topic, partitions=2)
    await transport.produce(topic, numbered(10))
    async with transport.subscribe(topic, "billing", **options) as consumer:
        await take(consumer, 10)
        await consumer.commit()
    await transport.produce(topic, numbered(10, 10))
    left = failing_lookups(monkeypatch, ASSIGN_TRIES + 1)
    async with transport.subscribe(topic, "billing", **options) as consumer:
        assert set(values_of(await take(consumer, 10))) == set(numbered(10, 10))
        await consumer.commit()
    assert left == [0]
    assert "cannot find where to start" in caplog.text


class Refusals:
    """Refuses some members their places."""

    def __init__(self, monkeypatch, code):
        self.members: set[KafkaMember] = set()
        self.told = 0
        starts = KafkaMember._starts

        def looked(member, partitions, *seconds):
            if partitions and member in self.members:
                self.told += 1
                raise KafkaException(KafkaError(code))
            return starts(member, partitions, *seconds)

        monkeypatch.setattr(KafkaMember, "_starts", looked)
        monkeypatch.setattr("penstock.transports.kafka_member.LOOK_SECONDS", 0.02)


@pytest.mark.parametrize("options", [{}, {"assignor": "range"}, {"protocol": "consumer"}])
async def test_a_partition_that_goes_before_its_place_is_known_is_read_when_it_is_back(
    transport, topic, monkeypatch, options
):
    await transport.create_topic(topic, partitions=2)
    await transport.produce(topic, numbered(10))
    refusals = Refusals(monkeypatch, KafkaError.NOT_COORDINATOR)
    make = KafkaMember.join

    def join(member):
        if not refusals.told:
            refusals.members.add(member)
        make(member)

    monkeypatch.setattr(KafkaMember, "join", join)
    first = transport.subscribe(topic, "billing", **options)
    joining = asyncio.ensure_future(first.__aenter__())
    async with asyncio.timeout(WAIT_SECONDS):
        while refusals.told <= ASSIGN_TRIES:
            await asyncio.sleep(0.01)
    async with transport.subscribe(topic, "billing", **options) as second:
        await second.next_batch(WAIT_SECONDS)
    refusals.members.clear()
    await joining
    got: set[bytes | None] = set()
    async with asyncio.timeout(WAIT_SECONDS):
        while len(got) < 10:
            got |= set(values_of((await first.next_batch()).records))
    await first.close()
    assert got == set(numbered(10))


@pytest.mark.parametrize("options", [{}, {"protocol": "consumer"}])
async def test_a_partition_whose_place_is_refused_costs_no_record_of_another(
    transport, topic, monkeypatch, options
):
    await transport.create_topic(topic, partitions=2)
    refusals = Refusals(monkeypatch, KafkaError.GROUP_AUTHORIZATION_FAILED)
    offsets: dict[int, list[int]] = {}
    async with transport.subscribe(topic, "billing", **options) as first:
        async with transport.subscribe(topic, "billing", **options):
            async with asyncio.timeout(WAIT_SECONDS):
                while len(first.assignment().partitions) != 1:
                    await asyncio.sleep(0.01)
            refusals.members.add(first._member)
        async with asyncio.timeout(WAIT_SECONDS):
            while refusals.told < 40:
                await transport.produce(topic, numbered(20))
                with suppress(PenstockError):
                    for record in (await first.next_batch(0.5)).records:
                        offsets.setdefault(record.partition, []).append(record.offset)
    assert len(offsets) == 1
    [found] = offsets.values()
    assert found == list(range(len(found)))


@pytest.mark.parametrize("options", [{}, {"assignor": "range"}])
async def test_what_was_held_when_it_went_is_read_when_it_is_back(
    transport, topic, monkeypatch, options
):
    monkeypatch.setattr("penstock.transports.kafka_consumer.BUFFER_RECORDS_MAX", 10)
    monkeypatch.setattr("penstock.transports.kafka_consumer.OVERSHOOT_MAX", 2)
    await transport.create_topic(topic, partitions=2)
    await transport.produce(topic, numbered(400))
    options = {"release_seconds": 0.1, **options}
    async with transport.subscribe(topic, "billing", **options) as slow:
        async with asyncio.timeout(WAIT_SECONDS):
            while not slow._is_held:
                await asyncio.sleep(0.01)
        async with transport.subscribe(topic, "billing", **options) as other:
            await other.next_batch(WAIT_SECONDS)
        got: set[bytes | None] = set()
        async with asyncio.timeout(WAIT_SECONDS):
            while len(got) < 400:
                got |= set(values_of((await slow.next_batch()).records))


@pytest.mark.parametrize("options", [{}, {"assignor": "range"}])
async def test_what_was_paused_when_it_went_and_resumed_meanwhile_is_read(
    transport, topic, options
):
    await transport.create_topic(topic, partitions=2)
    await transport.produce(topic, numbered(10))
    async with transport.subscribe(topic, "billing", **options) as first:
        await first.pause(0, 1)
        async with transport.subscribe(topic, "billing", **options) as other:
            await other.next_batch(WAIT_SECONDS)
            await first.resume(0, 1)
        got: set[bytes | None] = set()
        async with asyncio.timeout(WAIT_SECONDS):
            while len(got) < 10:
                got |= set(values_of((await first.next_batch()).records))


async def test_a_member_that_may_not_see_its_place_says_so(transport, topic, monkeypatch):
    await transport.create_topic(topic, partitions=1)
    await transport.produce(topic, numbered(3))
    failing_lookups(monkeypatch, 10_000, KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(PenstockError, match="authorization"):
        async with transport.subscribe(topic, "billing") as consumer:
            await consumer.next_batch(WAIT_SECONDS)


async def test_what_the_client_raises_below_a_callback_is_an_exception(server, transport, topic):
    """Where it comes as something that is none, the thread would end and nobody would hear of it."""
    await transport.create_topic(topic, partitions=1)
    client = Client({"bootstrap.servers": server.address, "group.id": topic})

    def assigned(client, partitions):
        client.committed(partitions, timeout=0.000_001)

    def heard():
        """In a thread that would end with what is no exception."""
        for _ in range(round(WAIT_SECONDS / 0.1)):
            try:
                raising(client.poll, 0.1)
            except KafkaException as error:
                return str(error)
        return "nothing"

    client.subscribe([topic], on_assign=assigned)
    try:
        async with asyncio.timeout(2 * WAIT_SECONDS):
            assert "committed offsets" in await asyncio.to_thread(heard)
    finally:
        client.close()


async def test_an_error_of_the_hook_is_told_to_the_reader(transport, topic):
    async def on_revoke(partitions):
        raise ValueError("no")

    await transport.create_topic(topic, partitions=2)
    async with transport.subscribe(topic, "billing", on_revoke=on_revoke) as first:
        async with transport.subscribe(topic, "billing") as second:
            with pytest.raises(PenstockError, match="on_revoke raised ValueError"):
                await first.next_batch(WAIT_SECONDS)
            async with asyncio.timeout(WAIT_SECONDS):
                while not second.assignment().partitions:
                    await asyncio.sleep(0.01)


# Transactions


@asynccontextmanager
async def reading(transport, topic):
    async with transport.subscribe(topic, f"{topic}-readers") as consumer:
        yield consumer


async def test_a_transaction_is_seen_whole_or_not_at_all(transport, topic):
    await transport.create_topic(topic, partitions=2)
    async with transport.producer(topic) as producer:
        with suppress(ZeroDivisionError):
            async with producer.transaction() as transaction:
                await transaction.publish_many(topic, numbered(10))
                1 / 0  # noqa: B018
        async with producer.transaction() as transaction:
            await transaction.publish(topic, b"10", key=b"k", headers={"a": b"b"}, timestamp=7)
            await transaction.publish_many(topic, numbered(4, 11))
            async with reading(transport, topic) as early:
                with pytest.raises(DeadlineExceeded):
                    await early.next_batch(0.5)
    async with reading(transport, topic) as consumer:
        records = await take(consumer, 5)
    assert set(values_of(records)) == set(numbered(5, 10))
    (first,) = [one for one in records if one.value == b"10"]
    assert (first.key, dict(first.headers), first.timestamp) == (b"k", {"a": b"b"}, 7)


async def test_records_and_offsets_are_one_transaction(transport, topic):
    target = f"{topic}-out"
    for name in (topic, target):
        await transport.create_topic(name, partitions=1)
    await transport.produce(topic, numbered(10))
    async with (
        transport.producer(topic) as producer,
        transport.subscribe(topic, "billing") as consumer,
    ):
        batch = await consumer.next_batch(WAIT_SECONDS, 4)
        with suppress(ZeroDivisionError):
            async with producer.transaction() as transaction:
                await transaction.publish_many(target, values_of(batch.records))
                transaction.commit_offsets(consumer, batch)
                1 / 0  # noqa: B018
        assert [one.committed for one in await transport.lag(topic, "billing")] == [0]
        async with producer.transaction() as transaction:
            await transaction.publish_many(target, values_of(batch.records))
            transaction.commit_offsets(consumer, batch)
            # Nothing is decided yet: that is how it was before.
            assert [one.committed for one in await transport.lag(topic, "billing")] == [0]
        assert [one.committed for one in await transport.lag(topic, "billing")] == [4]
    async with reading(transport, target) as reader:
        assert values_of(await take(reader, 4)) == numbered(4)


async def test_a_producer_that_was_opened_elsewhere_is_fenced(transport, topic):
    await transport.create_topic(topic, partitions=1)
    async with transport.producer(topic) as old:
        async with old.transaction() as transaction:
            await transaction.publish(topic, b"0")
        async with transport.producer(topic) as new:
            with pytest.raises(Fenced) as refused:
                async with old.transaction() as transaction:
                    await transaction.publish(topic, b"1")
            assert refused.value.reason == "epoch"
            async with new.transaction() as transaction:
                await transaction.publish(topic, b"2")
    async with reading(transport, topic) as reader:
        assert values_of(await take(reader, 2)) == [b"0", b"2"]


async def test_offsets_of_a_member_that_lost_its_partition_abort_the_transaction(transport, topic):
    target = f"{topic}-out"
    for name in (topic, target):
        await transport.create_topic(name, partitions=1)
    await transport.produce(topic, numbered(3))
    async with transport.producer(topic) as producer:
        zombie = transport.subscribe(topic, "billing")
        async with zombie:
            batch = await zombie.next_batch(WAIT_SECONDS)
            zombie._gone([0])
            with pytest.raises(Fenced) as refused:  # noqa: PT012
                async with producer.transaction() as transaction:
                    await transaction.publish(target, b"never")
                    transaction.commit_offsets(zombie, batch)
            assert refused.value.reason == "partition"
            # It is back, and the transaction is of the time before.
            zombie._gain({0: 0})
            with pytest.raises(Fenced) as refused:  # noqa: PT012
                async with producer.transaction() as transaction:
                    await transaction.publish(target, b"never")
                    transaction.commit_offsets(zombie, {0: 3})
                    zombie._gone([0])
                    zombie._gain({0: 3})
                    transaction.commit_offsets(zombie, {0: 3})
            assert refused.value.reason == "partition"
        async with producer.transaction() as transaction:
            await transaction.publish(target, b"seen")
    async with reading(transport, target) as reader:
        assert values_of(await take(reader, 1)) == [b"seen"]


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


# The same application as everywhere


def test_the_same_application_runs_on_it(server, tmp_path):
    check_application(server.url, tmp_path)


def test_the_example_of_its_page_runs(server):
    """docs/transports.md"""
    check_page(
        __file__,
        {"127.0.0.1:9092": server.address, ", replication_factor=3, min_insync_replicas=2": ""},
    )
