"""What a call of the queue does first or last, and who would notice its lack only now and then."""

from __future__ import annotations

import asyncio

import pytest

from penstock import Codec, TopicConfig, WalMessageQueue
from penstock.errors import Closed, DamageError, MissingExtra, SubscriberBusy
from penstock.log.batch import split
from penstock.log.columns import Columns
from penstock.log.group_bell import GroupBells
from penstock.log.group_coordinator import GroupCoordinator
from penstock.log.lag import lag_of
from penstock.log.producer_file import ProducerFile
from penstock.log.reader import PartitionReader
from penstock.log.segment import SegmentStart
from penstock.stores.directory import DirectoryStore
from penstock.stores.memory import MemoryStore
from penstock.testing.disk import SimulatedDisk
from penstock.testing.worker import simulated_system
from tests.log.small_log import KEYS, TOPIC, SmallLog
from tests.log.strategies import values_draft
from tests.log.test_forged_segments import LOG_ID, forged
from tests.log.test_writer import opened
from tests.log.transaction_world import NAME, Process, make_topics


def test_a_batch_may_be_as_large_as_one_may_be():
    columns = Columns([b"a" * 500, b"b" * 500])
    size = columns.byte_size()
    assert [len(one) for one in split(columns, 100, size)] == [2]
    assert [len(one) for one in split(columns, 100, size - 1)] == [1, 1]


@pytest.mark.parametrize("seed", range(3))
def test_producers_have_numbers_that_nobody_else_has(seed):
    lease = ProducerFile(MemoryStore(), "billing").open(simulated_system(seed))
    assert lease.producer_id % 2 == 1
    assert lease.producer_id > 1 << 40


def test_a_small_transaction_needs_no_file_of_its_own():
    disk = SimulatedDisk()
    process = Process(disk)
    make_topics(process.store)
    process.commit(process.transactions.open(NAME), 1)
    assert not [one.path for one in disk.journal if "/staged/" in one.path]
    process.transactions.close()


async def test_a_job_for_a_subscription_that_is_not_open_opens_it():
    async with opened() as (_, queue, _writer):
        subscription = queue.subscribe(TOPIC, "billing")
        assert await subscription.while_held(lambda: 5) == 5
        with pytest.raises(SubscriberBusy):
            await queue.subscribe(TOPIC, "billing").open()
        await subscription.close()


async def test_the_lag_knows_what_was_written_just_now():
    async with opened() as (_, queue, _writer):
        async with queue.subscribe(TOPIC, "billing") as subscription:
            assert subscription.lag() == 0
            queue.publish_nowait(TOPIC, b"x")
            assert subscription.lag() == 1


async def test_the_lag_knows_partitions_that_another_process_made(tmp_path):
    async with WalMessageQueue(tmp_path) as here, WalMessageQueue(tmp_path) as there:
        await here.create_topic(TOPIC)
        assert len(await lag_of(here, TOPIC, "billing")) == 1
        await there.repartition(TOPIC, 3)
        assert len(await lag_of(here, TOPIC, "billing")) == 3


async def test_a_new_partition_is_behind_by_nothing():
    async with opened() as (_, queue, _writer):
        async with queue.subscribe(TOPIC, "billing") as subscription:
            await queue.repartition(TOPIC, 2)
            assert subscription.lag() == 0


def test_a_time_is_not_looked_for_in_a_segment_from_elsewhere():
    log = SmallLog()
    log.append((None, b"mine"))
    source = log.reader().segments()[0]
    start = SegmentStart(LOG_ID, 0, 0, "others").draft()  # as long as the right name
    log.store.write(source.key, forged(start, values_draft(b"evil")))
    with pytest.raises(DamageError):
        PartitionReader(log.store, KEYS).offset_at(0)


async def test_a_transaction_that_is_over_makes_no_topic(tmp_path):
    async with WalMessageQueue(tmp_path, defaults=TopicConfig()) as queue:
        async with queue.transaction("billing") as over:
            await over.publish("first", b"x")
        with pytest.raises(Closed):
            await over.publish("second", b"y")
        assert await queue.topics() == ["first"]


async def test_closing_does_not_mind_a_topic_that_cannot_be_opened():
    async with opened() as (_, queue, _writer):
        failing = asyncio.get_running_loop().create_future()
        failing.set_exception(OSError("no such disk"))
        queue._engine.topics._opening["other"] = failing
        await queue.close()


def test_a_codec_that_is_missing_is_noticed_with_the_settings(monkeypatch):
    def missing(*_: object) -> bytes:
        raise MissingExtra("needs: pip install 'penstock[zstd]'", extra="zstd")

    monkeypatch.setattr("penstock.log.topic.compress", missing)
    TopicConfig().check()
    with pytest.raises(MissingExtra):
        TopicConfig(codec=Codec.ZSTD).check()


async def test_bells_that_are_closed_leave_no_reader_behind(tmp_path):
    with DirectoryStore(tmp_path) as store:
        await GroupCoordinator(store, "billing").join({TOPIC: 1})
        bells = GroupBells(store)
        bells.follow("billing", lambda: None)
        if bells._watch is None:
            pytest.skip("this system watches no files")
        number = bells._watch.fileno()
        bells.close()
        assert not asyncio.get_running_loop().remove_reader(number)


def test_the_index_of_a_segment_that_grows_is_not_kept():
    log = SmallLog()
    log.append((None, b"x"))
    log.append_segments(1)
    reader = log.reader()
    sealed, growing = reader.segments()
    for source in (sealed, growing):
        reader._index(source)
    assert set(reader._indexes) == {sealed.key}
