"""Producers of transactions, as far as all transports that have them are alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any, Protocol

from penstock.errors import DeadlineExceeded, LimitReached
from penstock.log.queue import WalMessageQueue

SLOTS_MAX = 1_000
"""How many processes and tasks may run one transform on a log at a time."""


class StreamTransaction(Protocol):
    """Records and the offsets of a consumer that become visible together or not at all."""

    async def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Add a record."""

    async def publish_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
        timestamps: Sequence[int] | None = None,
    ) -> None:
        """Add many records of a topic, in order."""

    def commit_offsets(self, consumer: Any, done: Any = None, /) -> None:
        """Let the offsets of a consumer move with the transaction."""


class StreamProducer(Protocol):
    """Produces in transactions, one at a time."""

    def transaction(self) -> AbstractAsyncContextManager[StreamTransaction]:
        """Commits at the end of the block, and aborts when that raises."""
        ...


@asynccontextmanager
async def log_producer(
    queue: WalMessageQueue, group: str, topic: str, name: str | None
) -> AsyncIterator[StreamProducer]:
    """The producer of one run on a log, with a slot that is free at once when the process dies."""
    if name is not None:
        async with queue.producer(name) as producer:
            yield producer
        return
    found, slot = await asyncio.to_thread(_claim, queue, group, topic)
    try:
        async with queue.producer(found) as producer:
            yield producer
    finally:
        await asyncio.to_thread(slot.__exit__, None, None, None)


def _claim(
    queue: WalMessageQueue, group: str, topic: str
) -> tuple[str, AbstractContextManager[None]]:
    for number in range(SLOTS_MAX):
        name = f"{group}.{topic}.{number}"
        slot = queue.store.lock(f"producers/{name}/owner", 0)
        try:
            slot.__enter__()
        except DeadlineExceeded:
            continue
        return name, slot
    raise LimitReached(
        f"{SLOTS_MAX} runs of {topic!r} for group {group!r} are at work",
        limit="slots",
        value=SLOTS_MAX,
    )
