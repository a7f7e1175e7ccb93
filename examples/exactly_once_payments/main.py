"""Payments from a topic change balances in a database: each one exactly once, whenever the program dies.

    python examples/exactly_once_payments/main.py                      # SQLite
    python examples/exactly_once_payments/main.py postgresql://...     # PostgreSQL, by asyncpg

The program starts a process that books payments and kills it again and again. In the end the balances
have to be what the topic says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from penstock.streaming import DatabaseCheckpoints, exactly_once
from penstock.transports import Consumer, open_transport

FAST = os.environ.get("PENSTOCK_EXAMPLE_FAST") == "1"
PAYMENTS = 2_000 if FAST else 20_000
KILLS = 3 if FAST else 20
ACCOUNTS = ["ada", "blaise", "carl", "dorothy"]
OPTIONS: dict[str, Any] = {"lease_seconds": 0.5}
"""The group takes a member for dead that has been silent for so long."""

checkpoints = DatabaseCheckpoints("booking", table="example_checkpoints")
CREATE = "CREATE TABLE IF NOT EXISTS example_balances (account TEXT PRIMARY KEY, cents BIGINT)"


async def book_in_sqlite(consumer: Consumer, path: str) -> None:
    """Effects and checkpoint in one transaction of SQLite."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(CREATE)
        await checkpoints.create(connection)
        async for batch in exactly_once(consumer, checkpoints, connection, records_max=50):
            with connection:
                for record in batch:
                    connection.execute(
                        "INSERT INTO example_balances VALUES (?, ?) ON CONFLICT (account) "
                        "DO UPDATE SET cents = cents + excluded.cents",
                        [(record.key or b"").decode(), int(record.value or b"")],
                    )
                await batch.save(connection)
            print(f"booked {len(batch)}", flush=True)


async def book_in_postgres(consumer: Consumer, url: str) -> None:
    """The same in PostgreSQL."""
    import asyncpg

    connection = await asyncpg.connect(url)
    await connection.execute(CREATE)
    await checkpoints.create(connection)
    async for batch in exactly_once(consumer, checkpoints, connection, records_max=50):
        async with connection.transaction():
            for record in batch:
                await connection.execute(
                    "INSERT INTO example_balances VALUES ($1, $2) ON CONFLICT (account) "
                    "DO UPDATE SET cents = example_balances.cents + excluded.cents",
                    (record.key or b"").decode(),
                    int(record.value or b""),
                )
            await batch.save(connection)
        print(f"booked {len(batch)}", flush=True)


async def book(directory: str, database: str) -> None:
    """What the process does that is killed."""
    book_in = book_in_postgres if database.startswith("postgres") else book_in_sqlite
    async with open_transport(f"log:{directory}") as transport:
        consumer = transport.subscribe("payments", "booking", **OPTIONS)
        async with consumer:
            await book_in(consumer, database)


async def send(directory: str) -> Counter[str]:
    """Payments with the account as the key; what each account has to have in the end."""
    chance = random.Random(7)
    sent: Counter[str] = Counter()
    payments = [(chance.choice(ACCOUNTS), chance.randint(1, 10_000)) for _ in range(PAYMENTS)]
    async with open_transport(f"log:{directory}") as transport:
        await transport.create_topic("payments", partitions=4)
        await transport.produce(
            "payments",
            [b"%d" % cents for _, cents in payments],
            keys=[account.encode() for account, _ in payments],
        )
    for account, cents in payments:
        sent[account] += cents
    return sent


def book_and_be_killed(directory: str, database: str, batches: int) -> None:
    """Start the process, wait until it has booked so many batches, and kill it."""
    command = [sys.executable, __file__, "book", directory, database]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(batches):
            process.stdout.readline()
        process.kill()


async def booked_payments(database: str) -> tuple[int, dict[str, int]]:
    """How many payments the checkpoints say are booked, and the balances."""
    balances = "SELECT account, cents FROM example_balances"
    if not database.startswith("postgres"):
        with contextlib.closing(sqlite3.connect(database)) as connection:
            positions = await checkpoints.positions(connection, "payments")
            return sum(positions.values()), dict(connection.execute(balances).fetchall())
    import asyncpg

    server = await asyncpg.connect(database)
    try:
        positions = await checkpoints.positions(server, "payments")
        return sum(positions.values()), dict(map(tuple, await server.fetch(balances)))
    finally:
        await server.close()


async def begin_anew(database: str) -> None:
    """A database that stays may have the tables of the last run, whose topic is gone."""
    if database.startswith("postgres"):
        import asyncpg

        server = await asyncpg.connect(database)
        await server.execute("DROP TABLE IF EXISTS example_balances, example_checkpoints")
        await server.close()


def main() -> None:
    if sys.argv[1:2] == ["book"]:
        asyncio.run(book(*sys.argv[2:]))
        return
    with tempfile.TemporaryDirectory(prefix="penstock-payments-") as directory:
        database = sys.argv[1] if sys.argv[1:] else str(Path(directory, "bank.db"))
        asyncio.run(begin_anew(database))
        log = str(Path(directory, "log"))
        sent = asyncio.run(send(log))
        print(f"{PAYMENTS} payments are in the topic.")
        chance = random.Random()
        for _ in range(KILLS):
            book_and_be_killed(log, database, chance.randint(1, 8))
        done, _ = asyncio.run(booked_payments(database))
        print(f"{KILLS} times the process that books them was killed; {done} are booked.")
        while done < PAYMENTS:
            book_and_be_killed(log, database, batches=-(-(PAYMENTS - done) // 50))
            done, _ = asyncio.run(booked_payments(database))
        _, balances = asyncio.run(booked_payments(database))
        print(f"Now all are. The balances: {dict(sorted(balances.items()))}")
        assert balances == sent, f"the topic says {sent}"
        print("They are what the topic says.")


if __name__ == "__main__":
    main()
