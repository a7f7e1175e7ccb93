"""Details of the log that nobody would miss at once: figures, messages, what is closed, what is looked at how often."""

import asyncio
from typing import Any

import numpy as np
import pytest

from penstock import FsyncPolicy, TopicConfig
from penstock.errors import Closed, Fenced, InvalidName, InvalidOption, StoreFailed
from penstock.log import arrow, reader
from penstock.log.batch import Batch
from penstock.log.codec import Codec
from penstock.log.columns import HEADERS, Columns
from penstock.log.engine import Engine
from penstock.log.group_coordinator import GroupCoordinator
from penstock.log.group_member import Member
from penstock.log.group_state import checked_topics
from penstock.log.journal import LogJournal
from penstock.log.lag import lag_of
from penstock.log.names import SegmentName
from penstock.log.places import Place
from penstock.log.producer_file import ProducerFile
from penstock.log.receipts import Receipt
from penstock.log.sealed import remove_leftovers, stores_of
from penstock.log.sharing import Parcel, Portion
from penstock.log.topic import PARTITIONS_MAX
from penstock.log.transaction_decision import Decision, DecisionFiles
from penstock.log.transaction_reroute import _columns
from penstock.log.transaction_roll import PartitionLogs, Places
from penstock.log.transaction_staging import note
from penstock.log.writer import TopicWriter
from penstock.stores.memory import MemoryStore
from penstock.system import System
from penstock.testing.clock import VirtualClock
from penstock.testing.worker import simulated_system
from tests.log.small_log import KEYS, TOPIC, SmallLog
from tests.log.strategies import draft_of
from tests.log.test_small_promises import make, part

# Writers


async def test_syncs_are_measured():
    system = simulated_system(immediate=True)
    async with make(system) as queue:
        for _ in range(3):
            await queue.publish(TOPIC, b"x", durable=True)
        assert queue._opened[TOPIC].logs[0].syncs.durations().count == 3


def test_retention_looks_once_for_each_roll():
    looked: list[int] = []
    log = part(rolls=0)
    world = part(_logs=[log], _rolls=0, on_roll=lambda: looked.append(log.rolls))
    for rolls in (0, 1, 1, 1, 3, 3):
        log.rolls = rolls
        TopicWriter._look_after_rolls(world)
    assert looked == [1, 3]


async def test_a_sync_is_due_after_so_many_records_however_they_come():
    system = simulated_system(immediate=True)
    config = TopicConfig(fsync=FsyncPolicy.EVERY_N_MESSAGES, fsync_messages=5)
    async with make(system, defaults=config) as queue:
        found = [(await queue.publish(TOPIC, b"%d" % one)).durable for one in range(10)]
        assert found == [False, False, False, False, True] * 2


def test_a_receipt_that_is_done_inherits_what_failed_before_it():
    asked: list[Receipt] = []
    world = part(_inherit=asked.append)
    before, after = Receipt(TOPIC, None, 3), Receipt(TOPIC, None, 5)
    TopicWriter._join(world, before, after)
    assert (asked, after.since) == ([], before.since)
    after.done = True
    TopicWriter._join(world, before, after)
    assert asked == [after]


def test_a_failure_is_told_to_those_whose_records_it_took():
    columns = Columns([b"0", b"1"])
    rows: list[Any] = [part(error=None, acknowledgement=None) for _ in range(2)]
    batch = Batch(columns, Receipt(TOPIC, None), size=2, rows=rows)
    told: list[Any] = []
    world = part(
        _caches=[part(clear=lambda: None)] * 3,
        _failures={},
        _committing=4,
        _remember=lambda batch, error: told.append(error),
    )
    trouble = OSError("the disk")
    TopicWriter._fail(world, 2, [Parcel(columns, [Portion(batch, [1])])], trouble)
    assert [row.error for row in rows] == [None, trouble]
    assert (batch.receipt.errors, world._failures) == ({2: trouble}, {2: (4, trouble)})
    assert told == [trouble]


# The engine


async def test_closing_waits_for_producers_and_ends_every_thread():
    done: list[str] = []

    async def later(name: str) -> None:
        await asyncio.sleep(0)
        done.append(name)

    engine: Any = object.__new__(Engine)
    engine.producers = {part_of_a_set(close=lambda: later("producer"))}
    engine.topics = part(
        refuse_from_now_on=lambda _: later("refuse"), close=lambda: done.append("topics")
    )
    engine.commit = lambda: later("commit")
    engine.maintenance = part(close=lambda: done.append("maintenance"))
    engine.around = part(
        transactions=part(close=lambda: done.append("transactions")),
        worker=part(close=lambda: done.append("worker")),
    )
    await Engine.drain(engine, Closed("closed"))
    assert done == [
        "producer", "refuse", "commit", "maintenance", "transactions", "worker", "topics",
    ]  # fmt: skip


class part_of_a_set:  # noqa: N801  # as ``part``, and hashable
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def test_stopping_lets_everything_end():
    done: list[str] = []
    jobs: list[Any] = []
    worker = part(submit=jobs.append, close=lambda: done.append("worker"))
    world = part(
        changes=part(close=lambda refusal: done.append(str(refusal))),
        deadlines=part(close=lambda: done.append("deadlines")),
        waiters=part(close=lambda refusal: done.append(f"waiters {refusal}")),
        maintenance=part(stop=lambda: done.append("maintenance")),
        around=part(worker=worker),
    )
    Engine.stop(world, Closed("closed"))
    assert done == ["closed", "deadlines", "waiters closed", "maintenance"]
    assert jobs == [worker.close]


# Decisions


@pytest.mark.parametrize(
    ("taken_back", "message"), [(True, "it did not happen"), (False, "when the producer is opened")]
)
def test_a_decision_that_was_not_written_says_what_came_of_it(taken_back, message):
    class Failing(MemoryStore):
        def write_at(self, *_: object, **__: object) -> None:
            raise StoreFailed("full")

        def truncate(self, key: str, size: int) -> None:
            if not taken_back:
                raise StoreFailed("full")
            super().truncate(key, size)

    store = Failing()
    files = DecisionFiles(store, ProducerFile(store, "billing"))
    store.write(files.key(1), b"")
    decision = Decision(producer_id=1, epoch=1, generation=1, number=7, decided_ms=0)
    with pytest.raises(StoreFailed, match=message) as caught:
        files.write(decision)
    assert caught.value.fields["happened"] is (False if taken_back else None)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize(
    "columns",
    [
        Columns([b"1", None]),
        Columns([b"1", b"2"], [b"k", None]),
        Columns([b"1", b"2"], None, [5, 6]),
        Columns([b"1", b"2"], None, None, [{"a": b"b"}, None]),
    ],
    ids=["values", "keys", "times", "headers"],
)
def test_entries_that_are_sent_elsewhere_have_the_columns_that_they_had(columns, codec):
    entry = draft_of(columns, codec)
    found = _columns(note(entry, 0, 0), b"".join(bytes(one) for one in entry.body))
    flags, body = columns.encode()
    again, same = found.encode()
    assert (again, b"".join(map(bytes, same))) == (flags, b"".join(map(bytes, body)))
    assert (found.headers is None) == (not flags & HEADERS)


# Groups and lag


async def test_a_member_that_a_look_finds_removed_forgets_what_it_had():
    forgotten: list[bool] = []

    async def describe() -> Any:
        return part(group="billing", generation=2, members={})

    world = part(
        _order=asyncio.Lock(),
        _check_usable=lambda: None,
        _coordinator=part(describe=describe),
        id="anna",
        generation=1,
        _forget=lambda: forgotten.append(True),
    )
    with pytest.raises(Fenced):
        await Member.look(world)
    assert forgotten == [True]


async def test_a_member_renews_its_lease_three_times_in_its_length():
    coordinator = GroupCoordinator(
        MemoryStore(), "billing", system=System(clock=VirtualClock()), lease_seconds=9.0
    )
    member = await coordinator.join({TOPIC: 1})
    assert member.heartbeat_seconds == 3.0


def test_a_receipt_may_hold_a_record_of_the_commit_just_before_it():
    assert Receipt(TOPIC, None, 5).since == 4


def test_all_that_was_left_behind_is_counted():
    store = MemoryStore()
    store.write(KEYS.index(SegmentName(7)), b"alone")
    store.remove_temporaries = lambda prefix: 2  # type: ignore[method-assign]
    assert remove_leftovers(KEYS, stores_of(store, None)) == 3


async def test_the_lag_of_a_name_that_is_none_is_refused():
    async with make(simulated_system()) as queue:
        await queue.publish(TOPIC, b"x")
        with pytest.raises(InvalidName):
            await lag_of(queue, TOPIC, "no/name")


async def test_leaving_a_producer_waits_for_what_has_begun():
    async with make(simulated_system()) as queue:
        go_on = asyncio.Event()
        async with queue.producer("billing") as producer:
            begun = producer.at_work(go_on.wait())
            asyncio.get_running_loop().call_soon(go_on.set)
        assert begun.done()


def test_a_group_may_read_as_many_partitions_as_a_topic_can_have():
    assert checked_topics({TOPIC: PARTITIONS_MAX}) == {TOPIC: PARTITIONS_MAX}
    assert checked_topics({TOPIC: 1}) == {TOPIC: 1}
    for count in (0, PARTITIONS_MAX + 1):
        with pytest.raises(InvalidOption):
            checked_topics({TOPIC: count})


def test_a_place_that_moves_while_it_is_read_has_another_reader():
    readers = [part(cursor=lambda at: (1, at)), part(cursor=lambda at: (2, at))]
    topic: Any = part(reader=lambda _: readers.pop(0))
    place: Any = Place(topic, 0, part())
    place.busy = True
    place.move(7)
    assert (place.busy, place.cursor, place.delivered) == (False, (2, 7), 7)
    place.move(8)
    assert place.cursor == (2, 8)


# Arrow, journals, partitions of transactions


def test_offsets_are_made_in_one_go_where_nothing_is_missing():
    def slowly() -> Any:
        raise AssertionError("this takes longer")

    dense: list[Any] = [
        part(base_offset=4, count=2, deltas=None, offsets=slowly),
        part(base_offset=6, count=3, deltas=None, offsets=slowly),
    ]
    assert arrow._offsets(dense, 5).tolist() == [4, 5, 6, 7, 8]
    gap: list[Any] = [
        part(base_offset=4, count=1, deltas=None, offsets=lambda: np.array([4])),
        part(base_offset=6, count=1, deltas=None, offsets=lambda: np.array([6])),
    ]
    assert arrow._offsets(gap, 2).tolist() == [4, 6]
    sparse: list[Any] = [
        part(base_offset=4, count=2, deltas=[1, 2], offsets=lambda: np.array([5, 6]))
    ]
    assert arrow._offsets(sparse, 2).tolist() == [5, 6]


async def test_a_journal_whose_open_was_given_up_is_closed():
    never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    closed: list[bool] = []

    async def nothing() -> None: ...

    def begin(job: Any) -> asyncio.Future[Any]:
        job.close()
        return never

    world: Any = part(
        _check=lambda: None,
        _claim=None,
        _open=nothing,
        _begin=begin,
        _release_soon=lambda: closed.append(True),
    )
    opening = asyncio.create_task(LogJournal.open(world))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert closed == [True]


def test_a_partition_that_failed_is_opened_again_and_one_that_did_not_is_kept():
    log = SmallLog()
    logs = PartitionLogs(Places(log.store, None, None, log.system))
    with logs.using(KEYS, anew=False) as first:
        pass
    with logs.using(KEYS, anew=False) as again:
        assert again is first
    with pytest.raises(ZeroDivisionError), logs.using(KEYS, anew=False):
        raise ZeroDivisionError
    with logs.using(KEYS, anew=False) as other:
        assert other is not first
    with logs.using(KEYS, anew=True) as newest:
        assert newest is not other


def test_without_a_right_row_a_segment_is_read_from_its_start(monkeypatch):
    log = SmallLog()
    log.append((None, b"0"))
    source = log.reader().segments()[0]
    rows: list[Any] = [None, part(position=9, offset=3)]
    world: Any = part(
        _segment_of=lambda _: source,
        _check_start=lambda _: None,
        _index=lambda _: part(at_offset=lambda _: rows[0]),
        _rebuild=lambda _: part(at_offset=lambda _: rows[1]),
    )
    monkeypatch.setattr(reader, "_is_right", lambda source, row: False)
    assert reader.PartitionReader.locate(world, 5) == (source, 0, 0)
    rows[:] = [part(position=99, offset=4), part(position=9, offset=3)]
    assert reader.PartitionReader.locate(world, 5) == (source, 9, 3)
    rows[1] = None
    assert reader.PartitionReader.locate(world, 5) == (source, 0, 0)
