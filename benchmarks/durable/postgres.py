"""PostgreSQL as a log: a server of its own on a local socket, with its own settings of the write-ahead log."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from benchmarks.durable.client import STREAM, Client, Take
from benchmarks.model import Missing
from tests.servers import POSTGRES_USER, PostgresServer, postgres_binaries

CONNECTIONS = 16
"""Each one commits alone, and they share syncs."""
SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "4GB"}
"""What its documentation advises for a machine of some gigabytes and for bulk loads. The rest is as it comes."""
_PAGE = f"SELECT id, value FROM {STREAM} WHERE id > $1 ORDER BY id LIMIT $2"


class TunedServer(PostgresServer):
    """The server of the tests without what makes it flush late."""

    def start(self) -> None:
        given = {"listen_addresses": "''", "unix_socket_directories": f"'{self.folder}'"} | SETTINGS
        options = " ".join(f"-c {name}={value}" for name, value in given.items())
        self.run("pg_ctl", "start", "-w", "-t", "30", "-s", "-o", options)


@contextmanager
def server() -> Iterator[PostgresServer]:
    """A new server; its user may not enter the folder of the run, so it has one elsewhere."""
    try:
        binaries = postgres_binaries()
    except pytest.skip.Exception as missing:
        raise Missing(str(missing)) from missing
    folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
    found = TunedServer(binaries, folder)
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, POSTGRES_USER, POSTGRES_USER)
        found.make()
        yield found
    finally:
        if (found.data / "postmaster.pid").exists():
            os.kill(found.pid, signal.SIGQUIT)
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def client(_: Path) -> AsyncIterator[Client]:
    """A table; COPY for many records, INSERT for one."""
    with server() as found:
        connections = {"min_size": CONNECTIONS, "max_size": CONNECTIONS}
        async with asyncpg.create_pool(found.dsn, **connections) as pool:
            await pool.execute(f"CREATE TABLE {STREAM} (id bigserial PRIMARY KEY, value bytea)")
            yield Client(partial(_append, pool), partial(_reader, pool))


async def _append(pool: Any, values: list[bytes]) -> None:
    if len(values) == 1:
        await pool.execute(f"INSERT INTO {STREAM} (value) VALUES ($1)", values[0])
        return
    rows = [(value,) for value in values]
    await pool.copy_records_to_table(STREAM, records=rows, columns=["value"])


@asynccontextmanager
async def _reader(pool: Any) -> AsyncIterator[Take]:
    """Pages by the key, in one statement that is prepared; vacuumed first, as advised after a bulk load."""
    async with pool.acquire() as connection:
        await connection.execute(f"VACUUM ANALYZE {STREAM}")
        page = await connection.prepare(_PAGE)
        last = 0

        async def take(count: int) -> int:
            nonlocal last
            rows = await page.fetch(last, count)
            last = rows[-1]["id"] if rows else last
            return len(rows)

        yield take
