"""Events that wait for another call: for a retry, behind one of their key, or for a breaker.

They are out of the lane, so the others go on; but they count for the bound of its queue, so a
handler that only fails slows its publishers down instead of filling the memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.bus.delivery import delivery_of
from penstock.bus.dispatch import Dispatch
from penstock.bus.handlers import Handler
from penstock.bus.intake import Intake
from penstock.bus.timers import Timers
from penstock.hashing import hashable
from penstock.messages import Envelope
from penstock.resilience.guard import HandlerGuard, Lot

Work = Callable[[], Coroutine[Any, Any, None]]
"""Makes what a task is to do: made when the task is, as nobody would await it otherwise."""
RESUME_MIN_SECONDS = 0.001


@dataclass(slots=True, eq=False)
class Parked:
    """One event and the handler that it waits for."""

    handler: Handler
    envelope: Envelope


class Parking:
    """Keeps events aside and calls their handlers when it is time."""

    def __init__(self, dispatch: Dispatch, intake: Intake, timers: Timers) -> None:
        self._dispatch = dispatch
        self._intake = intake
        self._timers = timers
        self._retries: dict[tuple[Handler, int], Parked] = {}
        self._guards: set[HandlerGuard] = set()

    def __len__(self) -> int:
        return sum(1 for _ in self.envelopes())

    def envelopes(self) -> Iterator[Envelope]:
        """All events that wait."""
        yield from (parked.envelope for parked in self._retries.values())
        for guard in self._guards:
            yield from guard.resuming.values()
            yield from guard.paused
            for lot in guard.lots.values():
                yield from lot.behind

    def take_out(self) -> list[Envelope]:
        """All events that wait, each once: the bus has stopped, and calls no handler for them.

        Nothing here leads to them any more: the garbage collector does not look at envelopes of plain messages,
        and would never find that nobody uses the bus.
        """
        taken = list({id(envelope): envelope for envelope in self.envelopes()}.values())
        self._retries.clear()
        for guard in self._guards:
            guard.forget_waiting()
        self._guards.clear()
        return taken

    # For a retry

    def park(self, handler: Handler, envelope: Envelope, delay: float) -> None:
        """Call the handler again after the delay."""
        self._hold(envelope)
        parked = self._retries[handler, envelope.sequence] = Parked(handler, envelope)
        guard = guard_of(handler)
        key = hashable(envelope.key)
        if guard.policy.ordered and key is not None and key not in guard.lots:
            guard.lots[key] = Lot(envelope)
            self._guards.add(guard)
            guard.look()
        self._timers.call_after(delay, partial(self._start, partial(self._retry, parked)))

    async def _retry(self, parked: Parked) -> None:
        handler, envelope = parked.handler, parked.envelope
        place = (handler, envelope.sequence)
        try:
            await self._call(handler, envelope)
        except asyncio.CancelledError:
            self._call_again(partial(self._retry, parked))
            raise
        if self._retries.get(place) is parked:
            del self._retries[place]
            await self._follow(handler, envelope)

    # Behind another one of the key

    def wait_behind(self, lot: Lot, envelope: Envelope) -> None:
        """Keep an event until those of its key before it are done."""
        self._hold(envelope)
        lot.behind.append(envelope)

    async def _follow(self, handler: Handler, done: Envelope) -> None:
        """An event is done: call the handler for those that wait behind it, in order."""
        guard = guard_of(handler)
        key = hashable(done.key)
        lot = guard.lots.get(key)
        if lot is not None and lot.leader is done:
            await self._lead(handler, key, lot)

    async def _lead(self, handler: Handler, key: object, lot: Lot) -> None:
        guard = guard_of(handler)
        while lot.behind:
            envelope = lot.leader = lot.behind[0]
            try:
                await self._call(handler, envelope)
            except asyncio.CancelledError:
                self._call_again(partial(self._lead, handler, key, lot))
                raise
            lot.behind.popleft()
            if (handler, envelope.sequence) in self._retries:
                return  # it failed too, and leads the others now
        guard.lots.pop(key, None)  # the bus may have stopped meanwhile
        self._forget(guard)

    # For a breaker

    def pause(self, handler: Handler, envelope: Envelope) -> None:
        """Keep an event until the breaker admits calls again."""
        guard = guard_of(handler)
        self._hold(envelope)
        self._guards.add(guard)
        if envelope.sequence in guard.resuming:
            guard.paused.appendleft(envelope)
            return
        guard.paused.append(envelope)
        guard.look()
        if len(guard.paused) == 1:
            self._resume_later(handler)

    def _resume_later(self, handler: Handler) -> None:
        breaker = guard_of(handler).breaker
        assert breaker is not None
        delay = max(breaker.retry_after, RESUME_MIN_SECONDS)
        self._timers.call_after(delay, partial(self._start, partial(self._resume, handler)))

    async def _resume(self, handler: Handler) -> None:
        guard = guard_of(handler)
        while guard.paused:
            envelope = guard.paused.popleft()
            guard.resuming[envelope.sequence] = envelope
            try:
                await self._call(handler, envelope)
            except asyncio.CancelledError:
                guard.paused.appendleft(envelope)
                self._call_again(partial(self._resume, handler))
                raise
            finally:
                guard.resuming.pop(envelope.sequence, None)
            if guard.paused and guard.paused[0] is envelope:
                self._resume_later(handler)
                return
        self._forget(guard)

    # All of them

    def _start(self, work: Work) -> None:
        """Begin what is due, unless the bus stops and reports the event."""
        if self._intake.running:
            self._dispatch.spawn(work())

    def _call_again(self, work: Work) -> None:
        """A task was cancelled: its event waits on for another one."""
        if self._intake.running:
            self._timers.call_after(0, partial(self._start, work))

    def _forget(self, guard: HandlerGuard) -> None:
        guard.look()
        if not (guard.lots or guard.paused or guard.resuming):
            self._guards.discard(guard)

    def _hold(self, envelope: Envelope) -> None:
        delivery_of(envelope).open += 1
        # It counts there until it is called, also when its class gets other lanes meanwhile.
        envelope.lane = lane = self._intake.lane_of(envelope)
        lane.queue.held += 1
        # Several handlers may hold one event, each in a place of its own: that is more than was published.
        self._intake.on_unpublished(1)

    async def _call(self, handler: Handler, envelope: Envelope) -> None:
        """Call the handler and let the event go; cancelled, the event stays where it was."""
        pending = self._dispatch.call_again(handler, envelope)
        if pending is not None:
            await pending
        lane = self._intake.lane_of(envelope)
        lane.queue.held -= 1
        lane.make_room()
        self._dispatch.release(envelope)


def guard_of(handler: Handler) -> HandlerGuard:
    """The guard that a resilient bus put in front of its handler."""
    assert isinstance(handler.guard, HandlerGuard)
    return handler.guard
