"""Peers that live in the process of their user: a plain file, SQLite, LMDB, RocksDB."""

from __future__ import annotations

import importlib
import sqlite3
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.crash.peer import KEY, NUMBER, Peer, value_of

FETCHED = Path(__file__).parents[2] / "build" / "peers"
"""Where ``scripts/peers`` puts what only the benchmarks and this need."""


class NaiveFile(Peer):
    """A file that is flushed and never synced."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = folder / "numbers"
        self._file = self._path.open("ab")

    def keep(self, number: int, value: bytes) -> None:
        self._file.write(NUMBER.pack(number) + value)
        self._file.flush()

    def kept(self) -> Iterable[tuple[int, bytes]]:
        data, size = self._path.read_bytes(), NUMBER.size + len(value_of(0))
        for at in range(0, len(data) - size + 1, size):
            yield NUMBER.unpack_from(data, at)[0], data[at + NUMBER.size : at + size]

    def close(self) -> None:
        self._file.close()


class Sqlite(Peer):
    """As ``sqlite3.connect`` gives it."""

    pragmas: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._database = sqlite3.connect(folder / "numbers.db", isolation_level=None)
        for pragma in self.pragmas:
            self._database.execute(f"PRAGMA {pragma}")
        self._database.execute("CREATE TABLE IF NOT EXISTS numbers (n INTEGER PRIMARY KEY, v BLOB)")

    def keep(self, number: int, value: bytes) -> None:
        self._database.execute("INSERT INTO numbers VALUES (?, ?)", (number, value))

    def kept(self) -> Iterable[tuple[int, bytes]]:
        if self._database.execute("PRAGMA integrity_check").fetchone() != ("ok",):
            raise OSError("integrity_check")
        return self._database.execute("SELECT n, v FROM numbers ORDER BY n")

    def close(self) -> None:
        self._database.close()


class SqliteWal(Sqlite):
    """With the write-ahead log and its default, a sync for each transaction."""

    pragmas = ("journal_mode=WAL", "synchronous=FULL")


class SqliteWalNormal(Sqlite):
    """With the write-ahead log as most queues in Python set it."""

    pragmas = ("journal_mode=WAL", "synchronous=NORMAL")


class Lmdb(Peer):
    """With its defaults."""

    def __init__(self, folder: Path) -> None:
        import lmdb

        super().__init__(folder)
        self._environment = lmdb.open(str(folder / "lmdb"), map_size=32 << 20)

    def keep(self, number: int, value: bytes) -> None:
        with self._environment.begin(write=True) as transaction:
            transaction.put(KEY.pack(number), value)

    def kept(self) -> Iterable[tuple[int, bytes]]:
        with self._environment.begin() as transaction:
            for key, value in transaction.cursor():
                yield KEY.unpack(key)[0], value

    def close(self) -> None:
        self._environment.close()


class RocksDb(Peer):
    """With its defaults: its log is written, and not synced."""

    is_synced = False

    def __init__(self, folder: Path) -> None:
        sys.path.append(str(FETCHED))
        rocksdict = importlib.import_module("rocksdict")
        super().__init__(folder)
        self._options = rocksdict.WriteOptions()
        self._options.sync = self.is_synced
        self._database = rocksdict.Rdict(str(folder / "rocks"), rocksdict.Options(raw_mode=True))

    def keep(self, number: int, value: bytes) -> None:
        self._database.put(KEY.pack(number), value, self._options)

    def kept(self) -> Iterable[tuple[int, bytes]]:
        for key, value in self._database.items():
            yield KEY.unpack(key)[0], value

    def close(self) -> None:
        self._database.close()


class RocksDbSynced(RocksDb):
    """With a sync of its log for each write."""

    is_synced = True
