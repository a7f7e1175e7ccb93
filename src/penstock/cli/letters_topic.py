"""Dead letters in a topic, such as ``orders.dead-letters``, on a log or on a broker.

A group remembers how far they are done with, so they are taken away from the oldest on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from penstock import Record, errors
from penstock.cli.letters import Letter, Shelf, Step
from penstock.cli.output import tell
from penstock.cli.positions import START, Range
from penstock.cli.reading import Part, assigned, parts_of, records
from penstock.transports import Transport

SUFFIX = ".dead-letters"
GROUP = "penstock-dlq"
LETTERS_MAX = 100_000
"""Letters of a topic that are held in memory."""
REASON, TOPIC, ATTEMPTS = "penstock-reason", "penstock-topic", "penstock-attempts"


class TopicShelf(Shelf):
    """The dead letters in one topic."""

    def __init__(self, transport: Transport, topic: str) -> None:
        self.name = topic
        self._transport = transport

    async def letters(self) -> list[Letter]:
        parts = await parts_of(self._transport, self.name, Range(START))
        done = {one.partition: one.committed for one in await self._transport.lag(self.name, GROUP)}
        left = [
            Part(one.partition, max(done[one.partition], _start(one)), one.stop) for one in parts
        ]
        found: list[Letter] = []
        async with aclosing(records(self._transport, self.name, left)) as there:
            async for record in there:
                found.append(self._letter(record))
                if len(found) >= LETTERS_MAX:
                    tell(f"{self.name}: only the oldest {LETTERS_MAX:,} letters are looked at")
                    break
        return found

    def _letter(self, record: Record) -> Letter:
        headers = record.headers
        return Letter(
            id=f"{self.name}/{record.partition}/{record.offset}",
            source=self.name,
            topic=_text(headers, TOPIC) or self.name.removesuffix(SUFFIX),
            reason=_text(headers, REASON) or "UNKNOWN",
            error=_text(headers, "penstock-error"),
            key=record.key,
            value=record.value,
            headers=headers,
            partition=_number(headers, "penstock-partition"),
            offset=_number(headers, "penstock-offset"),
            attempts=_number(headers, ATTEMPTS) or 0,
            replays=_number(headers, ATTEMPTS) or 0,
            time_ms=record.timestamp,
            own=record,
        )

    async def replay(self, letters: Sequence[Letter]) -> list[Step]:
        for letter in letters:
            headers = {**letter.headers, ATTEMPTS: b"%d" % (letter.replays + 1)}
            await self._transport.produce(
                letter.topic, [letter.value], keys=[letter.key], headers=[headers]
            )
        gone = await self._take_away(letters)
        return [
            Step(
                one.id,
                one.topic,
                note="" if one.id in gone else "stays in the list: older ones are before it",
            )
            for one in letters
        ]

    async def purge(self, letters: Sequence[Letter]) -> int:
        chosen = {letter.id for letter in letters}
        if missing := chosen - await self._oldest(letters):
            raise errors.NotSupported(
                f"{self.name} is a topic: its letters are purged from the oldest on, and "
                f"{min(missing)} has others before it. Purge all of them, or replay them"
            )
        return len(await self._take_away(letters))

    async def edit(self, letter: Letter, value: bytes) -> None:
        raise errors.NotSupported(
            f"{self.name} is a topic, whose records never change: use `dlq replay {letter.id} "
            "--value ...`, which sends it with another value"
        )

    async def _oldest(self, letters: Sequence[Letter]) -> set[str]:
        """Of these, the ones that have no others before them in their partition."""
        chosen = {letter.id for letter in letters}
        found, passed = set(), set()
        for letter in await self.letters():
            place = letter.own.partition
            if letter.id in chosen and place not in passed:
                found.add(letter.id)
            else:
                passed.add(place)
        return found

    async def _take_away(self, letters: Sequence[Letter]) -> set[str]:
        gone = await self._oldest(letters)
        ends: dict[int, int] = {}
        for letter in letters:
            if letter.id in gone:
                place = letter.own.partition
                ends[place] = max(ends.get(place, 0), letter.own.offset + 1)
        if ends:
            async with self._transport.subscribe(self.name, GROUP) as consumer:
                await assigned(consumer, len(await self._transport.lag(self.name, GROUP)))
                for number, end in ends.items():
                    await consumer.seek(end, partition=number)
        return gone


def _start(part: Part) -> int:
    assert isinstance(part.start, int), "it is the start of the topic"
    return part.start


def _text(headers: object, name: str) -> str:
    value = headers.get(name, b"") if hasattr(headers, "get") else b""
    return str(value.decode("utf-8", "replace"))


def _number(headers: object, name: str) -> int | None:
    text = _text(headers, name)
    return int(text) if text.isdecimal() else None
