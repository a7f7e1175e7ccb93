"""Rows that are futures of their own: whoever waits for one hears what became of it, once, and in his own task."""

import asyncio
import contextvars
import logging
from collections import deque

import pytest

from penstock import WalMessageQueue
from penstock.bus.drive import carry_on
from penstock.errors import (
    Closed,
    DeadlineExceeded,
    PenstockError,
    StoreFailed,
    UsageError,
)
from penstock.log.published import (
    WAKES_MAX,
    PublishedRow,
    acknowledge,
    fail,
    plain_values,
    wake,
)
from penstock.log.receipts import Acknowledgement, Placement
from penstock.testing.queue_fixtures import settle
from tests.log.test_writer import LOG, opened


def rows_of(count, loop=None):
    loop = loop or asyncio.get_running_loop()
    return [PublishedRow.of(b"%d" % number, False, loop) for number in range(count)]


def place(rows):
    acknowledge(rows, "orders", Placement(3, range(len(rows)), 10, 20, True))


async def wait_for(row):
    return await row


async def begun(rows, wait=wait_for):
    tasks = [asyncio.create_task(wait(row)) for row in rows]
    await settle()
    return tasks


async def woken(rows):
    """As a commit does it: in a callback of the loop, never inside a task."""
    loop = asyncio.get_running_loop()
    loop.call_soon(wake, loop, rows)
    await settle()


# Waking


async def test_each_publisher_hears_of_its_own_place():
    rows = rows_of(3)
    tasks = await begun(rows)
    place(rows)
    assert not any(row.done() for row in rows), "the loop has not been told"
    await woken(rows)
    assert [await task for task in tasks] == [
        Acknowledgement("orders", 3, offset, 20, True) for offset in (10, 11, 12)
    ]
    assert all(type(row.result()) is Acknowledgement and row.exception() is None for row in rows)


async def test_no_callback_of_the_loop_is_made_for_each_publisher(monkeypatch):
    loop = asyncio.get_running_loop()
    rows, told, made = rows_of(5), [], []

    async def wait(row):
        told.append(await row)
        await asyncio.Event().wait()

    def tell():
        with monkeypatch.context() as patched:
            patched.setattr(loop, "call_soon", lambda *call, **_: made.append(call))
            wake(loop, rows)

    tasks = await begun(rows, wait)
    place(rows)
    loop.call_soon(tell)
    await settle()
    assert ([one.offset for one in told], made) == ([10, 11, 12, 13, 14], [])
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_others_get_their_turn_between_many_publishers():
    loop = asyncio.get_running_loop()
    rows, order = rows_of(2 * WAKES_MAX + 1), []

    async def wait(row):
        order.append((await row).offset)

    tasks = await begun(rows, wait)
    place(rows)
    loop.call_soon(wake, loop, rows)
    loop.call_soon(order.append, "another")
    await asyncio.wait(tasks)
    assert order.index("another") == WAKES_MAX
    order.remove("another")
    assert order == list(range(10, 10 + len(rows)))


async def test_a_publisher_goes_on_in_its_own_context():
    name = contextvars.ContextVar("name", default="nobody")

    async def wait(row):
        name.set(row.row)
        await row
        return name.get()

    rows = rows_of(3)
    tasks = await begun(rows, wait)
    place(rows)
    await woken(rows)
    assert [await task for task in tasks] == [b"0", b"1", b"2"]
    assert name.get() == "nobody"


async def test_whoever_comes_late_does_not_wait():
    (row,) = rows = rows_of(1)
    place(rows)
    await woken(rows)
    coroutine = wait_for(row)
    with pytest.raises(StopIteration) as done:
        coroutine.send(None)
    assert done.value.value.offset == 10


async def test_a_handler_that_was_begun_by_hand_goes_on_in_a_task():
    """As the bus does it; the row may be done before the task has asked it."""
    for done_before in (False, True):
        (row,) = rows = rows_of(1)
        coroutine = wait_for(row)
        yielded = coroutine.send(None)
        assert yielded is row
        assert row._asyncio_future_blocking
        task = asyncio.ensure_future(asyncio.wait_for(carry_on(coroutine, yielded), 30))
        if not done_before:
            await settle()
            await settle()
        place(rows)
        if done_before:
            row.finish()
        await woken(rows)
        assert (await task).offset == 10


async def test_tasks_of_pure_python_wait_as_well():
    (row,) = rows = rows_of(1)
    task = asyncio.tasks._PyTask(  # type: ignore[attr-defined]
        wait_for(row)
    )
    await settle()
    place(rows)
    await woken(rows)
    assert (await task).offset == 10


async def test_in_debug_mode_asyncio_names_the_publisher_that_is_slow(caplog):
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 0.0
    try:
        rows = rows_of(2)

        async def the_slow_one(row):
            await row

        tasks = await begun(rows, the_slow_one)
        place(rows)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "asyncio"):
            loop.call_soon(wake, loop, rows)
            await asyncio.wait(tasks)
        named = [one.getMessage() for one in caplog.records]
        assert sum("the_slow_one" in message for message in named) >= 2
    finally:
        loop.set_debug(False)


def test_a_publisher_that_ends_the_program_leaves_none_behind():
    loop = asyncio.new_event_loop()
    rows = rows_of(4, loop)
    told = []

    async def wait(row):
        told.append((await row).offset)
        if told == [10, 11]:
            raise KeyboardInterrupt

    tasks = [loop.create_task(wait(row)) for row in rows]
    loop.run_until_complete(asyncio.sleep(0))
    place(rows)
    loop.call_soon(wake, loop, rows)
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(asyncio.wait(tasks))
    assert told == [10, 11]
    loop.run_until_complete(asyncio.wait(tasks))
    assert told == [10, 11, 12, 13]
    with pytest.raises(KeyboardInterrupt):
        tasks[1].result()
    loop.close()


async def test_a_callback_that_fails_is_reported_and_the_others_are_called():
    loop = asyncio.get_running_loop()
    reported: list[BaseException] = []
    called: list[PublishedRow] = []
    rows = rows_of(3)
    for row in rows:
        row.add_done_callback(called.append)
    rows[1].remove_done_callback(called.append)
    rows[1].add_done_callback(lambda _: 1 / 0, context=contextvars.copy_context())
    loop.set_exception_handler(lambda _, told: reported.append(told["exception"]))
    loop.call_soon(wake, loop, rows)
    await settle()
    loop.set_exception_handler(None)
    assert called == [rows[0], rows[2]]
    assert [type(one) for one in reported] == [ZeroDivisionError]


# Leaving


async def test_who_is_cancelled_while_it_waits_leaves_the_record_on_its_way():
    rows = rows_of(2)
    left, stays = await begun(rows)
    left.cancel("no time")
    with pytest.raises(asyncio.CancelledError, match="no time"):
        await left
    assert rows[0].cancelled()
    assert not rows[0].cancel()
    place(rows)
    rows[0].error = OSError("the commit tells in vain")
    await woken(rows)
    assert (await stays).offset == 11
    for ask in (rows[0].result, rows[0].exception):
        with pytest.raises(asyncio.CancelledError):
            ask()


async def test_who_is_cancelled_before_it_waited_never_waits():
    (row,) = rows_of(1)
    task = asyncio.create_task(wait_for(row))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not row.done()


async def test_who_is_cancelled_between_its_commit_and_its_turn_is_cancelled():
    (row,) = rows = rows_of(1)
    (task,) = await begun(rows)
    place(rows)
    row.finish()
    assert row.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert row.result().offset == 10


async def test_a_publisher_may_cancel_another_one_of_the_same_commit():
    rows = rows_of(3)

    async def wait(row):
        await row
        if row is rows[0]:
            tasks[2].cancel()
            tasks[1].cancel()

    tasks = await begun(rows, wait)
    place(rows)
    await woken(rows)
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in done] == [
        type(None),
        asyncio.CancelledError,
        asyncio.CancelledError,
    ]


async def test_a_deadline_stays_one_whatever_the_commit_tells_later():
    (row,) = rows = rows_of(1)
    (task,) = await begun(rows)
    row.set_exception(DeadlineExceeded("too late"))
    with pytest.raises(asyncio.InvalidStateError):
        row.set_exception(DeadlineExceeded("again"))
    place(rows)
    await woken(rows)
    with pytest.raises(DeadlineExceeded):
        await task
    assert isinstance(row.exception(), DeadlineExceeded)


async def test_a_task_of_another_loop_may_not_wait():
    elsewhere = asyncio.new_event_loop()
    (row,) = rows_of(1, elsewhere)
    with pytest.raises(RuntimeError, match="different loop"):
        await asyncio.create_task(wait_for(row))
    elsewhere.close()


# Errors


async def test_each_publisher_gets_an_error_of_its_own():
    rows = rows_of(3)
    tasks = await begun(rows)
    cause = OSError("the disk")
    try:
        raise StoreFailed("not written", path="x") from cause
    except PenstockError as caught:
        error = caught
    fail(rows, range(2), error)
    fail(rows, range(3), OSError("the rest"))
    await woken(rows)
    first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
    assert (type(first), type(second), str(third)) == (StoreFailed, StoreFailed, "the rest")
    assert len({id(first), id(second), id(error)}) == 3
    assert first.__cause__ is cause
    assert error.__traceback__ is not None
    assert error.__traceback__.tb_next is None, "nobody adds to it"
    assert rows[0].exception() is first


async def test_a_row_that_was_told_nothing_says_so():
    (row,) = rows = rows_of(1)
    for ask in (row.result, row.exception):
        with pytest.raises(asyncio.InvalidStateError):
            ask()
    await woken(rows)
    with pytest.raises(AssertionError, match="neither"):
        await row


async def test_one_waits_at_a_time():
    (row,) = rows = rows_of(1)
    called: deque[PublishedRow] = deque()
    row.add_done_callback(called.append)
    with pytest.raises(UsageError):
        row.add_done_callback(called.append, context=contextvars.copy_context())
    assert row.remove_done_callback(print) == 0
    assert row.remove_done_callback(called.append) == 1
    assert row.remove_done_callback(called.append) == 0
    place(rows)
    await woken(rows)
    assert not called
    row.add_done_callback(called.append, context=contextvars.copy_context())
    assert not called, "never inside the call"
    await settle()
    assert list(called) == [row]


async def test_values_alone_are_taken_as_a_column():
    rows = rows_of(2)
    assert plain_values(rows) == [b"0", b"1"]
    assert plain_values([*rows, b"2"]) is None
    assert plain_values([]) is None
    rows[1].row = (b"1", b"key", None, None)
    assert plain_values(rows) is None


# Publishing


@pytest.mark.parametrize("around", ["wait_for", "shield", "gather", "wait", "timeout"])
async def test_publish_is_awaited_as_anything_is(around):
    async with opened(immediate=False) as (system, queue, _):

        async def publish():
            if around == "wait_for":
                return await asyncio.wait_for(queue.publish("orders", b"x"), 30)
            if around == "shield":
                return await asyncio.shield(queue.publish("orders", b"x"))
            if around == "gather":
                return (await asyncio.gather(queue.publish("orders", b"x")))[0]
            if around == "wait":
                task = asyncio.create_task(queue.publish("orders", b"x"))
                done, _ = await asyncio.wait([task])
                return done.pop().result()
            async with asyncio.timeout(30):
                return await queue.publish("orders", b"x")

        tasks = [asyncio.create_task(publish()) for _ in range(3)]
        await settle()
        system.workers[0].run()
        assert [(await task).offset for task in tasks] == [0, 1, 2]


async def test_a_time_limit_around_publish_ends_the_wait_and_not_the_record():
    async with opened(immediate=False) as (system, queue, _):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.publish("orders", b"x"), 0.001)
        system.workers[0].run()
        await settle()
        assert [one.value async for one in queue.replay("orders")] == [b"x"]


async def test_who_publishes_again_at_once_is_in_the_next_commit():
    async with opened(immediate=False) as (system, queue, writer):
        offsets = []

        async def publisher():
            for _ in range(3):
                told = await queue.publish("orders", b"x")
                offsets.append(told.offset)

        tasks = [asyncio.create_task(publisher()) for _ in range(4)]
        for commits in range(1, 4):
            await settle()
            assert writer.commits == commits - 1
            system.workers[0].run()
            assert writer.commits == commits
        await asyncio.gather(*tasks)
        assert offsets == list(range(12))


async def test_all_publishers_of_a_commit_that_fails_hear_of_it():
    async with opened(immediate=False) as (system, queue, _):
        tasks = [
            asyncio.create_task(queue.publish("orders", b"x", key=key)) for key in (None, b"k")
        ]
        await settle()
        system.files.fail("write", path=LOG)
        system.workers[0].run()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in errors] == [StoreFailed, StoreFailed]
    assert errors[0] is not errors[1]


async def test_nothing_is_published_once_the_queue_is_being_closed():
    async with opened() as (_, queue, _writer):
        first = asyncio.create_task(queue.publish("orders", b"x"))
        await asyncio.sleep(0)  # its deadline began in this turn, which others could share
        closing = asyncio.create_task(queue.close())
        second = asyncio.create_task(queue.publish("orders", b"y"))
        assert (await first).offset == 0
        with pytest.raises(Closed):
            await second
        await closing


async def test_nobody_hears_of_a_deadline_after_the_commit(tmp_path, monkeypatch):
    """Given more publishers than go on in one callback, then a deadline that passes meanwhile is none."""
    async with WalMessageQueue(tmp_path, commit_on="loop") as queue:  # one commit for all of a turn
        await queue.create_topic("orders")
        assert queue._running is not None
        deadlines = queue._running.deadlines
        done = []

        async def publish(number):
            done.append(await queue.publish("orders", b"%d" % number, timeout=60))
            if len(done) == 1:  # the first that goes on keeps the loop until the time of all is up
                monkeypatch.setattr(deadlines._loop, "time", lambda: later)
                for seconds in list(deadlines._queues):
                    deadlines._expire(seconds)
                monkeypatch.undo()

        later = asyncio.get_running_loop().time() + 120
        await asyncio.gather(*(publish(number) for number in range(3 * WAKES_MAX)))
        assert sorted(one.offset for one in done) == list(range(3 * WAKES_MAX))


async def test_nobody_hears_of_a_close_after_the_commit(tmp_path):
    async with WalMessageQueue(tmp_path, commit_on="loop") as queue:
        await queue.create_topic("orders")
        ends = []

        async def publish(number):
            found = await queue.publish("orders", b"%d" % number)
            if found.offset == 0:
                assert queue._running is not None
                queue._running.deadlines.close()  # as the end of close() does
            ends.append(found.offset)

        await asyncio.gather(*(publish(number) for number in range(3 * WAKES_MAX)))
        assert sorted(ends) == list(range(3 * WAKES_MAX))
