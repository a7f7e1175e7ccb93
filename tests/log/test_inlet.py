"""What comes in: lists of callers, and single records beside commits."""

import asyncio

import pytest

from penstock import Receipt
from penstock.errors import PenstockError, StoreFailed
from penstock.testing.queue_fixtures import settle
from tests.log.test_writer import LOG, opened

# What is handed over


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_the_owner_of_lists_may_change_them_while_they_are_published(in_transaction):
    values, keys, headers = [b"a", b"b"], [b"k", b"l"], [{"h": b"1"}, {}]

    async def publish(queue):
        if not in_transaction:
            await queue.publish_many("orders", values, keys=keys, headers=headers)
            return
        async with queue.transaction("billing") as transaction:
            await transaction.publish_many("orders", values, keys=keys, headers=headers)
            change()

    def change():
        values[:] = [b"longer than before"]
        keys.clear()
        headers[0]["h"] = b"2"

    async with opened(immediate=in_transaction) as (system, queue, _):
        publishing = asyncio.ensure_future(publish(queue))
        await settle()
        if not in_transaction:
            change()
        system.workers[0].run()
        await publishing
        found = [(one.value, one.key, one.headers) async for one in queue.replay("orders")]
    assert found == [(b"a", b"k", {"h": b"1"}), (b"b", b"l", {})]


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_the_owner_of_a_list_may_change_it_while_its_topic_is_opened(in_transaction):
    values = [b"a", b"b"]
    async with opened() as (_, queue, _writer):
        async with queue.transaction("billing") as transaction:
            to = transaction if in_transaction else queue
            publishing = asyncio.ensure_future(to.publish_many("new", values))
            await asyncio.sleep(0)
            assert "new" not in queue._opened
            values.clear()
            await publishing
        assert [one.value async for one in queue.replay("new")] == [b"a", b"b"]


async def test_records_of_any_iterable_are_published():
    async with opened() as (_, queue, _writer):
        told = await queue.publish_many("orders", (b"%d" % number for number in range(3)))
        assert told.count == 3
        async with queue.transaction("billing") as transaction:
            await transaction.publish_many("orders", map(bytes, [2, 3]))
        assert [one.value async for one in queue.replay("orders")] == [
            b"0",
            b"1",
            b"2",
            b"\0\0",
            b"\0\0\0",
        ]


# Records beside commits


@pytest.mark.parametrize("commits", [1, 2, 3])
async def test_a_record_that_slips_between_two_commits_does_not_fail_in_silence(commits):
    """A publisher that is overtaken by a commit gets a later receipt than that of its record."""

    class Overtaken(list):
        def append(self, item):
            super().append(item)
            for _ in range(commits):
                writer.commit()

    async with opened(immediate=False) as (system, queue, writer):
        writer._items = Overtaken()
        system.files.fail("write", path=LOG)
        receipt = queue.publish_nowait("orders", b"x")
        writer._items = []
        system.workers[0].run()
        assert receipt.done
        with pytest.raises(StoreFailed):
            await receipt.wait()


async def test_a_record_that_is_taken_by_the_commit_before_does_not_fail_in_silence():
    """The commit has changed the receipt and not yet taken the records when one is added."""

    class Late(list):
        armed = False

        def __getitem__(self, which):
            if self.armed:
                self.armed = False
                receipts.append(queue.publish_nowait("orders", b"late"))
            return super().__getitem__(which)

    receipts: list[Receipt] = []
    async with opened(immediate=False) as (system, queue, writer):
        queue.publish_nowait("orders", b"x")
        writer._items = Late(writer._items)
        system.files.fail("write", path=LOG)
        writer._items.armed = True
        system.workers[0].run()
        (receipt,) = receipts
        assert receipt.done
        with pytest.raises(PenstockError):
            await receipt.wait()


async def test_a_receipt_is_not_done_before_a_record_that_came_just_after_a_commit():
    class Overtaken(list):
        def append(self, item):
            writer.commit()
            super().append(item)

    async with opened(immediate=False) as (system, queue, writer):
        writer._items = Overtaken()
        receipt = queue.publish_nowait("orders", b"x")
        assert not receipt.done
        writer._items = list(writer._items)
        system.workers[0].run()
        assert receipt.done
        assert [one.value async for one in queue.replay("orders")] == [b"x"]


async def test_a_record_that_comes_while_a_commit_takes_the_others_is_in_the_next_one():
    class Meanwhile(list):
        armed = True

        def __getitem__(self, which):
            taken = super().__getitem__(which)
            if self.armed:
                self.armed = False
                receipts.append(queue.publish_nowait("orders", b"meanwhile"))
            return taken

    receipts: list[Receipt] = []
    async with opened(immediate=False) as (system, queue, writer):
        queue.publish_nowait("orders", b"x")
        writer._items = Meanwhile(writer._items)
        system.workers[0].run()
        await receipts[0].wait()
        assert [one.value async for one in queue.replay("orders")] == [b"x", b"meanwhile"]
