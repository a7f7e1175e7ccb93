"""Steps of the log whose lack shows late or elsewhere: what rings, what is told, what is left alone."""

from __future__ import annotations

from contextlib import suppress

import pytest

from penstock import TopicConfig, WalMessageQueue
from penstock.errors import DamagedFile, RetentionFull, StoreFailed
from penstock.log import arrow, fetched
from penstock.log.group_file import GroupFile, rings
from penstock.log.head import HeadFile
from penstock.log.names import PartitionKeys, SegmentName
from penstock.log.partition import PartitionLog
from penstock.log.partition_check import PartitionCheck
from penstock.log.recovery import _has_start
from penstock.log.rewrite import SegmentWriter
from penstock.log.sealed import leftovers, stores_of
from penstock.log.segment import SegmentSource, SegmentStart
from penstock.log.topic import Retention, TopicFile, WhenFull
from penstock.log.transaction_decision import DECISION_BYTES_MAX, Decision, Front, _parse_front
from penstock.log.verify import verify
from penstock.stores.memory import MemoryStore
from penstock.testing.clock import VirtualClock
from penstock.testing.disk import SimulatedDisk
from tests.log.mending import mend
from tests.log.small_log import KEYS, TOPIC, SmallLog
from tests.log.strategies import machine, segment_paths, values_draft
from tests.log.test_forged_segments import LOG_ID, START, forged, stored
from tests.log.test_promises import in_small_segments
from tests.log.test_writer import opened
from tests.log.transaction_world import NAME, Process, make_topics


def test_an_index_that_stayed_when_its_segment_moved_is_left_over():
    store, tier, name = MemoryStore(), MemoryStore(), SegmentName(0)
    tier.write(KEYS.log(name), b"segment")
    for one in (store, tier):
        one.write(KEYS.index(name), b"index")
    assert leftovers(KEYS, stores_of(store, tier)) == [(store, KEYS.index(name))]


async def test_upkeep_finds_that_a_topic_is_full():
    config = in_small_segments(Retention(bytes_max=1_000, when_full=WhenFull.REJECT))
    async with opened(config) as (_, queue, writer):
        with suppress(RetentionFull):
            for _ in range(100):
                await queue.publish(TOPIC, bytes(500))
        writer.reject_while_full(False)
        await queue.maintain()
        with pytest.raises(RetentionFull):
            await queue.publish(TOPIC, b"y")


def test_a_group_that_begins_anew_rings():
    store = MemoryStore()
    GroupFile(store, "billing", VirtualClock(), 1.0).reset()
    assert rings(store, "billing") == 1


@pytest.mark.parametrize(
    ("generation", "mark"), [(0, 1), (0xFFFE, 0xFFFF), (0xFFFF, 1), (0x1_FFFF, 2)]
)
def test_a_mark_has_sixteen_bits_and_is_never_zero(generation, mark):
    decision = Decision(producer_id=1, epoch=1, generation=generation, number=0, decided_ms=0)
    assert decision.mark == mark


def test_a_damaged_start_is_none():
    assert _has_start(stored(START))
    assert not _has_start(stored(values_draft(b"x")))


def test_an_open_segment_that_does_not_follow_the_last_is_told():
    """Head and segment fit each other; neither fits the segment before."""
    log = SmallLog()
    log.append((None, b"first"))
    log.append_segments(1)
    source = log.reader().segments()[-1]
    entries = list(source.entries(0, source.size()))
    drafts = [START, *(values_draft(b"v") for _ in entries[1:])]
    data = forged(*drafts, base=source.name.base, previous=12345)
    log.store.write(source.key, data)
    [last] = list(source.entries(0, len(data)))[-1:]
    head = log.head()._replace(
        position=len(data),
        durable_position=len(data),
        checksum=last.header.checksum,
        durable_checksum=last.header.checksum,
    )
    HeadFile(log.store, KEYS.head).write(head)
    told = [(one.file, one.kind) for one in verify(log.store).problems]
    assert (source.key, "chain") in told


def test_a_subscriber_that_is_found_again_begins_where_it_has_no_offset_at_the_first():
    log = SmallLog(config=TopicConfig(partitions=2))
    log.append((None, b"x"))
    other = PartitionLog(log.store, PartitionKeys(TOPIC, 1), system=log.system)
    other.attach()
    other.append([values_draft(b"y")], sync=True)
    log.subscribe("billing", 1)
    log.store.delete(log.topic.key)
    mend(log)
    assert log.state.subscribers == {"billing": {0: 1, 1: 0}}


def test_the_description_of_another_topic_is_not_taken():
    store = MemoryStore()
    other = TopicFile(store, "payments")
    other.create(TopicConfig(), 0)
    here = TopicFile(store, TOPIC)
    store.write(here.key, store.read(other.key, 0, 1 << 20))
    with pytest.raises(DamagedFile, match="payments"):
        here.read()


async def test_what_was_accepted_is_counted():
    async with opened() as (_, queue, _writer):
        await queue.publish_many(TOPIC, [b"a", b"b"])
        await queue.publish(TOPIC, b"c")
        assert queue.statistics().topics[TOPIC].records_accepted == 3


def test_a_decision_that_is_said_to_be_too_long_is_none():
    most = DECISION_BYTES_MAX
    fits = Front(0, 1, 1, most - 1, 1, 0)
    assert _parse_front("key", fits.pack("key")) == fits
    assert _parse_front("key", fits._replace(records_bytes=2).pack("key")) is None


def test_a_portion_may_be_as_large_as_one_may_be(monkeypatch):
    source = stored(START, values_draft(b"12345"), values_draft(b"67890"))
    entries = list(source.entries(0, source.size()))[1:]
    size = sum(one.header.body_length for one in entries)
    monkeypatch.setattr(fetched, "FETCHED_BYTES_MAX", size)
    assert len(fetched._portion(entries)) == 2
    monkeypatch.setattr(fetched, "FETCHED_BYTES_MAX", size - 1)
    assert len(fetched._portion(entries)) == 1


async def test_what_another_process_made_durable_before_is_not_waited_for(tmp_path):
    async with WalMessageQueue(tmp_path) as here, WalMessageQueue(tmp_path) as there:
        await here.create_topic(TOPIC)
        await here.retention(TOPIC)
        await there.publish(TOPIC, b"x")
        await here.wait_durable(TOPIC, 0, timeout=60)


def test_an_epoch_begins_with_a_segment_that_is_synced():
    one = machine()
    one.append(b"before")
    one.log.begin_epoch(1)
    *_, last = segment_paths(one.disk)
    calls = [call.operation for call in one.disk.journal if call.path == last]
    assert calls[-1] == "sync"


def test_what_a_transaction_had_staged_goes_after_the_mark_that_it_is_done_is_synced():
    disk = SimulatedDisk()
    process = Process(disk)
    make_topics(process.store)
    begun = len(disk.journal)
    process.commit(process.transactions.open(NAME), 1, staged=True)
    calls = [(one.operation, one.path) for one in list(disk.journal)[begun:]]
    removed = next(at for at, (operation, _) in enumerate(calls) if operation == "unlink")
    marked = max(at for at, (_, path) in enumerate(calls[:removed]) if path.endswith("done"))
    assert calls[marked][0] == "sync"
    process.transactions.close()


@pytest.mark.parametrize(
    ("given", "said"), [({"linger_ms": 7}, "that were given"), (None, "default settings")]
)
def test_repair_says_which_settings_it_takes(given, said):
    log = SmallLog()
    log.append((None, b"x"))
    log.store.delete(log.topic.key)
    report = mend(log, config=None if given is None else TopicConfig(**given))
    assert said in report.actions[0].message


def test_a_partition_that_changes_while_it_is_checked_is_checked_again(monkeypatch):
    log = SmallLog()
    log.append((None, b"x"))
    run, runs = PartitionCheck.run, []

    def run_and_write(check):
        runs.append(check)
        if len(runs) == 1:
            log.append((None, b"y"))
            check._tell(KEYS.head, "head", "as it looks while somebody writes")
        run(check)

    monkeypatch.setattr(PartitionCheck, "run", run_and_write)
    assert verify(log.store).clean
    assert len(runs) == 2


def test_columns_that_are_never_null_say_so():
    pytest.importorskip("pyarrow", reason="needs: pip install 'penstock[arrow]'")
    never = {one.name for one in arrow.schema() if not one.nullable}
    assert never == {"topic", "partition", "offset", "timestamp"}


async def test_a_failure_is_that_of_its_own_commit():
    async with opened() as (system, queue, writer):
        for _ in range(3):
            await queue.publish(TOPIC, b"x")
        system.files.fail("write", path="*.log")
        receipt = queue.publish_nowait(TOPIC, b"y")
        with pytest.raises(StoreFailed):
            await receipt.wait()
        [(number, _)] = writer._failures.values()
        assert number == receipt.number == 3


def test_a_segment_made_anew_calls_nothing_durable_that_its_entries_do_not():
    writer = SegmentWriter(SegmentStart(LOG_ID, 0, 1, TOPIC), 0, 0, 0)
    data, _ = writer.finish(0)
    store, key = MemoryStore(), KEYS.log(SegmentName(0, 1))
    store.write(key, data)
    entries = SegmentSource(SegmentName(0, 1), store, key).entries(0, len(data))
    assert {one.header.durable_offset for one in entries} == {0}
