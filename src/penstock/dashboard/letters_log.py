"""Dead letters that a bus of another process keeps in a log.

They are read while that bus runs, and changed only while it does not: it has them in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from penstock import System, WalMessageQueue, errors
from penstock.dashboard.letters import NOTE, Shelf, Step
from penstock.dashboard.sources import LogSource
from penstock.resilience import DeadLetter, LetterCodec, LetterEdit

JOURNAL, SUFFIX = "journal.", ".dead-letters"
GROUP, REPLAY = "penstock-group", "x-penstock-replay"
REPLAYS_MAX = 3


def bus_names(topics: Sequence[str]) -> list[str]:
    """The buses that have dead letters in a log."""
    return [
        name[len(JOURNAL) : -len(SUFFIX)]
        for name in topics
        if name.startswith(JOURNAL) and name.endswith(SUFFIX)
    ]


class LogShelf(Shelf):
    """The dead letters of one bus, as the log has them."""

    def __init__(self, source: LogSource, bus: str) -> None:
        self.name = bus
        self.where = f"bus {bus}, in {source.name}"
        self._source = source
        self._codec = LetterCodec(_nothing, _nothing)

    async def letters(self) -> Sequence[DeadLetter]:
        queue = (await self._source.transport()).queue
        held: dict[str, bytes] = {}
        async for record in queue.replay(f"{JOURNAL}{self.name}{SUFFIX}"):
            key = (record.key or b"").decode("utf-8", "replace")
            held.pop(key, None)
            if record.value is not None:
                held[key] = record.value
        return [self._codec.decode(key, data) for key, data in held.items()]

    async def _chosen(self, ids: Collection[str]) -> list[DeadLetter]:
        return [one for one in await self.letters() if one.id in ids]

    async def replay(self, ids: Collection[str], *, dry_run: bool, force: bool) -> list[Step]:
        chosen = await self._chosen(ids)
        steps = [Step(one.id, one.topic, _refusal(one, force=force)) for one in chosen]
        fine = {step.id for step in steps if step.problem is None}
        if not dry_run and fine:
            async with self._claimed() as (queue, journal):
                for letter in chosen:
                    if letter.id in fine:
                        await _publish(queue, letter)
                        # Published first: a crash in between replays it twice, and loses it never.
                        await journal.change({letter.id: None})
        return steps

    async def purge(self, ids: Collection[str]) -> int:
        chosen = await self._chosen(ids)
        async with self._claimed() as (_, journal):
            await journal.change({letter.id: None for letter in chosen})
        return len(chosen)

    async def edit(self, letter: DeadLetter, text: str) -> None:
        edit = LetterEdit(System().clock.time_ms(), "message", NOTE)
        changed = msgspec.structs.replace(
            letter,
            raw=text.encode(),
            original_raw=letter.raw if letter.original_raw is None else letter.original_raw,
            edits=(*letter.edits, edit),
        )
        async with self._claimed() as (_, journal):
            await journal.change({letter.id: self._codec.encode(changed)})

    @asynccontextmanager
    async def _claimed(self) -> AsyncIterator[tuple[WalMessageQueue, Any]]:
        async with self._source.writing() as transport:
            journal = transport.queue.journal(f"{self.name}{SUFFIX}")
            try:
                await journal.open()
            except errors.SubscriberBusy as busy:
                raise errors.SubscriberBusy(
                    f"the bus {self.name!r} runs, and has its dead letters in memory: use the "
                    "dashboard of its process, or stop it first",
                    **busy.fields,
                ) from None
            try:
                yield transport.queue, journal
            finally:
                await journal.close()


async def _publish(queue: WalMessageQueue, letter: DeadLetter) -> None:
    key, headers = await _origin(queue, letter)
    headers = {**headers, REPLAY: b"%d" % (letter.replays + 1)}
    if letter.group is not None:
        headers[GROUP] = letter.group.encode()
    await queue.publish(letter.topic, letter.raw, key=key, headers=headers, durable=True)


async def _origin(
    queue: WalMessageQueue, letter: DeadLetter
) -> tuple[bytes | None, dict[str, bytes]]:
    """Key and headers of the record that failed; as the letter has them when that is gone."""
    first = letter.offset or 0
    try:
        found = queue.replay(
            letter.topic, start=first, end=first + 1, partition=letter.partition or 0
        )
        async for record in found:
            return record.key, dict(record.headers)
    except (errors.OffsetOutOfRange, errors.UnknownTopic, errors.UnknownPartition):
        pass
    own = {"penstock-type": letter.message_type, "penstock-id": letter.message_id}
    known = {name: text.encode() for name, text in {**letter.headers, **own}.items() if text}
    return _key(letter.key), known


def _key(key: Any) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    return key.encode() if isinstance(key, str) else msgspec.json.encode(key)


def _refusal(letter: DeadLetter, *, force: bool) -> str | None:
    if letter.offset is None or letter.command:
        return "it was never in the log: replay it in its program"
    if letter.replays >= REPLAYS_MAX and not force:
        return f"it came back {letter.replays} times: mend the cause, then force it"
    return None


def _nothing(*_: Any) -> Any:
    raise errors.NotSupported("the dashboard knows no classes of messages")
