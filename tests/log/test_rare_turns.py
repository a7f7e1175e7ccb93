"""Turns that the log takes seldom: entries that are sound and out of place, files that others left, calls at odd moments."""

import asyncio
from typing import Any

import pytest

from penstock.errors import DamagedFile, DamageError, DeadlineExceeded
from penstock.log import partition_check
from penstock.log.frame import KIND_RECORDS, KIND_START, Draft
from penstock.log.head import HeadFile
from penstock.log.inspection import VerifyReport
from penstock.log.maintenance import Maintenance
from penstock.log.partition_check import PartitionCheck
from penstock.log.producer_file import DoneMark, ProducerFile
from penstock.log.segment import SegmentStart
from penstock.log.topic import TopicFile
from penstock.log.transaction_care import TransactionCare
from penstock.log.transaction_decision import DecisionFiles, Share
from penstock.log.transaction_roll import Places, Roller
from penstock.log.verify import verify
from penstock.log.waiting import set_done
from penstock.log.walk import Walker
from penstock.testing.disk import SimulatedDisk
from penstock.testing.worker import simulated_system
from tests.log import small_log
from tests.log.small_log import TOPIC, SmallLog
from tests.log.strategies import KEYS, Machine, copy_of, machine, segment_paths, values_draft
from tests.log.test_forged_segments import LOG_ID, START, forged, rolled
from tests.log.test_small_promises import make, part
from tests.log.test_vanishing import gone
from tests.log.transaction_world import NAME, Process, make_topics

# Recovery


def with_a_tail(entry: Draft, *, offset: int = 0, earlier: int = 0) -> tuple[Machine, int]:
    """A log of one record, and behind it an entry that chains to it."""
    one = machine()
    one.append(b"0")
    head = HeadFile(one.store, KEYS.head).read()
    assert head is not None
    tail = forged(
        entry,
        base=head.next_offset + offset,
        previous=head.checksum,
        timestamp=head.timestamp - earlier,
    )
    (path,) = segment_paths(one.disk)
    return machine(copy_of(one.disk, {path: one.disk.content(path) + tail})), len(tail)


def test_an_entry_that_follows_is_taken_in():
    """The forger can do it right."""
    two, _ = with_a_tail(values_draft(b"1"))
    assert two.log.attach().bytes_cut == 0
    assert two.values() == [b"0", b"1"]


@pytest.mark.parametrize(
    ("entry", "offset", "earlier"),
    [(values_draft(b"1"), 1, 0), (values_draft(b"1"), 0, 1), (START, 0, 0)],
    ids=["offset", "time", "start"],
)
def test_an_entry_that_chains_and_does_not_follow_is_cut(entry, offset, earlier):
    two, size = with_a_tail(entry, offset=offset, earlier=earlier)
    report = two.log.attach()
    assert (report.next_offset, report.bytes_cut) == (1, size)
    assert two.values() == [b"0"]


def test_a_first_writer_that_died_before_its_head_is_continued():
    dead = machine(seed=1)
    dead.append(b"dead")
    (path,) = segment_paths(dead.disk)
    live = machine(seed=2)
    live.log.attach()
    (key,) = [one.key for one in dead.reader.segments()]
    live.store.write_at(key, 0, [dead.disk.content(path)])
    assert live.append(b"live") == 1
    assert live.values() == [b"dead", b"live"]


def test_a_segment_that_is_cut_while_it_is_in_use_is_named():
    one = machine()
    one.append(b"0" * 300)
    (source,) = one.reader.segments()
    one.store.truncate(source.key, 100)
    with pytest.raises(DamagedFile, match="cut while in use") as caught:
        one.append(b"1")
    assert caught.value.file == source.key


# Reading and checking


def test_a_segment_of_another_log_is_not_read():
    one, _ = rolled(3)
    path = segment_paths(one.disk)[1]
    start = SegmentStart(LOG_ID, KEYS.partition, 0, KEYS.topic).draft()
    two = machine(copy_of(one.disk, {path: forged(start, values_draft(b"evil"), base=1)}))
    assert two.reader.cursor(2).fetch()
    with pytest.raises(DamageError, match="another log"):
        two.reader.cursor(1).fetch()


def test_segments_that_go_away_are_not_compared(monkeypatch):
    log = SmallLog()
    log.append_segments(3)
    report = VerifyReport()
    check = PartitionCheck(log.store, small_log.KEYS, None, report)
    monkeypatch.setattr(partition_check, "inspect_segment", gone)
    assert list(check.inspect_sealed(log.head())) == []
    assert report.sound


def test_a_description_with_a_byte_too_many_is_harmless():
    log = SmallLog()
    log.append((None, b"0"))
    file = TopicFile(log.store, TOPIC)
    log.store.write(file.key, log.store.read(file.key) + b" ")
    (problem,) = verify(log.store).problems
    assert (problem.file, problem.harmless) == (file.key, True)


def test_a_description_whose_format_was_damaged_is_not_taken_for_a_newer_one():
    log = SmallLog()
    file = TopicFile(log.store, TOPIC)
    data = log.store.read(file.key)
    log.store.write(file.key, data.replace(b'"format":1', b'"format":9', 1))
    assert log.store.read(file.key) != data
    with pytest.raises(DamagedFile, match="format"):
        file.read()


@pytest.mark.parametrize(
    ("kind", "offset"), [(KIND_START, 9), (KIND_RECORDS, 4)], ids=["start", "offset"]
)
def test_damage_is_not_passed_to_an_entry_that_cannot_follow(kind, offset):
    header: Any = part(kind=kind, base_offset=offset, entry_bytes=10)
    source = part(chunk=lambda *_: b"whole")
    world = part(_next_offset=5, _source=source, _limit=100)
    assert not Walker._may_follow(world, 0, header)
    header.kind, header.base_offset = KIND_RECORDS, 5
    assert Walker._may_follow(world, 0, header)


# Subscriptions


async def test_an_open_that_was_given_up_frees_the_name(held_up_opening):
    inside, go_on = held_up_opening
    async with make(simulated_system()) as queue:
        await queue.publish("orders", b"x")

        async def enter() -> None:
            async with queue.subscribe("orders", "billing"):
                pass

        entering = asyncio.create_task(enter())
        assert await asyncio.to_thread(inside.wait, 30)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        go_on.set()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait({task}, timeout=30)
        async with queue.subscribe("orders", "billing") as subscription:
            assert subscription.positions() == {0: 0}


async def test_two_who_look_for_the_topic_find_one_membership():
    system = simulated_system()
    async with make(system) as queue:
        await queue.publish("orders", b"x")
    async with make(system) as queue:
        subscription = queue.subscribe("orders", "billing")
        one, other = await asyncio.gather(subscription._find(), subscription._find())
        assert one is other


async def test_a_waiter_that_is_done_stays_as_it_is():
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiter.cancel()
    set_done(waiter)
    assert waiter.cancelled()


# Upkeep and transactions


@pytest.mark.parametrize("stopping", [True, False])
def test_a_round_is_the_last_one_when_everything_stops(stopping):
    asked: list[float] = []
    worker = part(submit_after=lambda seconds, _: asked.append(seconds))
    Maintenance._round(
        part(run=list, _worker=worker, _stopping=stopping, _interval=5.0, _round=None)
    )
    assert asked == ([] if stopping else [5.0])


@pytest.fixture
def process():
    made = Process(SimulatedDisk())
    make_topics(made.store)
    yield made
    made.transactions.close()


def test_a_mark_of_a_producer_at_work_is_looked_at_again(process, monkeypatch):
    process.commit(process.transactions.open(NAME), 0)
    care = TransactionCare(process.store, process.transactions, process.system)
    file = ProducerFile(process.store, NAME)
    with file.locked(0):
        other = ProducerFile(process.store, NAME)
        monkeypatch.setattr(other, "locked", raising(DeadlineExceeded("held")))
        care._secure_mark(other)
    assert NAME not in care._synced
    marks = [file.read_done(), DoneMark(99, 99)]
    monkeypatch.setattr(file, "read_done", lambda: marks.pop(0))
    care._secure_mark(file)
    assert NAME not in care._synced
    care._secure_mark(ProducerFile(process.store, NAME))
    assert NAME in care._synced


def raising(error: Exception) -> Any:
    def call(*_: object, **__: object) -> Any:
        raise error

    return call


def test_a_decision_that_says_that_it_is_done_is_not_written_again(process):
    process.commit(process.transactions.open(NAME), 0)
    file = ProducerFile(process.store, NAME)
    files = DecisionFiles(process.store, file)
    done = file.read_done()
    files.finish(done)
    before = len(process.system.files.journal)
    files.finish(done)
    files.finish(DoneMark(done.generation + 1, 1))
    calls = {call.operation for call in list(process.system.files.journal)[before:]}
    assert not calls & {"write", "sync"}


def test_entries_of_others_do_not_count_as_those_of_a_transaction():
    log = SmallLog()
    log.append((None, b"0"))
    roller = Roller(Places(log.store, None, None, log.system))
    decision: Any = part(producer_id=7, epoch=1, mark=1)
    share = Share(TOPIC, 0, 0, ())
    assert roller._standing(small_log.KEYS, decision, share) == set()
