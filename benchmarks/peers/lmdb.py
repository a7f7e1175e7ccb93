"""LMDB as a log: rising integer keys, appended, a transaction per block.

With ``sync`` each commit is durable. Without, the map is written in memory and left to the
system (``writemap``, ``map_async``), which its documentation names as the fastest way.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

import lmdb

from benchmarks.model import Load, Sample, drive

MAP_BYTES = 8 << 30
_KEY = struct.Struct(">Q")


@contextmanager
def opened(folder: Path, *, sync: bool) -> Iterator[Any]:
    """The environment, ready to write."""
    environment = lmdb.open(
        str(folder), map_size=MAP_BYTES, sync=sync, metasync=sync, meminit=False,
        writemap=not sync, map_async=not sync,
    )  # fmt: skip
    try:
        yield environment
    finally:
        environment.close()


def _next_key(cursor: Any) -> int:
    """As a log numbers its records: one more than the last, whichever process wrote it."""
    return int(_KEY.unpack(cursor.key())[0]) + 1 if cursor.last() else 0


def put_many(folder: Path, load: Load, *, sync: bool) -> Sample:
    """A transaction with one ``putmulti`` per block."""
    values = load.values()
    with opened(folder, sync=sync) as environment:
        return drive(load, lambda: put_block(environment, values))


def put_block(environment: Any, values: list[bytes]) -> None:
    """One transaction with a block."""
    with environment.begin(write=True) as transaction:
        cursor = transaction.cursor()
        keys = map(_KEY.pack, count(_next_key(cursor)))
        cursor.putmulti(zip(keys, values, strict=False), append=True)


def put_each(folder: Path, load: Load, *, sync: bool) -> Sample:
    """One ``put`` per record, a transaction per block."""
    values = load.values()
    with opened(folder, sync=sync) as environment:

        def step() -> None:
            with environment.begin(write=True) as transaction:
                cursor = transaction.cursor()
                put, pack = cursor.put, _KEY.pack
                for key, value in enumerate(values, _next_key(cursor)):
                    put(pack(key), value, append=True)

        return drive(load, step)


def fill(folder: Path, load: Load, records: int) -> None:
    """A database to read from."""
    values = load.values()
    with opened(folder, sync=False) as environment:
        for _ in range(records // len(values)):
            put_block(environment, values)


def read(folder: Path) -> int:
    """All keys and values as objects, in blocks; how many there were."""
    total = 0
    with opened(folder, sync=True) as environment, environment.begin() as transaction:
        pairs = iter(transaction.cursor())
        while block := list(islice(pairs, 10_000)):
            total += len(block)
    return total
