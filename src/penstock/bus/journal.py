"""What the bus needs of a durable log, and no more: named journals of keyed facts.

The bus stands below the log in the house, so it says what it wants and is given it:
``MessageBus(log=queue)`` takes anything with a ``journal`` method, such as a ``WalMessageQueue``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Journal(Protocol):
    """Facts by key, kept until they are removed. One live owner at a time.

    A change is durable when the call returns, survives a power cut, and is atomic: after a crash
    the journal has all of a change or nothing.
    """

    async def open(self) -> Mapping[str, bytes]:
        """Claim the journal and return what it holds, oldest change first."""
        ...

    async def change(self, changes: Mapping[str, bytes | None]) -> None:
        """Set the values of keys, remove those with None; all of them or none."""
        ...

    async def close(self) -> None:
        """Let another owner have it."""
        ...


class JournalLog(Protocol):
    """A durable log that can keep journals."""

    def journal(self, name: str) -> Journal:
        """The journal of that name; it is made when it is first opened."""
        ...
