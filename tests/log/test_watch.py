"""Which heads are looked at when something changes: those that did, and no others."""

import asyncio
import os
from functools import partial

from penstock import System, TopicConfig, WalMessageQueue
from penstock.inotify import InotifyWatch
from penstock.system import OsFiles
from penstock.testing.queue_fixtures import settle, values_of


class BlindFiles(OsFiles):
    """A machine without file-change notices."""

    def watch(self):
        return None


def looks_of(topic, monkeypatch):
    """Collects the partitions whose heads are read."""
    looks = []

    def look(number, read):
        looks.append(number)
        return read()

    for number, log in enumerate(topic.logs):
        monkeypatch.setattr(log, "read_head", partial(look, number, log.read_head))
    return looks


def test_a_watch_names_what_changed(tmp_path):
    watch = InotifyWatch.start()
    assert watch is not None
    try:
        for name in "abc":
            (tmp_path / name).write_bytes(b"x")
            watch.add(str(tmp_path / name), f"name of {name}")
        assert watch.drain() == set()
        for name in "aac":
            (tmp_path / name).write_bytes(b"y")
        assert watch.drain() == {"name of a", "name of c"}
        assert watch.drain() == set()
        os.unlink(tmp_path / "b")
        assert watch.drain() == set()
    finally:
        watch.close()


async def test_only_the_heads_that_changed_are_looked_at(tmp_path, monkeypatch):
    path = tmp_path / "data"
    async with WalMessageQueue(path) as queue, WalMessageQueue(path) as other:
        for name in ("orders", "quiet"):
            await queue.create_topic(name, TopicConfig(partitions=8))
        async with queue.subscribe("orders", "a") as subscription, queue.subscribe("quiet", "a"):
            await other.create_topic("orders")
            await settle()
            orders = looks_of(queue._opened["orders"], monkeypatch)
            quiet = looks_of(queue._opened["quiet"], monkeypatch)
            waiting = asyncio.create_task(values_of(subscription, 1))
            await settle()
            placed = await other.publish("orders", b"x", key=b"k")
            assert await waiting == [b"x"]
            assert set(orders) == {placed.partition}
            assert quiet == []


async def test_when_notices_are_lost_all_heads_are_looked_at(tmp_path, monkeypatch):
    async with WalMessageQueue(tmp_path / "data") as queue:
        await queue.create_topic("orders", TopicConfig(partitions=3))
        async with queue.subscribe("orders", "a"):
            await settle()
            looks = looks_of(queue._opened["orders"], monkeypatch)
            changes = queue._engine.changes
            monkeypatch.setattr(changes._watch, "drain", lambda: None)
            changes._on_change()
            assert sorted(looks) == [0, 1, 2]


async def test_those_who_wait_share_one_poller(tmp_path):
    path = tmp_path / "data"
    system = System(files=BlindFiles())
    async with WalMessageQueue(path, system=system) as queue, WalMessageQueue(path) as other:
        await queue.create_topic("orders")
        subscriptions = [queue.subscribe("orders", f"s{number}") for number in range(5)]
        for one in subscriptions:
            await one.open()
        waiting = [asyncio.create_task(values_of(one, 1)) for one in subscriptions]
        await settle()
        pollers = [task for task in asyncio.all_tasks() if "Changes._poll" in repr(task)]
        assert len(pollers) == 1
        await other.publish("orders", b"x")
        assert await asyncio.gather(*waiting) == [[b"x"]] * 5
        for one in subscriptions:
            await one.close()
