"""The recipe for a copy while writers run, as docs/operations.md has it: what was there when it began is in it."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from pathlib import Path

import pytest

import penstock
from penstock import TopicConfig, WalMessageQueue
from tests.snippets import ROOT, blocks_of

TOPIC, PARTITIONS, SEGMENT_BYTES = "orders", 2, 1 << 14
PAGE = ROOT / "docs" / "operations.md"
COPIES, RECORDS, SECONDS_MAX = 5, 500, 60.0

pytestmark = pytest.mark.skipif(shutil.which("tar") is None, reason="there is no tar here")


def recipe() -> str:
    """The block of the page that copies a log."""
    [found] = [one.code for one in blocks_of(PAGE.read_text(), "sh") if "1-marks.tar" in one.code]
    return found


async def shell(script: str, folder: Path) -> int:
    """Run lines of shell there; how the last of them ended."""
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", script, cwd=folder, stderr=asyncio.subprocess.DEVNULL
    )
    return await asyncio.wait_for(process.wait(), SECONDS_MAX)


async def write(queue: WalMessageQueue, written: Written) -> None:
    """Publish one number after the other, until cancelled; tell those that are acknowledged."""
    for number in itertools.count():
        await queue.publish(TOPIC, b"%d" % number)
        written.tell(number + 1)


class Written:
    """How many numbers were acknowledged, to be waited for."""

    def __init__(self) -> None:
        self.count = 0
        self._wanted = 0
        self._reached = asyncio.Event()

    def tell(self, count: int) -> None:
        self.count = count
        if count >= self._wanted:
            self._reached.set()

    async def more(self, count: int) -> None:
        self._wanted = self.count + count
        self._reached.clear()
        await asyncio.wait_for(self._reached.wait(), SECONDS_MAX)


async def read(path: Path) -> list[int]:
    """All numbers of a log, sorted."""
    found: list[int] = []
    async with WalMessageQueue(path) as queue, queue.subscribe(TOPIC, "reader") as subscription:
        while subscription.lag():
            batch = await subscription.next_batch(SECONDS_MAX)
            found += [int(record.value or b"") for record in batch]
    return sorted(found)


async def restore(backup: Path, target: Path) -> None:
    target.mkdir()
    for archive in sorted(backup.glob("*.tar")):
        assert await shell(f"tar -xf {archive}", target) == 0


async def test_a_copy_while_a_writer_runs_has_everything_that_was_acknowledged(tmp_path):
    written = Written()
    async with WalMessageQueue(tmp_path / "data") as queue:
        config = TopicConfig(partitions=PARTITIONS, segment_bytes_max=SEGMENT_BYTES)
        await queue.create_topic(TOPIC, config)
        writing = asyncio.create_task(write(queue, written))
        try:
            for number in range(COPIES):
                await copy_and_check(tmp_path, number, written)
            assert not writing.done()
        finally:
            writing.cancel()


async def copy_and_check(folder: Path, number: int, written: Written) -> None:
    """Everything of before the copy, nothing twice; and nothing is wrong with the files."""
    await written.more(RECORDS)
    backup, restored = folder / f"backup-{number}", folder / f"restored-{number}"
    backup.mkdir()
    before = written.count
    await shell(recipe().replace("/backup", str(backup)), folder)
    await restore(backup, restored)
    found = await read(restored)
    assert found[:before] == [*range(before)]
    assert len(found) == len(set(found)) <= written.count + 1
    assert penstock.verify(restored).problems == []
