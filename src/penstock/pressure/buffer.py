"""A bounded queue whose producers wait for their turn, and so do its consumers."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from penstock.bus.timers import Timers
from penstock.errors import Closed, InvalidOption

Item = TypeVar("Item")

TAKE_TIMEOUT_SECONDS = 30.0
NO_LIMIT = 1 << 62
LEFT_MAX = 64
"""So many who left may stay in a row before it is made anew."""


class _Place:
    """A place in the row."""

    __slots__ = ("counts", "turn")

    def __init__(self, turn: asyncio.Future[None]) -> None:
        self.turn = turn
        self.counts = True
        """Whether it is one of those who wait."""


class Turns:
    """Who waits, first come first served. A turn that is given is kept for the one who got it.

    Cancelled before its turn, one leaves the row. Cancelled at its turn, it passes it on. Who got a
    turn in vain waits again with its old ticket, before those who came later.
    """

    __slots__ = ("_order", "_row", "_tickets", "_waiting", "given")

    def __init__(self) -> None:
        self._row: list[tuple[int, int, _Place]] = []
        """A heap by ticket. Those who left are done, and taken out when they are in the way."""
        self._waiting = 0
        self._tickets = itertools.count()
        self._order = itertools.count()
        self.given = 0
        """Turns that were given and not used yet."""

    def __len__(self) -> int:
        """How many wait for a turn or have one."""
        return self._waiting + self.given

    def ticket(self) -> int:
        """A place in the row, behind all others."""
        return next(self._tickets)

    async def wait(self, ticket: int) -> None:
        """Return when it is our turn."""
        turn = asyncio.get_running_loop().create_future()
        place = _Place(turn)
        heapq.heappush(self._row, (ticket, next(self._order), place))
        self._waiting += 1
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.given -= 1
                self.give(1)
            else:
                turn.cancel()
                self._leave(place)
            raise
        self.given -= 1

    def _leave(self, place: _Place) -> None:
        self._forget(place)
        if len(self._row) > 2 * self._waiting + LEFT_MAX:
            self._row = [entry for entry in self._row if not entry[2].turn.done()]
            heapq.heapify(self._row)

    def _forget(self, place: _Place) -> None:
        if place.counts:
            place.counts = False
            self._waiting -= 1

    def give(self, count: int) -> None:
        """Give turns to as many as wait, up to a count.

        One that is cancelled and has not noticed yet waits no more: nobody may wait behind it.
        """
        while count > 0 and self._row:
            place = heapq.heappop(self._row)[2]
            self._forget(place)
            if not place.turn.done():
                place.turn.set_result(None)
                self.given += 1
                count -= 1

    def give_all(self) -> None:
        """Give a turn to all who wait."""
        self.give(self._waiting)


class Buffer(Generic[Item]):
    """Items in order. Belongs to one event loop.

    ``limit`` tells from which depth on producers wait: the capacity, or less, or NO_LIMIT where
    they never do. ``put`` itself never refuses: who calls it has decided before. While a producer
    waits there is no room that nobody was told of, so all changes end with ``make_room``.
    """

    def __init__(
        self, name: str, capacity: int, timers: Timers, limit: Callable[[], int] | None = None
    ) -> None:
        self.name = name
        self.producers = Turns()
        self.consumers = Turns()
        self._items: deque[Item] = deque()
        self._timers = timers
        self._limit = limit
        self._closed: Closed | None = None
        self.capacity = checked_capacity(capacity)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def limit(self) -> int:
        """The depth from which on producers wait."""
        return self.capacity if self._limit is None else self._limit()

    def is_crowded(self, *, has_turn: bool) -> bool:
        """Whether a producer has to wait: there is no room, or others came before it."""
        return len(self._items) >= self.limit or (len(self.producers) > 0 and not has_turn)

    def put(self, item: Item) -> None:
        """Append an item."""
        self._items.append(item)
        self.consumers.give(len(self._items) - self.consumers.given)
        self.make_room()

    def drop_oldest(self) -> Item:
        """Take the oldest out to make room."""
        return self._items.popleft()

    def take_nowait(self, limit: int = 1) -> list[Item]:
        """Take up to so many of the oldest items; none when there are none."""
        count = min(limit, len(self._items))
        taken = [self._items.popleft() for _ in range(count)]
        self.make_room()
        return taken

    async def take(self, limit: int = 1, timeout: float = TAKE_TIMEOUT_SECONDS) -> list[Item]:
        """Take up to so many items, and wait for the first; DeadlineExceeded when none came.

        Cancelled while it waits, nothing was taken.
        """
        if len(self._items) <= self.consumers.given:
            await self._wait_for_items(timeout)
        return self.take_nowait(max(1, min(limit, len(self._items) - self.consumers.given)))

    async def _wait_for_items(self, timeout: float) -> None:
        self.check_open()
        async with self._timers.deadline(timeout, f"take from {self.name}"):
            ticket = self.consumers.ticket()
            await self.consumers.wait(ticket)
            while not self._items:
                self.check_open()
                await self.consumers.wait(ticket)

    def make_room(self) -> None:
        """Wake as many producers as there is room for."""
        if self.producers:
            self.producers.give(self.limit - len(self._items) - self.producers.given)

    def check_open(self) -> None:
        """Raise Closed when it is closed."""
        if self._closed is not None:
            raise self._closed.again()

    def close(self) -> None:
        """End all waits with Closed. What is inside can still be taken. Idempotent."""
        self._closed = self._closed or Closed(f"{self.name} is closed")
        self.producers.give_all()
        self.consumers.give_all()


def checked_capacity(capacity: int) -> int:
    """Refuse a capacity that holds nothing."""
    if capacity < 1:
        raise InvalidOption(f"a capacity of {capacity}: use 1 or more", option="capacity")
    return capacity
