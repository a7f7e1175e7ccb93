"""A writer that keeps numbers with something else than Penstock, to be put on the same rigs.

``python -m tests.crash.peer_writer NAME FOLDER write [COUNT]`` keeps one number after the other and says
each, as eight bytes, when the peer has acknowledged it; one that the peer refused is said negative.
``... read`` says all numbers that are there, with those that have a wrong value negative.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import struct
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

NUMBER = struct.Struct("<q")
VALUE_BYTES = 100


def value_of(number: int) -> bytes:
    """What is kept of a number; any change of it is seen."""
    return NUMBER.pack(number) * (VALUE_BYTES // NUMBER.size)


class Peer(ABC):
    """Keeps values by their numbers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def keep(self, number: int, value: bytes) -> None:
        """Return when the peer says that it is kept."""

    @abstractmethod
    def kept(self) -> Iterable[tuple[int, bytes]]:
        """Everything, in the order of the numbers."""

    def close(self) -> None:
        """End in good order."""


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
            transaction.put(struct.pack(">q", number), value)

    def kept(self) -> Iterable[tuple[int, bytes]]:
        with self._environment.begin() as transaction:
            for key, value in transaction.cursor():
                yield struct.unpack(">q", key)[0], value

    def close(self) -> None:
        self._environment.close()


class Redis(Peer):
    """A server of its own, with the append-only file as it is when one turns it on."""

    policy = "everysec"

    def __init__(self, folder: Path) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        super().__init__(folder)
        # Elsewhere the name is too long for a socket.
        socket = Path("/tmp") / f"penstock-peer-{os.getpid()}.sock"
        self._server = subprocess.Popen(
            [
                *("redis-server", "--port", "0", "--unixsocket", str(socket), "--dir", str(folder)),
                *("--appendonly", "yes", "--appendfsync", self.policy, "--save", ""),
            ],
            stdout=subprocess.DEVNULL,
        )
        self._client = redis.Redis(unix_socket_path=str(socket), retry=Retry(NoBackoff(), 0))
        while not self._is_up():
            self._pause()

    def _is_up(self) -> bool:
        import redis

        try:
            return bool(self._client.ping())
        except redis.RedisError:
            return False

    def _pause(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(0.02)
            raise OSError("the server does not start")

    def keep(self, number: int, value: bytes) -> None:
        self._client.xadd("numbers", {b"v": value}, id=f"{number}-1")

    def kept(self) -> Iterable[tuple[int, bytes]]:
        entries: Any = self._client.xrange("numbers")
        for entry, fields in entries:
            yield int(entry.partition(b"-")[0]), fields[b"v"]

    def close(self) -> None:
        self._client.shutdown(nosave=True)
        self._server.wait(20)


class RedisAlways(Redis):
    """With a sync for each write."""

    policy = "always"


PEERS: dict[str, type[Peer]] = {
    "a file, flushed": NaiveFile,
    "SQLite (default)": Sqlite,
    "SQLite WAL (FULL)": SqliteWal,
    "SQLite WAL (NORMAL)": SqliteWalNormal,
    "LMDB (default)": Lmdb,
    "Redis (everysec)": Redis,
    "Redis (always)": RedisAlways,
}


def say(number: int) -> None:
    os.write(1, NUMBER.pack(number))


def write(peer: Peer, first: int, count: int | None) -> None:
    numbers = itertools.count(first) if count is None else range(first, first + count)
    for number in numbers:
        try:
            peer.keep(number, value_of(number))
        except Exception:
            say(-number)
        else:
            say(number)
    peer.close()


def read(peer: Peer) -> None:
    for number, value in peer.kept():
        say(number if value == value_of(number) else -max(1, abs(number)))
    peer.close()


def main(name: str, folder: str, what: str, first: str = "1", count: str = "") -> None:
    peer = PEERS[name](Path(folder))
    if what == "read":
        read(peer)
    else:
        write(peer, int(first), int(count) if count else None)


if __name__ == "__main__":
    main(*sys.argv[1:])
