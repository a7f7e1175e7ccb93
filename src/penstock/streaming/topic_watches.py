"""Looks at all topics that are used here, every so often, on the injected clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

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
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking, self._acting = asyncio.Lock(), asyncio.Lock()
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
        """Look at all topics now, and act. Raises the first error, after looking at all."""
        await self._look_at_all()
        await self._act()

    async def _look_at_all(self) -> None:
        errors: list[PenstockError] = []
        async with self._looking:
            for watch in self:
                if watch.slot.opened:
                    try:
                        await watch.look()
                    except PenstockError as error:
                        errors.append(error)
                    else:
                        self._press(watch)
        if errors:
            raise errors[0]

    async def _act(self) -> None:
        async with self._acting:
            if self.after_look is not None:
                await self.after_look()

    async def close(self) -> None:
        """Look no more."""
        self._closed = True
        if self._next is not None:
            self._next.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _press(self, watch: TopicWatch) -> None:
        if self._pressure.is_limited(watch.topic):
            self._pressure.note(watch.topic, watch.group_lags())

    def _due(self) -> None:
        self._start(self._look_by_itself())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_by_itself(self) -> None:
        try:
            await self._look_at_all()
        except Exception:
            logger.exception("cannot look at the topics")
        finally:
            self.begin()
        if not self._acting.locked():
            # On its own: consumers that stop slowly must not keep producers from being told.
            self._start(self._act_by_itself())

    async def _act_by_itself(self) -> None:
        try:
            await self._act()
        except Exception:
            logger.exception("cannot scale")
