"""A disk that does not answer: the event loop goes on, deadlines are kept, all settles afterwards."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest

from penstock import FsyncPolicy, System, TopicConfig, WalMessageQueue
from penstock.errors import Closed, DeadlineExceeded, PenstockError
from penstock.system import OsFiles
from penstock.testing.queue_fixtures import everything, numbered, records_of, settle, values_of

WAIT_SECONDS = 120


class HangingFiles(OsFiles):
    """The real disk; calls that are told to wait until they are let go."""

    def __init__(self):
        self.free = {name: threading.Event() for name in ("sync", "read", "open", "try_lock")}
        self.reached = {name: threading.Event() for name in self.free}
        self.paths = {}
        for event in self.free.values():
            event.set()

    def hang(self, name, path="", *, once=False):
        self.paths[name] = (path, once)
        self.reached[name].clear()
        self.free[name].clear()

    def let_go(self):
        for event in self.free.values():
            event.set()

    async def hangs(self, name):
        """Wait until a call hangs."""
        assert await asyncio.to_thread(self.reached[name].wait, WAIT_SECONDS)

    def _pass(self, name, path):
        wanted, once = self.paths.get(name, ("", False))
        if self.free[name].is_set() or wanted not in path:
            return
        if once and self.reached[name].is_set():
            return
        self.reached[name].set()
        assert self.free[name].wait(WAIT_SECONDS)

    def open(self, path, *, create=False, write=True):
        self._pass("open", path)
        descriptor = super().open(path, create=create, write=write)
        names[descriptor] = path
        return descriptor

    def sync(self, descriptor):
        self._pass("sync", names.get(descriptor, ""))
        super().sync(descriptor)

    def read(self, descriptor, length, position):
        self._pass("read", names.get(descriptor, ""))
        return super().read(descriptor, length, position)

    def try_lock(self, descriptor):
        self._pass("try_lock", names.get(descriptor, ""))
        return super().try_lock(descriptor)


names: dict[int, str] = {}


@asynccontextmanager
async def hanging(tmp_path, **options):
    files = HangingFiles()
    queue = WalMessageQueue(tmp_path / "data", system=System(files=files), **options)
    await queue.open()
    try:
        yield files, queue
    finally:
        files.let_go()
        await queue.close()


async def test_the_event_loop_goes_on_while_the_disk_hangs(tmp_path):
    async with hanging(tmp_path) as (files, queue):
        await queue.publish("orders", b"0")
        files.hang("sync", ".log")
        hung = asyncio.create_task(queue.publish("orders", b"1"))
        await files.hangs("sync")
        turns = 0
        for _ in range(100):
            await asyncio.sleep(0)
            turns += 1
        assert turns == 100
        assert not hung.done()
        # What needs no sync works.
        assert [one.value for one in await everything(queue, "orders")] == [b"0"]
        assert queue.statistics().topics["orders"].records_committed == 1
        queue.publish_nowait("orders", b"2")
        with pytest.raises(DeadlineExceeded, match="may still be written"):
            await queue.publish("orders", b"3", timeout=0.01)
        with pytest.raises(DeadlineExceeded):
            await queue.publish_many("orders", [b"4"], timeout=0.01)
        with pytest.raises(DeadlineExceeded):
            await queue.flush(timeout=0.01)
        with pytest.raises(DeadlineExceeded):
            await queue.wait_durable("orders", 1, timeout=0.01)
        files.let_go()
        assert (await hung).offset == 1
        await queue.flush()
        # All were handed over, so all came through.
        assert [one.value for one in await everything(queue, "orders")] == numbered(5)


async def test_a_cancelled_publish_is_only_forgotten(tmp_path):
    async with hanging(tmp_path) as (files, queue):
        await queue.create_topic("orders")
        files.hang("sync", ".log")
        hung = [asyncio.create_task(queue.publish("orders", b"%d" % n)) for n in range(3)]
        await files.hangs("sync")
        hung[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await hung[1]
        files.let_go()
        assert [(await hung[place]).offset for place in (0, 2)] == [0, 2]


async def test_a_full_buffer_waits_for_the_disk(tmp_path):
    config = TopicConfig(record_bytes_max=100, buffer_bytes_max=1_000)
    async with hanging(tmp_path, defaults=config) as (files, queue):
        await queue.create_topic("orders")
        files.hang("sync", ".log")
        tasks = [asyncio.create_task(queue.publish("orders", bytes(100))) for _ in range(40)]
        await files.hangs("sync")
        cancelled = tasks.pop(20)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(DeadlineExceeded):
            await queue.publish("orders", bytes(100), timeout=0.01)
        assert queue.statistics().topics["orders"].pending_bytes <= 1_100
        files.let_go()
        done = await asyncio.gather(*tasks)
        assert len({one.offset for one in done}) == 39
        assert len(await everything(queue, "orders")) == 39


async def test_an_opening_topic_keeps_the_deadline(tmp_path):
    async with hanging(tmp_path) as (files, queue):
        files.hang("open", "orders")
        with pytest.raises(DeadlineExceeded, match="open"):
            await queue.publish("orders", b"x", timeout=0.01)
        with pytest.raises(DeadlineExceeded):
            await queue.publish_many("orders", [b"x"], timeout=0.01)
        with pytest.raises(DeadlineExceeded):
            await queue.wait_durable("orders", 0, timeout=0.01)
        files.let_go()
        assert (await queue.publish("orders", b"x")).offset == 0


async def test_closing_keeps_its_deadline(tmp_path):
    files = HangingFiles()
    queue = WalMessageQueue(tmp_path / "data", system=System(files=files))
    await queue.open()
    await queue.publish("orders", b"0")
    subscription = queue.subscribe("orders", "billing", start="latest")
    reading = asyncio.create_task(records_of(subscription, 1))
    files.hang("sync", ".log")
    hung = asyncio.create_task(queue.publish("orders", b"1"))
    await files.hangs("sync")
    receipt = queue.publish_nowait("orders", b"2")
    others = [asyncio.create_task(queue.close()) for _ in range(2)]
    with pytest.raises(DeadlineExceeded, match="close"):
        await queue.close(timeout=0.05)
    for other in others:
        assert isinstance(
            (await asyncio.gather(other, return_exceptions=True))[0], (DeadlineExceeded, type(None))
        )
    # Nobody hangs with it.
    with pytest.raises(DeadlineExceeded):
        await hung
    with pytest.raises(Closed):
        await reading
    with pytest.raises(Closed):
        await queue.publish("orders", b"3")
    files.let_go()
    async with asyncio.timeout(WAIT_SECONDS):
        # Written, or refused by the store that is closed: it ends, whichever came first.
        await asyncio.gather(receipt.wait(), return_exceptions=True)
    async with WalMessageQueue(tmp_path / "data") as queue:
        values = [one.value for one in await everything(queue, "orders")]
        assert values[:1] == [b"0"]
        assert values == numbered(len(values))


async def test_cancelling_a_close_does_not_leave_it_half_done(tmp_path):
    async with hanging(tmp_path) as (files, queue):
        await queue.create_topic("orders")
        files.hang("sync", ".log")
        hung = asyncio.create_task(queue.publish("orders", b"0"))
        await files.hangs("sync")
        closing = asyncio.create_task(queue.close())
        await settle()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        files.let_go()
        await queue.close()
        assert (await hung).offset == 0
    async with WalMessageQueue(tmp_path / "data") as queue:
        assert len(await everything(queue, "orders")) == 1


async def test_a_topic_opens_while_another_one_is_flushed(tmp_path):
    """The worker walks over the topics while the event loop adds one."""
    async with hanging(tmp_path, defaults=TopicConfig(fsync=FsyncPolicy.TIMED)) as (files, queue):
        for name in ("a", "b", "c"):
            await queue.publish(name, b"x")
        files.hang("sync", "/a/")
        flushing = asyncio.create_task(queue.flush())
        await files.hangs("sync")
        await queue.create_topic("d")
        files.let_go()
        await flushing
        assert [queue.durable_offset(name) for name in ("a", "b", "c", "d")] == [1, 1, 1, 0]
        await queue.publish("d", b"x", durable=True)


# Subscribers


async def test_a_read_that_was_given_up_takes_nothing_away(tmp_path):
    """The thread of a cancelled iteration goes on reading when the next one has begun."""
    async with hanging(tmp_path, tail_cache_bytes=0) as (files, queue):
        published = [b"%d " % number * 100_000 for number in range(40)]
        for start in range(0, 40, 4):
            await queue.publish_many("orders", published[start : start + 4])
        values: list[bytes | None] = []

        async def read(subscription) -> None:
            async for record in subscription:
                values.append(record.value)

        async with queue.subscribe("orders", "billing") as subscription:
            for _ in range(3):
                files.hang("read", ".log", once=True)
                reading = asyncio.create_task(read(subscription))
                await files.hangs("read")
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
                # The first read still hangs; this one passes it.
                values += await values_of(subscription, 5)
                files.let_go()
                values += await values_of(subscription, 2)
            values += await values_of(subscription, 40 - len(values))
        assert values == published


async def test_a_seek_overtakes_a_read(tmp_path):
    async with hanging(tmp_path, tail_cache_bytes=0) as (files, queue):
        await queue.publish_many("orders", numbered(50))
        async with queue.subscribe("orders", "billing") as subscription:
            files.hang("read", ".log", once=True)
            reading = asyncio.create_task(values_of(subscription, 5))
            await files.hangs("read")
            await subscription.seek(30)
            files.let_go()
            assert await reading == numbered(5, 30)
            assert await values_of(subscription, 15) == numbered(15, 35)


async def test_an_open_that_was_given_up_frees_the_name(tmp_path):
    async with hanging(tmp_path) as (files, queue):
        await queue.publish("orders", b"x")
        files.hang("try_lock", "billing")

        given_up = queue.subscribe("orders", "billing")

        async def subscribe():
            async with given_up:
                pytest.fail("the disk hangs")

        opening = asyncio.create_task(subscribe())
        await files.hangs("try_lock")
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        files.let_go()
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    async with queue.subscribe("orders", "billing") as subscription:
                        assert await values_of(subscription, 1) == [b"x"]
                    break
                except PenstockError:
                    await asyncio.sleep(0)


async def test_an_open_can_be_taken_up_again(tmp_path):
    """Iterating without ``async with``: a cancelled wait for the name does not spoil the next."""
    async with hanging(tmp_path) as (files, queue):
        await queue.publish("orders", b"x")
        subscription = queue.subscribe("orders", "billing")
        files.hang("try_lock", "billing")
        reading = asyncio.create_task(values_of(subscription, 1))
        await files.hangs("try_lock")
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        reading = asyncio.create_task(values_of(subscription, 1))
        await settle()
        files.let_go()
        assert await reading == [b"x"]


async def test_a_commit_that_was_given_up_still_holds_the_name(tmp_path):
    """Closing waits for it: a successor never has its offset moved by it."""
    async with hanging(tmp_path) as (files, queue):
        await queue.publish_many("orders", numbered(5))
        subscription = queue.subscribe("orders", "billing")
        await values_of(subscription, 4)
        files.hang("sync", ".offset")
        committing = asyncio.create_task(subscription.commit())
        await files.hangs("sync")
        committing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await committing
        closing = asyncio.create_task(subscription.close())
        await settle()
        assert not closing.done()
        files.let_go()
        await closing
        async with queue.subscribe("orders", "billing") as subscription:
            assert subscription.positions() == {0: 4}


async def test_closing_the_queue_while_a_name_is_being_claimed_frees_it(tmp_path):
    async with hanging(tmp_path) as (files, queue):
        await queue.publish("orders", b"x")
        files.hang("try_lock", "billing")
        opening = asyncio.create_task(queue.subscribe("orders", "billing").open())
        await files.hangs("try_lock")
        closing = asyncio.create_task(queue.close())
        await settle()
        files.let_go()
        await closing
        with pytest.raises(Closed):
            await opening
    async with WalMessageQueue(tmp_path / "data") as queue:
        await queue.create_topic("orders")
        async with queue.subscribe("orders", "billing"):
            pass
