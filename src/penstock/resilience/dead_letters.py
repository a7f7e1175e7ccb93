"""The dead letters of a bus: what failed for good, kept to be looked at, changed and sent again.

Letters are bounded in number, with a policy at the bound, and nothing here waits for room. With a
journal they survive a crash: ``add`` returns when the letter is on the disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from penstock.bus.journal import Journal
from penstock.errors import ReplayRefused
from penstock.resilience.describe import text_of, type_name
from penstock.resilience.letter_codec import LetterCodec
from penstock.resilience.letter_editing import changed, decoded, noted, with_message
from penstock.resilience.letter_options import (
    DeadLetterOptions,
    DeadLetterStatistics,
    WhenDeadLettersFull,
)
from penstock.resilience.letter_shelf import LetterShelf, Spill
from penstock.resilience.letters import (
    DeadLetter,
    DeadLetterCommandEvent,
    DeadLetterEvent,
    DeadLetterFilter,
    Edit,
    Reason,
    ReplayReport,
    ReplayStep,
    event_of,
)
from penstock.system import System

logger = logging.getLogger("penstock.resilience")

__all__ = [
    "DeadLetter",
    "DeadLetterCommandEvent",
    "DeadLetterEvent",
    "DeadLetterFilter",
    "DeadLetterOptions",
    "DeadLetterQueue",
    "DeadLetterStatistics",
    "LetterCodec",
    "Reason",
    "ReplayReport",
    "ReplayStep",
    "WhenDeadLettersFull",
    "event_of",
]

Republish = Callable[[DeadLetter], Awaitable["asyncio.Future[bool] | None"]]
"""Sends a letter's message to its origin. Its ``replays`` counts this time too.

The letter goes when this is done, or, if it returns a future, when that is true.
"""
Which = str | DeadLetterFilter | Iterable[str]
"""An id, some ids, or all letters that a filter chooses."""


class DeadLetterQueue(LetterShelf):
    """Dead letters, and the work on them. Used by one event loop; not thread-safe.

    ``republish`` sends a message back to where it came from. ``journal`` and ``codec`` make the
    letters durable; call ``open`` first then. ``spill`` is for SPILL.
    """

    def __init__(
        self,
        options: DeadLetterOptions,
        system: System,
        *,
        republish: Republish | None = None,
        codec: LetterCodec | None = None,
        journal: Journal | None = None,
        spill: Spill | None = None,
    ) -> None:
        super().__init__(options, system, codec, journal, spill)
        self._republish = republish
        self._replayed = self._purged = 0
        self._ending: set[asyncio.Future[None]] = set()
        """Replays whose outcome is known, and not written yet."""

    def statistics(self) -> DeadLetterStatistics:
        """The figures of now."""
        letters = self._letters.values()
        return DeadLetterStatistics(
            letters=len(self),
            letters_max=self.options.letters_max,
            added=self._added,
            dropped=self._dropped,
            rejected=self._rejected,
            spilled=self._spilled,
            replayed=self._replayed,
            purged=self._purged,
            unsaved=0 if self._saver is None else self._saver.unsaved,
            oldest_ms=next((letter.last_failed_ms for letter in letters), None),
            by_reason=dict(Counter(letter.reason for letter in letters)),
            by_handler=dict(Counter(letter.handler for letter in letters)),
        )

    async def edit(
        self,
        letter_id: str,
        *,
        message: Any = None,
        changes: Mapping[str, Any] | None = None,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        note: str = "",
    ) -> DeadLetter:
        """Change a letter: give it another message, other fields, other bytes or other headers.

        The result must be a message that decodes, or InvalidMessage is raised and nothing changes.
        The message as it failed stays in ``original``.
        """
        letter = self.show(letter_id)
        if raw is not None:
            message = decoded(letter, raw, self._codec)
        if changes is not None:
            message = changed(letter.message if message is None else message, changes)
        now_ms = self._clock.time_ms()
        if message is not None:
            letter = with_message(letter, message, self._codec, Edit(now_ms, "message", note))
        if headers is not None:
            letter = noted(letter, Edit(now_ms, "headers", note), headers=dict(headers))
        self._letters[letter_id] = letter
        await self._save([letter_id])
        return letter

    async def purge(self, which: Which) -> int:
        """Throw letters away; returns how many. Ids that are gone already do not count."""
        removed = self._remove(self._ids(which))
        self._purged += len(removed)
        await self._save([letter.id for letter in removed])
        return len(removed)

    async def replay(
        self, which: Which, *, dry_run: bool = False, force: bool = False
    ) -> ReplayReport:
        """Send letters back to where they came from, oldest first; a dry run says what would happen.

        A letter is removed when its message is published; that of an event of a durable topic when
        its handler is done with it. After a crash in between it is still there, and the next replay
        publishes it again. A letter that cannot be published stays, and
        so does one that came back ``replays_max`` times, unless it is forced. For a single id these
        raise (ReplayRefused, or what the publishing raised); for several they are in the report.
        """
        if isinstance(which, str):
            step = await self._replay_one(self.show(which), dry_run, force)
            return ReplayReport((step,), dry_run)
        steps = [
            await self._replay_any(letter_id, dry_run, force) for letter_id in self._ids(which)
        ]
        return ReplayReport(tuple(steps), dry_run)

    async def _replay_any(self, letter_id: str, dry_run: bool, force: bool) -> ReplayStep:
        if letter_id not in self._letters:
            return ReplayStep(
                letter_id, "", "", "", None, 0, refused="there is no such dead letter"
            )
        letter = self.show(letter_id)
        try:
            return await self._replay_one(letter, dry_run, force)
        except ReplayRefused as refusal:
            return self._step(letter, refused=str(refusal.reason))
        except Exception as error:
            return self._step(letter, error=f"{type_name(error)}: {text_of(error)}")

    async def _replay_one(self, letter: DeadLetter, dry_run: bool, force: bool) -> ReplayStep:
        refused = self._refusal(letter, force)
        if dry_run:
            return self._step(letter, refused=refused)
        if refused is not None or self._republish is None:
            raise ReplayRefused(
                f"dead letter {letter.id} is not replayed: {refused}",
                id=letter.id,
                replays=letter.replays,
                reason=refused,
            )
        self._busy.add(letter.id)
        again = msgspec.structs.replace(letter, replays=letter.replays + 1)
        try:
            taken = await self._republish(again)
        except BaseException:
            self._busy.discard(letter.id)
            raise
        if taken is None:
            await self._end_replay(letter.id)
        else:
            taken.add_done_callback(lambda known: self._end_replay_later(letter.id, known))
        return self._step(letter)

    async def _end_replay(self, letter_id: str) -> None:
        self._busy.discard(letter_id)
        self._replayed += len(self._remove([letter_id]))
        await self._save([letter_id])

    def _end_replay_later(self, letter_id: str, taken: asyncio.Future[bool]) -> None:
        if taken.cancelled() or not taken.result():
            self._busy.discard(letter_id)
            return
        self.end_replay_soon(letter_id)

    def end_replay_soon(self, letter_id: str) -> None:
        """Take a letter away whose message came back and was handled; ``close`` waits for it.

        Nothing happens when there is no such letter. What goes wrong is logged, and the letter stays.
        """
        ending = asyncio.ensure_future(self._end_replay(letter_id))
        self._ending.add(ending)
        ending.add_done_callback(self._ended)

    def _ended(self, ending: asyncio.Future[None]) -> None:
        self._ending.discard(ending)
        if not ending.cancelled() and ending.exception() is not None:
            logger.error("a replayed dead letter is not removed", exc_info=ending.exception())

    async def close(self) -> None:
        """Write what is not written yet, and let another owner have the journal."""
        await asyncio.gather(*self._ending, return_exceptions=True)
        await super().close()

    def _refusal(self, letter: DeadLetter, force: bool) -> str | None:
        if self._republish is None:
            return "nothing here can publish it"
        if letter.id in self._busy:
            return "it is being replayed or spilled"
        if letter.message is None:
            return "its message does not decode: edit it, or register its class"
        if letter.replays >= self.options.replays_max and not force:
            return f"it came back {letter.replays} times: mend the cause, then use force"
        return None

    def _step(
        self, letter: DeadLetter, *, refused: str | None = None, error: str | None = None
    ) -> ReplayStep:
        return ReplayStep(
            id=letter.id,
            topic=letter.topic,
            handler=letter.handler,
            session=letter.session,
            key=letter.key,
            replays=letter.replays + 1,
            refused=refused,
            error=error,
        )

    def _ids(self, which: Which) -> tuple[str, ...]:
        if isinstance(which, str):
            return (which,)
        if isinstance(which, DeadLetterFilter):
            return tuple(letter.id for letter in self.list(which))
        return tuple(which)
