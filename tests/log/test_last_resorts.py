"""What the log does when it has tried often enough, or meets what only a race can make."""

import asyncio
import threading
from dataclasses import replace
from typing import Any, cast

import pytest
from crc32c import crc32c

from penstock.errors import DamagedFile, DeadlineExceeded, Fenced, KeyNotFound, TransactionPending
from penstock.log import (
    membership,
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
from penstock.log.frame import draft
from penstock.log.group_bell import GroupBells
from penstock.log.group_session import ATTEMPTS_MAX, GroupSession
from penstock.log.group_subscription import GroupSubscription
from penstock.log.head import HeadFile
from penstock.log.inspection import _Inspector
from penstock.log.membership import Membership
from penstock.log.open_topic import OpenTopic
from penstock.log.producer import Producer
from penstock.log.producer_file import ProducerFile
from penstock.log.segment import SegmentStart
from penstock.log.subscription import Subscription
from penstock.log.topic import TopicConfig
from penstock.log.transaction_care import TransactionCare
from penstock.log.transaction_decision import DecisionFiles, Front, Share
from penstock.log.transaction_roll import Places, Roller
from penstock.log.transactions import Transactions
from penstock.log.walk import Stretch, Walker
from penstock.log.writer import TopicWriter
from penstock.stores.memory import MemoryStore
from penstock.system import System
from tests.log.small_log import KEYS, TOPIC, SmallLog
from tests.log.strategies import values_draft
from tests.log.test_forged_segments import LOG_ID, START, forged, stored
from tests.log.test_small_promises import part

# Giving up


def test_records_that_never_find_their_epoch_are_refused():
    routing = part(route=lambda *_: {}, route_again=lambda *_: {}, epoch=1)
    world = part(
        _routing=routing,
        _commit_parcels=lambda parcels, epoch: ["astray"],
        _catch_up=lambda: None,
        topic="orders",
        config=TopicConfig(),
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


def test_a_late_receipt_inherits_what_went_wrong():
    inherited: list[Any] = []
    world = part(_inherit=inherited.append)
    for done in (False, True):
        receipt: Any = part(since=5, done=done)
        TopicWriter._join(world, part(since=3), receipt)
        assert receipt.since == 3
    assert len(inherited) == 1


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

    store: Any = None
    world = TransactionCare(store, cast("Any", part(finish=finish)), System())
    monkeypatch.setattr(world, "_is_behind", lambda name, group: next(behind))
    world.settle_group("group", 60.0)
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
    failed, placed = (part(error=None, acknowledgement=None) for _ in range(2))
    receipt = part(errors={})
    batch = part(rows=[failed, placed], receipt=receipt, awaited=True)
    parcel: Any = part(portions=[(batch, [0])])
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
