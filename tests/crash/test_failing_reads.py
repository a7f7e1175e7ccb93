"""Reads that fail: the one who reads hears of it, and goes on when the disk answers again."""

import asyncio
import errno

import pytest

from penstock.errors import StoreFailed
from penstock.log.queue import WalMessageQueue
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
