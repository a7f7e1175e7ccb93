"""What the log does when it has tried often enough, or finds things that only damage or a race can make."""

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import (
    DamagedFile,
    DeadlineExceeded,
    Fenced,
    UnsupportedFormat,
)
from penstock.log import transaction_roll
from penstock.log.changes import Changes
from penstock.log.columns import Columns
from penstock.log.deletion import _remove_all
from penstock.log.epoch_change import _mend_head
from penstock.log.frame import draft
from penstock.log.group_bell import GroupBells
from penstock.log.group_session import ATTEMPTS_MAX, GroupSession
from penstock.log.group_subscription import GroupSubscription
from penstock.log.head import HeadFile
from penstock.log.inspection import _Inspector, inspect_segment
from penstock.log.membership import Membership
from penstock.log.open_topic import OpenTopic
from penstock.log.producer import Producer
from penstock.log.repair import repair
from penstock.log.repair_partition import PartitionRepair, quarantine_file
from penstock.log.rewrite import SegmentWriter
from penstock.log.segment import SegmentEnd, SegmentSource, SegmentStart
from penstock.log.subscription import Subscription
from penstock.log.topic import TopicFile
from penstock.log.transaction_decision import Share
from penstock.log.transaction_roll import Places, Roller
from penstock.log.walk import Stretch, Walker
from penstock.log.writer import TopicWriter
from penstock.stores.memory import MemoryStore
from penstock.system import System
from tests.log.small_log import KEYS, TOPIC, SmallLog
from tests.log.strategies import flip, values_draft
from tests.log.test_forged_segments import LOG_ID, START, forged, stored


def part(**fields: Any) -> Any:
    """As much of an object as a method of it needs."""
    return SimpleNamespace(**fields)


# Giving up


def test_records_that_never_find_their_epoch_are_refused():
    routing = part(route=lambda batches: {}, route_again=lambda astray: {}, epoch=1)
    world = part(
        _routing=routing,
        _commit_parcels=lambda parcels, epoch: ["astray"],
        _catch_up=lambda: None,
        topic="orders",
    )
    with pytest.raises(DeadlineExceeded, match="repartitioned all the time"):
        TopicWriter._commit_batches(world, [])


def test_entries_of_a_transaction_that_no_head_takes_are_sent_elsewhere(monkeypatch):
    monkeypatch.setattr(transaction_roll, "HEADS_MENDED_MAX", 0)
    roller = Roller(Places(MemoryStore(), None, None, System()))
    share = Share("orders", 0, 1, ())
    decision: Any = None
    bodies: Any = None
    (displaced,) = roller._append(decision, share, bodies, first=True)
    assert displaced.share.topic == "orders"


async def test_a_commit_that_is_always_behind_the_generation_is_refused_in_the_end():
    looks: list[int] = []

    async def commit(*_: object, **__: object) -> Any:
        raise Fenced("behind", reason="generation")

    async def look() -> None:
        looks.append(1)

    world = part(member=part(commit=commit, look=look), _wake=asyncio.Event())
    with pytest.raises(Fenced):
        await GroupSession.commit(world, {})
    assert len(looks) == ATTEMPTS_MAX


# Heads, groups, subscriptions


def test_a_head_that_another_process_mends_or_damages_meanwhile_is_left_alone(monkeypatch):
    log = SmallLog()
    log.append((None, b"0"))
    before = log.store.read(KEYS.head)
    monkeypatch.setattr(HeadFile, "look", lambda self: (None, True))
    monkeypatch.setattr(HeadFile, "read", lambda self: part(epoch=3))
    _mend_head(log.store, KEYS, 9)
    assert log.store.read(KEYS.head) == before


def test_an_older_state_of_a_topic_is_not_taken():
    world = part(_moving=threading.Lock(), state=part(epoch=5))
    older: Any = part(epoch=4)
    OpenTopic.move_to(world, older)
    assert world.state.epoch == 5


def test_a_damaged_offset_counts_as_nothing_consumed():
    def damaged() -> Any:
        raise DamagedFile("the offset")

    world = part(_file_of=lambda number: part(read=damaged))
    assert Membership._consumed(world, 0, 10) == 0


def test_a_topic_in_a_store_without_locks_goes_too():
    class Plain(MemoryStore):
        capabilities = replace(MemoryStore.capabilities, log=False)

    store = Plain()
    store.write(f"topics/{TOPIC}/0/head", b"head")
    store.write(f"topics/{TOPIC}/topic.json", b"{}")
    _remove_all(store, TOPIC)
    assert not store.list()


def test_new_partitions_are_held_until_they_are_given_to_a_member():
    grown: list[bool] = []
    world = part(_paused=set(), on_growth=None)
    GroupSubscription._grew(world, [part(number=4)])
    world.on_growth = lambda: grown.append(True)
    GroupSubscription._grew(world, [part(number=5)])
    assert (world._paused, grown) == ({4, 5}, [True])


def test_a_watch_that_is_there_is_used_for_the_next_group():
    keys: list[str] = []
    watch = part(fileno=lambda: 3)
    store = part(watch=lambda: watch, watch_key=lambda _, key: keys.append(key))
    world = part(_watched=set(), _watch=watch, _store=store)
    assert GroupBells._watch_for(world, "billing")
    assert GroupBells._watch_for(world, "billing")
    assert len(keys) == 1


async def test_heads_that_could_not_be_read_are_read_again_by_who_waits():
    refreshed: list[Any] = []
    woken: list[str] = []
    topic = part(refresh=lambda *numbers: refreshed.append(numbers))
    tickets = iter([1])
    world = part(
        _unread={"orders"},
        _topics={"orders": topic},
        wake=woken.append,
        _watch_heads=lambda topic: [],
        _pause=0.0,
        ticket=lambda name: next(tickets),
    )
    await Changes.wait(world, "orders", 0)
    assert (refreshed, woken, world._unread) == ([()], ["orders"], set())


async def test_a_producer_catches_up_with_a_topic_that_was_repartitioned():
    caught: list[bool] = []
    opened = part(writer=part(refusal=None), behind=True, catch_up=lambda: caught.append(True))
    topics = part(by_name={"orders": opened})
    world = part(_engine=part(topics=topics))
    assert await Producer.topic(world, "orders") is opened
    assert caught == [True]


async def test_a_lock_further_down_tells_more_than_the_batch():
    async def locked() -> None:
        raise DeadlineExceeded("the lock of the offset")

    world = part(_check_open=lambda: None, _at_hand=[], _fill=locked, topic="orders")
    with pytest.raises(DeadlineExceeded, match="the lock of the offset"):
        await Subscription.next_batch(world, 5.0, 10)


# Repair and what it finds


def test_a_copy_in_quarantine_never_takes_the_place_of_another():
    store = MemoryStore()
    names = []
    for data in (b"one", b"two", b"one", b"three"):
        store.write("file", data)
        names.append(quarantine_file(store, "file"))
    assert names == ["quarantine/file", "quarantine/file.1", "quarantine/file", "quarantine/file.2"]


def test_a_segment_with_nothing_in_it_is_dropped_by_repair():
    dropped: list[str] = []
    world = part(_drop=lambda source, reason: dropped.append(reason))
    assert not PartitionRepair._drop_empty(world, part(source=None))
    assert not PartitionRepair._drop_empty(world, part(source="file"))
    assert len(dropped) == 1


def test_a_description_of_a_newer_release_is_not_repaired(monkeypatch):
    log = SmallLog()

    def newer(self: TopicFile) -> Any:
        raise UnsupportedFormat("version 9", version=9)

    monkeypatch.setattr(TopicFile, "read", newer)
    with pytest.raises(UnsupportedFormat):
        repair(log.store, TOPIC)


def test_groups_without_an_offset_in_the_topic_are_no_subscribers_of_it():
    log = SmallLog()
    log.append((None, b"0"))
    log.subscribe("billing").commit(1, 0)
    log.store.write(f"groups/other/{TOPIC}-0.lock", b"")
    log.store.write("groups/other/another/0", b"")
    log.store.delete(log.topic.key)
    repair(log.store, TOPIC)
    assert set(TopicFile(log.store, TOPIC).read().subscribers) == {"billing"}


def test_records_that_are_kept_twice_keep_their_places():
    """Rewritten, and rewritten again: the offsets stand in the entry from the first time on."""
    batch = Columns([b"a", b"b", b"c", b"d"])
    flags, body = batch.encode()
    source = stored(START, draft(flags, body, 4))
    for places in ([0, 2, 3], [1, 2]):
        kept = SegmentWriter(SegmentStart(LOG_ID, 0, 1, TOPIC), 0, 0, 0)
        kept.keep_some(list(source.entries(0, source.size()))[1], places)
        data, _ = kept.finish(0)
        store = MemoryStore()
        store.write(source.key, data)
        source = SegmentSource(source.name, store, source.key)
    records = list(source.entries(0, source.size()))[1].view().records(TOPIC, 0)
    assert [(one.offset, one.value) for one in records] == [(2, b"c"), (3, b"d")]


def test_a_second_problem_of_an_index_is_told_once():
    log = SmallLog()
    log.append((None, b"0"))
    (source,) = log.reader().segments()
    found = inspect_segment(KEYS, source)
    inspector = part(_found=found, _keys=KEYS)
    _Inspector._tell_index(inspector, "first")
    _Inspector._tell_index(inspector, "second")
    assert sum(one.kind == "index" for one in found.problems) == 1


def test_entries_behind_the_end_and_rows_that_lie_are_told():
    end = SegmentEnd(1, 0, 1, len(forged(START, values_draft(b"0"))), 0, 0).draft()
    twice = inspect_segment(KEYS, stored(START, values_draft(b"0"), end, values_draft(b"1")))
    assert "chain" in {one.kind for one in twice.problems}


def test_a_walk_finds_the_next_entry_behind_any_damage():
    whole = forged(START, *(values_draft(b"%d" % number * 40) for number in range(5)))
    source = stored(START)
    first = len(forged(START))
    for bit in range(8 * first, 8 * (first + 60), 7):
        source.store.write(source.key, flip(whole, bit))
        steps = list(Walker(source, len(whole)).steps())
        assert any(isinstance(one, Stretch) for one in steps)
        assert sum(not isinstance(one, Stretch) for one in steps) >= 4


def test_an_entry_that_is_cut_off_cannot_follow():
    whole = forged(START, values_draft(b"0"))
    source = stored(START)
    source.store.write(source.key, whole)
    walker = Walker(source, len(whole))
    header = source.chunk(0, len(whole))[1].header
    position = len(forged(START))
    assert walker._may_follow(position, header)
    source.store.write(source.key, flip(whole, 8 * (len(whole) - 10)))
    assert not walker._may_follow(position, header)


def test_a_late_receipt_inherits_what_went_wrong():
    inherited: list[Any] = []
    world = part(_inherit=inherited.append)
    for done in (False, True):
        receipt: Any = part(since=5, done=done)
        TopicWriter._join(world, part(since=3), receipt)
        assert receipt.since == 3
    assert len(inherited) == 1
