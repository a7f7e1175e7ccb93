"""Handing records over to a writer, waiting for room where that is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from penstock.errors import BufferFull
from penstock.log.batch import split
from penstock.log.columns import Columns
from penstock.log.deadlines import Deadlines, within
from penstock.log.engine import Engine
from penstock.log.open_topic import OpenTopic
from penstock.log.published import PublishedRow, Row
from penstock.log.receipts import Acknowledgement, BatchAcknowledgement, Receipt, combined
from penstock.log.waiting import CommitWaiters, runs_here
from penstock.log.writer import TopicWriter


async def publish_later(
    engine: Engine, topic: OpenTopic, record: tuple[bytes | Row, int], durable: bool, seconds: float
) -> Acknowledgement:
    """Publish a record, now or when there is room, unless its deadline comes first."""
    item, size = record
    row = PublishedRow.of(item, durable, engine.around.loop)
    engine.deadlines.futures(seconds).append(row)
    _enter(engine, topic.writer, row, size)
    try:
        return await row
    finally:
        if engine.waiters.forget(row):
            row.row = None  # it is in no buffer, and its deadline remembers the row


def _enter(engine: Engine, writer: TopicWriter, row: PublishedRow, size: int) -> None:
    try:
        writer.add_waiting(row, size)
    except BufferFull:
        engine.waiters.add_later(writer, partial(writer.add_waiting, row, size), row)
    except BaseException:
        Deadlines.give_up(row)
        raise


async def publish_columns(
    engine: Engine, topic: OpenTopic, columns: Columns, *, durable: bool, timeout: float
) -> BatchAcknowledgement:
    """Publish the records in pieces of the size of a batch, and wait for all of them."""
    writer = topic.writer
    config = writer.config
    bytes_max = min(config.batch_bytes_max, config.buffer_bytes_max)
    pieces = split(columns, config.batch_records_max, bytes_max)
    writer.check_sizes(pieces)
    if len(pieces) == 1 and runs_here(engine.around.loop):
        # Nothing but the commit to wait for, as a rule: a future that shares its timer will do.
        try:
            receipt = writer.add_many(pieces[0], durable=durable, at_once=True)
        except BufferFull:
            pass  # then there is room to wait for as well
        else:
            if receipt.done:
                return await _after_a_turn(writer, receipt)
            return await receipt.wait_by(engine.deadlines.future(timeout))
    publishing = _publish_pieces(engine.waiters, topic, pieces, durable=durable)
    return await within(timeout, publishing, f"publish to {topic.name!r}")


async def _after_a_turn(writer: TopicWriter, receipt: Receipt) -> BatchAcknowledgement:
    """It is committed already: others have their turn, as with any wait."""
    try:
        await asyncio.sleep(0)
    finally:
        writer.go_on()
    receipt.raise_errors()
    return receipt.acknowledgement()


async def _publish_pieces(
    waiters: CommitWaiters, topic: OpenTopic, pieces: Sequence[Columns], *, durable: bool
) -> BatchAcknowledgement:
    writer = topic.writer
    adding = [partial(writer.add_many, one, durable=durable) for one in pieces]
    receipts = [await waiters.with_room(writer, add) for add in adding]
    for receipt in receipts:
        await receipt.wait()
    return combined(topic.name, receipts)
