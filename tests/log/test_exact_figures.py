"""Bounds of the log, each exactly at its figure and one beside it."""

from typing import Any

import pytest

from penstock import TopicConfig
from penstock.errors import BufferFull, InvalidOption, LimitReached
from penstock.log import transaction_decision
from penstock.log.batch import gather
from penstock.log.checks import packed
from penstock.log.columns import RECORD_OVERHEAD_BYTES
from penstock.log.deadlines import check_seconds
from penstock.log.deletion import _check_members
from penstock.log.frame import entries
from penstock.log.group_coordinator import GroupCoordinator
from penstock.log.head import EPOCH_UNKNOWN, HeadFile
from penstock.log.inlet import PythonTopicInlet, TopicInlet
from penstock.log.maintenance import Maintenance
from penstock.log.offsets import OffsetFile
from penstock.log.places import Place
from penstock.log.producer_file import ProducerFile
from penstock.log.published import PublishedRow
from penstock.log.receipts import Receipt
from penstock.log.repair import _Repair
from penstock.log.rewrite import SegmentWriter
from penstock.log.transaction_decision import Decision, DecisionFiles
from penstock.log.writer import TopicWriter
from penstock.stores.memory import MemoryStore
from penstock.system import System
from penstock.testing.clock import VirtualClock
from penstock.testing.worker import simulated_system
from tests.log.small_log import KEYS, TOPIC, SmallLog
from tests.log.strategies import values_draft
from tests.log.test_forged_segments import START, forged
from tests.log.test_small_promises import make, part


@pytest.mark.parametrize(
    ("gathered", "items", "full"),
    [(999, 4, False), (1000, 4, True), (999, 5, True), (0, 0, False)],
)
def test_a_batch_is_full_at_its_bound(gathered, items, full):
    asked: list[str] = []
    config = TopicConfig(linger_ms=50, batch_bytes_max=1000, batch_records_max=5)
    world: Any = part(
        config=config,
        commit=None,
        _gathered_bytes=gathered,
        _items=[b""] * items,
        _scheduled=False,
        _lingering=False,
        _stopped=False,
        _worker=part(submit_after=lambda seconds, _: asked.append(f"in {seconds}")),
        _ask=lambda submit: submit(None),
        _submit=lambda: asked.append("now"),
    )
    TopicWriter._schedule(world)
    assert asked == (["now"] if full else ["in 0.05"])


def test_partitions_that_come_have_nothing_to_sync():
    world: Any = part(_unsynced=[3])
    TopicWriter.grow(world, 3)
    assert world._unsynced == [3, 0, 0]
    TopicWriter.grow(world, 3)
    assert world._unsynced == [3, 0, 0]


def test_who_waits_for_a_record_waits_in_the_batch_that_has_it():
    rows: list[Any] = [PublishedRow.of(b"%d" % n, n == 2, part()) for n in range(5)]
    batches = list(gather(rows, Receipt(TOPIC, None), 0, 2, 1 << 20))
    assert [one.columns.values for one in batches] == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    assert [row for one in batches for row in one.rows] == rows
    assert [one.durable for one in batches] == [False, True, False]


def test_an_entry_that_is_cut_off_ends_the_entries_before_it():
    first = forged(START)
    whole = forged(START, values_draft(b"0" * 50))
    for size in range(len(first), len(whole)):
        assert [one.position for one in entries(whole[:size], 7)] == [7]
    assert [one.position for one in entries(whole, 7)] == [7, 7 + len(first)]


def test_a_reader_sees_a_segment_that_came_behind_the_last_one_it_knew():
    log = SmallLog()
    log.append((None, b"0"))
    reader = log.reader()
    assert reader.locate(0)[0].name.base == 0
    log.append_segments(2)
    assert [reader.locate(offset)[0].name.base for offset in (2, 1, 0)] == [2, 1, 0]


def test_a_move_says_whether_it_happened():
    file = OffsetFile(MemoryStore(), "billing", TOPIC, 0)
    assert file.move(-1, 4, 0)
    assert not file.move(-1, 4, 0)
    assert not file.move(4, 4, 0)
    assert file.move(4, 5, 0)
    assert not file.move(9, 10, 0)


def test_a_decision_may_be_as_large_as_its_bound(monkeypatch):
    store = MemoryStore()
    files = DecisionFiles(store, ProducerFile(store, "billing"))
    decision = Decision(producer_id=1, epoch=1, generation=1, number=7, decided_ms=0)
    files.write(decision, [b"x" * 10])
    size = len(store.read(files.key(1))) - transaction_decision.FRONT_BYTES
    monkeypatch.setattr(transaction_decision, "DECISION_BYTES_MAX", size)
    files.write(decision, [b"x" * 10])
    with pytest.raises(LimitReached):
        files.write(decision, [b"x" * 11])


def test_closing_maintenance_ends_its_rounds():
    done: list[str] = []
    world: Any = part(
        stop=lambda: done.append("stop"), _worker=part(close=lambda: done.append("close"))
    )
    Maintenance.close(world)
    world._worker = None
    Maintenance.close(world)
    assert done == ["stop", "close", "stop"]


async def test_a_group_whose_members_left_keeps_no_topic():
    store, system = MemoryStore(), System(clock=VirtualClock())
    coordinator = GroupCoordinator(store, "billing", system=system, lease_seconds=9.0)
    member = await coordinator.join({TOPIC: 1})
    await member.leave()
    _check_members(store, "billing", TOPIC, system)
    _check_members(store, "another", TOPIC, system)


@pytest.mark.parametrize(
    ("size", "gathered", "taken"), [(10, 90, True), (10, 91, False), (11, 0, False)]
)
@pytest.mark.parametrize("key", [None, b""])
@pytest.mark.parametrize("kind", [PythonTopicInlet, TopicInlet])
def test_a_record_may_fill_the_buffer_and_be_as_large_as_one_may_be(
    size, gathered, taken, key, kind
):
    class Still(kind):  # type: ignore[valid-type,misc]
        pack = staticmethod(packed)

        def _refuse(self, size: int) -> None:
            raise BufferFull("full")

    inlet: Any = Still()
    inlet._gathered_bytes, inlet._room, inlet._record_bytes_max = gathered, 100, 10
    inlet._receipt, inlet._items = Receipt(TOPIC, None), []
    inlet._scheduled, inlet._lingering = True, False
    if taken:
        assert inlet.add_nowait(b"x" * size, key) is inlet._receipt
        assert inlet._gathered_bytes == gathered + size + RECORD_OVERHEAD_BYTES
    else:
        with pytest.raises(BufferFull):
            inlet.add_nowait(b"x" * size, key)
    assert len(inlet._items) == int(taken)


def test_stopping_maintenance_is_noted():
    world: Any = part(_stopping=False)
    Maintenance.stop(world)
    assert world._stopping is True


def test_a_hole_before_an_entry_of_which_some_is_kept_stays_a_hole():
    log = SmallLog()
    log.append((None, b"0"))
    log.append((None, b"1"), (None, b"2"))
    source = log.reader().segments()[0]
    entry = list(source.entries(0, source.size()))[-1]
    put: list[Any] = []
    covered: list[int] = []
    world: Any = part(
        cover=lambda offset, *_: covered.append(offset),
        _put=lambda entry, body: put.append(entry.header.record_count),
    )
    SegmentWriter.keep_some(world, entry, [1])
    assert (covered, put) == ([1], [1])


async def test_an_aborted_transaction_lets_go_of_its_records():
    async with make(simulated_system()) as queue:
        tx = queue.transaction("billing")
        await tx.publish(TOPIC, b"x")
        await tx.abort()
        assert not tx._items
        await tx.abort()


def test_other_settings_count_from_the_next_record_on():
    asked: list[str] = []
    world: Any = part(config=None, _record_bytes_max=0, _set_room=lambda: asked.append("room"))
    config = TopicConfig(record_bytes_max=77)
    TopicWriter.reconfigure(world, config)
    assert (world.config, world._record_bytes_max, asked) == (config, 77, ["room"])


def test_a_head_of_no_epoch_makes_no_epoch():
    log = SmallLog()
    log.append((None, b"0"))
    file = HeadFile(log.store, KEYS.head)
    file.write(log.head()._replace(epoch=EPOCH_UNKNOWN))
    world: Any = part(_store=log.store, _system=log.system)
    assert _Repair._with_epoch(world, log.state) == log.state


def test_no_time_at_all_is_a_time():
    for seconds in (0, 0.0, 1):
        check_seconds(seconds)
    for seconds in (-0.1, float("nan")):
        with pytest.raises(InvalidOption):
            check_seconds(seconds)


def test_nobody_reads_at_a_new_place():
    topic: Any = part(reader=lambda _: part(cursor=lambda at: at))
    place: Any = Place(topic, 0, part())
    assert (place.busy, place.cursor, place.delivered) == (False, 0, 0)


async def test_a_place_with_nothing_behind_it_stays_where_it_is():
    cursor = part(offset=3, fetch=lambda _: [], keys=None)
    topic: Any = part(reader=lambda _: part(cursor=lambda _: cursor))
    place: Any = Place(topic, 0, part())
    assert not await place.fetch()
    assert (place.busy, place.read_to) == (False, 0)
