"""Handing events over to their lanes when the timer must not wait: what finds no room waits here."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from penstock.bus.intake import Intake
from penstock.bus.log_fields import fields_of
from penstock.bus.queue import Overflow
from penstock.errors import Closed
from penstock.messages import Envelope

logger = logging.getLogger("penstock.bus")

Handed = Callable[[], None]
"""Called when the event is in its lane."""


class Handover:
    """Events for full lanes, in order, a queue for each class. No polling: a lane tells of room.

    Its bound is kept by who gives the events. A bus that stops takes no more.
    """

    def __init__(self, intake: Intake, on_empty: Callable[[], None]) -> None:
        self._intake = intake
        self._on_empty = on_empty
        self._waiting: dict[type, deque[tuple[Envelope, Handed]]] = {}
        # Asked for with every event that is scheduled: counted, not added up.
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def give(self, envelope: Envelope, handed: Handed) -> None:
        """Queue the event, now or when there is room."""
        kind = type(envelope.message)
        waiting = self._waiting.get(kind)
        if waiting is not None:
            waiting.append((envelope, handed))
            self._count += 1
        elif not self._offer(envelope, handed):
            self._waiting[kind] = deque([(envelope, handed)])
            self._count += 1
            self._intake.dispatch.spawn(self._empty(kind))

    def _offer(self, envelope: Envelope, handed: Handed) -> bool:
        """Whether there is nothing more to be done with the event here."""
        lane = self._intake.lane_of(envelope)
        if lane.queue.room < 1 and lane.queue.overflow is not Overflow.DROP_OLDEST:
            return False
        try:
            if not self._intake.offer(envelope):
                return False
        except Closed:
            return True  # the journal has it, if there is one
        except Exception:
            logger.exception("a filter failed on %s", envelope.topic, extra=fields_of(envelope))
        handed()
        return True

    async def _empty(self, kind: type) -> None:
        waiting = self._waiting[kind]
        try:
            while waiting:
                if self._offer(*waiting[0]):
                    waiting.popleft()
                    self._count -= 1
                else:
                    await self._intake.lane_of(waiting[0][0]).wait_for_room()
        finally:
            del self._waiting[kind]
            self._count -= len(waiting)
            self._on_empty()
