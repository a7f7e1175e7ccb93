"""The Kafka transport on a real broker: the suite, and what only Kafka has."""

import asyncio
import subprocess
import sys
from contextlib import suppress
from functools import partial

import pytest

from penstock.errors import (
    Closed,
    InvalidOption,
    NotSupported,
    PenstockError,
    RecordTooLarge,
    SubscriberBusy,
    UnknownTopic,
)
from penstock.testing import TransportConformance
from penstock.testing.transport_fixtures import WAIT_SECONDS, numbered, take, values_of
from tests.transports.application import check_application, check_page
from tests.transports.servers.kafka import kafka_server

pytest.importorskip("confluent_kafka")
from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.transports.kafka import KafkaTransport
from penstock.transports.kafka_member import ASSIGN_TRIES, KafkaMember, raising
from penstock.transports.kafka_offsets import CLIENTS_MAX, THREADS


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


# The same application as everywhere


def test_the_same_application_runs_on_it(server, tmp_path):
    check_application(server.url, tmp_path)


def test_the_example_of_its_page_runs(server):
    """docs/transports.md"""
    check_page(
        __file__,
        {"127.0.0.1:9092": server.address, ", replication_factor=3, min_insync_replicas=2": ""},
    )


# Errors of a coordinator


@pytest.mark.parametrize(
    "error",
    ["NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "UNSTABLE_OFFSET_COMMIT"],
)  # fmt: skip
def test_a_coordinator_that_is_not_ready_is_asked_again_and_ends_no_process(error):
    """A call of the client would: a broker that restarts must not take those with it who ask for a lag."""
    command = [sys.executable, "-m", "tests.transports.kafka_errors", error]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "{}\n"), ended.stderr


async def test_clients_for_the_offsets_of_many_groups_have_a_bound(transport, topic):
    await transport.create_topic(topic, partitions=1)
    await transport.produce(topic, numbered(2))
    names = [f"{topic}-{number}" for number in range(40)]
    lags = await asyncio.gather(*(transport.lag(topic, name) for name in names))
    assert [one[0].records for one in lags] == [2] * len(names)
    askers = transport._admin._group_offsets._askers
    assert [len(one._clients) for one in askers.values()] == [CLIENTS_MAX] * THREADS


# Names that others gave


async def test_topics_and_groups_whose_names_cannot_be_used_are_not_told(server, transport, topic):
    """Kafka takes names that begin with a dash, and groups that are called anything."""
    await transport.create_topic(topic, partitions=1)
    await transport.produce(topic, numbered(1))
    admin = AdminClient({"bootstrap.servers": server.address})
    await asyncio.wrap_future(admin.create_topics([NewTopic("-odd", 1)])["-odd"])
    for group in ("<b>one</b>", "usual"):
        other = Client({"bootstrap.servers": server.address, "group.id": group})
        await asyncio.to_thread(
            other.commit, offsets=[TopicPartition(topic, 0, 1)], asynchronous=False
        )
        other.close()
    told = await transport.topics()
    assert topic in told
    assert "-odd" not in told
    assert await transport.groups(topic) == ["usual"]
