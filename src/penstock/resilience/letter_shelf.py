"""Where dead letters are kept: bounded in number, in memory, and on a disk when there is a journal."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice

import msgspec

from penstock.bus.journal import Journal
from penstock.errors import BufferFull, InvalidOption, NotSupported, UnknownDeadLetter
from penstock.resilience.callbacks import Callbacks
from penstock.resilience.letter_codec import LetterCodec
from penstock.resilience.letter_options import DeadLetterOptions, WhenDeadLettersFull
from penstock.resilience.letters import DeadLetter, DeadLetterFilter
from penstock.resilience.write_through import WriteThrough
from penstock.system import System

logger = logging.getLogger("penstock.resilience")

Spill = Callable[[bytes], Awaitable[None]]
"""Keeps an encoded letter for which there is no room; returns when it is safe. It must end in time:
who adds a letter waits for it."""


class LetterShelf:
    """Letters by id, oldest first, with a policy at the bound. See DeadLetterQueue."""

    def __init__(
        self,
        options: DeadLetterOptions,
        system: System,
        codec: LetterCodec | None,
        journal: Journal | None,
        spill: Spill | None,
    ) -> None:
        _check_parts(options, codec, journal, spill)
        self.options = options
        self._clock = system.clock
        self._origin = f"{system.random.getrandbits(32):08x}"
        self._codec = codec
        self._journal = journal
        self._spill = spill if options.when_full is WhenDeadLettersFull.SPILL else None
        self._saver = None if journal is None else WriteThrough(journal, self._encoded)
        self._letters: OrderedDict[str, DeadLetter] = OrderedDict()
        self._busy: set[str] = set()
        """Letters that are being replayed or spilled."""
        self._added = self._dropped = self._rejected = self._spilled = self._ids_given = 0
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
        self.keep(letter)
        await self.write(letter)

    def keep(self, letter: DeadLetter) -> None:
        """Keep a letter in memory, to be written by :meth:`write`, with the next change, or by ``close``."""
        self._insert(letter)
        if self._saver is not None:
            self._saver.note([letter.id])

    async def write(self, letter: DeadLetter) -> None:
        """Write a letter that is kept, and make room for it."""
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

    def _revived(self, letter: DeadLetter) -> DeadLetter:
        """The letter with its message, when the class of it has become known since it was loaded."""
        if letter.message is None and letter.raw is not None and self._codec is not None:
            message, raw = self._codec.read(letter.message_type, letter.raw)
            if message is not None:
                letter = msgspec.structs.replace(letter, message=message, raw=raw)
                self._letters[letter.id] = letter
        return letter

    # All of it

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
