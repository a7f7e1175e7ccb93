"""Looks at all topics that are used here, every so often, on the injected clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from penstock.bus.timers import PendingCall, Timers
from penstock.errors import InvalidOption, LimitReached, PenstockError
from penstock.streaming.lag_pressure import LagPressure
from penstock.streaming.topic_watch import TopicWatch
from penstock.streaming.transport_set import TransportSlot
from penstock.system import System

logger = logging.getLogger("penstock.streaming")

TOPICS_MAX = 10_000

AfterLook = Callable[[], Awaitable[None]]


class TopicWatches:
    """The topics of a manager. Each look tells producers of the lag, and then the scaler.

    A look that fails is logged, and the next one tries again; one at a time.
    """

    def __init__(self, pressure: LagPressure, seconds: float, system: System) -> None:
        if not 0 < seconds < float("inf"):
            raise InvalidOption(
                f"look_seconds is {seconds}: use more than 0", option="look_seconds"
            )
        self._pressure = pressure
        self._seconds = seconds
        self._system = system
        self._timers = Timers(system.clock)
        self._watches: dict[tuple[str, str], TopicWatch] = {}
        self._next: PendingCall | None = None
        self._task: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._closed = False
        self.after_look: AfterLook | None = None

    def __iter__(self) -> Iterator[TopicWatch]:
        return iter(list(self._watches.values()))

    def watch(self, slot: TransportSlot, topic: str) -> TopicWatch:
        """The watch of a topic, from now on one that is looked at."""
        place = (slot.name, topic)
        watch = self._watches.get(place)
        if watch is None:
            if len(self._watches) >= TOPICS_MAX:
                raise LimitReached(f"{TOPICS_MAX:,} topics are in use here already", limit="topics")
            watch = self._watches[place] = TopicWatch(slot, topic, self._system)
        return watch

    def begin(self) -> None:
        """Look from now on, first after one interval."""
        if not self._closed:
            self._next = self._timers.call_after(self._seconds, self._due)

    async def look(self) -> None:
        """Look at all topics now. Raises the first error, after looking at all."""
        errors: list[PenstockError] = []
        async with self._one_at_a_time:
            for watch in self:
                if watch.slot.opened:
                    try:
                        await watch.look()
                    except PenstockError as error:
                        errors.append(error)
                    else:
                        self._press(watch)
            if self.after_look is not None:
                await self.after_look()
        if errors:
            raise errors[0]

    async def close(self) -> None:
        """Look no more."""
        self._closed = True
        if self._next is not None:
            self._next.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _press(self, watch: TopicWatch) -> None:
        if self._pressure.is_limited(watch.topic):
            self._pressure.note(watch.topic, watch.group_lags())

    def _due(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._look_by_itself())

    async def _look_by_itself(self) -> None:
        try:
            await self.look()
        except Exception:
            logger.exception("cannot look at the topics")
        finally:
            self._task = None
            self.begin()
