"""Producers and transactions on the event loop."""

import asyncio
from collections import Counter
from contextlib import suppress

import pytest

from penstock import TopicConfig, WalMessageQueue
from penstock.errors import (
    Closed,
    Fenced,
    InvalidOption,
    RecordTooLarge,
    RetentionFull,
    StoreFailed,
    TransactionPending,
    UsageError,
)
from penstock.log import sequences, transaction
from penstock.log.columns import Columns
from penstock.log.topic import Retention, WhenFull
from penstock.log.transactions import Transactions
from penstock.stores import DirectoryStore, MemoryStore
from penstock.system import OsFiles, System
from penstock.transports.embedded import EmbeddedTransport

TWO = TopicConfig(partitions=2)


class FailingFiles(OsFiles):
    """Writes of some paths fail while there is a reason to."""

    def __init__(self) -> None:
        self.failing = ""
        self._paths: dict[int, str] = {}

    def open(self, path: str, *, create: bool = False, write: bool = True) -> int:
        descriptor = super().open(path, create=create, write=write)
        self._paths[descriptor] = path
        return descriptor

    def write(self, descriptor, buffers, position) -> None:
        if self.failing and self.failing in self._paths[descriptor]:
            raise OSError(28, "no space left")
        super().write(descriptor, buffers, position)


@pytest.fixture
async def queue(tmp_path):
    async with WalMessageQueue(tmp_path / "log", defaults=TWO) as made:
        yield made


@pytest.fixture
def files():
    return FailingFiles()


@pytest.fixture
async def failing(tmp_path, files):
    async with WalMessageQueue(tmp_path / "log", defaults=TWO, system=System(files=files)) as made:
        yield made


async def values(queue, topic):
    return sorted([record.value async for record in queue.replay(topic)])


async def raise_in(tx, doing):
    """A block that does something and raises."""
    async with tx:
        await doing
        raise ZeroDivisionError


# Transactions


async def test_a_block_commits_all_of_it_at_its_end(queue):
    async with queue.transaction("billing") as tx:
        await tx.publish("invoices", b"1", key=b"a", headers={"h": b"x"}, timestamp=5)
        await tx.publish("invoices", b"2")
        await tx.publish_many("journal", [b"3", b"4"], keys=[b"b", None])
        await queue.create_topic("invoices")
        assert await values(queue, "invoices") == []
    assert tx.outcome == ("billing", 0, False, 4)
    assert await values(queue, "invoices") == [b"1", b"2"]
    assert await values(queue, "journal") == [b"3", b"4"]
    (first,) = [one async for one in queue.replay("invoices") if one.value == b"1"]
    assert (first.key, first.headers, first.timestamp) == (b"a", {"h": b"x"}, 5)


async def test_a_block_that_raises_aborts(queue):
    tx = queue.transaction("billing")
    with pytest.raises(ZeroDivisionError):
        await raise_in(tx, tx.publish("invoices", b"1"))
    assert tx.outcome is None
    assert await values(queue, "invoices") == []
    with pytest.raises(Closed):
        await tx.publish("invoices", b"2")
    with pytest.raises(Closed):
        await tx.commit()
    await tx.abort()


async def test_a_subscriber_in_the_same_process_is_woken(queue):
    await queue.create_topic("invoices")
    async with queue.subscribe("invoices", "reader") as reader:
        waiting = asyncio.create_task(reader.next_batch(30))
        async with queue.transaction("billing") as tx:
            await tx.publish("invoices", b"1")
        assert [one.value for one in (await waiting).records] == [b"1"]


async def test_more_than_fits_memory_is_staged_on_the_way(queue, monkeypatch):
    monkeypatch.setattr(transaction, "STAGE_BYTES", 2_000)
    async with queue.transaction("billing") as tx:
        for number in range(100):
            await tx.publish("invoices", b"%d" % number, key=b"k")
    assert [int(one.value) async for one in queue.replay("invoices")] == list(range(100))
    tx = queue.transaction("billing")
    with pytest.raises(ZeroDivisionError):
        await raise_in(tx, tx.publish_many("invoices", [b"x" * 100] * 100))
    assert not queue.store.list("producers/billing/staged/")
    assert len(await values(queue, "invoices")) == 100


async def test_staged_records_of_another_process_join(queue, tmp_path):
    await queue.create_topic("invoices")
    with DirectoryStore(tmp_path / "log") as store:
        elsewhere = Transactions(store)
        staged = elsewhere.stage("billing", {"invoices": Columns([b"1", b"2"])})
        elsewhere.close()
    async with queue.transaction("billing", number=3) as tx:
        tx.add_staged(staged)
        await tx.publish("invoices", b"3")
    assert await values(queue, "invoices") == [b"1", b"2", b"3"]
    async with queue.transaction("billing", number=3) as tx:
        await tx.publish("invoices", b"4")
    assert tx.outcome is not None
    assert tx.outcome.repeated
    assert await values(queue, "invoices") == [b"1", b"2", b"3"]


async def test_offsets_of_a_subscriber_move_with_it(queue):
    await queue.publish_many("orders", [b"1", b"2", b"3"], keys=[b"k"] * 3)
    async with queue.subscribe("orders", "billing") as orders:
        batch = await orders.next_batch(30)
        tx = queue.transaction("billing")
        tx.commit_offsets(orders, batch)
        with pytest.raises(ZeroDivisionError):
            await raise_in(tx, tx.publish("invoices", b"0"))
        async with queue.transaction("billing") as tx:
            await tx.publish("invoices", b"1")
            tx.commit_offsets(orders, {batch.partition: batch.next_offset - 1})
        async with queue.transaction("billing") as tx:
            await tx.publish("invoices", b"2")
            tx.commit_offsets(orders)
        with pytest.raises(UsageError):
            tx.commit_offsets(orders)
    async with queue.subscribe("orders", "billing") as orders:
        assert orders.lag() == 0


async def test_offsets_of_two_consumers_are_refused(queue):
    await queue.publish("orders", b"1")
    async with queue.subscribe("orders", "a") as one, queue.subscribe("orders", "b") as other:
        batch = await one.next_batch(30)
        async with queue.transaction("billing") as tx:
            tx.commit_offsets(one, batch)
            with pytest.raises(UsageError, match="one consumer"):
                tx.commit_offsets(other, batch)
            await queue.publish("elsewhere", b"1")
            async with queue.subscribe("elsewhere", "c") as third:
                wrong = await third.next_batch(30)
            with pytest.raises(UsageError, match="the batch is of"):
                tx.commit_offsets(one, wrong)
        assert one.lag() == 0


async def test_a_consumer_whose_partition_went_away_is_fenced(tmp_path):
    async with EmbeddedTransport(tmp_path / "log", defaults=TopicConfig(partitions=1)) as transport:
        queue = transport.queue
        await transport.produce("orders", [b"1"])
        async with transport.subscribe("orders", "billing") as consumer:
            batch = await consumer.next_batch(30)
        tx = queue.transaction("billing")
        await tx.publish("invoices", b"1")
        tx.commit_offsets(consumer, batch)
        with pytest.raises((Fenced, Closed)):
            await tx.commit()
        assert await values(queue, "invoices") == []
        async with transport.subscribe("orders", "billing") as consumer:
            again = await consumer.next_batch(30)
            async with queue.transaction("billing") as tx:
                await tx.publish("invoices", b"1")
                tx.commit_offsets(consumer, again)
        assert [one.records for one in await transport.lag("orders", "billing")] == [0]
        assert await values(queue, "invoices") == [b"1"]


async def test_a_producer_that_was_opened_elsewhere_is_fenced(queue, tmp_path):
    async with queue.producer("billing") as mine:
        async with WalMessageQueue(tmp_path / "log") as other, other.producer("billing") as theirs:
            tx = mine.transaction()
            await tx.publish("invoices", b"1")
            with pytest.raises(Fenced):
                await tx.commit()
            async with theirs.transaction() as tx:
                await tx.publish("invoices", b"2")
        await mine.open()
        async with mine.transaction() as tx:
            await tx.publish("invoices", b"3")
        assert mine.statistics().transactions == 1
    assert await values(queue, "invoices") == [b"2", b"3"]


async def test_many_transactions_of_one_producer_at_the_same_time(queue):
    async def one(number):
        async with queue.transaction("billing") as tx:
            await tx.publish("invoices", b"%d" % number)
            await asyncio.sleep(0)
            await tx.publish("journal", b"%d" % number)

    await asyncio.gather(*(one(number) for number in range(40)))
    for topic in ("invoices", "journal"):
        assert sorted(map(int, await values(queue, topic))) == list(range(40))


async def test_a_cancelled_commit_goes_on(queue):
    tx = queue.transaction("billing")
    await tx.publish("invoices", b"1")
    committing = asyncio.create_task(tx.commit())
    await asyncio.sleep(0)
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    await queue.close()
    async with WalMessageQueue(queue.store.path) as again:
        assert await values(again, "invoices") == [b"1"]


async def test_a_failing_disk_after_the_decision_is_told_and_mended_by_the_next_open(
    failing, files, tmp_path
):
    await failing.create_topic("invoices")
    files.failing = "/topics/invoices/"
    tx = failing.transaction("billing")
    await tx.publish("invoices", b"1")
    with pytest.raises(TransactionPending) as told:
        await tx.commit()
    assert isinstance(told.value.__cause__, StoreFailed)
    assert await values(failing, "invoices") == []
    async with WalMessageQueue(tmp_path / "log") as other:
        assert await values(other, "invoices") == [b"1"]
    files.failing = ""
    async with failing.transaction("billing") as tx:
        await tx.publish("invoices", b"2")
    assert await values(failing, "invoices") == [b"1", b"2"]


async def test_maintenance_finishes_what_was_left(failing, files):
    await failing.create_topic("invoices")
    files.failing = "/topics/invoices/"
    tx = failing.transaction("billing")
    await tx.publish("invoices", b"1")
    with pytest.raises(TransactionPending):
        await tx.commit()
    await failing.maintain()
    files.failing = ""
    await failing.maintain()
    assert await values(failing, "invoices") == [b"1"]


async def test_sizes_and_types_are_checked_when_a_record_is_added(queue):
    await queue.create_topic("small", TopicConfig(record_bytes_max=4, buffer_bytes_max=4))
    async with queue.transaction("billing") as tx:
        with pytest.raises(RecordTooLarge):
            await tx.publish("small", b"12345")
        with pytest.raises(RecordTooLarge):
            await tx.publish_many("small", [b"1", b"12345"])
        with pytest.raises(InvalidOption):
            await tx.publish("small", "text")
        await tx.publish_many("small", [])
    assert await values(queue, "small") == []


async def test_a_topic_that_rejects_records_takes_none_of_a_transaction(queue):
    full = Retention(bytes_max=1, when_full=WhenFull.REJECT)
    await queue.create_topic("full", TopicConfig(segment_bytes_max=256, retention=full))
    with suppress(RetentionFull):
        for _ in range(4):
            await queue.publish("full", b"x" * 200)
    await queue.maintain()
    async with queue.transaction("billing") as tx:
        with pytest.raises(RetentionFull):
            await tx.publish("full", b"1")


async def test_a_read_only_queue_has_no_producers(queue, tmp_path):
    async with WalMessageQueue(tmp_path / "log", read_only=True) as reader:
        with pytest.raises(UsageError):
            reader.producer("billing")
        with pytest.raises(UsageError):
            reader.transaction("billing")


async def test_a_topic_that_was_repartitioned_gets_the_records_where_they_belong(queue, tmp_path):
    """Drafted for two partitions, committed when there are five, by a queue that knows of two."""
    await queue.create_topic("invoices")
    rows = {b"%d" % one: b"%d" % (one % 11) for one in range(50)}
    staged = await asyncio.to_thread(
        queue._engine.around.transactions.stage,
        "billing",
        {"invoices": Columns(list(rows), list(rows.values()))},
    )
    async with WalMessageQueue(tmp_path / "log") as other:
        await other.repartition("invoices", 5)
    async with queue.transaction("billing") as tx:
        tx.add_staged(staged)
    await queue.publish_many("invoices", [b"later"] * 11, keys=[b"%d" % one for one in range(11)])
    places: dict[bytes, set[int]] = {}
    async for record in queue.replay("invoices"):
        places.setdefault(record.key, set()).add(record.partition)
    assert all(len(found) == 1 for found in places.values()), "a key is in two partitions"
    assert Counter(await values(queue, "invoices")) == {**dict.fromkeys(rows, 1), b"later": 11}
    assert not queue.store.list("producers/billing/staged/")


# Sequences


async def test_a_record_with_a_sequence_stands_once(queue):
    async with queue.producer("outbox") as producer:
        first = await producer.publish("rows", b"5", sequence=5, key=b"k")
        again = await producer.publish("rows", b"5", sequence=5, key=b"k")
        older = await producer.publish("rows", b"3", sequence=3)
        assert (first.repeated, again.repeated, older.repeated) == (False, True, True)
        assert await producer.last_number() == 5
    async with queue.producer("outbox") as producer:
        assert (await producer.publish("rows", b"5", sequence=5)).repeated
        assert not (await producer.publish("rows", b"6", sequence=6)).repeated
    assert await values(queue, "rows") == [b"5", b"6"]


async def test_records_that_wait_together_are_one_transaction_in_their_order(queue):
    async with queue.producer("outbox") as producer:
        rows = [*range(50), 7, 49, *range(50, 60)]
        publishing = [producer.publish("rows", b"%d" % row, key=b"k", sequence=row) for row in rows]
        done = await asyncio.gather(*publishing)
        assert [one.sequence for one in done if one.repeated] == [7, 49]
        assert producer.statistics().transactions < 5
    assert [int(one.value) async for one in queue.replay("rows")] == list(range(60))


async def test_a_repartition_does_not_make_rows_stand_twice(queue):
    async with queue.producer("outbox") as producer:
        for row in range(20):
            await producer.publish("rows", b"%d" % row, key=b"%d" % row, sequence=row)
        await queue.repartition("rows", 7)
        for row in range(10, 30):
            await producer.publish("rows", b"%d" % row, key=b"%d" % row, sequence=row)
    assert sorted(map(int, await values(queue, "rows"))) == list(range(30))


async def test_after_a_failure_no_later_row_overtakes(failing, files):
    await failing.create_topic("rows")
    async with failing.producer("outbox") as producer:
        await producer.publish("rows", b"0", sequence=0)
        files.failing = "/decision-"
        publishing = [producer.publish("rows", b"%d" % row, sequence=row) for row in (1, 2)]
        failed = await asyncio.gather(*publishing, return_exceptions=True)
        assert [type(one) for one in failed] == [StoreFailed, StoreFailed]
        files.failing = ""
        with pytest.raises(UsageError, match="sequence 1"):
            await producer.publish("rows", b"3", sequence=3)
        for row in (1, 2, 3):
            assert not (await producer.publish("rows", b"%d" % row, sequence=row)).repeated
    assert sorted(map(int, await values(failing, "rows"))) == [0, 1, 2, 3]


async def test_a_row_that_is_committed_and_late_is_not_written_again(failing, files):
    await failing.create_topic("rows")
    async with failing.producer("outbox") as producer:
        files.failing = "/topics/rows/"
        with pytest.raises(TransactionPending):
            await producer.publish("rows", b"0", sequence=0)
        files.failing = ""
        assert not (await producer.publish("rows", b"1", sequence=1)).repeated
        assert (await producer.publish("rows", b"0", sequence=0)).repeated
    assert await values(failing, "rows") == [b"0", b"1"]


async def test_an_outbox_that_was_taken_over_is_fenced(queue, tmp_path):
    async with queue.producer("outbox") as mine:
        await mine.publish("rows", b"0", sequence=0)
        async with WalMessageQueue(tmp_path / "log") as other, other.producer("outbox") as theirs:
            await theirs.publish("rows", b"1", sequence=1)
        with pytest.raises(Fenced):
            await mine.publish("rows", b"1", sequence=1)
        assert (await mine.publish("rows", b"0", sequence=0)).repeated
        await mine.open()
        assert (await mine.publish("rows", b"1", sequence=1)).repeated
    assert await values(queue, "rows") == [b"0", b"1"]


@pytest.mark.parametrize("sequence", [-1, 1 << 63])
async def test_a_sequence_that_is_none_is_refused(queue, sequence):
    async with queue.producer("outbox") as producer:
        with pytest.raises(UsageError):
            await producer.publish("rows", b"", sequence=sequence)


async def test_a_forgotten_producer_begins_anew(queue):
    async with queue.transaction("billing", number=4) as tx:
        await tx.publish("rows", b"1")
    await queue.forget_producer("billing")
    async with queue.transaction("billing", number=0) as tx:
        await tx.publish("rows", b"2")
    assert tx.outcome == ("billing", 0, False, 1)


async def test_publishers_wait_for_room(queue, monkeypatch):
    monkeypatch.setattr(sequences, "WAITING_MAX", 2)
    monkeypatch.setattr(sequences, "TOGETHER_MAX", 1)
    async with queue.producer("outbox") as producer:
        publishing = [producer.publish("rows", b"%d" % row, sequence=row) for row in range(10)]
        await asyncio.gather(*publishing)
        assert producer.statistics().transactions == 10


async def test_a_log_in_memory_has_transactions_too():
    async with WalMessageQueue(MemoryStore()) as queue:
        async with queue.transaction("billing") as tx:
            await tx.publish("invoices", b"1")
        assert await values(queue, "invoices") == [b"1"]
