"""The dead letters of a bus: what failed for good, kept to be looked at, changed and sent again.

Letters are bounded in number, with a policy at the bound, and nothing here waits for room. With a
journal they survive a crash: ``add`` returns when the letter is on the disk.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import msgspec

from penstock.bus.journal import Journal
from penstock.errors import (
    BufferFull,
    InvalidOption,
    NotSupported,
    ReplayRefused,
    UnknownDeadLetter,
)
from penstock.resilience.callbacks import Callbacks
from penstock.resilience.describe import text_of, type_name
from penstock.resilience.letter_codec import LetterCodec
from penstock.resilience.letter_editing import changed, decoded, noted, with_message
from penstock.resilience.letter_options import (
    DeadLetterOptions,
    DeadLetterStatistics,
    WhenDeadLettersFull,
)
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
from penstock.resilience.write_through import WriteThrough
from penstock.system import System

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

logger = logging.getLogger("penstock.resilience")

Republish = Callable[[DeadLetter], Awaitable[None]]
"""Sends a letter's message to its origin. Its ``replays`` counts this time too."""
Spill = Callable[[bytes], Awaitable[None]]
"""Keeps an encoded letter for which there is no room; returns when it is safe."""
Which = str | DeadLetterFilter | Iterable[str]
"""An id, some ids, or all letters that a filter chooses."""


class DeadLetterQueue:
    """Dead letters by id, oldest first. Used by one event loop; not thread-safe.

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
        _check_parts(options, codec, journal, spill)
        self.options = options
        self._clock = system.clock
        self._origin = f"{system.random.getrandbits(32):08x}"
        self._republish = republish
        self._codec = codec
        self._journal = journal
        self._spill = spill if options.when_full is WhenDeadLettersFull.SPILL else None
        self._saver = None if journal is None else WriteThrough(journal, self._encoded)
        self._letters: OrderedDict[str, DeadLetter] = OrderedDict()
        self._busy: set[str] = set()
        """Letters that are being replayed or spilled."""
        self._added = self._dropped = self._rejected = self._spilled = 0
        self._replayed = self._purged = self._ids_given = 0
        self._on_added = Callbacks[[DeadLetter]]("a new dead letter")
        self._on_removed = Callbacks[[DeadLetter]]("a dead letter that is gone")

    def __len__(self) -> int:
        return len(self._letters)

    @property
    def waits(self) -> bool:
        """Whether letters go to a disk, so that they can only be added with ``await add(...)``."""
        return self._saver is not None or self._spill is not None

    def on_added(self, callback: Callable[[DeadLetter], None]) -> Callable[[], None]:
        """Tell the callback each new letter; returns what takes it back. Its errors are logged."""
        return self._on_added.add(callback)

    def on_removed(self, callback: Callable[[DeadLetter], None]) -> Callable[[], None]:
        """Tell the callback each letter that is replayed, purged, dropped or spilled."""
        return self._on_removed.add(callback)

    async def open(self) -> None:
        """Claim the journal and load its letters. They may be more than the bound, until one comes."""
        if self._journal is not None and self._codec is not None:
            for key, data in (await self._journal.open()).items():
                self._letters[key] = self._codec.decode(key, data)

    async def close(self) -> None:
        """Write what is not written yet, and let another owner have the journal."""
        if self._journal is not None and self._saver is not None:
            try:
                await self._saver.flush()
            finally:
                await self._journal.close()

    # Adding

    def next_id(self) -> str:
        """An id for a new letter, unique among all letters of all runs."""
        self._ids_given += 1
        return f"{self._origin}-{self._ids_given}"

    def add_nowait(self, letter: DeadLetter) -> None:
        """Keep a letter in memory. Raises BufferFull at the bound, if it is told to REJECT."""
        if self.waits:
            raise NotSupported("these dead letters are durable: use await add(...)")
        self._insert(letter)
        self._drop(self._excess())

    async def add(self, letter: DeadLetter) -> None:
        """Keep a letter; returns when it is as durable as the queue is.

        It can be seen at once. When the journal fails, the error is raised and the letter stays, in
        memory, to be written with the next change. The same holds for a caller that is cancelled.
        """
        self._insert(letter)
        excess = self._excess()
        if self._spill is None:
            self._drop(excess)
            await self._save([letter.id, *excess])
            return
        self._busy.update(excess)
        try:
            await self._save([letter.id])
            for old in excess:
                await self._spill_out(old, self._spill)
        finally:
            self._busy.difference_update(excess)

    def _insert(self, letter: DeadLetter) -> None:
        reject = self.options.when_full is WhenDeadLettersFull.REJECT
        if reject and len(self) >= self.options.letters_max and letter.id not in self._letters:
            self._rejected += 1
            raise BufferFull(
                f"there are {len(self)} dead letters: replay or purge some, or raise letters_max",
                letters_max=self.options.letters_max,
            )
        self._letters[letter.id] = letter
        self._added += 1
        self._on_added.tell(letter)

    def _excess(self) -> list[str]:
        """The oldest letters, that there is no room for.

        One that is being replayed or spilled is about to go, and neither counts nor is chosen: the
        message may come back as a new letter before the old one is gone.
        """
        count = len(self) - len(self._busy) - self.options.letters_max
        free = (letter_id for letter_id in self._letters if letter_id not in self._busy)
        return list(islice(free, max(0, count)))

    def _drop(self, ids: Iterable[str]) -> None:
        for letter in self._remove(ids):
            self._dropped += 1
            logger.warning(
                "dead letter %s of %s was dropped: there are %d",
                letter.id,
                letter.topic,
                self.options.letters_max,
            )

    async def _spill_out(self, letter_id: str, spill: Spill) -> None:
        data = self._encoded(letter_id)
        if data is None:
            return  # somebody purged it
        try:
            await spill(data)
        except Exception:
            logger.exception("dead letter %s cannot be spilled", letter_id)
            self._drop([letter_id])
        else:
            self._spilled += len(self._remove([letter_id]))
        await self._save([letter_id])

    # Looking

    def list(self, where: DeadLetterFilter | None = None) -> tuple[DeadLetter, ...]:
        """The letters that the filter chooses, oldest first; all without one."""
        letters = self._letters.values()
        return tuple(letter for letter in letters if where is None or where.matches(letter))

    def show(self, letter_id: str) -> DeadLetter:
        """One letter; raises UnknownDeadLetter."""
        letter = self._letters.get(letter_id)
        if letter is None:
            raise UnknownDeadLetter(
                f"there is no dead letter {letter_id!r}: it may be replayed, purged or dropped",
                id=letter_id,
            )
        return self._revived(letter)

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
            by_reason=Counter(letter.reason for letter in letters),
            by_handler=Counter(letter.handler for letter in letters),
        )

    def _revived(self, letter: DeadLetter) -> DeadLetter:
        """The letter with its message, when the class of it has become known since it was loaded."""
        if letter.message is None and letter.raw is not None and self._codec is not None:
            message, raw = self._codec.read(letter.message_type, letter.raw)
            if message is not None:
                letter = msgspec.structs.replace(letter, message=message, raw=raw)
                self._letters[letter.id] = letter
        return letter

    # Working on them

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

        A letter is removed when its message is published. After a crash in between it is still
        there, and the next replay publishes it again. A letter that cannot be published stays, and
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
        try:
            await self._republish(msgspec.structs.replace(letter, replays=letter.replays + 1))
        finally:
            self._busy.discard(letter.id)
        self._replayed += len(self._remove([letter.id]))
        await self._save([letter.id])
        return self._step(letter)

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

    # All of it

    def _ids(self, which: Which) -> tuple[str, ...]:
        if isinstance(which, str):
            return (which,)
        if isinstance(which, DeadLetterFilter):
            return tuple(letter.id for letter in self.list(which))
        return tuple(which)

    def _remove(self, letter_ids: Iterable[str]) -> tuple[DeadLetter, ...]:
        known = [letter_id for letter_id in letter_ids if letter_id in self._letters]
        removed = tuple(self._letters.pop(letter_id) for letter_id in dict.fromkeys(known))
        for letter in removed:
            self._on_removed.tell(letter)
        return removed

    async def _save(self, letter_ids: Iterable[str]) -> None:
        if self._saver is not None:
            await self._saver.save(letter_ids)

    def _encoded(self, letter_id: str) -> bytes | None:
        letter = self._letters.get(letter_id)
        return None if letter is None or self._codec is None else self._codec.encode(letter)


def _check_parts(
    options: DeadLetterOptions,
    codec: LetterCodec | None,
    journal: Journal | None,
    spill: Spill | None,
) -> None:
    spills = options.when_full is WhenDeadLettersFull.SPILL
    if spills and spill is None:
        raise InvalidOption("SPILL needs a log to spill to", option="when_full")
    if (spills or journal is not None) and codec is None:
        raise InvalidOption("letters that go to a disk need a codec", option="codec")
