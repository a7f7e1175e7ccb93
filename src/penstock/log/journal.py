"""Keyed facts on a topic: what the bus has scheduled, what waits for approval.

A journal is a topic with one partition, key compaction and no other limit: the newest value of a
key that was not removed is never lost. A change is one entry of the log, so a crash leaves all of
it or nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import (
    BufferFull,
    Closed,
    DeadlineExceeded,
    InvalidOption,
    PenstockError,
    RecordTooLarge,
    SubscriberBusy,
    UsageError,
)
from penstock.log.columns import RECORD_OVERHEAD_BYTES
from penstock.log.frame import ENTRY_BYTES_MAX
from penstock.log.names import check_name
from penstock.log.topic import FsyncPolicy, Retention, TopicConfig, TopicState
from penstock.log.waiting import begin

if TYPE_CHECKING:
    from penstock.log.queue import WalMessageQueue

_T = TypeVar("_T")

KEYS_MAX = 1_000_000
"""Keys that a journal may hold at a time."""
CHANGE_BYTES_MAX = ENTRY_BYTES_MAX // 2
CHANGE_KEYS_MAX = 100_000
OWNER = "journal"
"""The subscriber name by which the owner claims the topic."""
CHANGE_TIMEOUT_SECONDS = 30.0
SETTINGS = TopicConfig(
    fsync=FsyncPolicy.EVERY_MESSAGE,
    batch_records_max=CHANGE_KEYS_MAX,
    batch_bytes_max=CHANGE_BYTES_MAX,
    # Sealed often, as compaction leaves the open segment alone.
    segment_bytes_max=16 * 1024 * 1024,
    compact_keys=True,
    retention=Retention(age_ms_max=None, bytes_max=None),
)


class LogJournal:
    """Implements :class:`penstock.bus.journal.Journal`; ``queue.journal(name)`` makes one.

    It has one live owner over all processes: who opens it. When the owner dies it is free at
    once. Closing the queue closes it. After ``fork()`` the child has to open its own queue.
    """

    def __init__(self, queue: WalMessageQueue, name: str) -> None:
        self.name = check_name("journal", name)
        self.topic = f"journal.{name}"
        self._queue = queue
        self._claim: AbstractContextManager[None] | None = None
        self._live: set[str] = set()
        self._at_work: set[asyncio.Future[Any]] = set()
        self._releasing: asyncio.Future[None] | None = None
        self._late = False
        """A change was not done in time, and may be written yet."""

    async def open(self) -> Mapping[str, bytes]:
        """Claim the journal and return what it holds, oldest change first.

        SubscriberBusy when it has a live owner. Cancelled, it is closed.
        """
        self._check()
        if self._claim is not None:
            raise UsageError(f"journal {self.name!r} is open: one open() is enough")
        opening = self._begin(self._open())
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._release_soon()
            raise

    async def change(self, changes: Mapping[str, bytes | None]) -> None:
        """Set the values of keys, remove those with None; all of them or none.

        Durable when it returns. When it raises BufferFull or RecordTooLarge nothing was changed.
        When it is cancelled, raises DeadlineExceeded, or the disk fails, the change may or may
        not have been made: opening the journal again shows it.
        """
        self._check()
        if self._claim is None:
            raise UsageError(f"journal {self.name!r} is not open: await journal.open() first")
        if not changes:
            return
        check_change(self.name, changes)
        self._count(changes)
        await asyncio.shield(self._begin(self._write(dict(changes))))

    async def close(self) -> None:
        """Let another owner have it, after the changes that are being made. Idempotent."""
        await asyncio.shield(self._release_soon())

    # Inside

    async def _open(self) -> dict[str, bytes]:
        state = await self._queue.create_topic(self.topic, SETTINGS)
        if not _is_journal(state):
            raise InvalidOption(
                f"topic {self.topic!r} is there with other settings than a journal has: use "
                "another name",
                option="name",
            )
        self._claim = await asyncio.to_thread(self._enter)
        try:
            held = await self._read()
        except BaseException:
            await asyncio.to_thread(self._leave)
            raise
        self._live = set(held)
        return held

    def _enter(self) -> AbstractContextManager[None]:
        claim = self._queue.store.lock(f"groups/{OWNER}/{self.topic}.lock", 0)
        try:
            claim.__enter__()
        except DeadlineExceeded:
            raise SubscriberBusy(
                f"journal {self.name!r} is in use by another bus, here or in another process: "
                "give each bus its own name",
                subscriber=OWNER,
                topic=self.topic,
            ) from None
        return claim

    def _leave(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.__exit__(None, None, None)

    async def _read(self) -> dict[str, bytes]:
        held: dict[str, bytes] = {}
        async for record in self._queue.replay(self.topic):
            assert record.key is not None, "a journal has nothing without a key"
            key = record.key.decode()
            held.pop(key, None)  # so that it stands where its newest change stands
            if record.value is not None:
                held[key] = record.value
        return held

    async def _write(self, changes: Mapping[str, bytes | None]) -> None:
        try:
            await self._queue.publish_many(
                self.topic,
                list(changes.values()),
                keys=[key.encode() for key in changes],
                durable=True,
                timeout=CHANGE_TIMEOUT_SECONDS,
            )
        except DeadlineExceeded:
            self._late = True
            raise

    def _count(self, changes: Mapping[str, bytes | None]) -> None:
        added = {key for key, value in changes.items() if value is not None}
        after = len(self._live | added) if len(self._live) + len(added) > KEYS_MAX else 0
        if after > KEYS_MAX:
            raise BufferFull(
                f"journal {self.name!r} would hold {after} keys, {KEYS_MAX} are allowed. Nothing "
                "was changed",
                journal=self.name,
            )
        self._live |= added
        self._live -= changes.keys() - added

    def _begin(self, work: Coroutine[Any, Any, _T]) -> asyncio.Future[_T]:
        """Closing waits for it, also when its caller was cancelled: the next owner sees it all."""
        return begin(self._at_work, work)

    def _release_soon(self) -> asyncio.Future[None]:
        if self._releasing is None:
            self._releasing = asyncio.ensure_future(self._release())
        return self._releasing

    async def _release(self) -> None:
        if self._at_work:
            await asyncio.wait(self._at_work)
        try:
            if self._late:
                await self._queue.flush()
        except PenstockError:
            # A change may still be on its way to the disk. The claim ends with the store, or with
            # the process, so that no other owner reads the journal without it.
            return
        if self._claim is not None:
            await asyncio.to_thread(self._leave)

    def _check(self) -> None:
        if self._releasing is not None:
            raise Closed(f"journal {self.name!r} is closed: make a new one to go on")


def _is_journal(state: TopicState) -> bool:
    """Whether a topic keeps the newest value of each key, and writes a change as one entry."""
    config = state.config
    unlimited = config.retention.age_ms_max is None and config.retention.bytes_max is None
    whole = config.batch_bytes_max >= CHANGE_BYTES_MAX and (
        config.batch_records_max >= CHANGE_KEYS_MAX
    )
    kept = unlimited and not config.retention.acknowledged and config.compact_keys
    return state.partitions_all == 1 and kept and whole


def check_change(name: str, changes: Mapping[str, bytes | None]) -> None:
    """RecordTooLarge when a change cannot be one entry of the log."""
    size = sum(len(key.encode()) + len(value or b"") for key, value in changes.items())
    size += len(changes) * RECORD_OVERHEAD_BYTES
    if size > CHANGE_BYTES_MAX or len(changes) > CHANGE_KEYS_MAX:
        raise RecordTooLarge(
            f"a change of {len(changes)} keys and {size} bytes is too large for journal {name!r}: "
            f"{CHANGE_KEYS_MAX} keys and {CHANGE_BYTES_MAX} bytes are allowed",
            journal=name,
            size=size,
            limit=CHANGE_BYTES_MAX,
        )
