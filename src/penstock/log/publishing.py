"""Handing records over to a writer, waiting for room where that is needed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

from penstock.errors import BufferFull
from penstock.log.batch import split
from penstock.log.columns import Columns
from penstock.log.deadlines import Deadlines
from penstock.log.open_topic import OpenTopic
from penstock.log.receipts import BatchAcknowledgement, PublishedRow, Receipt, combined
from penstock.log.waiting import CommitWaiters


async def add_later(waiters: CommitWaiters, topic: OpenTopic, row: PublishedRow, size: int) -> None:
    """Add a row when there is room, unless its deadline comes first."""
    try:
        added = False
        while not added and not row.future.done():
            either: list[asyncio.Future[Any]] = [waiters.room(), row.future]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            with suppress(BufferFull):
                topic.writer.add_waiting(row, size)
                added = True
    except BaseException:
        Deadlines.give_up(row.future)
        raise


async def publish_columns(
    waiters: CommitWaiters, topic: OpenTopic, columns: Columns, *, durable: bool
) -> BatchAcknowledgement:
    """Publish the records in pieces of the size of a batch, and wait for all of them."""
    receipts = await _hand_over(waiters, topic, columns, durable=durable)
    for receipt in receipts:
        await receipt.wait()
    return combined(topic.name, receipts)


async def _hand_over(
    waiters: CommitWaiters, topic: OpenTopic, columns: Columns, *, durable: bool
) -> list[Receipt]:
    config = topic.writer.config
    bytes_max = min(config.batch_bytes_max, config.buffer_bytes_max)
    pieces = list(split(columns, config.batch_records_max, bytes_max))
    topic.writer.check_sizes(pieces)
    add = topic.writer.add_many
    return [await waiters.with_room(partial(add, one, durable=durable)) for one in pieces]
