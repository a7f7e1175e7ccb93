"""Taking record after record of what is at hand, with ``async for``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from penstock.log.records import Record


class OneByOne:
    """Part of :class:`~penstock.Subscription`: the step from a record to the next.

    A step that has a record at hand does not wait. Nothing is taken before the step is awaited, so whoever is
    cancelled before has lost nothing.
    """

    _records: Iterator[Record]
    """Records that are made and not delivered yet."""
    _current: Record | None
    """The one that was delivered last."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """The next record; waits for it. May be cancelled and called again: nothing is lost."""
        for record in self._records:
            self._current = record
            return record
        return await self._wait_for_one()

    if TYPE_CHECKING:  # what the subscription has

        async def _wait_for_one(self) -> Record: ...
