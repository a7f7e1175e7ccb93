"""Cases of transactions and subscriptions that are alike but for one step, and what tells them apart."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import FsyncPolicy, TopicConfig, WalMessageQueue
from penstock.errors import (
    Closed,
    DeadlineExceeded,
    InvalidOption,
    RecordTooLarge,
    StoreFailed,
)
from penstock.log import changes, transaction, transaction_care, transaction_roll
from penstock.log.changes import POLL_SECONDS_MAX, POLL_SECONDS_MIN, Changes
from penstock.log.epoch import Epoch
from penstock.log.epoch_barrier import EpochBarrier
from penstock.log.epoch_replay import stretches
from penstock.log.offsets import OffsetFile
from penstock.log.producer import Producer
from penstock.log.producer_file import ProducerFile
from penstock.log.topics import Topics
from penstock.log.transaction import Transaction
from penstock.log.transaction_care import TransactionCare
from penstock.log.transaction_decision import OffsetMove
from penstock.log.transaction_staging import ShareBuilder, Target
from penstock.log.waiting import begin
from penstock.stores.memory import MemoryStore
from penstock.system import System
from penstock.testing.worker import simulated_system
from tests.log.small_log import TOPIC
from tests.log.test_small_promises import make, part

# Transactions


def care_of(store: MemoryStore, *moves: OffsetMove) -> Any:
    made: Any = TransactionCare(store, part(), System())
    made._pending = lambda name: part(moves=moves) if moves else None
    return made


def test_a_group_is_behind_when_a_decided_move_did_not_happen_yet():
    store = MemoryStore()
    assert not care_of(store)._is_behind("producer", "billing")
    first = OffsetMove("billing", TOPIC, 0, -1, 5)
    assert care_of(store, first)._is_behind("producer", "billing")
    assert not care_of(store, first)._is_behind("producer", "another")
    OffsetFile(store, "billing", TOPIC, 0).commit(5, 1)
    assert not care_of(store, first)._is_behind("producer", "billing")
    nowhere = OffsetMove("billing", TOPIC, 0, 5, 5)
    assert not care_of(store, nowhere)._is_behind("producer", "billing")
    further = OffsetMove("billing", TOPIC, 0, 5, 6)
    assert care_of(store, first, nowhere, further)._is_behind("producer", "billing")


def test_what_a_live_process_is_at_is_left_to_it_and_other_trouble_is_told(monkeypatch):
    monkeypatch.setattr(transaction_care, "producer_names", lambda store: ["a", "b", "c"])
    trouble = StoreFailed("the disk")
    waited: list[tuple[str, float]] = []

    def finish(name: str, timeout: float) -> None:
        waited.append((name, timeout))
        if name != "c":
            raise DeadlineExceeded("at work") if name == "a" else trouble

    found = TransactionCare.settle(part(_store=None, _transactions=part(finish=finish)))
    assert found == [trouble]
    assert waited == [("a", 0), ("b", 0), ("c", 0)]


async def test_records_are_staged_when_there_are_enough_of_them(monkeypatch):
    monkeypatch.setattr(transaction, "STAGE_BYTES", 10)
    staged: list[Any] = []
    writers: list[str] = []

    def writer(name: str) -> Any:
        writers.append(name)
        return part(add_drafted=staged.append)

    made = part(_bytes=0, _writer=None, _producer=part(name="billing"))
    made._producer.transactions = part(writer=writer)

    def drafts() -> str:
        size, made._bytes = made._bytes, 0
        return f"{size} bytes"

    made._drafts = drafts
    for size in (4, 5, 1, 3, 8):
        await Transaction._grow(made, size)
    assert staged == ["10 bytes", "11 bytes"]
    assert writers == ["billing"]


@pytest.mark.parametrize(
    ("sizes", "portions"),
    [([5, 5], [[5, 5]]), ([5, 6], [[5], [6]]), ([5, 6, 4, 1], [[5], [6, 4], [1]]), ([11], [[11]])],
)
def test_one_append_takes_as_many_entries_as_fit(monkeypatch, sizes, portions):
    monkeypatch.setattr(transaction_roll, "APPEND_BYTES_MAX", 10)
    monkeypatch.setattr(transaction_roll, "_draft", lambda decision, number, one, body: body)
    notes: Any = [(number, part(stored_length=size)) for number, size in enumerate(sizes)]
    bodies: Any = lambda one: one.stored_length  # noqa: E731
    decision: Any = None
    assert list(transaction_roll._portions(decision, notes, bodies)) == portions


def test_what_producers_did_is_counted():
    woken: list[str] = []
    counts = part(transactions=0, repeated=0, records=0)
    world = part(_counts=counts, _engine=part(changes=part(wake=woken.append)))
    outcome: Any = part(repeated=True, records=3)
    Producer.committed(world, outcome, ["a", "b"])
    Producer.committed(world, outcome, [])
    assert vars(counts) == {"transactions": 2, "repeated": 2, "records": 6}
    assert woken == ["a", "b"]


@pytest.mark.parametrize("offset", [0, 3])
def test_the_furthest_offset_of_a_transaction_counts(offset):
    holdings = iter(range(4))
    owner: Any = part(topic=TOPIC, held=lambda done: dict.fromkeys(done, next(holdings)))
    made = part(_check=lambda: None, _owner=None, _offsets={}, _held={})
    for one in (offset, offset + 2, offset + 1):
        Transaction.commit_offsets(made, owner, {0: one})
    assert made._offsets == {0: offset + 2}
    assert made._held == {0: 0}, "the first one counts"
    Transaction.commit_offsets(made, owner, {1: offset})
    assert made._offsets[1] == offset


def test_a_record_of_a_transaction_may_be_as_large_as_one_may_be():
    topic: Any = part(name=TOPIC, state=part(config=TopicConfig(record_bytes_max=5)))
    transaction._check_size(topic, 5)
    with pytest.raises(RecordTooLarge):
        transaction._check_size(topic, 6)


async def test_a_sequence_is_not_published_in_less_than_no_time():
    async with make(simulated_system()) as queue:
        await queue.create_topic("rows")
        producer = queue.producer("outbox")
        with pytest.raises(InvalidOption):
            await producer.publish("rows", b"0", sequence=0, timeout=-1)
        await producer.close()
        assert queue.durable_offset("rows") == 0


def test_a_share_whose_partition_has_no_end_yet_begins_at_its_first_offset():
    shares = ShareBuilder()
    here, there = Target(TOPIC, 0, 0), Target(TOPIC, 1, 0)
    shares.add(here, [])
    shares.add(there, [])
    assert [one.since for one in shares.shares()] == [0, 0]
    assert [one.since for one in shares.shares({there: 7})] == [0, 7]


def test_a_lease_is_on_the_disk_before_it_is_used(monkeypatch):
    """Otherwise a power cut could give its epoch to another one."""
    store = MemoryStore()
    synced: list[tuple[str, bytes]] = []
    monkeypatch.setattr(store, "sync", lambda key: synced.append((key, store.read(key))))
    file = ProducerFile(store, "billing")
    made = [file.open(System()) for _ in range(2)]
    assert synced == [(file.key, store.read(file.key))]
    assert [one.epoch for one in made] == [1, 2]
    assert file.read() == made[-1]


# Subscriptions, and what goes on when a caller is gone


@contextmanager
def no_complaints() -> Iterator[None]:
    """Nothing is said of an error that nobody asked for."""
    loop = asyncio.get_running_loop()
    complaints: list[Any] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    yield
    gc.collect()
    assert complaints == []


async def test_work_whose_caller_is_gone_ends_quietly():
    async def fail() -> None:
        raise StoreFailed("the disk")

    with no_complaints():
        at_work: set[asyncio.Future[Any]] = set()
        begin(at_work, fail())
        begin(at_work, asyncio.sleep(60)).cancel()
        assert len(at_work) == 2
        await asyncio.wait(at_work)
        await asyncio.sleep(0)
        assert at_work == set()


async def test_a_topic_is_opened_once_however_many_ask():
    async with make(simulated_system()) as queue:
        topics = queue._engine.topics
        found = await asyncio.gather(*(topics.open("orders", TopicConfig()) for _ in range(3)))
        assert found[0] is found[1] is found[2] is queue._opened["orders"]


async def test_a_topic_that_nobody_waits_for_any_more_fails_quietly():
    with no_complaints():
        world = part(_opening={"orders": 1})
        failed: Any = asyncio.get_running_loop().create_future()
        failed.set_exception(StoreFailed("the disk"))
        Topics._settled(world, "orders", failed)
        assert world._opening == {}
        given_up: Any = asyncio.get_running_loop().create_future()
        given_up.cancel()
        Topics._settled(world, "orders", given_up)
        del failed, given_up


async def test_closing_a_subscription_waits_for_a_call_that_was_given_up(half_open):
    queue, subscription, opening, go_on = half_open
    opening.cancel()
    await asyncio.wait({opening})
    assert len(subscription._at_work) == 1
    closing = asyncio.create_task(subscription.close())
    done, _ = await asyncio.wait({closing}, timeout=0.05)
    go_on.set()
    assert not done
    await closing
    assert not subscription._at_work
    async with queue.subscribe("orders", "billing"):
        pass


async def test_arrow_is_read_from_partitions_that_another_process_made(tmp_path):
    async with (
        WalMessageQueue(tmp_path / "log") as queue,
        WalMessageQueue(tmp_path / "log") as other,
    ):
        await queue.publish("orders", b"0")
        await other.repartition("orders", 2)
        assert (await queue.read_arrow("orders", partition=1)).num_rows == 0


async def test_an_offset_is_sought_in_one_partition():
    async with make(simulated_system(), defaults=TopicConfig(partitions=2)) as queue:
        await queue.publish_many("orders", [b"0", b"1", b"2", b"3"])
        async with queue.subscribe("orders", "billing") as subscription:
            with pytest.raises(InvalidOption):
                await subscription.seek(1)
            await subscription.seek(1, partition=0)
            assert subscription.positions() == {0: 1, 1: 0}


async def test_closing_a_queue_frees_its_journals_and_subscribers():
    store = MemoryStore()
    options: dict[str, Any] = {"system": simulated_system(), "maintenance_interval": None}
    found = []
    kept: list[Any] = []
    for value in (b"1", b"2"):
        async with WalMessageQueue(store, **options) as queue:
            journal = queue.journal("bus")
            found.append(dict(await journal.open()))
            await journal.change({"a": value})
            await queue.publish("orders", value)
            subscription = queue.subscribe("orders", "billing")
            await subscription.open()
            kept += [journal, subscription]
    assert found == [{}, {"a": b"1"}]


async def test_a_change_of_a_journal_is_durable_whatever_its_topic_says():
    async with make(simulated_system()) as queue:
        journal = queue.journal("bus")
        await journal.open()
        await queue.change_topic(journal.topic, fsync=FsyncPolicy.EVERY_N_MESSAGES)
        await journal.change({"a": b"1", "b": b"2"})
        assert queue.durable_offset(journal.topic) == 2


async def test_a_closed_journal_says_that_it_is_closed():
    async with make(simulated_system(immediate=True)) as queue:
        journal = queue.journal("bus")
        await journal.open()
        await journal.close()
        for call in (journal.open(), journal.change({"a": b"1"}), journal.change({})):
            with pytest.raises(Closed, match="make a new one"):
                await call


@pytest.mark.parametrize("watched", [False, True])
async def test_heads_are_asked_less_often_the_longer_nothing_happens(monkeypatch, watched):
    pauses: list[float] = []
    asked: list[str] = []
    world = part(_watch=None, _pause=POLL_SECONDS_MIN)
    world._waiters = {"orders": {1}, "quiet": set()}

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def ask(topic: str) -> None:
        asked.append(topic)
        if len(asked) == 20:
            if watched:
                world._watch = object()
            else:
                world._waiters["orders"].clear()

    world._ask = ask
    monkeypatch.setattr(changes, "asyncio", SimpleNamespace(sleep=sleep, gather=asyncio.gather))
    await asyncio.wait_for(Changes._poll(world), 30)
    assert asked == ["orders"] * 20
    assert pauses[0] == POLL_SECONDS_MIN
    assert pauses[-1] == POLL_SECONDS_MAX
    assert pauses == sorted(pauses)
    assert pauses[1] == pytest.approx(POLL_SECONDS_MIN * 1.3)


def test_a_replay_is_cut_where_epochs_begin():
    epochs = (Epoch(0, 2, 0), Epoch(1, 2, 0, (3, 4)), Epoch(2, 2, 0, (3, 6)))
    topic: Any = part(state=part(epochs=epochs))
    found = [tuple(one) for one in stretches(topic, {0: (1, 3), 1: (0, 9)})]
    assert found == [(0, 1, 3), (1, 0, 4), (1, 4, 6), (1, 6, 9)]
    assert list(stretches(topic, {0: (5, 5)})) == []


def test_epochs_that_are_forgotten_do_not_open_those_that_came():
    epochs = tuple(Epoch(number, 1, 0, (5 * number,)) for number in range(4))
    barrier = EpochBarrier()
    barrier.follow(epochs[:3])
    assert barrier.advance([0], lambda _: 12)
    assert barrier.is_last
    barrier.follow(epochs[2:])
    assert not barrier.is_last
    assert barrier.end(0) == 15
    assert barrier.left([0], lambda _: 14) == [0]
    assert not barrier.advance([0], lambda _: 14)
    assert barrier.advance([0], lambda _: 15)
