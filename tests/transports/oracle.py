"""The exactly-once oracle for brokers: payments go in while the broker is killed, books in a database come out.

Producers send payments, one each key, and wait for every acknowledgement. A consumer books them in a
database that keeps its place as well. Then echo, count, sum, least and most of each key are compared with
what was sent. That is exactly once only where the broker knows what was sent again (``idempotence``).
"""

import asyncio
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock.errors import BusyError, Fenced, TransportError
from penstock.streaming import CheckpointedBatch, DatabaseCheckpoints, exactly_once
from penstock.transports import Transport
from tests.crash.transformer import Figures

KEYS = 4
EACH = 25
GROUP = "books"
WAIT_SECONDS = 120.0
LOOK_SECONDS = 0.5
TABLES = """
CREATE TABLE echo (part INTEGER, number INTEGER, payer TEXT, cents INTEGER);
CREATE TABLE balances (
    payer TEXT PRIMARY KEY, payments INTEGER, cents INTEGER, least INTEGER, most INTEGER
);
"""
BOOK = """INSERT INTO balances VALUES (?1, 1, ?2, ?2, ?2) ON CONFLICT (payer) DO UPDATE SET
    payments = payments + 1, cents = cents + ?2, least = min(least, ?2), most = max(most, ?2)"""


class BrokerBooks:
    """One topic of a broker, who sends to it, and who books what comes."""

    def __init__(self, transport: Transport, topic: str, folder: Path, seed: int) -> None:
        self.transport = transport
        self.topic = topic
        self.random = random.Random(seed)
        self.sent: dict[str, list[int]] = {f"payer-{key}": [] for key in range(KEYS)}
        self.kills = 0
        self.fences = 0
        self._path = folder / "books.db"
        self._checkpoints = DatabaseCheckpoints(GROUP)
        self._sent_enough = asyncio.Event()
        self._ended = asyncio.Event()
        """Nothing more is sent: what is there now is all."""

    async def run(
        self, kills: int, kill: Callable[[], None], settle: Callable[[], None] = lambda: None
    ) -> int:
        """Kill the broker so often while it is used; how many keys have wrong books then.

        ``settle`` waits until a broker has noted the names of a new topic.
        """
        await self.transport.create_topic(self.topic, partitions=2)
        await asyncio.to_thread(settle)
        with closing(sqlite3.connect(self._path)) as connection:
            connection.executescript(TABLES)
            await self._checkpoints.create(connection)
        work = [asyncio.create_task(self._send(payer)) for payer in self.sent]
        booking = asyncio.create_task(self._book())
        for _ in range(kills):
            await self._more(2 * EACH * KEYS, [*work, booking])
            await asyncio.to_thread(kill)
            self.kills += 1
        await self._more(EACH, [*work, booking])
        self._sent_enough.set()
        await asyncio.gather(*work)
        self._ended.set()
        async with asyncio.timeout(WAIT_SECONDS):
            await booking
        return len(self.wrong())

    async def _more(self, records: int, work: list[asyncio.Task[None]]) -> None:
        """Wait until so many more were acknowledged."""
        enough = sum(map(len, self.sent.values())) + records
        async with asyncio.timeout(WAIT_SECONDS):
            while sum(map(len, self.sent.values())) < enough:
                for one in work:
                    if one.done():
                        one.result()
                await asyncio.sleep(0.01)

    async def _send(self, payer: str) -> None:
        while not self._sent_enough.is_set():
            cents = [self.random.randrange(1_000) for _ in range(EACH)]
            values = [b"%d" % one for one in cents]
            keys = [payer.encode()] * EACH
            await self.transport.produce(self.topic, values, keys=keys, timeout=WAIT_SECONDS)
            self.sent[payer] += cents

    async def _book(self) -> None:
        """Read and book; begin anew when the broker, or the group, does not let it go on."""
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            while True:
                try:
                    async with self.transport.subscribe(self.topic, GROUP) as consumer:
                        return await self._book_with(consumer, connection)
                except (TransportError, BusyError, Fenced):
                    self.fences += 1
                    await asyncio.sleep(0.05)

    async def _book_with(self, consumer: Any, connection: sqlite3.Connection) -> None:
        loop = exactly_once(consumer, self._checkpoints, connection, records_max=40)
        waiting = asyncio.ensure_future(loop.__anext__())
        try:
            while not await self._is_done(connection):
                if (await asyncio.wait([waiting], timeout=LOOK_SECONDS))[0]:
                    await self._book_batch(waiting.result(), connection)
                    waiting = asyncio.ensure_future(loop.__anext__())
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _book_batch(self, batch: CheckpointedBatch, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            for record in batch:
                payer, cents = (record.key or b"").decode(), int(record.value or b"")
                row = (record.partition, record.offset, payer, cents)
                connection.execute("INSERT INTO echo VALUES (?, ?, ?, ?)", row)
                connection.execute(BOOK, (payer, cents))
            await batch.save(connection)

    async def _is_done(self, connection: sqlite3.Connection) -> bool:
        if not self._ended.is_set():
            return False
        (booked,) = connection.execute("SELECT count(*) FROM echo").fetchone()
        if booked < sum(map(len, self.sent.values())):
            return False
        places = await self._checkpoints.positions(connection, self.topic)
        lag = await self.transport.lag(self.topic, GROUP)
        return all(places.get(one.partition, 0) >= one.end for one in lag)

    def wrong(self) -> list[str]:
        """The keys whose books do not say what was sent."""
        with closing(sqlite3.connect(self._path)) as connection:
            echo: dict[str, list[int]] = {payer: [] for payer in self.sent}
            rows = connection.execute("SELECT payer, cents FROM echo ORDER BY part, number")
            for payer, cents in rows:
                echo[payer].append(cents)
            balances = {
                payer: Figures(*figures)
                for payer, *figures in connection.execute("SELECT * FROM balances")
            }
        return [
            payer
            for payer, cents in self.sent.items()
            if echo[payer] != cents or balances[payer] != Figures.of(cents)
        ]


async def kill_under_oracle(
    transport: Transport,
    folder: Path,
    seed: int,
    kills: int,
    kill: Callable[[], None],
    settle: Callable[[], None],
) -> dict[str, Any]:
    """Run it; what the scoreboard is told."""
    # Kafka's client keeps once what it sends again by itself; here nobody else sends again.
    once = transport.capabilities.idempotence or transport.name == "kafka"
    assert once, "without it this is at least once, not exactly once"
    books, began = BrokerBooks(transport, "payments", folder, seed), time.monotonic()
    wrong = await books.run(kills, kill, settle)
    sent = sum(map(len, books.sent.values()))
    print(f"{books.kills} kills, {sent} payments, begun anew {books.fences} times: {wrong} wrong")
    seconds = (time.monotonic() - began) / max(1, books.kills)
    return {
        "tried": books.kills,
        "bad": wrong,
        "seed": seed,
        f"{transport.name}_seconds_per_kill": seconds,
    }
