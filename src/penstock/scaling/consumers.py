"""Who reads a ring: a consumer that sees every entry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.errors import Closed, InvalidOption
from penstock.scaling.barrier import Stage

if TYPE_CHECKING:
    from penstock.scaling.ring import Ring

Item = TypeVar("Item")

POLL_MAX = 1_024
"""Entries that one poll returns when the caller does not say."""


class Reader(ABC, Generic[Item]):
    """What a consumer of its own and a member of a group have in common.

    Used by one thread or task at a time; :meth:`close` may come from any thread.
    """

    __slots__ = ("_ring", "stage")

    def __init__(self, ring: Ring[Item], stage: Stage) -> None:
        self._ring = ring
        self.stage = stage

    @abstractmethod
    def poll(self, limit: int = POLL_MAX) -> list[Item]:
        """The next entries, at most ``limit``, without waiting; the same again until advanced."""

    @abstractmethod
    def advance(self, count: int | None = None) -> None:
        """Pass the first ``count`` of the entries that were polled, or all of them.

        Those who come after this reader see them from now on, and the producer may use their slots.
        """

    @abstractmethod
    def pending(self) -> bool:
        """Whether :meth:`poll` would return something."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""

    @abstractmethod
    def close(self) -> None:
        """Read no more. What was not passed no longer holds the producer back. Any thread."""

    def drain(self, limit: int = POLL_MAX) -> list[Item]:
        """Poll and pass at once: the entries are the caller's, whatever happens to it."""
        items = self.poll(limit)
        if items:
            self.advance(len(items))
        return items

    @property
    def finished(self) -> bool:
        """Whether nothing will ever come: this reader is closed, or the ring is and all is read."""
        stage = self.stage
        ring = self._ring
        return self.closed or (ring.closed and stage.sequence.value >= ring.value)

    def wait(self, timeout: float) -> bool:
        """Block the thread until there is something to poll.

        False after ``timeout`` seconds, or when the reader is finished.
        """
        self._ring.waiting.until(self._stirs, self.stage.slowest, timeout)
        return self.pending()

    async def wait_async(self, timeout: float) -> bool:
        """As :meth:`wait`, for a task. Cancelling changes nothing."""
        await self._ring.waiting.until_on_loop(self._stirs, self.stage.slowest, timeout)
        return self.pending()

    def _stirs(self) -> bool:
        return self.pending() or self.finished

    def _closed_error(self) -> Closed:
        return Closed(f"consumer {self.stage.name} is closed", consumer=self.stage.name)


class RingConsumer(Reader[Item]):
    """Sees every entry, in order. Made by :meth:`Ring.consumer`."""

    __slots__ = ("_polled",)

    def __init__(self, ring: Ring[Item], stage: Stage) -> None:
        super().__init__(ring, stage)
        self._polled = 0

    def poll(self, limit: int = POLL_MAX) -> list[Item]:
        """The next entries, at most ``limit``, without waiting; the same again until advanced.

        Raises Closed on a closed consumer.
        """
        stage = self.stage
        start = stage.sequence.value
        end = min(stage.available(), start + limit)
        items = self._ring.read(start, end) if end > start else []
        if stage.closed:  # looked at last: the slots may have been overwritten since
            raise self._closed_error()
        self._polled = len(items)
        return items

    def advance(self, count: int | None = None) -> None:
        """Pass the first ``count`` of the entries that were polled, or all of them.

        They are gone for this consumer. Those after it see them from now on, and the producer may
        use their slots. Raises Closed on a closed consumer.
        """
        passed = self._polled if count is None else count
        if not 0 <= passed <= self._polled:
            raise InvalidOption(f"{self._polled} entries were polled, {passed} cannot be passed")
        stage = self.stage
        ring = self._ring
        with ring.guard:
            if stage.closed:
                raise self._closed_error()
            ring.move(stage, stage.sequence.value + passed)
        self._polled -= passed
        if stage.sequence.parked:
            stage.sequence.wake()

    def pending(self) -> bool:
        """Whether :meth:`poll` would return something."""
        stage = self.stage
        return not stage.closed and stage.available() > stage.sequence.value

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self.stage.closed

    def close(self) -> None:
        """Read no more. What was not passed no longer holds the producer back. Any thread."""
        self._ring.leave(self.stage)
