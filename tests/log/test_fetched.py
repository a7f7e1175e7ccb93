"""What was read is made into records where it is used: in order, once, within the bounds, on the loop or before."""

import asyncio
import itertools
import threading
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Record
from penstock.log import fetched
from penstock.log.codec import Codec
from penstock.log.columns import Columns, ColumnView
from penstock.log.fetched import AtHand, Fetched, fetch
from penstock.log.reader import PartitionReader
from penstock.testing.worker import simulated_system
from tests.log.small_log import KEYS, SmallLog
from tests.log.strategies import draft_of, machine
from tests.log.test_small_promises import make


def filled(counts, **options):
    """A log with entries of so many records."""
    one = machine()
    for count in counts:
        batch = Columns([b"%d" % number for number in range(count)], **options)
        one.log.append([draft_of(batch)], sync=True)
    return one


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=6),
    st.lists(st.integers(1, 12), min_size=1),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_any_taking_gives_each_record_once_and_in_order(counts, takes, first, length):
    one = filled(counts)
    total = sum(counts)
    start = min(first, total - 1)
    found = fetch(one.reader.cursor(start)).before(start + length)
    offsets = []
    for wanted in takes * (total + 1):
        offsets += [record.offset for record in found.take(wanted)]
    assert offsets == list(range(start, min(total, start + length)))
    assert not found


def test_as_many_whole_entries_are_taken_as_were_asked_for_and_one_at_least():
    found = fetch(filled([3, 3, 3, 5]).reader.cursor(0))
    assert [len(found.take(wanted)) for wanted in (6, 5, 1, 1)] == [6, 3, 5, 0]


def test_records_that_compaction_left_are_found_by_their_own_offsets():
    one = machine()
    batch = Columns([b"a", b"b", b"c"], deltas=[1, 4, 7])
    one.log.append([draft_of(batch)], sync=True)
    found = fetch(one.reader.cursor(0))
    assert found.next_offset() == 8
    assert [record.offset for record in found.take(9)] == [1, 4, 7]
    assert [one.offset for one in fetch(one.reader.cursor(2)).before(7).take(9)] == [4]
    # Between the offsets of an entry there may be nothing.
    nothing = fetch(one.reader.cursor(2)).before(4)
    assert nothing.take(9) == []
    assert not fetch(one.reader.cursor(2)).before(1)


@pytest.mark.parametrize(
    ("column", "made_by_the_thread"),
    [
        (Columns([b"x"] * 4), False),
        (Columns([b"x"] * 5), True),
        (Columns([bytes(60)]), False),
        (Columns([bytes(100)]), True),
        (Columns([b"x"], headers=[{"a": b"b"}]), True),
    ],
)
def test_what_would_stop_the_loop_for_long_is_made_by_the_thread(
    monkeypatch, column, made_by_the_thread
):
    monkeypatch.setattr(fetched, "LATER_RECORDS_MAX", 4)
    monkeypatch.setattr(fetched, "LATER_BYTES_MAX", 64)
    one = machine()
    one.log.append([draft_of(column)], sync=True)
    found = fetch(one.reader.cursor(0))
    assert isinstance(found._parts[0], list) == made_by_the_thread
    assert [record.value for record in found.take(9)] == column.values


def test_a_compressed_entry_is_unpacked_by_the_thread_and_checked():
    log = SmallLog()
    log.append((None, bytes(1_000)), codec=Codec.ZLIB)
    found = fetch(PartitionReader(log.store, KEYS).cursor(0))
    (part,) = found._parts
    assert isinstance(part, ColumnView)
    assert len(part.body) > 1_000
    assert found.take(1)[0].value == bytes(1_000)


def test_records_stay_as_they_are_when_what_was_read_is_gone():
    one = filled([2])
    found = fetch(one.reader.cursor(0))
    records = found.take(2)
    del found, one
    assert [record.value for record in records] == [b"0", b"1"]


def hand_of(*parts):
    hand = AtHand()
    hand._put(Fetched(KEYS, parts))
    return hand


def records(first, count):
    return [Record("orders", 0, first + number, 0, None, b"") for number in range(count)]


def test_what_is_left_at_hand_comes_before_what_is_made_next():
    hand = hand_of(records(0, 3), records(3, 3))
    assert hand._make(1)
    assert next(hand._records).offset == 0
    assert [one.offset for one in hand._take(9)] == [1, 2]
    assert hand._has_more()
    assert [one.offset for one in hand._take(2)] == [3, 4]
    assert [one.offset for one in hand._take(9)] == [5]
    assert not hand._has_more()
    assert hand._take(9) == []


def test_what_was_put_away_does_not_come():
    hand = hand_of(records(0, 3), records(3, 3))
    hand._make(1)
    hand._put(None)
    assert not hand._has_more()
    assert hand._take(9) == []


# ------------------------------------------------------------------------------------ one by one


async def first(queue, offset):
    """The record at an offset."""
    return [record async for record in queue.replay("orders")][offset]


async def subscribed(queue, count):
    await queue.create_topic("orders")
    await queue.publish_many("orders", [b"%d" % number for number in range(count)])
    return queue.subscribe("orders", "billing")


async def test_a_step_that_is_not_awaited_takes_nothing():
    async with make(simulated_system()) as queue, await subscribed(queue, 4) as one:
        assert (await anext(one)).value == b"0"
        never = anext(one)
        never.close()
        with pytest.raises(RuntimeError, match="await"):
            await never
        cancelled = asyncio.create_task(anext(one))
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert (await anext(one)).value == b"1"
        assert one.positions() == {0: 2}


async def test_a_step_is_taken_by_tasks_timeouts_and_defaults():
    async with make(simulated_system()) as queue, await subscribed(queue, 5) as one:
        assert (await asyncio.create_task(anext(one))).value == b"0"
        assert (await asyncio.wait_for(anext(one), 30)).value == b"1"
        assert await anext(one, None) == (await first(queue, 2))
        both = await asyncio.gather(anext(one), anext(one))
        assert [record.value for record in both] == [b"3", b"4"]


async def test_a_step_that_waits_can_be_cancelled_and_taken_again():
    async with make(simulated_system()) as queue, await subscribed(queue, 1) as one:
        await anext(one)
        waiting = asyncio.create_task(anext(one))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        again = asyncio.create_task(anext(one))
        await queue.publish("orders", b"later")
        assert (await again).value == b"later"


async def test_a_step_cannot_be_awaited_twice():
    async with make(simulated_system()) as queue, await subscribed(queue, 2) as one:
        step = anext(one)
        assert (await step).value == b"0"
        with pytest.raises(RuntimeError, match="await"):
            await step
        assert (await anext(one)).value == b"1"


async def test_an_error_that_is_thrown_into_a_step_ends_it():
    async with make(simulated_system()) as queue, await subscribed(queue, 2) as one:
        step = anext(one)
        with pytest.raises(ZeroDivisionError):
            step.throw(ZeroDivisionError())
        with pytest.raises(RuntimeError, match="await"):
            await step
        assert (await anext(one)).value == b"0"


async def test_a_step_can_be_sent_to_as_a_coroutine():
    async with make(simulated_system()) as queue, await subscribed(queue, 2) as one:
        await anext(one)
        with pytest.raises(StopIteration) as ended:
            anext(one).send(None)
        assert ended.value.value.value == b"1"


async def test_the_thread_reads_and_the_loop_makes_the_records(monkeypatch):
    seen: dict[str, set[threading.Thread]] = {}

    def noted(name, job):
        def run(*arguments):
            seen.setdefault(name, set()).add(threading.current_thread())
            return job(*arguments)

        return run

    monkeypatch.setattr(fetched, "fetch", noted("read", fetched.fetch))
    monkeypatch.setattr(fetched, "made", noted("made", fetched.made))
    async with make(simulated_system(), tail_cache_bytes=0) as queue:
        async with await subscribed(queue, 10) as one:
            assert len(await one.next_batch(30)) == 10
    assert seen["made"] == {threading.current_thread()}
    assert threading.current_thread() not in seen["read"]


@pytest.mark.parametrize("at", [1, 2])
async def test_what_could_not_be_made_comes_again(monkeypatch, at):
    async with make(simulated_system(), tail_cache_bytes=0) as queue:
        await queue.create_topic("orders")
        for start in range(0, 40, 10):
            await queue.publish_many("orders", [b"%d" % (start + at) for at in range(10)])
        usual, calls = fetched.made, itertools.count(1)

        def made(*arguments):
            if next(calls) == at:
                raise MemoryError
            return usual(*arguments)

        monkeypatch.setattr(fetched, "made", made)
        async with queue.subscribe("orders", "billing") as one:
            got: list[int] = []
            while len(got) < 40:
                with suppress(MemoryError):
                    batch = await one.next_batch(30)
                    got += [record.offset for record in batch.records]
            assert got == list(range(40))


async def test_a_signal_while_records_are_made_goes_on_its_way_and_takes_none(monkeypatch):
    async with make(simulated_system(), tail_cache_bytes=0) as queue:
        await queue.create_topic("orders")
        for start in range(0, 40, 10):
            await queue.publish_many("orders", [b"%d" % (start + at) for at in range(10)])
        usual, calls = fetched.made, itertools.count(1)

        def made(*arguments):
            if next(calls) == 3:
                raise asyncio.CancelledError  # pytest ends with any other one that is no error
            return usual(*arguments)

        monkeypatch.setattr(fetched, "made", made)
        async with queue.subscribe("orders", "billing") as one:
            with pytest.raises(asyncio.CancelledError):
                await one.next_batch(40)
            batch = await one.next_batch(40)
            assert [record.offset for record in batch.records] == list(range(40))
