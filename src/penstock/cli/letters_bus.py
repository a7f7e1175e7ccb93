"""The dead letters that a bus keeps in a log: read, and replayed, while the bus runs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock import WalMessageQueue, errors
from penstock.cli.letters import Letter, Shelf
from penstock.resilience import DeadLetter
from penstock.upkeep import BusLetters, LetterStep, not_from_a_log


class BusShelf(Shelf):
    """The dead letters of one bus."""

    def __init__(self, queue: WalMessageQueue, bus: str) -> None:
        self.name = bus
        self._bus = BusLetters(queue, bus)

    async def letters(self) -> list[Letter]:
        return [
            Letter.of(one, self.name, refused=not_from_a_log(one), own=one)
            for one in await self._bus.kept()
        ]

    async def replay(self, letters: Sequence[Letter]) -> list[LetterStep]:
        more, changed = "", [_with_value(one) for one in letters]
        try:
            await self._bus.replay(changed)
        except errors.SubscriberBusy:
            await self._bus.replay_running(changed)
            more = "; the running bus takes it away"
        return [
            LetterStep(
                one.id,
                one.topic,
                note=(f"for group {one.group}" if one.group else "for all groups") + more,
            )
            for one in letters
        ]

    async def purge(self, letters: Sequence[Letter]) -> int:
        return await self._bus.purge([one.own for one in letters])

    async def edit(self, letter: Letter, value: bytes) -> None:
        await self._bus.edit(letter.own, value, "on the command line")


def _with_value(letter: Letter) -> DeadLetter:
    """As it is to be sent: its value may be another one."""
    one: DeadLetter = letter.own
    return msgspec.structs.replace(one, raw=letter.value)
