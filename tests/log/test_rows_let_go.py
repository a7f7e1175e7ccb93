"""A row may be remembered until its deadline, behind one that takes long: it keeps nothing of its publisher."""

import asyncio
import contextvars
import gc
import weakref

import pytest

from penstock import TopicConfig, WalMessageQueue
from penstock.testing.queue_fixtures import settle
from tests.log.test_published import place, rows_of, woken


@pytest.mark.parametrize("debug", [False, True])
async def test_a_record_that_is_stored_is_not_kept_by_its_row(debug):
    asyncio.get_running_loop().set_debug(debug)
    rows = rows_of(2)
    place(rows)
    await woken(rows)
    assert [row.row for row in rows] == [None, None]


@pytest.mark.parametrize("debug", [False, True])
async def test_the_context_of_a_publisher_is_not_kept_by_its_row(debug):
    class Request:
        """Something that a context has and a weak reference can be to."""

    request: contextvars.ContextVar[Request] = contextvars.ContextVar("request")
    asyncio.get_running_loop().set_debug(debug)
    rows = rows_of(1)

    async def publisher():
        request.set(kept := Request())
        left.append(weakref.ref(kept))
        del kept
        await rows[0]

    left = list[weakref.ref[Request]]()
    task = asyncio.create_task(publisher())
    await settle()
    place(rows)
    await woken(rows)
    await task
    del task
    gc.collect()
    assert left[0]() is None


@pytest.mark.parametrize("commit_on", ["loop", "thread"])
async def test_who_is_cancelled_is_not_kept_by_a_row_that_another_stands_before(
    tmp_path, commit_on
):
    class Work:
        """Something large that a publisher holds."""

    async def publisher():
        work = Work()
        left.append(weakref.ref(work))
        await queue.publish("orders", b"left")

    left = list[weakref.ref[Work]]()
    lazy = TopicConfig(linger_ms=60_000)
    async with WalMessageQueue(tmp_path, defaults=lazy, commit_on=commit_on) as queue:
        await queue.create_topic("orders")
        before = asyncio.create_task(queue.publish("orders", b"stays"))
        task = asyncio.create_task(publisher())
        await settle()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        del task
        gc.collect()
        assert left[0]() is None
        await queue.flush()
        assert (await before).offset == 0
