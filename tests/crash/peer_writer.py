"""A writer that keeps numbers with something else than Penstock, to be put on the same rigs.

``python -m tests.crash.peer_writer NAME FOLDER write [COUNT]`` keeps one number after the other and says
each, as eight bytes, when the peer has acknowledged it; one that the peer refused is said negative.
``... read`` says all numbers that are there, with those that have a wrong value negative.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

from tests.crash import peer_servers as servers
from tests.crash import peer_stores as stores
from tests.crash.peer import NUMBER, Peer, value_of

PEERS: dict[str, type[Peer]] = {
    "a file, flushed": stores.NaiveFile,
    "SQLite (default)": stores.Sqlite,
    "SQLite WAL (FULL)": stores.SqliteWal,
    "SQLite WAL (NORMAL)": stores.SqliteWalNormal,
    "LMDB (default)": stores.Lmdb,
    "RocksDB (default)": stores.RocksDb,
    "RocksDB (sync)": stores.RocksDbSynced,
    "Redis (everysec)": servers.Redis,
    "Redis (always)": servers.RedisAlways,
    "NATS (default)": servers.Nats,
    "NATS (always)": servers.NatsAlways,
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
