"""Dead letters that a bus of another process keeps in a log."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.dashboard.letters import NOTE, Shelf
from penstock.dashboard.sources import LogSource
from penstock.resilience import DeadLetter
from penstock.upkeep import BusLetters, LetterStep, not_from_a_log, too_often


class LogShelf(Shelf):
    """The dead letters of one bus, as the log has them."""

    def __init__(self, source: LogSource, bus: str) -> None:
        self.name = bus
        self.where = f"bus {bus}, in {source.name}"
        self._source = source

    async def letters(self) -> Sequence[DeadLetter]:
        return await BusLetters((await self._source.transport()).queue, self.name).kept()

    async def _chosen(self, ids: Collection[str]) -> list[DeadLetter]:
        return [one for one in await self.letters() if one.id in ids]

    async def replay(self, ids: Collection[str], *, dry_run: bool, force: bool) -> list[LetterStep]:
        chosen = await self._chosen(ids)
        steps = [LetterStep(one.id, one.topic, _refusal(one, force=force)) for one in chosen]
        fine = {step.id for step in steps if step.refused is None}
        if not dry_run and fine:
            async with self._source.writing() as log:
                sent = [one for one in chosen if one.id in fine]
                await BusLetters(log.queue, self.name).replay(sent)
        return steps

    async def purge(self, ids: Collection[str]) -> int:
        chosen = await self._chosen(ids)
        async with self._source.writing() as log:
            return await BusLetters(log.queue, self.name).purge(chosen)

    async def edit(self, letter: DeadLetter, text: str) -> None:
        async with self._source.writing() as log:
            await BusLetters(log.queue, self.name).edit(letter, text.encode(), NOTE)


def _refusal(letter: DeadLetter, *, force: bool) -> str | None:
    return not_from_a_log(letter) or (None if force else too_often(letter.replays))
