"""Parts of the log whose callers left, were refused, or closed it first: nothing breaks, nothing is hidden."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import WalMessageQueue
from penstock.errors import (
    Closed,
    DeadlineExceeded,
    Fenced,
    KeyNotFound,
    StoreFailed,
    UsageError,
)
from penstock.log.arrow_columns import _cut
from penstock.log.changes import Changes
from penstock.log.event_log import LogEvents
from penstock.log.group_bell import GroupBells
from penstock.log.group_session import GroupSession
from penstock.log.journal import LogJournal
from penstock.log.maintenance import Maintenance
from penstock.log.membership import Membership
from penstock.log.names import PartitionKeys
from penstock.log.open_topic import _close
from penstock.log.sealed import segment_files
from penstock.log.segment import list_segments
from penstock.log.sequences import Sequences, _Waiting
from penstock.log.topics import Topics
from penstock.log.transaction_care import TransactionCare
from penstock.log.waiting import end
from penstock.log.writer import TopicWriter
from penstock.stores.memory import MemoryStore

TROUBLE = StoreFailed("the disk")


def fails(*_: object, **__: object) -> Any:
    raise TROUBLE


async def fails_later(*_: object, **__: object) -> Any:
    raise TROUBLE


def part(**fields: Any) -> Any:
    """As much of an object as a method of it needs."""
    return SimpleNamespace(**fields)


async def test_work_that_was_cancelled_is_not_asked_for_its_error():
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.cancel()
    at_work = {future}
    end(at_work, future)
    assert not at_work
    opening: dict[str, Any] = {"orders": future}
    Topics._settled(part(_opening=opening), "orders", part(cancelled=lambda: True))
    assert not opening


def test_a_name_that_nobody_holds_is_given_back_quietly():
    for kind, name in ((Membership, "close"), (LogJournal, "_leave")):
        getattr(kind, name)(part(_claim=None))


# The journal and the event log


async def test_a_journal_that_cannot_be_read_is_free_for_the_next(tmp_path, monkeypatch):
    async with WalMessageQueue(tmp_path / "log") as queue:
        first = queue.journal("bus")
        monkeypatch.setattr(first, "_read", fails_later)
        with pytest.raises(StoreFailed):
            await first.open()
        second = queue.journal("bus")
        assert await second.open() == {}
        await second.close()


async def test_a_journal_whose_change_is_late_stays_claimed(tmp_path, monkeypatch):
    """The change may still be written: nobody may read the journal without it."""

    async def late(*_: object, **__: object) -> None:
        raise DeadlineExceeded("too late")

    async with WalMessageQueue(tmp_path / "log") as queue:
        journal = queue.journal("bus")
        await journal.open()
        with monkeypatch.context() as patched:
            patched.setattr(queue, "publish_many", late)
            with pytest.raises(DeadlineExceeded):
                await journal.change({"key": b"value"})
            patched.setattr(queue, "flush", fails_later)
            await journal.close()
        assert journal._claim is not None


async def test_an_event_log_that_cannot_find_its_end_is_free_for_the_next(tmp_path, monkeypatch):
    async with WalMessageQueue(tmp_path / "log") as queue:
        first = queue.event_log("bus")
        assert isinstance(first, LogEvents)
        await first.close()
        with pytest.raises(UsageError, match="not open"):
            first._live()
        monkeypatch.setattr(first, "_end", fails_later)
        with pytest.raises(StoreFailed):
            await first.open()
        second = queue.event_log("bus")
        await second.open()
        await second.close()


# Opening, closing and upkeep


async def test_a_transaction_that_cannot_be_finished_yet_is_told_and_the_queue_opens(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(TransactionCare, "settle", lambda self: [TROUBLE])
    with caplog.at_level(logging.WARNING):
        async with WalMessageQueue(tmp_path / "log") as queue:
            await queue.create_topic("orders")
    assert "cannot be finished yet" in caplog.text


async def test_trouble_with_producers_keeps_retention_for_the_next_round(
    tmp_path, monkeypatch, caplog
):
    async with WalMessageQueue(tmp_path / "log") as queue:
        await queue.create_topic("orders")
        topic = queue._engine.topics.by_name["orders"]
        upkeep = queue._engine.maintenance
        monkeypatch.setattr(TransactionCare, "partitions_in_use", fails)
        with caplog.at_level(logging.WARNING):
            await asyncio.to_thread(upkeep.retain, topic)
            assert "retention of orders" in caplog.text
            (report,) = await asyncio.to_thread(upkeep._tend, topic)
            assert report.error is TROUBLE
            await asyncio.to_thread(upkeep._round)
            assert "maintenance of orders" in caplog.text


def test_retention_that_was_asked_for_is_left_out_when_everything_stops():
    asked = {"orders"}
    topic: Any = part(name="orders")
    Maintenance._retain_asked(part(_asked=asked, _stopping=True, retain=fails), topic)
    assert not asked


def test_a_partition_that_cannot_be_closed_says_why():
    log: Any = part(close=fails)
    assert _close(log) is TROUBLE


async def test_closing_after_a_fork_has_nothing_to_wait_for():
    await WalMessageQueue.close(part(_refusal=Closed("forked"), _closing=None), 1.0)


def test_a_writer_takes_nothing_over_from_others_when_it_is_poisoned():
    log: Any = part(poison=TROUBLE)
    TopicWriter.adopt(part(_logs=[log], _try_sync=fails, _on_commit=fails), 0)


def test_a_folder_that_was_never_made_has_no_segments():
    class Absent(MemoryStore):
        def list(self, prefix: str = "") -> list[str]:
            raise KeyNotFound(prefix)

    keys = PartitionKeys("orders", 0)
    assert list_segments(keys, Absent(), None) == []
    assert segment_files(keys, [Absent()]) == []


# Publishing with a sequence


async def test_a_publisher_that_left_gets_neither_acknowledgement_nor_error():
    loop = asyncio.get_running_loop()
    left: asyncio.Future[Any] = loop.create_future()
    left.cancel()
    there: asyncio.Future[Any] = loop.create_future()
    row = (b"value", None, None, None)
    together = [_Waiting(1, "orders", row, left), _Waiting(2, "orders", row, there)]

    async def known() -> int:
        return 5

    world = part(_known=known, _waiting=[], _last=None, _failed=None)
    await Sequences._commit(world, together)
    assert there.result() == (2, True)
    again: asyncio.Future[Any] = loop.create_future()
    together = [_Waiting(1, "orders", row, left), _Waiting(2, "orders", row, again)]
    Sequences._fail(world, together, together, TROUBLE)
    assert isinstance(again.exception(), StoreFailed)
    assert world._failed == 1


# Groups


async def given(finished: Any) -> tuple[list[Any], Any]:
    """What a session tells its reader when it gives partitions away, and what is left to do."""
    told: list[Any] = []
    partitions: Any = frozenset({("orders", 0)})
    member: Any = part(releasing=partitions)
    world = part(
        _finished=finished,
        _member=None,
        _reader=part(failed=told.append, released=told.append),
        _handing_over={partitions: None},
        _wake=asyncio.Event(),
    )
    await GroupSession._give(world, member, partitions)
    assert world._wake.is_set()
    return told, world._handing_over


async def test_giving_away_ends_whatever_becomes_of_it():
    async def fenced(_: object) -> None:
        raise Fenced("removed")

    async def nothing(_: object) -> None:
        pass

    assert await given(fenced) == ([], {})
    assert await given(fails_later) == ([TROUBLE], {})
    assert await given(nothing) == ([], {})


def test_a_bell_that_is_closed_or_of_another_group_calls_nobody():
    GroupBells._on_change(part(_watch=None))
    called: list[str] = []
    watch: Any = part(drain=lambda: {"groups/other/bell"})
    GroupBells._on_change(part(_watch=watch, _listeners={"billing": {}}, _call=called.append))
    assert not called
    every: Any = part(drain=lambda: None)
    GroupBells._on_change(part(_watch=every, _listeners={"billing": {}}, _call=called.append))
    assert called == ["billing"]


def test_heads_that_cannot_be_read_wake_those_who_wait():
    """They look again, and raise if it is still so."""
    Changes._on_change(part(_watch=None))
    woken: list[str] = []
    topic: Any = part(name="orders", refresh=fails)
    unread: set[str] = set()
    world = part(
        _watch=part(drain=lambda: None),
        _changed=lambda keys: [(topic, None)],
        _unread=unread,
        _wake_if=lambda moved, name: woken.append(name) if moved else None,
    )
    Changes._on_change(world)
    assert (woken, unread) == (["orders"], {"orders"})


# Arrow


def test_a_column_of_arrow_without_a_buffer_of_bytes():
    """As another program may hand it over."""

    class Column:
        null_count = offset = 0

        def __len__(self) -> int:
            return 2

        def buffers(self) -> list[bytes | None]:
            return [None, bytes(12), None]

    column: Any = Column()
    lengths, data = _cut(column)
    assert (lengths.tolist(), data) == ([0, 0], b"")
