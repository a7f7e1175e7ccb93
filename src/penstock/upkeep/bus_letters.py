"""The dead letters that a bus of another process keeps in a log, in a journal.

They are read while that bus runs, and changed only while it does not: it has them in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from penstock import errors
from penstock.bus.history import REPLAY_HEADER
from penstock.log.queue import WalMessageQueue
from penstock.resilience import DeadLetter, LetterCodec, LetterEdit
from penstock.scaling.log_records import GROUP, LETTER
from penstock.system import System

JOURNAL, SUFFIX = "journal.", ".dead-letters"
REPLAYS_MAX = 3
"""A letter that came back so often is replayed when it is forced."""


def is_journal(topic: str) -> bool:
    """Whether a topic is the memory of a bus, and not a topic of its users."""
    return topic.startswith(JOURNAL)


def bus_names(topics: Sequence[str]) -> list[str]:
    """The buses that have dead letters in a log."""
    return [
        name[len(JOURNAL) : -len(SUFFIX)]
        for name in topics
        if is_journal(name) and name.endswith(SUFFIX)
    ]


def not_from_a_log(letter: DeadLetter) -> str | None:
    """Why it cannot be replayed from outside, or None."""
    if letter.offset is None or letter.command:
        return (
            "it was never in the log: replay it in its program, with bus.dead_letters.replay(...)"
        )
    return None


def too_often(replays: int) -> str | None:
    """Why it is replayed only when it is forced, or None."""
    if replays >= REPLAYS_MAX:
        return f"it came back {replays} times: mend the cause, then use force"
    return None


def key_bytes(key: Any) -> bytes | None:
    """The key of a message, as a record has it."""
    if key is None or isinstance(key, bytes):
        return key
    return key.encode() if isinstance(key, str) else msgspec.json.encode(key)


class BusLetters:
    """The dead letters of one bus."""

    def __init__(self, queue: WalMessageQueue, bus: str) -> None:
        self._queue = queue
        self._bus = bus
        self._codec = LetterCodec(_nothing, _nothing)

    async def kept(self) -> list[DeadLetter]:
        """All of them, the oldest first."""
        held: dict[str, bytes] = {}
        async for record in self._queue.replay(f"{JOURNAL}{self._bus}{SUFFIX}"):
            key = (record.key or b"").decode("utf-8", "replace")
            held.pop(key, None)
            if record.value is not None:
                held[key] = record.value
        return [self._codec.decode(key, data) for key, data in held.items()]

    async def replay(self, letters: Sequence[DeadLetter]) -> None:
        """Send them to where they came from, and take them away; SubscriberBusy while the bus runs."""
        async with self._claimed() as journal:
            for letter in letters:
                await self._publish(letter)
                # Published first: a crash in between replays it twice, and loses it never.
                await journal.change({letter.id: None})

    async def replay_running(self, letters: Sequence[DeadLetter]) -> None:
        """Send them to a bus that runs; it takes each away when it has handled the record."""
        for letter in letters:
            await self._publish(letter, {LETTER: letter.id.encode()})

    async def purge(self, letters: Sequence[DeadLetter]) -> int:
        """Throw them away; how many."""
        async with self._claimed() as journal:
            await journal.change({letter.id: None for letter in letters})
        return len(letters)

    async def edit(self, letter: DeadLetter, raw: bytes, note: str) -> None:
        """Give a letter another value; the one that failed is kept too."""
        edit = LetterEdit(System().clock.time_ms(), "message", note)
        changed = msgspec.structs.replace(
            letter,
            raw=raw,
            original_raw=letter.raw if letter.original_raw is None else letter.original_raw,
            edits=(*letter.edits, edit),
        )
        async with self._claimed() as journal:
            await journal.change({letter.id: self._codec.encode(changed)})

    @asynccontextmanager
    async def _claimed(self) -> AsyncIterator[Any]:
        journal = self._queue.journal(f"{self._bus}{SUFFIX}")
        try:
            await journal.open()
        except errors.SubscriberBusy as busy:
            raise errors.SubscriberBusy(
                f"the bus {self._bus!r} runs, and has its dead letters in memory: use its dashboard or "
                "bus.dead_letters there, or stop it first",
                **busy.fields,
            ) from None
        try:
            yield journal
        finally:
            await journal.close()

    async def _publish(self, letter: DeadLetter, more: Mapping[str, bytes] | None = None) -> None:
        key, headers = await self._origin(letter)
        headers = {**headers, REPLAY_HEADER: b"%d" % (letter.replays + 1), **(more or {})}
        if letter.group is not None:
            headers[GROUP] = letter.group.encode()
        await self._queue.publish(letter.topic, letter.raw, key=key, headers=headers, durable=True)

    async def _origin(self, letter: DeadLetter) -> tuple[bytes | None, Mapping[str, bytes]]:
        """Key and headers of the record that failed; as the letter has them when that is gone."""
        first = letter.offset or 0
        try:
            found = self._queue.replay(
                letter.topic, start=first, end=first + 1, partition=letter.partition or 0
            )
            async for record in found:
                return record.key, record.headers
        except (errors.OffsetOutOfRange, errors.UnknownTopic, errors.UnknownPartition):
            pass
        own = {"penstock-type": letter.message_type, "penstock-id": letter.message_id}
        known = {name: text for name, text in own.items() if text}
        headers = {**letter.headers, **known}
        return key_bytes(letter.key), {name: text.encode() for name, text in headers.items()}


def _nothing(*_: Any) -> Any:
    raise errors.NotSupported("classes of messages are known to their program alone")
