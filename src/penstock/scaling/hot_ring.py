"""The ring of a hot topic: one comparison tells whether a message may go straight in."""

from __future__ import annotations

from threading import get_ident
from typing import Any

from penstock.scaling.ring import RING_CAPACITY, Ring


class HotRing(Ring[Any]):
    """A ring that is open for messages of which nobody has to know.

    While it is open there is room, somebody is about to look into it, nothing waits behind it, and
    nobody has to look at the pressure. Whatever ends one of these closes it.
    """

    __slots__ = ("counted",)

    def __init__(self, capacity: int = RING_CAPACITY) -> None:
        super().__init__(capacity)
        self.counted = 0
        """How far the messages are counted that went in."""

    def open_for(self, count: int) -> None:
        """Let so many messages in, if there is room: at most to the end of the lap."""
        self.thread = get_ident()
        self.open_to = min(self._limit, self.value + count)

    def close_way(self) -> None:
        """The next message has to ask."""
        self.open_to = 0
