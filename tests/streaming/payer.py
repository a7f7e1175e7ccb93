"""The process that is killed: it sends payments to a topic and books them in a database."""

import asyncio
import os
import random
import signal
import sqlite3
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from penstock.errors import Fenced
from penstock.streaming import CheckpointedBatch, DatabaseCheckpoints, exactly_once
from penstock.streaming.database_connection import run as execute
from penstock.system import OsFiles, System
from penstock.transports import EmbeddedTransport
from tests.crash.file_layers import DyingFiles

TOPIC = "payments"
GROUP = "booking"
PARTITIONS = 3
LEASE_SECONDS = 0.3
ACCOUNTS = [b"ada", b"blaise", b"carl", b"dorothy", b"edsger"]
BALANCES = """CREATE TABLE IF NOT EXISTS balances (
    account VARCHAR(20) PRIMARY KEY, cents BIGINT NOT NULL, payments BIGINT NOT NULL,
    least BIGINT NOT NULL, most BIGINT NOT NULL
)"""
BOOK = """INSERT INTO balances VALUES (?, ?, 1, ?, ?) ON CONFLICT (account) DO UPDATE SET
    cents = balances.cents + excluded.cents, payments = balances.payments + 1,
    least = CASE WHEN excluded.least < balances.least THEN excluded.least ELSE balances.least END,
    most = CASE WHEN excluded.most > balances.most THEN excluded.most ELSE balances.most END"""


@dataclass
class Orders:
    """What a process is to do."""

    path: str
    seed: int
    first: int
    dies: str = ""
    """At a ``point`` between two steps, or ``before``, after or in the ``middle`` of a disk call."""
    dies_at: int = 0
    finish: bool = False
    """Send nothing; end when everything is booked."""
    dsn: str = ""
    """Of a PostgreSQL server; empty: SQLite."""
    hesitates: float = 0.0
    """Seconds that it waits with a batch in its hands: the time to become a zombie."""


class Points:
    """Places between two steps; the process dies at one of them."""

    def __init__(self, orders: Orders, say: Callable[..., None]) -> None:
        self._left = orders.dies_at if orders.dies == "point" else 0
        self._say = say

    def __call__(self, name: str) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._say(name)


def run(orders: Orders, link: Connection) -> None:
    asyncio.run(work(orders, lambda *words: link.send_bytes(msgspec.json.encode(words))))


def run_alone(orders: Orders) -> None:
    """Nobody listens."""
    asyncio.run(work(orders, lambda *_: None))


async def work(orders: Orders, say: Callable[..., None]) -> None:
    dies_at_a_call = orders.dies not in ("", "point")
    files = DyingFiles(orders.dies, orders.dies_at) if dies_at_a_call else OsFiles()
    transport = EmbeddedTransport(orders.path, system=System(files=files))
    point = Points(orders, say)
    connection = await connect(orders)
    try:
        async with transport:
            await transport.create_topic(TOPIC, partitions=PARTITIONS)
            if orders.finish:
                await book(transport, connection, orders, point)
            else:
                sending = send(transport, orders, point)
                await asyncio.gather(sending, book(transport, connection, orders, point))
    finally:
        closing = connection.close()
        if closing is not None:
            await closing


async def connect(orders: Orders) -> Any:
    connection: Any
    if orders.dsn:
        import asyncpg

        connection = await asyncpg.connect(orders.dsn)
    else:
        connection = sqlite3.connect(f"{orders.path}/bank.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL").close()
    await execute(connection, BALANCES)
    await DatabaseCheckpoints(GROUP).create(connection)
    return connection


async def send(transport: EmbeddedTransport, orders: Orders, point: Points) -> None:
    chance = random.Random(orders.seed)
    while True:
        count = chance.randint(1, 20)
        await transport.produce(
            TOPIC,
            [b"%d" % chance.randint(1, 1_000) for _ in range(count)],
            keys=[chance.choice(ACCOUNTS) for _ in range(count)],
        )
        point("sent")
        await asyncio.sleep(chance.uniform(0, 0.003) + 2 * orders.hesitates)


@asynccontextmanager
async def transaction(connection: Any, orders: Orders):
    if orders.dsn:
        async with connection.transaction():
            yield
    else:
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            yield


async def book(
    transport: EmbeddedTransport, connection: Any, orders: Orders, point: Points
) -> None:
    """Each payment changes a balance: exactly once, whenever the process dies."""
    # The next process need not wait long for the lease of one that was killed.
    options: dict[str, Any] = {"lease_seconds": LEASE_SECONDS}
    if not transport.capabilities.groups:
        options = {}
    checkpoints = DatabaseCheckpoints(GROUP)
    async with transport.subscribe(TOPIC, GROUP, **options) as consumer:
        while True:
            loop = exactly_once(
                consumer,
                checkpoints,
                connection,
                records_max=1_000 if orders.finish else 7,
                follow_seconds=0.005,
            )
            try:
                while not (orders.finish and await is_done(transport, connection)):
                    await book_batch(await anext(loop), connection, orders, point)
                return
            except Fenced:
                point("fenced")


async def book_batch(
    batch: CheckpointedBatch, connection: Any, orders: Orders, point: Points
) -> None:
    point("batch")
    if orders.hesitates:
        await asyncio.sleep(orders.hesitates)
    async with transaction(connection, orders):
        for record in batch:
            cents = int(record.value or b"")
            await execute(connection, BOOK, (record.key or b"").decode(), cents, cents, cents)
        point("effects")
        await batch.save(connection)
        point("saved")
    point("committed")


async def is_done(transport: EmbeddedTransport, connection: Any) -> bool:
    booked = await DatabaseCheckpoints(GROUP).positions(connection, TOPIC)
    return all(booked.get(one.partition, 0) == one.end for one in await transport.lag(TOPIC, GROUP))
