"""What the log does when it has tried often enough, or finds things that only damage or a race can make."""

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from crc32c import crc32c

from penstock.errors import (
    DamagedFile,
    DeadlineExceeded,
    Fenced,
    KeyNotFound,
    TransactionPending,
    UnsupportedFormat,
)
from penstock.log import (
    membership,
    partition_check,
    transaction_care,
    transaction_decision,
    transaction_roll,
    transactions,
    walk,
)
from penstock.log.changes import Changes
from penstock.log.columns import Columns
from penstock.log.deletion import _remove_all
from penstock.log.epoch_change import _mend_head
from penstock.log.frame import KIND_START, draft
from penstock.log.group_bell import GroupBells
from penstock.log.group_session import ATTEMPTS_MAX, GroupSession
from penstock.log.group_subscription import GroupSubscription
from penstock.log.head import Head, HeadFile
from penstock.log.index import Index, IndexRow
from penstock.log.inspection import VerifyReport, _Inspector, inspect_segment
from penstock.log.membership import Membership
from penstock.log.open_topic import OpenTopic
from penstock.log.partition_check import PartitionCheck
from penstock.log.producer import Producer
from penstock.log.producer_file import ProducerFile
from penstock.log.recovery import TailScanner
from penstock.log.repair import repair
from penstock.log.repair_partition import PartitionRepair, _Part, quarantine_file
from penstock.log.rewrite import SegmentWriter
from penstock.log.segment import SegmentEnd, SegmentSource, SegmentStart
from penstock.log.subscription import Subscription
from penstock.log.topic import TopicFile
from penstock.log.transaction_care import TransactionCare
from penstock.log.transaction_decision import DecisionFiles, Front, Share
from penstock.log.transaction_roll import Places, Roller
from penstock.log.transactions import Transactions
from penstock.log.verify import check_topic
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

    world = part(_take=lambda records_max: [], _fill=locked, topic="orders")
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


# What verify and repair tell


def test_an_entry_of_a_newer_release_is_told(monkeypatch):
    log = SmallLog()
    log.append((None, b"0"))

    def newer(*_: object, **__: object) -> Any:
        raise UnsupportedFormat("version 9", version=9)

    monkeypatch.setattr(partition_check, "inspect_segment", newer)
    report = VerifyReport()
    check = PartitionCheck(log.store, KEYS, None, report)
    assert check._inspect(log.reader().segments()[0], None, 1) is None
    assert [one.kind for one in report.problems] == ["entry"]


def test_damage_of_the_tail_is_told_once(monkeypatch):
    log = SmallLog()
    log.append((None, b"0"))
    for reason, kind in (("missing", "missing"), ("chain", "entry")):

        def hurt(*_: object, reason: str = reason) -> Any:
            raise DamagedFile("hurt", file="file", reason=reason)

        monkeypatch.setattr(TailScanner, "find_end", hurt)
        report = VerifyReport()
        check = PartitionCheck(log.store, KEYS, None, report)
        check._scan_tail(None)
        check._scan_tail(None)
        assert [one.kind for one in report.problems] == [kind]


def test_a_head_that_does_not_fit_the_segment_before_it_is_told():
    report = VerifyReport()
    check = PartitionCheck(MemoryStore(), KEYS, None, report)
    last: Any = part(next_offset=5, link=1)
    check._inspect_open(Head(segment_base=5, durable_checksum=1), last)
    assert not report.problems
    check._inspect_open(Head(segment_base=5, durable_checksum=2), last)
    assert [one.kind for one in report.problems] == ["head"]


def test_rows_of_an_index_that_lie_are_told():
    log = SmallLog()
    log.append((None, b"0"))
    log.roll()
    log.append((None, b"1"))
    source = log.reader().segments()[0]
    entry = list(source.entries(0, source.size()))[1]
    true = IndexRow(0, entry.timestamp, entry.position)
    wrong = true._replace(offset=7), true._replace(position=entry.position + 1)
    for row, count in ((true, 0), (wrong[0], 1), (wrong[1], 1)):
        log.store.write(KEYS.index(source.name), Index([row]).pack())
        found = inspect_segment(KEYS, source)
        assert sum(one.kind == "index" for one in found.problems) == count


def test_a_start_entry_without_a_body_is_told():
    short = stored(draft(0, [b"x"], 0, kind=KIND_START))
    (entry,) = short.entries(0, short.size())
    told: list[str] = []
    world = part(_found=part(source=short), _tell=lambda kind, *_: told.append(kind))
    _Inspector._check_start(world, entry)
    assert told == ["start"]


def test_the_description_of_another_topic_is_told_by_its_name(monkeypatch):
    store = MemoryStore()
    monkeypatch.setattr(TopicFile, "read", lambda self: part(name="another"))
    problems: list[Any] = []
    check_topic(store, TOPIC, problems)
    assert "another" in problems[0].message


def test_a_tail_that_cannot_be_walked_is_hurt(monkeypatch):
    def hurt(*_: object) -> Any:
        raise DamagedFile("hurt")

    monkeypatch.setattr(TailScanner, "find_end", hurt)
    world = part(_keys=KEYS)
    assert PartitionRepair._tail_is_hurt(world, [], None, [], 0)
    assert PartitionRepair._tail_is_hurt(world, [stored(START)], None, [], 0)


def test_files_that_do_not_belong_to_the_partition_are_dropped():
    other = SegmentStart(LOG_ID, 0, 0, "another").draft()
    mine, foreign, empty = stored(START), stored(other), stored(values_draft(b"no start"))
    dropped: list[str] = []
    world = part(
        _keys=KEYS,
        _log_id=LOG_ID,
        _drop=lambda source, reason: dropped.append(reason),
    )
    world._foreign = lambda source: PartitionRepair._foreign(world, source)
    assert world._foreign(mine) is None
    assert world._foreign(empty) is None
    covered = _Part(0, mine, None, 9)
    parts = [covered, _Part(5, mine, None, 6), _Part(9, foreign, None, 12)]
    kept = PartitionRepair._without_strays(world, parts)
    # A part that is to be written anew stands where the foreign file stood.
    assert [(one.base, one.rewrite) for one in kept] == [(0, False), (9, True)]
    assert dropped == [
        "its offsets are in the segment before it already",
        "it belongs to another/0",
    ]


# Groups, subscriptions and transactions


async def test_a_commit_of_what_is_not_the_members_is_refused_at_once():
    async def commit(*_: object, **__: object) -> Any:
        raise Fenced("another member's", reason="partition")

    world = part(member=part(commit=commit), _wake=asyncio.Event())
    with pytest.raises(Fenced):
        await GroupSession.commit(world, {})
    assert world._wake.is_set()


def test_what_a_member_has_not_handled_is_not_consumed(monkeypatch):
    monkeypatch.setattr(Subscription, "_consumed", lambda self, number: 7)
    mine = object.__new__(GroupSubscription)
    mine.handled, mine._given = None, frozenset({0})
    assert mine._consumed(0) == 7
    mine.handled = lambda number: 3
    assert (mine._consumed(0), mine._consumed(1)) == (3, 7)


def test_offsets_whose_records_are_gone_count_as_consumed(monkeypatch):
    monkeypatch.setattr(membership, "has_records", lambda reader, first, end: False)
    world = part(
        _file_of=lambda number: part(read=lambda: part(offset=2)),
        topic=part(reader=lambda number: None),
    )
    assert Membership._consumed(world, 0, 10) == 10


def test_a_subscriber_that_was_forgotten_meanwhile_meets_nothing():
    state = part(subscribers={})
    answers: list[Any] = []
    file = part(read=lambda: state, update=lambda change: answers.append(change(state)))
    clock = part(time_ms=lambda: 0)
    topic = part(around=part(system=part(clock=clock)))
    Membership._meet(part(_name="billing", _file=file, topic=topic), [0])
    assert answers == [state]


def test_a_producer_that_is_held_up_is_looked_at_again(monkeypatch):
    monkeypatch.setattr(transaction_care, "producer_names", lambda store: ["billing"])
    behind = iter([True, True, False])

    def finish(name: str, timeout: float) -> None:
        raise DeadlineExceeded("a live process has it")

    world = part(
        _system=System(),
        _store=None,
        _is_behind=lambda name, group: next(behind),
        _transactions=part(finish=finish),
    )
    TransactionCare.settle_group(world, "group", 60.0)
    assert next(behind, None) is None


def test_a_transaction_that_is_sent_elsewhere_again_and_again_is_never_taken_for_done(monkeypatch):
    monkeypatch.setattr(transactions, "EPOCH_CHANGES_MAX", 3)
    decision: Any = part(generation=3, number=7, files=())
    tries: list[int] = []

    def submit(append: object) -> Any:
        tries.append(1)
        return lambda: ["displaced"]

    world = part(
        _decide_again=lambda *_: (decision, None),
        _roller=part(append=lambda *_: None),
        _submit=submit,
    )
    marks: list[Any] = []
    file: Any = part(name="billing", write_done=marks.append)
    displaced: Any = ["displaced"]
    with pytest.raises(TransactionPending, match="all the time"):
        Transactions._complete(world, file, decision, displaced)
    assert (len(tries), marks) == (3, [])


def test_a_row_that_has_its_place_is_not_failed():
    failed, placed = part(error=None), part(error=None)
    receipt = part(errors={})
    batch = part(waiting=[(0, failed), (1, placed)], receipt=receipt, awaited=True)
    parcel: Any = part(batch=batch, places=[0])
    world = part(
        _caches=[part(clear=lambda: None)],
        _failures={},
        _committing=1,
        _remember=lambda batch, error: None,
    )
    error = RuntimeError("the disk")
    TopicWriter._fail(world, 0, [parcel], error)
    assert (failed.error, placed.error, receipt.errors) == (error, None, {0: error})


def decision_files(rest: bytes, description: int, checksum: int | None = None) -> DecisionFiles:
    """A decision whose front is right, whatever follows."""
    store = MemoryStore()
    files = DecisionFiles(store, ProducerFile(store, "billing"))
    front = Front(0, 1, 0, description, len(rest) - description, checksum or crc32c(rest))
    store.write(files.key(1), front.pack(files.key(1)) + rest)
    return files


def test_a_decision_that_is_torn_or_no_decision_never_happened():
    assert decision_files(b"[1, 2]", 6).look().pending is None
    assert decision_files(b"{}", 2, checksum=5).look().pending is None
    assert decision_files(b"\xff\xfe", 2).look().pending is None
    short = decision_files(b"{}", 2)
    short._store.write(short.key(1), short._store.read(short.key(1))[:10])
    assert short.look().pending is None
    huge = decision_files(b"", 0)
    front = Front(0, 1, 0, transaction_decision.DECISION_BYTES_MAX, 1, 0)
    huge._store.write(huge.key(1), front.pack(huge.key(1)))
    assert huge.look().pending is None
    huge.secure(huge.look())


def test_offsets_beyond_the_entry_are_damage():
    flags, body = Columns([b"a", b"b"], None, None, None, [0, 5]).encode()
    source = stored(START, draft(flags, body, 2, offset_span=2))
    steps = list(Walker(source, source.size()).steps())
    assert [one.reason for one in steps if isinstance(one, Stretch)] == ["columns"]


def test_a_search_ends_when_no_entry_could_reach_further(monkeypatch):
    monkeypatch.setattr(walk, "ENTRY_BYTES_MAX", 10)
    whole = forged(START, *(values_draft(b"%d" % number * 40) for number in range(4)))
    source = stored(START)
    first = len(forged(START))
    # Nothing of the header is left that the next entry could chain to.
    hurt = whole[:first] + bytes(90) + whole[first + 90 :]
    source.store.write(source.key, hurt)
    steps = list(Walker(source, len(whole)).steps())
    assert sum(not isinstance(one, Stretch) for one in steps) >= 3


def test_a_decision_that_is_replaced_while_it_is_read_is_not_the_pending_one(monkeypatch):
    files = decision_files(b"{}", 2)
    read = files._store.read

    def vanish(key: str, start: int = 0, length: int | None = None) -> bytes:
        if start:
            raise KeyNotFound(key)
        return read(key, start, length)

    monkeypatch.setattr(files._store, "read", vanish)
    assert files.look().pending is None


def test_a_start_entry_of_another_place_is_told():
    other = stored(SegmentStart(LOG_ID, 0, 0, "another").draft())
    (entry,) = other.entries(0, other.size())
    told: list[str] = []
    world = part(_keys=KEYS, _found=part(source=other), _tell=lambda kind, *_: told.append(kind))
    _Inspector._check_start(world, entry)
    assert told == ["start"]
