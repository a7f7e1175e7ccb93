"""Bells: nobody sleeps through a change, and waits that are given up leave nothing behind."""

import asyncio
import os
import select

import pytest

from penstock import FsyncPolicy, System, TopicConfig, WalMessageQueue
from penstock.errors import StoreFailed
from penstock.log.changes import POLL_SECONDS_MAX
from penstock.stores import DirectoryStore
from penstock.system import OsFiles
from penstock.testing.queue_fixtures import numbered, settle, values_of


class BlindFiles(OsFiles):
    """A machine without file-change notices."""

    def watch(self):
        return None


class ShortSighted(DirectoryStore):
    """Watches one topic and no more, as at the limit of watches."""

    def watch_key(self, watch, key):
        if "second" in key:
            raise StoreFailed("no space left for watches")
        super().watch_key(watch, key)


@pytest.mark.parametrize("files", [OsFiles(), BlindFiles()], ids=["watching", "polling"])
async def test_records_of_another_queue_are_noticed(tmp_path, files):
    path = tmp_path / "data"
    async with (
        WalMessageQueue(path, system=System(files=files)) as queue,
        WalMessageQueue(path) as other,
    ):
        await queue.create_topic("orders", TopicConfig(partitions=2))
        async with queue.subscribe("orders", "billing") as subscription:
            for number in range(10):
                waiting = asyncio.create_task(values_of(subscription, 2))
                await settle()
                await other.publish_many("orders", numbered(2, 2 * number))
                assert set(await waiting) == set(numbered(2, 2 * number))


@pytest.mark.parametrize("files", [OsFiles(), BlindFiles()], ids=["watching", "polling"])
async def test_a_change_that_somebody_else_has_seen_rings_all_the_same(tmp_path, files):
    """As who waits for an offset, or begins a transaction, looks at the heads by himself."""
    path = tmp_path / "data"
    async with (
        WalMessageQueue(path, system=System(files=files)) as queue,
        WalMessageQueue(path) as other,
    ):
        await queue.create_topic("orders")
        await other.create_topic("orders")
        async with queue.subscribe("orders", "billing") as subscription:
            for number in range(3):
                waiting = asyncio.create_task(values_of(subscription, 1))
                await settle()
                receipt = other.publish_nowait("orders", b"%d" % number)
                while not receipt.done:  # the loop stands still meanwhile, so that no bell rings
                    select.select([], [], [], 0.001)
                assert queue._opened["orders"].refresh()
                assert await waiting == [b"%d" % number]


async def test_a_watch_makes_polling_unnecessary(tmp_path):
    async with WalMessageQueue(tmp_path / "data") as queue:
        await queue.create_topic("orders")
        async with queue.subscribe("orders", "billing") as subscription:
            waiting = asyncio.create_task(values_of(subscription, 1))
            await settle()
            reads = queue.store.statistics().reads
            for _ in range(20):
                await asyncio.sleep(POLL_SECONDS_MAX / 10)
            assert queue.store.statistics().reads == reads
            await queue.publish("orders", b"x")
            assert await waiting == [b"x"]


async def test_when_the_watch_is_lost_those_who_relied_on_it_poll(tmp_path):
    path = tmp_path / "data"
    with ShortSighted(path) as store:
        async with WalMessageQueue(store) as queue, WalMessageQueue(path) as other:
            for name in ("first", "second"):
                await queue.create_topic(name)
            async with queue.subscribe("first", "billing") as first:
                waiting = asyncio.create_task(values_of(first, 1))
                await settle()
                async with queue.subscribe("second", "billing") as second:
                    await other.publish("first", b"x")
                    await other.publish("second", b"y")
                    assert await waiting == [b"x"]
                    assert await values_of(second, 1) == [b"y"]


@pytest.mark.parametrize("files", [OsFiles(), BlindFiles()], ids=["watching", "polling"])
async def test_waits_that_are_given_up_do_not_pile_up(tmp_path, files):
    async with WalMessageQueue(tmp_path / "data", system=System(files=files)) as queue:
        await queue.create_topic("orders")
        changes = queue._engine.changes
        async with queue.subscribe("orders", "billing") as subscription:
            for _ in range(30):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.002):
                        await values_of(subscription, 1)
            assert sum(map(len, changes._waiters.values())) == 0
            waiting = asyncio.create_task(values_of(subscription, 1))
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert sum(map(len, changes._waiters.values())) <= 1
            await queue.publish("orders", b"x")
            assert await waiting == [b"x"]


async def test_closing_gives_the_watch_back(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        async with WalMessageQueue(tmp_path / "data") as queue:
            await queue.publish("orders", b"x")
            async with queue.subscribe("orders", "billing") as subscription:
                await values_of(subscription, 1)
    assert len(os.listdir("/proc/self/fd")) <= before + 1


async def test_the_durable_offset_never_goes_back(tmp_path, monkeypatch):
    """A look at the heads in a thread meets a commit that is noted on the event loop."""
    config = TopicConfig(fsync=FsyncPolicy.EVERY_MESSAGE)
    async with WalMessageQueue(tmp_path / "data", defaults=config) as queue:
        await queue.create_topic("orders")
        topic = queue._opened["orders"]
        stale = [log.read_head() for log in topic.logs]
        await queue.publish("orders", b"x")
        monkeypatch.setattr(topic.logs[0], "read_head", lambda: stale[0])
        assert not topic.refresh()
        assert queue.durable_offset("orders") == 1


async def test_a_quiet_topic_is_not_woken_by_others(tmp_path):
    async with WalMessageQueue(tmp_path / "data") as queue:
        await queue.create_topic("quiet")
        await queue.create_topic("loud")
        changes = queue._engine.changes
        async with queue.subscribe("quiet", "billing"), queue.subscribe("loud", "billing"):
            ticket = changes.ticket("quiet")
            await queue.publish_many("loud", numbered(10))
            await queue.publish_many("loud", numbered(10))
            await settle()
            assert changes.ticket("quiet") == ticket
            assert changes.ticket("loud") > 0
