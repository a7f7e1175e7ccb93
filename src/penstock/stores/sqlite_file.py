"""The container file of :class:`~penstock.stores.sqlite.SqliteStore`: making, opening, refusing."""

from __future__ import annotations

import os
import sqlite3

from penstock.errors import (
    DamagedFile,
    DeadlineExceeded,
    InvalidOption,
    PenstockError,
    StoreFailed,
    UnsupportedFormat,
)
from penstock.system import Files

APPLICATION_ID = 0x50454E53  # "PENS"
VERSION = 1

# A row id holds the number of the key above and the position in the value below: 8 million keys
# of up to 1 TiB.
POSITION_BITS = 40

_SCHEMA = (
    "CREATE TABLE keys (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE)",
    "CREATE TABLE pieces (place INTEGER PRIMARY KEY, data BLOB NOT NULL)",
    "CREATE TABLE syncs (count INTEGER NOT NULL)",
    "INSERT INTO syncs VALUES (0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)
_CONNECTION_SETTINGS = (
    "PRAGMA trusted_schema = OFF",  # what the file says about itself must not run functions
    "PRAGMA cell_size_check = ON",  # notice a damaged page before it is followed
    "PRAGMA journal_size_limit = 67108864",
    "PRAGMA wal_autocheckpoint = 0",  # the store does it, and sees when it fails
)


def connect(path: str, busy_seconds: float) -> sqlite3.Connection:
    """A connection that any one thread at a time may use; transactions are explicit."""
    connection = sqlite3.connect(
        path, timeout=busy_seconds, isolation_level=None, check_same_thread=False
    )
    try:
        for setting in _CONNECTION_SETTINGS:
            connection.execute(setting)
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(path: str, busy_seconds: float, files: Files) -> sqlite3.Connection:
    """Open the container, making it when absent. The caller holds the container's lock."""
    try:
        # SQLite would make the file with the umask's mode. An existing file is left alone:
        # closing a descriptor of our own would drop the locks of SQLite in this process.
        if not files.exists(path):
            files.close(files.open(path, create=True))
    except OSError as cause:
        raise StoreFailed(f"cannot make {path}: {cause.strerror or cause}", file=path) from cause
    connection = connect(path, busy_seconds)
    try:
        _check_or_fill(connection, path)
        # The read above made SQLite's log; both names must survive before anything is promised.
        files.sync_directory(os.path.dirname(path))
    except OSError as cause:
        connection.close()
        raise StoreFailed(f"cannot sync the directory of {path}: {cause}", file=path) from cause
    except BaseException:
        connection.close()
        raise
    return connection


def _check_or_fill(connection: sqlite3.Connection, path: str) -> None:
    identity = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    objects = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if identity == 0 and objects == 0:
        _fill(connection, path)
    elif identity != APPLICATION_ID:
        raise InvalidOption(
            f"{path} is an SQLite database of another program: choose another path", file=path
        )
    elif version > VERSION:
        raise UnsupportedFormat(
            f"{path} has version {version}; this Penstock reads up to {VERSION}",
            file=path,
            version=version,
        )


def _fill(connection: sqlite3.Connection, path: str) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreFailed(f"{path}: SQLite offers no write-ahead log here, only {mode}", file=path)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute("COMMIT")


def translate(cause: sqlite3.Error, verb: str, path: str) -> PenstockError:
    """The store's error for one of SQLite's."""
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return DeadlineExceeded(f"{path} was busy for too long: nothing was written", file=path)
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return DamagedFile(
            f"{path} is damaged or no container: {cause}", file=path, reason=str(cause)
        )
    name = getattr(cause, "sqlite_errorname", type(cause).__name__)
    return StoreFailed(f"cannot {verb} in {path}: {cause} ({name})", file=path, operation=verb)
