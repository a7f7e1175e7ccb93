"""Journals in memory: what a bus keeps survives the bus, not the process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from penstock.errors import BufferFull, Closed, SubscriberBusy, UsageError
from penstock.log.journal import KEYS_MAX, check_change
from penstock.log.names import check_name


class MemoryJournals:
    """Implements :class:`penstock.bus.journal.JournalLog`: ``MessageBus(log=MemoryJournals())``.

    :meth:`kill` does to its owners what SIGKILL does. ``failure`` makes every change fail.
    """

    def __init__(self) -> None:
        self.held: dict[str, dict[str, bytes]] = {}
        """What each journal holds now."""
        self.changes: list[tuple[str, Mapping[str, bytes | None]]] = []
        """Every change that was made: the name of the journal, and what was changed at once."""
        self.failure: Exception | None = None
        self._owners: dict[str, MemoryJournal] = {}

    def journal(self, name: str) -> MemoryJournal:
        """The journal of that name."""
        return MemoryJournal(self, check_name("journal", name))

    def kill(self) -> None:
        """The owners are gone, at once; what they still want to change is refused."""
        for journal in self._owners.values():
            journal.closed = True
        self._owners.clear()

    def claim(self, journal: MemoryJournal) -> dict[str, bytes]:
        """Make a journal the owner of its name."""
        if journal.name in self._owners:
            raise SubscriberBusy(
                f"journal {journal.name!r} is in use by another bus: give each bus its own name",
                subscriber="journal",
                topic=journal.name,
            )
        self._owners[journal.name] = journal
        return dict(self.held.setdefault(journal.name, {}))

    def release(self, journal: MemoryJournal) -> None:
        """Let another one own the name."""
        if self._owners.get(journal.name) is journal:
            del self._owners[journal.name]


class MemoryJournal:
    """Implements :class:`penstock.bus.journal.Journal`."""

    def __init__(self, journals: MemoryJournals, name: str) -> None:
        self.name = name
        self.closed = False
        self._journals = journals
        self._open = False

    async def open(self) -> Mapping[str, bytes]:
        """Claim the journal and return what it holds, oldest change first."""
        self._check()
        if self._open:
            raise UsageError(f"journal {self.name!r} is open: one open() is enough")
        held = self._journals.claim(self)
        self._open = True
        return held

    async def change(self, changes: Mapping[str, bytes | None]) -> None:
        """Set the values of keys, remove those with None; all of them or none."""
        self._check()
        if not self._open:
            raise UsageError(f"journal {self.name!r} is not open: await journal.open() first")
        check_change(self.name, changes)
        changes = dict(changes)
        await asyncio.sleep(0)  # a disk takes its time: others come in between
        self._check()
        if self._journals.failure is not None:
            raise self._journals.failure
        self._apply(changes)

    async def close(self) -> None:
        """Let another owner have it. Idempotent."""
        self.closed = True
        self._journals.release(self)

    def _apply(self, changes: Mapping[str, bytes | None]) -> None:
        held = self._journals.held[self.name]
        if len(held) + len(changes) > KEYS_MAX and len(held.keys() | changes.keys()) > KEYS_MAX:
            raise BufferFull(f"journal {self.name!r} holds {KEYS_MAX} keys, which is the limit")
        for key, value in changes.items():
            held.pop(key, None)
            if value is not None:
                held[key] = value
        if changes:
            self._journals.changes.append((self.name, changes))

    def _check(self) -> None:
        if self.closed:
            raise Closed(f"journal {self.name!r} is closed: make a new one to go on")
