"""Peers that write files themselves: each is a store that takes blocks, durable when the call returns."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.model import Missing
from benchmarks.peers import lmdb, sqlite

READ_BLOCK = 10_000
_KEY = struct.Struct(">Q")


@dataclass(frozen=True)
class Store:
    """An open store."""

    append: Callable[[list[bytes]], object]
    """All records in one transaction, where it has such; durable on return."""
    read: Callable[[], int]
    """All records as objects, oldest first; how many there were."""


@dataclass(frozen=True)
class StorePeer:
    """How to open a store, and what it promises."""

    open: Callable[[Path], AbstractContextManager[Store]]
    how: str
    durability: str
    read_how: str
    single_how: str = "one writer, as it lets no more commit at a time"
    block: int = 1_000
    """Records in a call; fewer where each one is synced anyway."""
    slow_read: bool = False
    """It takes each record out: it is measured with fewer."""


def library(name: str) -> Any:
    """A module of build/peers."""
    try:
        return import_module(name)
    except ImportError as error:
        raise Missing(f"{name} is not here: scripts/peers") from error


@contextmanager
def sqlite_store(folder: Path) -> Iterator[Store]:
    """A table in WAL mode; a transaction for each call."""
    with sqlite.opened(folder, sync=True) as database:

        def append(values: list[bytes]) -> None:
            database.execute("BEGIN IMMEDIATE")
            database.executemany(sqlite.INSERT, zip(values))
            database.execute("COMMIT")

        yield Store(append, lambda: sqlite.read(folder))


@contextmanager
def lmdb_store(folder: Path) -> Iterator[Store]:
    """Rising keys, appended; a transaction for each call."""
    with lmdb.opened(folder, sync=True) as environment:

        def read() -> int:
            with environment.begin() as transaction:
                return _count(iter(transaction.cursor()))

        yield Store(lambda values: lmdb.put_block(environment, values), read)


@contextmanager
def rocksdb_store(folder: Path) -> Iterator[Store]:
    """Rising keys; a batch of writes for each call, with the sync of its own log."""
    rocks = library("rocksdict")
    database = rocks.Rdict(str(folder / "rocks"), rocksdb_options(rocks))
    synced = rocks.WriteOptions()
    synced.sync = True
    numbers = iter(range(1 << 62))

    def append(values: list[bytes]) -> None:
        batch = rocks.WriteBatch(raw_mode=True)
        put, pack = batch.put, _KEY.pack
        for value in values:
            put(pack(next(numbers)), value)
        database.write(batch, synced)

    try:
        yield Store(append, lambda: _count(iter(database.items())))
    finally:
        database.close()


def rocksdb_options(rocks: Any) -> Any:
    """What its page “Setup Options and Basic Tuning” advises, as far as it concerns writing and scanning."""
    options = rocks.Options(raw_mode=True)
    options.set_max_background_jobs(6)
    options.set_bytes_per_sync(1 << 20)
    options.set_level_compaction_dynamic_level_bytes(True)
    table = rocks.BlockBasedOptions()
    table.set_block_size(16 << 10)
    options.set_block_based_table_factory(table)
    return options


@contextmanager
def litequeue_store(folder: Path) -> Iterator[Store]:
    """Its own statements, in a transaction of its own for each call. Its column is text, and takes bytes too."""
    queue = library("litequeue").LiteQueue(str(folder / "queue.db"))
    queue.conn.execute("PRAGMA synchronous=FULL")  # as it comes, a commit is not synced

    def append(values: list[bytes]) -> None:
        with queue.transaction():
            for value in values:
                queue.put(value)

    def read() -> int:
        count = 0
        while (message := queue.pop()) is not None:
            queue.done(message.message_id)
            count += 1
        return count

    try:
        yield Store(append, read)
    finally:
        queue.conn.close()


@contextmanager
def persist_queue_store(folder: Path) -> Iterator[Store]:
    """``SQLiteQueue``: it commits each record, and has no call for several."""
    module = library("persistqueue")
    queue = module.SQLiteQueue(str(folder / "queue"), multithreading=True, auto_commit=True)
    queue._putter.execute("PRAGMA synchronous=FULL")

    def append(values: list[bytes]) -> None:
        for value in values:
            queue.put(value)

    def read() -> int:
        count = 0
        while len(queue):
            queue.get(block=False)
            count += 1
        return count

    try:
        yield Store(append, read)
    finally:
        queue.close()


def _count(pairs: Iterator[Any]) -> int:
    """Go through all, in blocks of objects, as a program that works on them does."""
    total = 0
    while block := list(islice(pairs, READ_BLOCK)):
        total += len(block)
    return total


STORES: dict[str, StorePeer] = {
    "sqlite": StorePeer(
        sqlite_store, "WAL, a transaction for each call", "WAL, synchronous=FULL: synced at commit",
        "SELECT id, value, fetchmany (no checksums)"),
    "lmdb": StorePeer(
        lmdb_store, "putmulti, a transaction for each call", "sync=True: synced at commit",
        "cursor over keys and values (no checksums)"),
    "rocksdb": StorePeer(
        rocksdb_store, "rocksdict, a WriteBatch for each call", "WriteOptions.sync: its log is synced",
        "iterator over keys and values",
        single_how="one writer, as rocksdict holds the interpreter lock while it syncs"),
    "litequeue": StorePeer(
        litequeue_store, "put of bytes, in a transaction for each call", "synchronous=FULL: synced at commit",
        "pop and done of each record", slow_read=True),
    "persist-queue": StorePeer(
        persist_queue_store, "SQLiteQueue, put of each record",
        "synchronous=FULL: a sync for each record, it has no other way",
        "get of each record", block=100, slow_read=True),
}  # fmt: skip
