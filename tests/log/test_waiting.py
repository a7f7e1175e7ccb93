"""Publishers that wait for room: each gets it in its turn, and hears what goes wrong."""

import asyncio
from collections import Counter
from functools import partial

import pytest

from penstock import TopicConfig, WalMessageQueue
from penstock.errors import BufferFull, Closed, DeadlineExceeded
from penstock.log.columns import RECORD_OVERHEAD_BYTES
from penstock.log.waiting import CommitWaiters
from penstock.testing.queue_fixtures import settle

PUBLISHERS = 30
VALUE = bytes(100)


class Buffer:
    """Takes so many, and then no more until there is room again."""

    def __init__(self, room=0):
        self.room = room
        self.taken: list[str] = []

    def add(self, name):
        if not self.room:
            raise BufferFull("the buffer is full")
        self.room -= 1
        self.taken.append(name)
        return name


def waiters_of(buffer, names):
    loop = asyncio.get_running_loop()
    waiters, futures = CommitWaiters(loop), [loop.create_future() for _ in names]
    for name, future in zip(names, futures, strict=True):
        waiters.add_later(buffer, partial(buffer.add, name), future)
    return waiters, futures


async def test_room_goes_to_those_who_came_first():
    buffer = Buffer()
    waiters, _ = waiters_of(buffer, "abcd")
    for taken in ("", "ab", "abcd", "abcd"):
        waiters.committed()
        assert "".join(buffer.taken) == taken
        buffer.room = 2


async def test_nobody_overtakes_one_that_needs_more_room_but_others_have_buffers_of_their_own():
    buffer, other = Buffer(1), Buffer(1)
    waiters, [large, _] = waiters_of(buffer, "ab")
    waiters.committed()
    waiters.add_later(other, partial(other.add, "c"), large)
    waiters.committed()
    assert (buffer.taken, other.taken) == (["a"], ["c"])


async def test_who_does_not_wait_any_more_is_not_added():
    buffer = Buffer(3)
    waiters, [_, left, _] = waiters_of(buffer, "abc")
    left.cancel()
    waiters.committed()
    assert buffer.taken == ["a", "c"]


async def test_who_cannot_be_added_hears_why_and_the_others_are_added():
    buffer = Buffer(1)
    loop = asyncio.get_running_loop()
    waiters, failed = CommitWaiters(loop), loop.create_future()

    def refuse():
        raise Closed("the queue is closed")

    waiters.add_later(buffer, refuse, failed)
    waiting = asyncio.create_task(waiters.with_room(Buffer(), refuse))
    added = loop.create_future()
    waiters.add_later(buffer, partial(buffer.add, "a"), added)
    await settle()
    waiters.committed()
    assert isinstance(failed.exception(), Closed)
    assert buffer.taken == ["a"]
    with pytest.raises(Closed):
        await waiting


async def test_what_was_added_is_returned_to_who_waited_for_room():
    buffer = Buffer()
    waiters = CommitWaiters(asyncio.get_running_loop())
    waiting = asyncio.create_task(waiters.with_room(buffer, partial(buffer.add, "a")))
    await settle()
    buffer.room = 1
    waiters.committed()
    assert await waiting == "a"


async def left_over(running, publish, how):
    """What is remembered of publishers for whom there is no room, and who leave."""
    waiters = running.waiters
    for _ in range(100):
        task = asyncio.create_task(publish(timeout=3_600 if how == "cancelled" else 0))
        while not waiters._waiting and not task.done():
            await asyncio.sleep(0)
        if how == "cancelled":
            task.cancel()
        with pytest.raises((DeadlineExceeded, asyncio.CancelledError)):
            await task
    return list(waiters._waiting)


@pytest.mark.parametrize("how", ["cancelled", "late"])
@pytest.mark.parametrize("many", [False, True])
async def test_who_gave_up_waiting_for_room_is_not_remembered(tmp_path, monkeypatch, how, many):
    """No commit ends, as the disk hangs: nothing else would let go of their records."""
    config = TopicConfig(buffer_bytes_max=1_000, record_bytes_max=500, linger_ms=60_000)
    async with WalMessageQueue(tmp_path, defaults=config) as queue:
        await queue.create_topic("orders")
        running = queue._engine
        writer = running.topics.opened("orders").writer
        monkeypatch.setattr(writer, "_submit", lambda: None)
        queue.publish_nowait("orders", bytes(500))
        queue.publish_nowait("orders", bytes(300))
        publish = (
            partial(queue.publish_many, "orders", [bytes(500)])
            if many
            else partial(queue.publish, "orders", bytes(500))
        )
        assert await left_over(running, publish, how) == []
        rows = [
            row
            for queued in running.deadlines._queues.values()
            for _, futures in queued
            for row in futures
        ]
        assert [row for row in rows if getattr(row, "row", None) is not None] == []
        monkeypatch.undo()


async def test_who_waits_for_room_is_refused_when_the_queue_stops():
    waiters = CommitWaiters(asyncio.get_running_loop())
    buffer = Buffer()
    waiting = asyncio.create_task(waiters.with_room(buffer, partial(buffer.add, "a")))
    await settle()
    waiters.close(Closed("the queue is closed"))
    with pytest.raises(Closed):
        await waiting
    assert not waiters._waiting


@pytest.mark.parametrize("commit_on", ["loop", "thread"])
async def test_under_a_lasting_overload_all_publishers_go_on(tmp_path, commit_on):
    """Given room for a third of the publishers, each is behind the others by a few records at most."""
    room = PUBLISHERS // 3 * (len(VALUE) + RECORD_OVERHEAD_BYTES)
    config = TopicConfig(buffer_bytes_max=room, record_bytes_max=len(VALUE))
    done: Counter[int] = Counter()

    async def publisher(number):
        while sum(done.values()) < PUBLISHERS * 100:
            await queue.publish("orders", VALUE)
            done[number] += 1

    async with WalMessageQueue(tmp_path, defaults=config, commit_on=commit_on) as queue:
        await asyncio.gather(*map(publisher, range(PUBLISHERS)))
    assert min(done[number] for number in range(PUBLISHERS)) > 100 // 2
