"""SQLite as a log: a table in WAL mode, tuned as its documentation advises.

``synchronous=FULL`` syncs the write-ahead log at every commit, as durable as EVERY_MESSAGE.
``OFF`` leaves it to the system, which survives a crash of the process only.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.model import Load, Sample, drive

INSERT = "INSERT INTO log (value) VALUES (?)"


@contextmanager
def opened(folder: Path, *, sync: bool) -> Iterator[sqlite3.Connection]:
    """The database, ready to insert."""
    database = sqlite3.connect(folder / "log.db", timeout=60, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute(f"PRAGMA synchronous={'FULL' if sync else 'OFF'}")
        # Fewer checkpoints, as the manual advises for bulk writes; 40 MB of write-ahead log.
        database.execute("PRAGMA wal_autocheckpoint=10000")
        database.execute("PRAGMA cache_size=-65536")
        database.execute("CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY, value BLOB)")
        yield database
    finally:
        database.close()


def insert_many(folder: Path, load: Load, *, sync: bool) -> Sample:
    """A transaction with one ``executemany`` per block."""
    values = load.values()
    with opened(folder, sync=sync) as database:

        def step() -> None:
            database.execute("BEGIN IMMEDIATE")
            database.executemany(INSERT, zip(values))
            database.execute("COMMIT")

        return drive(load, step)


def insert_each(folder: Path, load: Load, *, sync: bool) -> Sample:
    """One ``execute`` per record, a commit per block."""
    rows = [(value,) for value in load.values()]
    with opened(folder, sync=sync) as database:
        execute = database.execute

        def step() -> None:
            execute("BEGIN IMMEDIATE")
            for row in rows:
                execute(INSERT, row)
            execute("COMMIT")

        return drive(load, step)


def fill(folder: Path, load: Load, records: int) -> None:
    """A table to read from."""
    values = load.values()
    with opened(folder, sync=False) as database:
        for _ in range(records // len(values)):
            database.execute("BEGIN")
            database.executemany(INSERT, zip(values))
            database.execute("COMMIT")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def read(folder: Path) -> int:
    """All rows as objects, in blocks; how many there were."""
    count = 0
    with opened(folder, sync=False) as database:
        rows = database.execute("SELECT id, value FROM log ORDER BY id")
        while block := rows.fetchmany(10_000):
            count += len(block)
    return count
