"""A run of a lane whose usual events the compiled twin handles: from the first to the last that waits.

The twin calls the one plain handler of a class with one event after the other, each in a context of its own,
and settles them. Here stands what it leaves: handlers that wait or fail, and events that are not the usual ones.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.bus.cells import opened
from penstock.bus.drive import Suspended
from penstock.bus.handlers import Handler

if TYPE_CHECKING:
    from penstock.bus.lane import Lane

TURN_EVENTS = 100
"""How many events a pump handles before it lets others use the loop."""
TURN_EVENTS_MAX = 400
"""So many when they are quick."""
TURN_SECONDS = 0.000_25
"""Turns that take less may become longer: about what 100 events take without the twin."""


class Turns:
    """One run. No other may be at work in the lane, which keeps the numbers for the twin."""

    def __init__(self, lane: Lane, handler: Handler) -> None:
        self._lane = lane
        self._handler = handler
        self._version = lane.dispatch.registry.version
        self._pace = lane.pace()
        lane.plain, lane.version = handler, self._version
        lane.handled = lane.good = 0

    async def run(self) -> None:
        """Handle events until none is left, or the handlers have changed."""
        lane, registry = self._lane, self._lane.dispatch.registry
        stop = TURN_EVENTS if self._pace is None else self._pace.next(0, TURN_EVENTS)
        self._start_turn()
        try:
            while registry.version == self._version and lane.running:
                before = lane.handled
                await self._go_on(stop)
                if lane.handled == before and not await self._handle_next():
                    break
                if lane.handled == stop:
                    stop = await self._look(stop)
        finally:
            self._note_good()
            lane.taken = None  # one that was interrupted comes again another way
            lane.forget()
            if self._pace is not None:
                self._pace.note(lane.handled)

    async def _go_on(self, stop: int) -> None:
        """Let the twin go on, and end what it has begun."""
        lane, dispatch = self._lane, self._lane.dispatch
        try:
            pending = lane.handle_next(stop)
            if pending is not None:
                self._note_good()  # others may fail, and ask about it, while this one waits
                await Suspended(*pending)
                lane.good += 1
        except BaseException as error:
            self._note_good()
            lane.failed(self._handler, opened(lane.taken), error, asked=False)
        if lane.taken is not None:
            taken, lane.taken = lane.taken, None
            dispatch.release(opened(taken))
        elif dispatch.idle_waiters:
            dispatch.wake_idle()

    async def _handle_next(self) -> bool:
        """Handle an event that the twin leaves alone; False when there is none."""
        lane = self._lane
        envelope = lane.take()
        if envelope is None:
            return False
        lane.handled += 1
        lane.make_room()
        rest = lane.dispatch.begin(envelope)
        if rest is not None:
            await lane.wait(envelope, rest)
        return True

    def _start_turn(self) -> None:
        self._first = self._lane.handled
        self._began = asyncio.get_running_loop().time()

    async def _look(self, stop: int) -> int:
        """Let others use the loop when the turn is over or took long enough; where to look again."""
        pace = self._pace
        self._note_good()
        if pace is not None:
            pace.note(stop)
        if stop % TURN_EVENTS == 0 and await self._end_turn(stop) and pace is not None:
            pace.go_on()
        end = stop - stop % TURN_EVENTS + TURN_EVENTS
        return end if pace is None else pace.next(stop, end)

    async def _end_turn(self, stop: int) -> bool:
        """Whether the turn was over."""
        lane = self._lane
        seconds = asyncio.get_running_loop().time() - self._began
        if seconds <= TURN_SECONDS and stop - self._first < lane.turn_events:
            return False
        fit_turn(lane, seconds)
        await lane.end_turn()
        self._start_turn()
        return True

    def _note_good(self) -> None:
        good, self._lane.good = self._lane.good, 0
        self._lane.note_good(self._handler, good)


def fit_turn(lane: Lane, seconds: float) -> None:
    """Choose how many events the next turn may have, by how long this one took."""
    if seconds > TURN_SECONDS:
        lane.turn_events = TURN_EVENTS
    elif seconds * 2 < TURN_SECONDS:
        lane.turn_events = min(TURN_EVENTS_MAX, lane.turn_events * 2)
