"""The dead letters that a bus keeps in a log, in a journal.

They are read, and replayed, while the bus runs. They are edited and purged only while it does not: it
has them in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from penstock import System, WalMessageQueue, errors
from penstock.cli.letters import Letter, Shelf, Step
from penstock.resilience import DeadLetter, LetterCodec, LetterEdit

SUFFIX = ".dead-letters"
JOURNAL = "journal."
GROUP, LETTER, REPLAY = "penstock-group", "penstock-letter", "x-penstock-replay"
NOT_FROM_A_LOG = (
    "it was never in the log: replay it in the program, with bus.dead_letters.replay(...)"
)


def bus_names(topics: Sequence[str]) -> list[str]:
    """The buses that have dead letters in a log."""
    return [
        name[len(JOURNAL) : -len(SUFFIX)]
        for name in topics
        if name.startswith(JOURNAL) and name.endswith(SUFFIX)
    ]


class BusShelf(Shelf):
    """The dead letters of one bus."""

    def __init__(self, queue: WalMessageQueue, bus: str) -> None:
        self.name = bus
        self._queue = queue
        self._codec = LetterCodec(_no_encoder, _no_decoder)

    async def letters(self) -> list[Letter]:
        held: dict[str, bytes] = {}
        async for record in self._queue.replay(f"{JOURNAL}{self.name}{SUFFIX}"):
            key = (record.key or b"").decode("utf-8", "replace")
            held.pop(key, None)
            if record.value is not None:
                held[key] = record.value
        return [self._letter(self._codec.decode(key, data)) for key, data in held.items()]

    def _letter(self, one: DeadLetter) -> Letter:
        return Letter(
            id=one.id,
            source=self.name,
            topic=one.topic,
            reason=str(one.reason),
            error=one.error,
            error_type=one.error_type,
            handler=one.handler,
            group=one.group,
            key=_key_bytes(one.key),
            value=one.raw,
            headers={name: text.encode() for name, text in one.headers.items()},
            partition=one.partition,
            offset=one.offset,
            attempts=one.attempts,
            replays=one.replays,
            time_ms=one.last_failed_ms,
            traceback=one.traceback,
            edits=[f"{each.what} {each.note}".strip() for each in one.edits],
            original=one.original_raw,
            refused=NOT_FROM_A_LOG if one.offset is None or one.command else None,
            own=one,
        )

    async def replay(self, letters: Sequence[Letter]) -> list[Step]:
        try:
            async with self._claimed() as journal:
                for letter in letters:
                    await self._publish(letter)
                    # Published first: a crash in between replays it twice, and loses it never.
                    await journal.change({letter.id: None})
        except errors.SubscriberBusy:
            for letter in letters:
                # The bus that runs takes the letter away, when it has handled the record.
                await self._publish(letter, {LETTER: letter.id.encode()})
            return [_step(letter, "; the running bus takes it away") for letter in letters]
        return [_step(letter) for letter in letters]

    async def _publish(self, letter: Letter, more: Mapping[str, bytes] | None = None) -> None:
        key, headers = await self._origin(letter)
        headers = {**headers, REPLAY: b"%d" % (letter.replays + 1), **(more or {})}
        if letter.group is not None:
            headers[GROUP] = letter.group.encode()
        await self._queue.publish(
            letter.topic, letter.value, key=key, headers=headers, durable=True
        )

    async def _origin(self, letter: Letter) -> tuple[bytes | None, Mapping[str, bytes]]:
        """Key and headers of the record that failed; as the letter has them when that is gone."""
        one: DeadLetter = letter.own
        try:
            found = self._queue.replay(
                letter.topic,
                start=letter.offset or 0,
                end=(letter.offset or 0) + 1,
                partition=letter.partition or 0,
            )
            async for record in found:
                return record.key, record.headers
        except (errors.OffsetOutOfRange, errors.UnknownTopic, errors.UnknownPartition):
            pass
        own = {"penstock-type": one.message_type, "penstock-id": one.message_id}
        known = {name: text.encode() for name, text in own.items() if text}
        return letter.key, {**letter.headers, **known}

    async def purge(self, letters: Sequence[Letter]) -> int:
        async with self._claimed() as journal:
            await journal.change({letter.id: None for letter in letters})
        return len(letters)

    async def edit(self, letter: Letter, value: bytes) -> None:
        one: DeadLetter = letter.own
        note = LetterEdit(System().clock.time_ms(), "message", "on the command line")
        changed = msgspec.structs.replace(
            one,
            raw=value,
            original_raw=one.raw if one.original_raw is None else one.original_raw,
            edits=(*one.edits, note),
        )
        async with self._claimed() as journal:
            await journal.change({letter.id: self._codec.encode(changed)})

    @asynccontextmanager
    async def _claimed(self) -> AsyncIterator[Any]:
        journal = self._queue.journal(f"{self.name}{SUFFIX}")
        try:
            await journal.open()
        except errors.SubscriberBusy as busy:
            raise errors.SubscriberBusy(
                f"the bus {self.name!r} runs, and has its dead letters in memory: use its dashboard or "
                "bus.dead_letters there, or stop it first",
                **busy.fields,
            ) from None
        try:
            yield journal
        finally:
            await journal.close()


def _step(letter: Letter, more: str = "") -> Step:
    whom = f"for group {letter.group}" if letter.group else "for all groups"
    return Step(letter.id, letter.topic, note=whom + more)


def _key_bytes(key: Any) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    return key.encode() if isinstance(key, str) else msgspec.json.encode(key)


def _no_encoder(_: Any) -> bytes:
    raise errors.NotSupported("the command line knows no classes of messages")


def _no_decoder(_: str, __: bytes) -> Any:
    raise errors.NotSupported("the command line knows no classes of messages")
