"""How long it takes until a group of 100 partitions is shared anew."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

from benchmarks.model import Case, Sample, Scale, Workload
from penstock import errors
from penstock.transports import Consumer, EmbeddedTransport

TOPIC, GROUP = "bench", "readers"
PARTITIONS = 100


def cases(_: Scale) -> list[Case]:
    """A second member joins, and leaves."""
    return [
        Case("rebalance", 0, "hand-over", way, what, partial(_run, way=way), "ms")
        for way, what in (
            ("join", "a second member comes: each has 50"),
            ("leave", "the second member goes: the first has all"),
        )
    ]


def _run(folder: Path, way: str) -> Sample:
    return asyncio.run(_rebalance(folder, leave=way == "leave"))


async def _rebalance(folder: Path, *, leave: bool) -> Sample:
    async with EmbeddedTransport(folder) as transport:
        await transport.create_topic(TOPIC, partitions=PARTITIONS)
        await transport.produce(TOPIC, [b"x"] * 1_000)
        async with transport.subscribe(TOPIC, GROUP) as first:
            await _until(PARTITIONS, first)
            second = transport.subscribe(TOPIC, GROUP)
            start = time.perf_counter()
            await second.open()
            await _until(PARTITIONS // 2, first, second)
            if leave:
                start = time.perf_counter()
                await second.close()
                await _until(PARTITIONS, first)
            seconds = time.perf_counter() - start
            await second.close()
            return Sample(seconds * 1e3)


async def _until(share: int, *members: Consumer) -> None:
    await asyncio.gather(*(_consume_until(share, member) for member in members))


async def _consume_until(share: int, member: Consumer) -> None:
    """Consume and commit, as members do, until it has its share."""
    while len(member.assignment().partitions) != share:
        try:
            await member.commit(await member.next_batch(0.01))
        except errors.DeadlineExceeded:
            continue


WORKLOAD = Workload(
    "rebalance",
    "A group is shared anew",
    f"A topic of {PARTITIONS} partitions and members that consume and commit. The time from the "
    "call that opens or closes the second one until everybody has their share.",
    cases,
)
