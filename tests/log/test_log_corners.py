"""Seldom paths of the log: callers that left, numbers at their bounds, parts that are closed."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import WalMessageQueue
from penstock.errors import (
    DamagedFile,
    DeadlineExceeded,
    InvalidOption,
    NotSupported,
    UsageError,
)
from penstock.log import arrow, deadlines, group_file
from penstock.log.arrow_columns import ArrowColumns
from penstock.log.compaction import Compactor
from penstock.log.deadlines import Deadlines, within
from penstock.log.group_file import GroupFile
from penstock.log.receipts import Receipt
from penstock.log.side_by_side import SideBySide
from penstock.log.verify import Pace
from penstock.stores.memory import MemoryStore
from penstock.system import OsClock, System
from penstock.testing.clock import VirtualClock
from tests.log.small_log import KEYS, SmallLog, log_key

pa = pytest.importorskip("pyarrow")


async def test_a_receipt_is_waited_for_on_its_own_loop():
    with pytest.raises(UsageError, match="event loop"):
        await Receipt("orders", None)._completion()


# Deadlines


async def test_futures_expire_one_after_the_other_and_those_that_are_done_stay_done(monkeypatch):
    loop = asyncio.get_running_loop()
    now = [100.0]
    turns: list[Callable[[], None]] = []
    fake: Any = SimpleNamespace(
        create_future=loop.create_future,
        time=lambda: now[0],
        call_soon=turns.append,
        call_later=lambda *_: loop.call_later(9_999, int),
        call_at=lambda when, *_: called.append(when),
    )
    called: list[float] = []
    made = Deadlines(fake)
    first, done = made.future(2.0), made.future(2.0)
    turns.pop()()
    assert not turns, "a turn has one place"
    now[0] = 101.0
    last = made.future(2.0)
    turns.pop()()
    done.set_result("in time")
    now[0] = 102.5
    made._expire(2.0)
    assert isinstance(first.exception(), DeadlineExceeded)
    assert (done.result(), last.done(), called) == ("in time", False, [103.0])
    now[0] = 103.0
    made._expire(2.0)
    assert isinstance(last.exception(), DeadlineExceeded)
    assert not made._queues


async def test_the_time_of_a_future_begins_when_its_turn_ends():
    """What else is done in the turn is not the publisher's time."""
    now, due = [100.0], [0.0]
    turns: list[Callable[[], None]] = []
    timer = SimpleNamespace(cancel=lambda: None)

    def call_at(when: float, *_: object) -> SimpleNamespace:
        due[0] = when
        return timer

    loop = asyncio.get_running_loop()
    fake: Any = SimpleNamespace(
        create_future=loop.create_future,
        time=lambda: now[0],
        call_soon=turns.append,
        call_later=lambda *_: timer,
        call_at=call_at,
    )
    made = Deadlines(fake)
    futures = [made.future(2.0), made.future(2.0)]
    now[0] = 101.5
    turns.pop()()
    now[0] = 102.5
    made._expire(2.0)
    assert not any(one.done() for one in futures)
    assert due == [103.5]
    unnoticed = made.future(2.0)
    made.close()
    for one in (*futures, unnoticed):
        assert isinstance(one.exception(), DeadlineExceeded)


async def test_calls_with_a_time_of_their_own_each_leave_no_timers_behind(monkeypatch):
    monkeypatch.setattr(deadlines, "QUEUES_MAX", 3)
    made = Deadlines(asyncio.get_running_loop())
    waiting = made.future(100.0)
    for number in range(50):
        made.future(10.0 + number / 1_000).set_result(None)
        await asyncio.sleep(0)
    assert len(made._queues) == len(made._timers) < 10
    assert not waiting.done()
    made.close()
    assert isinstance(waiting.exception(), DeadlineExceeded)


async def test_those_that_are_done_are_looked_at_once():
    loop = asyncio.get_running_loop()
    made = Deadlines(loop)
    hangs, *others = [made.future(30.0) for _ in range(100)]
    await asyncio.sleep(0)
    for one in others:
        one.set_result(None)
    made.future(30.0)
    await asyncio.sleep(0)
    assert made._queues[30.0][0][1] == [hangs]
    made.close()
    assert isinstance(hangs.exception(), DeadlineExceeded)


async def test_giving_up_a_future_that_failed_leaves_no_warning():
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_exception(ValueError("nobody hears of it"))
    Deadlines.give_up(future)
    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    Deadlines.give_up(waiting)
    Deadlines.give_up(waiting)
    assert waiting.cancelled()


async def test_a_deadline_further_down_tells_more():
    async def locked() -> None:
        raise DeadlineExceeded("the lock of the head")

    with pytest.raises(DeadlineExceeded, match="the lock of the head"):
        await within(60.0, locked(), "do it")
    with pytest.raises(InvalidOption):
        deadlines.check_seconds("soon")


# Groups


def group_of(data: bytes) -> GroupFile:
    store = MemoryStore()
    file = GroupFile(store, "billing", OsClock(), 1.0)
    store.write(file.key, data)
    return file


def framed(magic: bytes, payload: bytes) -> bytes:
    front = group_file._FRONT.pack(magic, group_file.VERSION, 0, len(payload))
    return front + group_file._checksum(front, payload) + payload


@pytest.mark.parametrize("data", [framed(b"ELSE", b"{}"), framed(group_file.MAGIC, b"[1, 2]")])
def test_a_sound_file_that_is_no_group_is_damage(data):
    with pytest.raises(DamagedFile):
        group_of(data).read()


def test_helpers_are_started_once():
    helpers = SideBySide(System())
    for _ in range(2):
        assert helpers.run([lambda: 1, lambda: 2, lambda: 3, lambda: 4]) == [1, 2, 3, 4]
    helpers.close()
    helpers.close()


# Arrow


def test_columns_of_arrow_without_keys_or_bytes():
    values = ArrowColumns(pa.array([b"one", b"three"], pa.binary()))
    assert values.largest() == 5
    keyed = ArrowColumns(pa.array([b"one"], pa.binary()), pa.array([b"key"], pa.binary()))
    assert keyed.largest() == 6
    nothing = ArrowColumns(pa.array([], pa.binary()))
    assert (len(nothing), nothing.largest()) == (0, 0)
    nothing.encode()


def test_no_entries_make_no_portion():
    assert list(arrow._portions([])) == []


# Upkeep


def test_a_segment_behind_the_head_is_not_compacted():
    """A crash may leave one that is only begun."""
    log = SmallLog()
    for number in range(3):
        log.append((b"key", b"%d" % number))
        log.roll()
    log.store.write(log_key(9), b"begun")
    report = Compactor(log.store, KEYS).run(log.clock.time_ms())
    assert (report.segments_checked, report.records_removed) == (2, 2)


def test_reading_slowly_waits_only_when_it_is_ahead():
    clock = VirtualClock()
    Pace(clock, None).spend(1 << 30)
    slow = Pace(clock, 1_000_000.0)
    before = clock.monotonic()
    slow.spend(1)
    assert clock.monotonic() == before


def test_a_store_that_cannot_hold_segments_is_refused(tmp_path):
    pytest.importorskip("obstore")
    from penstock.stores.objects import ObjectStore

    with pytest.raises(NotSupported, match="tier"):
        WalMessageQueue(ObjectStore("memory:///"))._check_stores()


async def test_closing_twice_waits_for_the_same_end(tmp_path):
    queue = WalMessageQueue(tmp_path / "log")
    await queue.close()
    await queue.close()
