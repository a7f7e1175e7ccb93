"""The process that is killed: it copies and sums payments, exactly once; or it relays an outbox."""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NamedTuple, Self

import msgspec

from penstock.log.topic import Retention, TopicConfig
from penstock.streaming.transform import Outgoing, Transform
from penstock.system import OsFiles, System
from penstock.transports.embedded import EmbeddedTransport
from penstock.transports.records import StreamBatch
from tests.crash.file_layers import DyingFiles

PAYMENTS, COPIES, SUMS = "payments", "copies", "sums"
ROWS = "rows"
GROUP = "book"
RELAY = "relay"
LEASE_SECONDS = 0.2
KEYS = 7
# Small segments, so that they roll; nothing goes before it was counted.
SMALL = TopicConfig(
    partitions=2,
    segment_bytes_max=4_000,
    retention=Retention(age_ms_max=None, bytes_max=None),
)


@dataclass
class Orders:
    """What a process is to do."""

    path: str
    seed: int
    first: int
    """The first row to relay; below zero: run the transform."""
    dies: str = ""
    dies_at: int = 0
    finish: bool = False
    """End when everything is done."""


class Figures(NamedTuple):
    """What is told of some amounts."""

    number: int
    total: int
    least: int
    most: int

    @classmethod
    def of(cls, amounts: Sequence[int]) -> Self:
        return cls(len(amounts), sum(amounts), min(amounts), max(amounts))

    @classmethod
    def together(cls, parts: Sequence[Self]) -> Self:
        numbers, totals, least, most = zip(*parts, strict=True)
        return cls(sum(numbers), sum(totals), min(least), max(most))


Say = Callable[..., None]


def run(orders: Orders, link: Connection) -> None:
    asyncio.run(work(orders, lambda *words: link.send_bytes(msgspec.json.encode(words))))


async def work(orders: Orders, say: Say) -> None:
    files = DyingFiles(orders.dies, orders.dies_at) if orders.dies else OsFiles()
    async with EmbeddedTransport(
        orders.path,
        system=System(files=files),
        defaults=SMALL,
        maintenance_interval=0.05,
    ) as transport:
        say("open")
        await (relay if orders.first >= 0 else book)(transport, orders, say)


async def book(transport: EmbeddedTransport, orders: Orders, say: Say) -> None:
    """Copy each payment, and publish the figures of each key: as many as there are batches."""
    chance = random.Random(orders.seed)

    def function(batch: StreamBatch) -> Iterable[Outgoing]:
        say("batch", batch.partition, batch.next_offset)
        amounts: dict[bytes, list[int]] = {}
        for one in batch.records:
            amounts.setdefault(one.key or b"", []).append(int(one.value or b""))
            yield Outgoing(COPIES, one.value, one.key)
        for key, mine in amounts.items():
            yield Outgoing(SUMS, msgspec.json.encode(Figures.of(mine)), key)

    transform = Transform(
        transport,
        PAYMENTS,
        GROUP,
        function,
        records_max=1_000 if orders.finish else chance.choice([1, 3, 10]),
        lease_seconds=LEASE_SECONDS,
    )
    running = asyncio.create_task(transform.run())
    if orders.finish:
        while not running.done() and any(
            one.records for one in await transport.lag(PAYMENTS, GROUP)
        ):
            await asyncio.wait([running], timeout=0.05)
        running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def relay(transport: EmbeddedTransport, orders: Orders, say: Say) -> None:
    """Publish the rows of an outbox, some of them again, many at the same time."""
    chance = random.Random(orders.seed)
    async with transport.queue.producer(RELAY) as producer:
        next_row = orders.first
        while not orders.finish:
            rows = range(next_row, next_row + chance.choice([1, 5, 40]))
            publishing = [
                producer.publish(ROWS, b"%d" % row, key=b"%d" % (row % KEYS), sequence=row)
                for row in rows
            ]
            for acknowledged in await asyncio.gather(*publishing):
                say("stands", acknowledged.sequence)
            next_row = rows[-1] + 1
