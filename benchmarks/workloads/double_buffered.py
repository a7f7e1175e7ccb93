"""Single records with two buffers: the next 1,000 gather while the last 1,000 are synced.

It is how a program keeps the disk busy and has the same points of sync as one that writes 1,000 records, syncs them
and goes on. A sync has about 1,000 records, every one is durable when its receipt completes, and never more than
2,000 are on their way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.model import Load, Meter, Sample
from benchmarks.publishers import EVERY_MESSAGE, TOPIC, opened
from penstock import Receipt, WalMessageQueue

TURN_SECONDS = 1e-6


def publish_double_buffered(folder: Path, load: Load) -> Sample:
    """``publish_nowait`` of a block, then the receipt of the block before it."""
    return asyncio.run(_publish(folder, load))


async def _publish(folder: Path, load: Load) -> Sample:
    values = load.values()
    async with opened(folder, EVERY_MESSAGE) as queue:
        await queue.publish_many(TOPIC, values)
        syncs = queue.statistics().store.syncs
        meter = Meter(load)
        before = _gather(queue, values)
        meter.records += len(values)
        while meter.more():
            _let_the_commit_begin()
            receipt = _gather(queue, values)
            meter.records += len(values)
            await _durable(before)
            before = receipt
        await _durable(before)
        sample = meter.sample()
        syncs = queue.statistics().store.syncs - syncs
        return Sample(sample.value, {"records per sync": meter.records / syncs})


def _gather(queue: WalMessageQueue, values: Sequence[bytes]) -> Receipt:
    publish = queue.publish_nowait
    receipt = publish(TOPIC, values[0])
    for value in values[1:]:
        receipt = publish(TOPIC, value)
    return receipt


def _let_the_commit_begin() -> None:
    """Give the interpreter lock away, for some microseconds.

    The commit thread takes what has gathered as soon as it has the lock. Without this the next block would often be
    complete by then, and one sync would have both.
    """
    time.sleep(TURN_SECONDS)


async def _durable(receipt: Receipt) -> None:
    if not (await receipt.wait()).durable:
        raise RuntimeError("a record was acknowledged before it was durable")
