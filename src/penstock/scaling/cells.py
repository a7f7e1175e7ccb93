"""The cells of a ring, as its producer sees them: where the next entry goes, and how far there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.speedups import compiled


class PythonCells:
    """One producer writes here. ``value`` counts what was published.

    The two functions are the hot path. They repeat each other, and take no option: a call with a
    default argument costs 20 ns more, a call within a call 40.
    """

    __slots__ = ("_base", "_limit", "_slots", "open_to", "parked", "thread", "value")

    value: int
    parked: tuple[Any, ...]
    open_to: int
    """The position before which messages may be written and shown without a question."""
    thread: int
    """The only one that may do so."""
    _base: int
    _limit: int
    _slots: list[Any]

    def publish(self, item: Any) -> None:
        """Publish one item; on a full ring, block the thread until there is room.

        Raises BufferFull when there is none within the ring's ``timeout``, Closed on a closed ring;
        then nothing was published. On an event loop use :meth:`try_publish` or ``publish_async``.
        """
        if (position := self.value) < self._limit:
            self._slots[position - self._base] = item
            self.value = position + 1
            if self.parked:
                self.wake()
        else:
            self._publish_late(item)

    def try_publish(self, item: Any) -> bool:
        """Publish one item, or return False when the ring is full. Never waits; Closed if closed."""
        if (position := self.value) < self._limit:
            self._slots[position - self._base] = item
            self.value = position + 1
            if self.parked:
                self.wake()
            return True
        return self._try_late(item)

    def wake(self) -> None:
        """Tell those who wait for the next entry."""
        raise NotImplementedError

    def _publish_late(self, item: Any) -> None:
        raise NotImplementedError

    def _try_late(self, item: Any) -> bool:
        raise NotImplementedError


if TYPE_CHECKING or compiled is None:  # noqa: SIM108 (as a base class mypy takes no expression)
    Cells = PythonCells
else:
    Cells = compiled.Cells
