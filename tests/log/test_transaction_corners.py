"""Transactions at their bounds: limits, blocks that are over already, and who decides when nobody waits."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import WalMessageQueue
from penstock.errors import Closed, DeadlineExceeded, LimitReached, TransactionPending
from penstock.log import transaction_decision, transaction_roll
from penstock.log.codec import Codec
from penstock.log.frame import draft
from penstock.log.offsets import OffsetFile
from penstock.log.transaction import _Deciding
from penstock.log.transaction_commit import Commit, GroupOffsets, Outcome
from penstock.log.transaction_decision import OffsetMove
from penstock.log.transaction_reroute import _columns
from penstock.log.transaction_roll import Roller
from penstock.log.transaction_staging import note
from penstock.testing.disk import SimulatedDisk
from tests.log.transaction_world import (
    GROUP,
    NAME,
    SOURCE,
    Process,
    State,
    columns_of,
    drafts_of,
    make_topics,
    read_state,
)


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process(SimulatedDisk())
    make_topics(made.store)
    yield made
    made.transactions.close()


class Counting(Commit):
    """A commit that notes each time that it is finished, and whether the offsets had moved."""

    def __init__(self) -> None:
        super().__init__(Outcome(NAME, 0))
        self.moved: list[bool] = []

    def finish(self, *, moved: bool = False) -> Outcome:
        self.moved.append(moved)
        return self.outcome


class Owner:
    """Of offsets; raises before or after the decision, or not at all."""

    def __init__(
        self,
        *,
        before: Exception | None = None,
        after: Exception | None = None,
        ends: bool = True,
    ) -> None:
        self._before, self._after, self._ends = before, after, ends

    async def commit_with(self, offsets: object, write: Any, held: object) -> None:
        if self._before is not None:
            raise self._before
        ending = write()
        if self._after is not None:
            raise self._after
        if self._ends:
            ending()


def finish(begun: Commit, *, moved: bool) -> Outcome:
    return begun.finish(moved=moved)


@pytest.mark.parametrize(
    ("owner", "moved"),
    [
        (Owner(after=RuntimeError("the offsets")), [False]),
        (Owner(), [True]),
        (Owner(ends=False), [True]),
    ],
    ids=["offsets failed", "in the thread", "by who waits"],
)
async def test_a_decision_stands_and_is_finished_once(owner, moved):
    begun = Counting()
    assert await _Deciding(lambda: begun, finish).done_by(owner, {}, {}) is begun.outcome
    assert begun.moved == moved


async def test_what_keeps_it_from_being_decided_is_raised():
    owner: Any = Owner(before=RuntimeError("refused"))
    with pytest.raises(RuntimeError, match="refused"):
        await _Deciding(Counting, finish).done_by(owner, {}, {})


async def test_an_owner_that_does_not_ask_for_the_decision_is_an_error_and_no_endless_wait():
    class Forgetful:
        async def commit_with(self, offsets: object, write: Any, held: object) -> None:
            pass

    forgetful: Any = Forgetful()
    with pytest.raises(AssertionError, match="write"):
        await asyncio.wait_for(_Deciding(Counting, finish).done_by(forgetful, {}, {}), 30)


async def test_what_fails_after_the_decision_is_raised():
    def fail(begun: Commit, *, moved: bool) -> Outcome:
        raise TransactionPending("later", producer=NAME, number=0)

    owners: list[Any] = [Owner(), Owner(ends=False), Owner(after=RuntimeError("the offsets"))]
    for owner in owners:
        with pytest.raises(TransactionPending):
            await _Deciding(Counting, fail).done_by(owner, {}, {})


def test_a_decision_that_nobody_waits_for_is_finished_by_who_made_it():
    begun = Counting()
    deciding = _Deciding(lambda: begun, finish)
    assert deciding.claim() is None
    assert deciding.write() is None
    assert begun.moved == [False]


async def test_who_gives_up_while_the_thread_finishes_waits_for_it():
    begun, at_work, may_go_on = Counting(), threading.Event(), threading.Event()

    def slowly(begun: Commit, *, moved: bool) -> Outcome:
        at_work.set()
        assert may_go_on.wait(30)
        return begun.finish(moved=moved)

    class Impatient:
        async def commit_with(self, offsets: object, write: Any, held: object) -> None:
            threading.Thread(target=write(), daemon=True).start()
            assert await asyncio.to_thread(at_work.wait, 30)
            asyncio.get_running_loop().call_soon(may_go_on.set)
            raise DeadlineExceeded("gave up", seconds=1.0)

    impatient: Any = Impatient()
    assert await _Deciding(lambda: begun, slowly).done_by(impatient, {}, {}) is begun.outcome
    assert begun.moved == [True]


async def test_a_block_that_committed_by_itself_ends_quietly(tmp_path):
    async with WalMessageQueue(tmp_path / "log") as queue:
        async with queue.producer(NAME) as producer:
            async with producer.transaction() as transaction:
                await transaction.publish("orders", b"once")
                outcome = await transaction.commit()
            assert outcome.records == 1
            async with producer.transaction() as transaction:
                await transaction.abort()
        assert queue.durable_offset("orders") == 1


def test_a_decision_that_would_be_too_large_writes_nothing(process, monkeypatch):
    lease = process.transactions.open(NAME)
    monkeypatch.setattr(transaction_decision, "DECISION_BYTES_MAX", 100)
    with pytest.raises(LimitReached, match="several transactions"):
        process.commit(lease, 0)
    assert read_state(process.store) == State()


def test_large_transactions_are_appended_in_portions(process, monkeypatch):
    monkeypatch.setattr(transaction_roll, "APPEND_BYTES_MAX", 1)
    lease = process.transactions.open(NAME)
    records = [*drafts_of(process.store, 0), *drafts_of(process.store, 1)]
    assert process.transactions.commit(lease, records=records).records == 20
    assert sum(map(len, read_state(process.store).values.values())) == 20


def test_few_partitions_and_offsets_are_kept_open(process, monkeypatch):
    monkeypatch.setattr(transaction_roll, "LOGS_MAX", 1)
    monkeypatch.setattr(transaction_roll, "OFFSET_FILES_MAX", 1)
    lease = process.transactions.open(NAME)
    state = State()
    for number in range(3):
        moved = GroupOffsets(GROUP, {SOURCE: number + 1, ("orders", 1): number + 1})
        records = drafts_of(process.store, number)
        process.transactions.commit(lease, number=number, records=records, offsets=[moved])
        state = state.after(number)
    assert read_state(process.store) == state
    second = OffsetFile(process.store, GROUP, "orders", 1).read()
    assert second is not None
    assert second.offset == 3


def test_a_log_that_is_closed_decides_nothing(process):
    lease = process.transactions.open(NAME)
    process.transactions.close()
    with pytest.raises(Closed):
        process.commit(lease, 0)
    waiting = process.transactions._started(lambda run_all: None)
    with pytest.raises(Closed):
        waiting()
    assert read_state(process.store) == State()


def test_staging_nothing_writes_nothing_and_can_be_abandoned(process):
    writer = process.transactions.writer(NAME)
    writer.add_drafted([])
    empty = writer.finish()
    assert (empty.records, empty.size) == (0, 0)
    assert not process.store.exists(empty.file)
    writer.add("journal", columns_of([b"staged"]))
    assert process.store.exists(writer.file)
    writer.abandon()
    assert not process.store.exists(writer.file)


def test_a_compressed_entry_is_read_back_to_be_sent_elsewhere():
    columns = columns_of([b"one", b"two"])
    flags, body = columns.encode()
    entry = draft(flags, body, 2, codec=Codec.ZLIB)
    again = _columns(note(entry, 0, 0), b"".join(bytes(one) for one in entry.body))
    assert (list(again.values), again.keys) == ([b"one", b"two"], columns.keys)


def test_moves_that_happened_are_not_made_again(process):
    process.commit(process.transactions.open(NAME), 0)
    process.transactions._roller.move([OffsetMove(GROUP, *SOURCE, -1, 1)])
    assert read_state(process.store).offset == 1


async def test_a_subscriber_goes_on_when_what_was_made_before_is_in_its_topic(
    tmp_path, monkeypatch
):
    """Its offset had moved when the disk failed; what it makes now is to come behind what it made then."""
    async with WalMessageQueue(tmp_path / "log") as queue:
        await queue.publish_many("orders", [b"first", b"second"])
        await queue.create_topic("copies")
        with monkeypatch.context() as broken:
            broken.setattr(Roller, "append", lambda *_, **__: 1 / 0)
            async with queue.subscribe("orders", "copying") as orders:
                await anext(orders)
                transaction = queue.producer(NAME).transaction()
                await transaction.publish("copies", b"first")
                transaction.commit_offsets(orders, {0: 1})
                with pytest.raises(TransactionPending):
                    await transaction.commit()
        assert queue.durable_offset("copies") == 0
        async with queue.subscribe("orders", "copying") as orders:
            assert (await anext(orders)).value == b"second"
            assert [one.value async for one in queue.replay("copies")] == [b"first"]
