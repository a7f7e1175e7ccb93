"""Journals: the suite on the log and in memory, and what only the log has to show."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from penstock import TopicConfig, WalMessageQueue
from penstock.errors import (
    BufferFull,
    Closed,
    InvalidOption,
    Poisoned,
    StorageError,
    SubscriberBusy,
)
from penstock.log import journal as journal_module
from penstock.log.names import PartitionKeys
from penstock.log.reader import PartitionReader
from penstock.stores import MemoryStore
from penstock.system import OsFiles, System
from penstock.testing import JournalConformance, MemoryJournals
from penstock.testing.journal_suite import held, opened

NAME = "bus.schedule"
TOPIC = f"journal.{NAME}"


class TestOnTheLog(JournalConformance):
    @pytest.fixture
    def open_log(self, tmp_path):
        return partial(WalMessageQueue, tmp_path / "data")


class TestOnAMemoryStore(JournalConformance):
    @pytest.fixture
    def open_log(self):
        with MemoryStore() as store:
            yield partial(WalMessageQueue, store)


class TestInMemory(JournalConformance):
    @pytest.fixture
    def open_log(self):
        journals = MemoryJournals()

        @asynccontextmanager
        async def restarted():
            yield journals
            journals.kill()

        return restarted


async def test_a_change_is_one_entry_of_the_log(tmp_path):
    """So that a crash leaves all of it or nothing; the crash tests of the log hold that."""
    async with WalMessageQueue(tmp_path) as queue:
        journal = await opened(queue)
        await journal.change({f"key-{at}": b"x" * 100 for at in range(20_000)})
        cursor = PartitionReader(queue.store, PartitionKeys(TOPIC, 0)).cursor(0)
        entries = [entry for entry in cursor.fetch(1 << 26) if entry.header.record_count]
        assert [entry.header.record_count for entry in entries] == [20_000]


async def records(queue, topic):
    return [record async for record in queue.replay(topic)]


async def test_compaction_keeps_the_newest_of_every_live_key(tmp_path):
    async with WalMessageQueue(tmp_path, maintenance_interval=None) as queue:
        journal = await opened(queue)
        await queue.change_topic(TOPIC, segment_bytes_max=4_096)
        await journal.change({"kept": b"from the start", "gone": b"1"})
        for at in range(200):
            await journal.change({"busy": b"%d" % at + b"x" * 100, f"done-{at % 7}": b"y" * 50})
        await journal.change({f"done-{at}": None for at in range(7)} | {"gone": None})
        before = len(await records(queue, TOPIC))
        for report in await queue.maintain():
            assert report.error is None
        assert len(await records(queue, TOPIC)) < before / 2
        await journal.close()
        assert await held(queue) == {"kept": b"from the start", "busy": b"199" + b"x" * 100}


async def test_closing_the_queue_closes_its_journals(tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        journal = await opened(queue)
        await journal.change({"a": b"1"})
    with pytest.raises(Closed):
        await journal.change({"a": b"2"})
    async with WalMessageQueue(tmp_path) as queue:
        assert await held(queue) == {"a": b"1"}


async def test_two_queues_cannot_own_one_journal(tmp_path):
    async with WalMessageQueue(tmp_path) as one, WalMessageQueue(tmp_path) as other:
        journal = await opened(one)
        with pytest.raises(SubscriberBusy, match="give each bus its own name"):
            await opened(other)
        await opened(other, "other.schedule")
        await journal.close()


async def test_a_topic_with_other_settings_is_not_taken_for_a_journal(tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        await queue.create_topic(TOPIC, TopicConfig(partitions=3))
        with pytest.raises(InvalidOption, match="another name"):
            await opened(queue)
        await queue.create_topic("journal.forgetful", TopicConfig(compact_keys=True))
        with pytest.raises(InvalidOption, match="another name"):
            await opened(queue, "forgetful")


async def test_the_number_of_keys_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "KEYS_MAX", 3)
    async with WalMessageQueue(tmp_path) as queue:
        journal = await opened(queue)
        await journal.change({"a": b"1", "b": b"2", "c": b"3"})
        with pytest.raises(BufferFull):
            await journal.change({"d": b"4"})
        await journal.change({"a": b"5"})
        await journal.change({"a": None})
        await journal.change({"d": b"4"})
        await journal.close()
        assert await held(queue) == {"b": b"2", "c": b"3", "d": b"4"}


async def test_opening_can_be_cancelled_and_leaves_no_claim(tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        for turns in range(12):
            journal = queue.journal(NAME)
            opening = asyncio.ensure_future(journal.open())
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            await asyncio.wait([opening])
            await journal.close()
        await opened(queue)


async def test_a_failing_disk_fails_the_change_and_those_after_it(tmp_path):
    class Failing(OsFiles):
        broken = False

        def sync(self, descriptor):
            if self.broken:
                raise OSError(5, "broken")
            super().sync(descriptor)

    files = Failing()
    queue = WalMessageQueue(tmp_path, system=System(files=files))
    await queue.open()
    journal = await opened(queue)
    await journal.change({"a": b"1"})
    files.broken = True
    with pytest.raises(StorageError):
        await journal.change({"a": b"2"})
    files.broken = False
    with pytest.raises(Poisoned):
        await journal.change({"a": b"3"})
    await journal.close()
    await queue.close()
    async with WalMessageQueue(tmp_path) as after:
        assert (await held(after))["a"] in (b"1", b"2")


OWNER = """
import asyncio, sys
from penstock import WalMessageQueue

async def main():
    async with WalMessageQueue(sys.argv[1]) as queue:
        journal = queue.journal("bus.schedule")
        await journal.open()
        await journal.change({"a": b"1", "b": b"2"})
        print("owned", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_killed_owner_frees_the_journal_at_once(tmp_path):
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "owned\n"
        async with WalMessageQueue(tmp_path) as queue:
            with pytest.raises(SubscriberBusy):
                await opened(queue)
            os.kill(owner.pid, signal.SIGKILL)
            owner.wait()
            assert await held(queue) == {"a": b"1", "b": b"2"}


def test_journals_are_topics_that_verify_accepts(tmp_path: Path):
    from penstock import verify

    async def fill():
        async with WalMessageQueue(tmp_path) as queue:
            journal = await opened(queue)
            await journal.change({"a": b"1"})

    asyncio.run(fill())
    assert verify(tmp_path).clean
