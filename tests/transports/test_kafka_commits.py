"""Commits to Kafka that are on their way while records are fetched."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from penstock.testing.transport_fixtures import (
    WAIT_SECONDS,
    by_partition,
    numbered,
    take,
    values_of,
)
from tests.transports.servers.kafka import kafka_server

pytest.importorskip("confluent_kafka")
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from penstock.transports.kafka import KafkaTransport
from penstock.transports.kafka_holdings import Holdings, Owned
from penstock.transports.kafka_member import KafkaMember
from penstock.transports.kafka_sent import HEAR_SECONDS, NEXT_SECONDS, SentCommits
from penstock.transports.records import StreamRecord

CONSUMER = "penstock.transports.kafka_consumer"
MEMBER = "penstock.transports.kafka_member"
SENT = "penstock.transports.kafka_sent"


@pytest.fixture(scope="module")
def server():
    with kafka_server() as running:
        yield running


@pytest.fixture
async def transport(server):
    async with KafkaTransport(server.url) as opened:
        yield opened


class Withheld:
    """Answers of the broker that the client has, and does not tell."""

    def __init__(self, monkeypatch):
        self._tell = SentCommits.answered
        self._got: list[tuple[Any, ...]] = []
        monkeypatch.setattr(SentCommits, "answered", lambda *told: self._got.append(told))

    async def wait(self):
        async with asyncio.timeout(WAIT_SECONDS):
            while not self._got:
                await asyncio.sleep(0.001)

    def tell(self):
        while self._got:
            self._tell(*self._got.pop(0))


@pytest.fixture
def withheld(monkeypatch):
    return Withheld(monkeypatch)


async def lag_of(transport, topic):
    return sum(one.records for one in await transport.lag(topic, "billing"))


async def begun_commit(transport, topic, consumer, withheld):
    """Produce, take and commit; the broker has it, and the commit does not know."""
    await transport.produce(topic, numbered(10))
    await take(consumer, 10)
    committing = asyncio.ensure_future(consumer.commit())
    await withheld.wait()
    assert not committing.done()
    return committing


# With a broker


async def test_a_commit_returns_when_its_answer_is_told(transport, topic, withheld):
    await transport.create_topic(topic, partitions=1)
    async with transport.subscribe(topic, "billing") as consumer:
        committing = await begun_commit(transport, topic, consumer, withheld)
        assert await lag_of(transport, topic) == 0
        withheld.tell()
        async with asyncio.timeout(WAIT_SECONDS):
            await committing


async def test_records_are_delivered_while_a_commit_waits(transport, topic, withheld):
    await transport.create_topic(topic, partitions=1)
    async with transport.subscribe(topic, "billing") as consumer:
        committing = await begun_commit(transport, topic, consumer, withheld)
        await transport.produce(topic, numbered(10, 10))
        assert values_of(await take(consumer, 10)) == numbered(10, 10)
        withheld.tell()
        async with asyncio.timeout(WAIT_SECONDS):
            await committing
        assert await lag_of(transport, topic) == 10


async def test_a_commit_that_is_cancelled_is_not_overtaken(transport, topic, withheld):
    await transport.create_topic(topic, partitions=1)
    async with transport.subscribe(topic, "billing") as consumer:
        committing = await begun_commit(transport, topic, consumer, withheld)
        committing.cancel()
        await transport.produce(topic, numbered(10, 10))
        await take(consumer, 10)
        next_one = asyncio.ensure_future(consumer.commit())
        await asyncio.wait([committing])
        assert await lag_of(transport, topic) == 10
        withheld.tell()
        await withheld.wait()
        withheld.tell()
        async with asyncio.timeout(WAIT_SECONDS):
            await next_one
        assert await lag_of(transport, topic) == 0


async def test_closing_waits_for_the_answer(transport, topic, withheld):
    await transport.create_topic(topic, partitions=1)
    consumer = transport.subscribe(topic, "billing")
    await consumer.open()
    committing = await begun_commit(transport, topic, consumer, withheld)
    waiting = asyncio.ensure_future(consumer.commit({0: 10}))
    closing = asyncio.ensure_future(consumer.close())
    await lag_of(transport, topic)
    assert not closing.done()
    withheld.tell()
    async with asyncio.timeout(WAIT_SECONDS):
        await asyncio.gather(committing, waiting, closing)


async def test_seeking_waits_for_the_answer_and_wins(transport, topic, withheld):
    await transport.create_topic(topic, partitions=1)
    async with transport.subscribe(topic, "billing") as consumer:
        committing = await begun_commit(transport, topic, consumer, withheld)
        seeking = asyncio.ensure_future(consumer.seek("earliest"))
        await lag_of(transport, topic)
        assert not seeking.done()
        withheld.tell()
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.gather(committing, seeking)
        assert values_of(await take(consumer, 10)) == numbered(10)
        assert await lag_of(transport, topic) == 10


@pytest.mark.parametrize("options", [{}, {"assignor": "range"}, {"protocol": "consumer"}])
async def test_what_has_no_answer_is_settled_before_its_partition_goes(
    transport, topic, withheld, options
):
    """While a partition is released nobody hears answers, and the release waits for the commits."""
    await transport.create_topic(topic, partitions=2)
    async with transport.subscribe(topic, "billing", **options) as first:
        committing = await begun_commit(transport, topic, first, withheld)
        async with transport.subscribe(topic, "billing", **options) as second:
            async with asyncio.timeout(WAIT_SECONDS):
                await committing
                while not second.assignment().partitions:
                    await asyncio.sleep(0.01)
            withheld.tell()
            await transport.produce(topic, numbered(10, 10))
            got: set[bytes | None] = set()
            async with asyncio.timeout(WAIT_SECONDS):
                while len(got) < 10:
                    ready = [asyncio.ensure_future(one.next_batch()) for one in (first, second)]
                    done, left = await asyncio.wait(ready, return_when="FIRST_COMPLETED")
                    for one in left:
                        one.cancel()
                    got |= {value for one in done for value in values_of(one.result().records)}
            assert got == set(numbered(10, 10))


async def test_a_commit_inside_a_release_is_answered(transport, topic):
    await transport.create_topic(topic, partitions=2)
    await transport.produce(topic, numbered(20))
    committed: list[frozenset[int]] = []

    async def on_revoke(partitions):
        await first.commit()
        committed.append(partitions)

    first = transport.subscribe(topic, "billing", on_revoke=on_revoke)
    async with first:
        await take(first, 20)
        async with transport.subscribe(topic, "billing"), asyncio.timeout(WAIT_SECONDS):
            while not committed:
                await asyncio.sleep(0.01)
    assert await lag_of(transport, topic) == 0


async def filled(consumer):
    async with asyncio.timeout(WAIT_SECONDS):
        while consumer._owned.is_filling or not consumer._owned.buffered:
            await asyncio.sleep(0.001)


async def test_a_full_buffer_hears_the_answer_to_a_commit(transport, topic, monkeypatch):
    monkeypatch.setattr(f"{CONSUMER}.BUFFER_RECORDS_MAX", 10)
    await transport.create_topic(topic, partitions=1)
    await transport.produce(topic, numbered(400))
    async with transport.subscribe(topic, "billing") as consumer:
        await filled(consumer)
        async with asyncio.timeout(WAIT_SECONDS):
            await consumer.calls.commit({0: 5}, is_fetching=True)
            # Whoever wants the thread for itself must not keep it from hearing.
            await asyncio.gather(consumer.calls.commit({0: 6}, is_fetching=True), consumer.pause(0))
        assert await lag_of(transport, topic) == 394
        await consumer.resume(0)
        assert values_of(await take(consumer, 400)) == numbered(400)


async def test_who_commits_each_record_waits_for_no_records(transport, topic, monkeypatch):
    """A call of the client that waits for records ends with the answer, and the next commit is taken."""
    await transport.create_topic(topic, partitions=1)
    await transport.produce(topic, numbered(20))
    async with transport.subscribe(topic, "billing") as consumer, asyncio.timeout(WAIT_SECONDS):
        await take(consumer, 20)
        for name in (
            f"{MEMBER}.SLICE_SECONDS",
            f"{SENT}.NEXT_SECONDS",
            f"{CONSUMER}.POLL_SECONDS",
        ):
            monkeypatch.setattr(name, 1.5 * WAIT_SECONDS)
        await transport.produce(topic, [b"ends what still waits by the old figures"])
        await take(consumer, 1)
        first = asyncio.ensure_future(consumer.commit({0: 1}))
        await transport.produce(topic, [b"ends what waits for records, once"])
        try:
            await first
            for offset in range(2, 21):
                await consumer.commit({0: offset})
        finally:
            monkeypatch.undo()
            await transport.produce(topic, [b"lets it close"])
        await consumer.commit({0: 21})
        await take(consumer, 2)
    assert await lag_of(transport, topic) == 2


@pytest.mark.parametrize("buffer", [10, 20_000])
async def test_small_portions_keep_order_and_lose_nothing(transport, topic, monkeypatch, buffer):
    monkeypatch.setattr(f"{MEMBER}.PORTION_RECORDS", 7)
    monkeypatch.setattr(f"{CONSUMER}.BUFFER_RECORDS_MAX", buffer)
    await transport.create_topic(topic, partitions=3)
    await transport.produce(topic, numbered(1_000))
    got: list[StreamRecord] = []
    async with transport.subscribe(topic, "billing") as consumer, asyncio.timeout(WAIT_SECONDS):
        while len(got) < 1_000:
            batch = await consumer.next_batch(records_max=20)
            got += batch.records
            await consumer.commit(batch)
    for records in by_partition(got).values():
        assert [one.offset for one in records] == list(range(len(records)))
    assert len(got) == 1_000
    assert set(values_of(got)) == set(numbered(1_000))
    assert await lag_of(transport, topic) == 0


# Without one


class Told(list[Exception | None]):
    """What was settled: the error of each, or None."""

    def settle(self, function, *arguments):
        try:
            function(*arguments)
        except Exception as error:
            self.append(error)
        else:
            self.append(None)


def places(offsets, code=None):
    """As the client tells of them."""
    if code is not None:
        return [Refused(number, at, KafkaError(code)) for number, at in offsets.items()]
    return [TopicPartition("orders", number, at) for number, at in offsets.items()]


class Refused:
    """A place as the client tells of one that was refused."""

    def __init__(self, partition, offset, error):
        self.partition, self.offset, self.error = partition, offset, error


@pytest.mark.parametrize(
    ("error", "code"), [(KafkaError.ILLEGAL_GENERATION, None), (None, KafkaError.UNKNOWN_MEMBER_ID)]
)
def test_a_refusal_is_raised_as_a_whole_or_of_a_partition(error, code):
    sent, told = SentCommits(), Told()
    sent.send(int, {0: 5}, told.settle)
    sent.answered(None if error is None else KafkaError(error), places({0: 5}, code))
    [found] = told
    assert isinstance(found, KafkaException)
    assert found.args[0].code() == (error or code)
    assert not len(sent)


def test_an_answer_without_places_is_that_of_the_oldest():
    sent, first, second = SentCommits(), Told(), Told()
    sent.send(int, {0: 5}, first.settle)
    sent.send(int, {0: 6}, second.settle)
    sent.answered(KafkaError(KafkaError._WAIT_COORD), [])
    assert (len(first), len(second)) == (1, 0)
    sent.answered(None, places({0: 6}))
    assert second == [None]


def test_what_the_client_does_not_send_is_told_at_once():
    def refuse():
        raise RuntimeError("closed")

    sent, told = SentCommits(), Told()
    sent.send(refuse, {0: 5}, told.settle)
    assert [type(one) for one in told] == [RuntimeError]
    assert not len(sent)


def test_the_next_commit_is_waited_for_once_after_an_answer():
    sent = SentCommits()
    assert sent.pause() == 0
    sent.send(int, {0: 5}, Told().settle)
    assert sent.pause() == sent.pause() == HEAR_SECONDS
    sent.answered(None, places({0: 5}))
    assert sent.pause() == NEXT_SECONDS
    assert sent.pause() == 0


def test_an_answer_that_comes_late_is_not_that_of_the_next_commit():
    sent, first, second = SentCommits(), Told(), Told()
    again: list[Mapping[int, int]] = []
    sent.send(int, {0: 5}, first.settle)
    sent.settle(again.append)
    assert (again, first) == ([{0: 5}], [None])
    sent.send(int, {0: 6}, second.settle)
    sent.answered(KafkaError(KafkaError._TIMED_OUT), places({0: 5}))
    assert (first, second) == ([None], [])
    sent.answered(None, places({0: 6}))
    assert second == [None]


def test_the_buffer_is_filled_from_when_a_good_part_is_free_until_it_is_full():
    owned = Holdings("orders", "billing", lambda: None)
    owned[0] = Owned(0, 0)

    def fill(count):
        owned.accept([(0, [StreamRecord("orders", 0, at, 0, None, b"") for at in range(count)])])

    assert owned.should_fill(8)
    fill(7)
    assert owned.should_fill(8)
    fill(1)
    assert not owned.should_fill(8)
    owned.take(1)
    assert not owned.should_fill(8)
    owned.take(1)
    assert owned.should_fill(8)
    fill(1)
    owned.is_filling = False
    owned.paused = {0}
    assert owned.should_fill(8)  # what waits is nobody's now, and others may have records


def test_a_member_whose_thread_waits_commits_at_once(monkeypatch):
    committed = []
    member = KafkaMember.__new__(KafkaMember)
    member._is_releasing = True
    monkeypatch.setattr(KafkaMember, "commit", lambda _, offsets: committed.append(offsets))
    told = Told()
    member.send({0: 5}, told.settle)
    assert (committed, told) == ([{0: 5}], [None])
