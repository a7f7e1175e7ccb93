"""Dead letters in a topic, such as ``orders.dead-letters``, on a log or on a broker."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock import Record, errors
from penstock.dashboard.letters import SHOWN_MAX, Shelf
from penstock.dashboard.matching import Wanted
from penstock.dashboard.sources import Source
from penstock.resilience import DeadLetter
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


class TopicShelf(Shelf):
    """The dead letters in one topic. Records never change, so these are not edited."""

    editable = False

    def __init__(self, source: Source, topic: str) -> None:
        self.name = topic
        self.where = f"topic {topic}, in {source.name}"
        self._source = source

    async def letters(self) -> Sequence[DeadLetter]:
        return [letter_of(one) for one in await self._records()]

    async def _records(self) -> list[Record]:
        """The oldest that are not done with; so many of each partition as can be shown."""
        bounds = {one.partition: one for one in await self._source.bounds(self.name)}
        found: list[Record] = []
        for done in await self._source.lag(self.name, LETTERS_GROUP):
            place = bounds[done.partition]
            first = max(done.committed, place.first)
            stop = min(place.end, first + SHOWN_MAX)
            found += await self._source.read(self.name, done.partition, first, stop, Wanted())
        return sorted(found, key=lambda one: one.timestamp)

    async def replay(self, ids: Collection[str], *, dry_run: bool, force: bool) -> list[LetterStep]:
        kept = await self._records()
        chosen, gone = [one for one in kept if letter_id(one) in ids], oldest(kept, ids)

        async def send(transport: Transport) -> None:
            await replay_records(transport, chosen)
            await take_away(transport, gone)

        if not dry_run:
            await self._source.change(send)
        return replay_steps(chosen, gone)

    async def purge(self, ids: Collection[str]) -> int:
        gone = oldest(await self._records(), ids)
        if len(gone) < len(set(ids)):
            raise errors.NotSupported(
                f"{self.name} is a topic: its letters are purged from the oldest on. Choose the "
                "older ones too, or replay them"
            )
        await self._source.change(lambda transport: take_away(transport, gone))
        return len(gone)

    async def edit(self, letter: DeadLetter, text: str) -> None:
        raise errors.NotSupported(f"{self.name} is a topic, whose records never change")
