"""Dead letters in a topic, such as ``orders.dead-letters``, on a log or on a broker."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import msgspec

from penstock import Record, errors
from penstock.cli.letters import Letter, Shelf
from penstock.cli.output import tell
from penstock.cli.reading import Part, bounds, records
from penstock.transports import Transport
from penstock.upkeep import (
    LETTERS_GROUP,
    LetterStep,
    letter_id,
    letter_of,
    oldest,
    replay_records,
    replay_steps,
    take_away,
)

LETTERS_MAX = 100_000
"""Letters of a topic that are held in memory."""


class TopicShelf(Shelf):
    """The dead letters in one topic."""

    def __init__(self, transport: Transport, topic: str) -> None:
        self.name = topic
        self._transport = transport

    async def letters(self) -> list[Letter]:
        return [self._letter(one) for one in await self._records()]

    async def _records(self) -> list[Record]:
        known = await bounds(self._transport, self.name)
        lags = await self._transport.lag(self.name, LETTERS_GROUP)
        done = {one.partition: one.committed for one in lags}
        left = [
            Part(one.partition, max(done[one.partition], one.committed), one.end) for one in known
        ]
        found: list[Record] = []
        async with aclosing(records(self._transport, self.name, left)) as there:
            async for record in there:
                found.append(record)
                if len(found) >= LETTERS_MAX:
                    tell(f"{self.name}: only the oldest {LETTERS_MAX:,} letters are looked at")
                    break
        return found

    def _letter(self, record: Record) -> Letter:
        told = {
            name: record.headers.get(f"penstock-{name}", b"").decode("utf-8", "replace")
            for name in ("reason", "error")
        }
        return Letter.of(
            letter_of(record),
            self.name,
            reason=told["reason"] or "UNKNOWN",
            error=told["error"],
            headers=record.headers,
            own=record,
        )

    async def replay(self, letters: Sequence[Letter]) -> list[LetterStep]:
        changed = [msgspec.structs.replace(one.own, value=one.value) for one in letters]
        await replay_records(self._transport, changed)
        gone = oldest(await self._records(), {one.id for one in letters})
        await take_away(self._transport, gone)
        return replay_steps(changed, gone)

    async def purge(self, letters: Sequence[Letter]) -> int:
        chosen = {letter.id for letter in letters}
        gone = oldest(await self._records(), chosen)
        if missing := chosen - {letter_id(one) for one in gone}:
            raise errors.NotSupported(
                f"{self.name} is a topic: its letters are purged from the oldest on, and "
                f"{min(missing)} has others before it. Purge all of them, or replay them"
            )
        await take_away(self._transport, gone)
        return len(gone)

    async def edit(self, letter: Letter, value: bytes) -> None:
        raise errors.NotSupported(
            f"{self.name} is a topic, whose records never change: use `dlq replay {letter.id} "
            "--value ...`, which sends it with another value"
        )
