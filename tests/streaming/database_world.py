"""Connections of every driver, and one way to use them all; batches, and a payment that is saved with one."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.log.records import Record
from penstock.streaming.database_connection import run
from penstock.transports import StreamBatch

SQLITE_KINDS = ["sqlite3", "sqlite3 autocommit", "aiosqlite"]
POSTGRES_KINDS = ["asyncpg", "psycopg", "psycopg async"]


@dataclass
class Database:
    """A database, and connections to it by one driver."""

    kind: str
    where: str
    connections: list[Any]

    async def connect(self) -> Any:
        connection = await CONNECT[self.kind](self.where)
        self.connections.append(connection)
        return connection

    async def close(self) -> None:
        for connection in self.connections:
            closing = connection.close()
            if closing is not None:
                await closing

    @contextlib.asynccontextmanager
    async def transaction(self, connection: Any) -> AsyncIterator[None]:
        """A transaction as a user of the driver writes it."""
        if self.kind in ("asyncpg", "psycopg async"):
            async with connection.transaction():
                yield
        elif self.kind == "psycopg":
            with connection.transaction():
                yield
        elif self.kind == "aiosqlite":
            await connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                await connection.rollback()
                raise
            await connection.commit()
        else:
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                yield

    async def total(self, connection: Any) -> int:
        """The sum of all balances."""
        answer = await run(connection, "SELECT COALESCE(SUM(cents), 0) FROM balances")
        if self.kind.startswith("psycopg"):
            ending = connection.rollback()
            if ending is not None:
                await ending
        return int(answer.rows[0][0])


async def make_balances(database: Database, connection: Any) -> None:
    async with database.transaction(connection):
        await run(
            connection, "CREATE TABLE balances (account VARCHAR(20) PRIMARY KEY, cents BIGINT)"
        )


async def pay(connection: Any, account: str, cents: int) -> None:
    await run(
        connection,
        "INSERT INTO balances VALUES (?, ?) ON CONFLICT (account) "
        "DO UPDATE SET cents = balances.cents + excluded.cents",
        account,
        cents,
    )


async def _sqlite3(path: str) -> Any:
    return sqlite3.connect(path)


async def _sqlite3_autocommit(path: str) -> Any:
    return sqlite3.connect(path, isolation_level=None)


async def _aiosqlite(path: str) -> Any:
    return await pytest.importorskip("aiosqlite").connect(path)


async def _asyncpg(dsn: str) -> Any:
    return await pytest.importorskip("asyncpg").connect(dsn)


async def _psycopg(dsn: str) -> Any:
    return pytest.importorskip("psycopg").connect(dsn)


async def _psycopg_async(dsn: str) -> Any:
    return await pytest.importorskip("psycopg").AsyncConnection.connect(dsn)


CONNECT: dict[str, Callable[[str], Any]] = {
    "sqlite3": _sqlite3,
    "sqlite3 autocommit": _sqlite3_autocommit,
    "aiosqlite": _aiosqlite,
    "asyncpg": _asyncpg,
    "psycopg": _psycopg,
    "psycopg async": _psycopg_async,
}


def batch_of(first: int, end: int, partition: int = 0) -> StreamBatch:
    """Records of "orders" from an offset up to another."""
    records = [Record("orders", partition, offset, 0, None, b"1") for offset in range(first, end)]
    return StreamBatch("orders", partition, records, end)


async def paid(
    database: Database,
    connection: Any,
    saving: Awaitable[object],
    error: BaseException | None = None,
) -> None:
    """A transaction with an effect and a save; it ends with this error if there is one."""
    async with database.transaction(connection):
        await pay(connection, "ada", 100)
        await saving
        if error:
            raise error
