"""Handing records over to a writer, waiting for room where that is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from penstock.errors import BufferFull
from penstock.log.batch import split
from penstock.log.columns import Columns
from penstock.log.deadlines import Deadlines, within
from penstock.log.engine import Engine
from penstock.log.open_topic import OpenTopic
from penstock.log.receipts import BatchAcknowledgement, PublishedRow, combined
from penstock.log.waiting import CommitWaiters, runs_here


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
    engine: Engine, topic: OpenTopic, columns: Columns, *, durable: bool, timeout: float
) -> BatchAcknowledgement:
    """Publish the records in pieces of the size of a batch, and wait for all of them."""
    writer = topic.writer
    config = writer.config
    bytes_max = min(config.batch_bytes_max, config.buffer_bytes_max)
    pieces = list(split(columns, config.batch_records_max, bytes_max))
    writer.check_sizes(pieces)
    if len(pieces) == 1 and runs_here(engine.around.loop):
        # Nothing but the commit to wait for, as a rule: a future that shares its timer will do.
        try:
            receipt = writer.add_many(pieces[0], durable=durable)
        except BufferFull:
            pass  # then there is room to wait for as well
        else:
            return await receipt.wait_by(engine.deadlines.future(timeout))
    publishing = _publish_pieces(engine.waiters, topic, pieces, durable=durable)
    return await within(timeout, publishing, f"publish to {topic.name!r}")


async def _publish_pieces(
    waiters: CommitWaiters, topic: OpenTopic, pieces: Sequence[Columns], *, durable: bool
) -> BatchAcknowledgement:
    add = topic.writer.add_many
    receipts = [await waiters.with_room(partial(add, one, durable=durable)) for one in pieces]
    for receipt in receipts:
        await receipt.wait()
    return combined(topic.name, receipts)
