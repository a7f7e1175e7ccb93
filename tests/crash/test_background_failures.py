"""Calls that fail in the background: whoever waits hears of it."""

import asyncio
import errno
from contextlib import suppress

import pytest

from penstock.errors import PenstockError, Poisoned, StoreFailed
from penstock.log.queue import WalMessageQueue
from penstock.log.topic import FsyncPolicy, TopicConfig
from penstock.system import OsFiles, System


class UnreadableFiles(OsFiles):
    """Reads fail while ``failing`` is set."""

    failing = False

    def read(self, descriptor: int, length: int, position: int) -> bytes:
        if self.failing:
            raise OSError(errno.EIO, "Input/output error")
        return super().read(descriptor, length, position)


async def test_a_waiting_subscriber_hears_that_the_heads_cannot_be_read(tmp_path):
    files = UnreadableFiles()
    async with (
        WalMessageQueue(tmp_path) as writer,
        WalMessageQueue(tmp_path, system=System(files=files)) as reader,
    ):
        await writer.create_topic("orders")
        await reader.create_topic("orders")
        async with reader.subscribe("orders", "billing") as subscription:
            waiting = asyncio.ensure_future(anext(aiter(subscription)))
            await asyncio.sleep(0)
            files.failing = True
            await writer.publish("orders", b"first")
            with pytest.raises(StoreFailed, match="Input/output error"):
                await waiting
            files.failing = False
            record = await anext(aiter(subscription))
            assert (record.offset, record.value) == (0, b"first")


class ForgetfulFiles(OsFiles):
    """Syncs of segments fail in a way that no disk does, while ``failing`` is set."""

    failing = False

    def sync(self, descriptor: int) -> None:
        if self.failing:
            raise MemoryError
        super().sync(descriptor)


async def test_a_sync_that_fails_in_an_unforeseen_way_poisons_and_hangs_nobody(tmp_path):
    files = ForgetfulFiles()
    config = TopicConfig(fsync=FsyncPolicy.TIMED, fsync_interval_ms=1)
    queue = WalMessageQueue(tmp_path, system=System(files=files))
    await queue.open()
    await queue.create_topic("orders", config)
    await queue.publish("orders", b"first", durable=True)
    files.failing = True
    offset = (await queue.publish("orders", b"second")).offset
    with pytest.raises((MemoryError, Poisoned)):
        await queue.wait_durable("orders", offset, timeout=120)
    with pytest.raises(Poisoned):
        await queue.publish("orders", b"third", timeout=120)
    with suppress(PenstockError, MemoryError):
        await queue.close(timeout=120)
