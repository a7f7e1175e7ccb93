"""What every server of the durable peers offers: records go in, and come out in batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

STREAM = "bench"

Take = Callable[[int], Awaitable[int]]
"""The next batch as objects, of so many records at most; how many it had."""


@dataclass(frozen=True)
class Client:
    """A connection to a server."""

    append: Callable[[list[bytes]], Awaitable[object]]
    """All records, acknowledged and durable on return."""
    reader: Callable[[], AbstractAsyncContextManager[Take]]
    """A connection of its own that stands before the oldest record."""


@dataclass(frozen=True)
class ServerPeer:
    """How to start a server and connect to it, and what it promises."""

    open: Callable[[Path], AbstractAsyncContextManager[Client]]
    how: str
    durability: str
    read_how: str
    read_records: int
    """As many as take it half a second or more."""
    read_batch: int
    fill_batch: int = 10_000
    """Records in a call before they are read."""
    warm_up: int = 0
    """Records before the clock starts, for a server that compiles itself while it works."""
