"""The short way into the rings of hot topics, and the functions of the bus that take it.

A look at an attribute of a bus that decorates another one takes ten times as long as at one of a
class with slots, and a call within a call a tenth of what a message may cost. So the functions that
publish are made once for each bus, know what they need, and write into the ring themselves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from threading import get_ident
from typing import Any

from penstock.bus.intake import Intake
from penstock.scaling.hot import HotLane
from penstock.scaling.hot_ring import HotRing
from penstock.speedups import compiled

Options = dict[str, Any]


class ShortWay:
    """The way of a message into its ring while nothing is to be asked about it."""

    __slots__ = ("_intake", "lanes", "look_at", "published", "rings")

    def __init__(self, intake: Intake, lanes: dict[type, HotLane], look_at: int) -> None:
        self._intake = intake
        self.lanes = lanes
        """The classes that take it."""
        self.look_at = look_at
        """The number of the message for which somebody has to look at the pressure."""
        self.published = 0
        """How many were published; what went straight into a ring is counted at the next question."""
        self.rings: dict[type, HotRing] = {}
        """Those that have been open; a closed one asks."""

    def put(self, message: Any) -> bool:
        """Publish and count; False, and nothing is done, when the message has to go the long way."""
        lane = self.lanes.get(message.__class__)
        if lane is None or self._intake.thread != get_ident():
            return False
        number = self._count(lane) + 1
        if number >= self.look_at or lane.queue.depth or not lane.ring.try_publish(message):
            return False
        self.published = number
        lane.ring.counted += 1
        if lane.pumps == lane.suspended:
            lane.wake()
        if (
            lane.pumps != lane.suspended
        ):  # somebody is at work, and closes the ring before he leaves
            self._open(lane)
        return True

    def count(self, events: int) -> None:
        """So many came in otherwise, from the schedule, say: somebody has to look at the pressure that much sooner."""
        self.published += events
        if self.published >= self.look_at:
            self._close()

    def look_soon(self, look_at: int) -> None:
        """The pressure has changed: the next message of each ring has to ask."""
        self.look_at = look_at
        self._close()

    def end(self) -> None:
        """From now on nothing goes the short way."""
        self._close()
        self.lanes = {}

    def _close(self) -> None:
        for lane in self.lanes.values():
            lane.ring.close_way()

    def _count(self, lane: HotLane) -> int:
        ring = lane.ring
        self.published += ring.value - ring.counted
        ring.counted = ring.value
        return self.published

    def _open(self, lane: HotLane) -> None:
        """Until somebody has to look at the pressure; rings share what is left to there."""
        self.rings[lane.kind] = lane.ring
        lane.ring.open_for((self.look_at - 1 - self.published) // len(self.lanes))


CLOSED = HotRing(1)
"""Stands for the ring of a class that has none."""


def make_publish_nowait(
    way: ShortWay, go_long: Callable[[Any, Options], None]
) -> Callable[..., None]:
    """``publish_nowait`` of a bus; ``go_long`` takes what cannot go the short way."""
    put, find = way.put, way.rings.get
    if compiled is not None:
        gate: Callable[..., None] = compiled.Gate(way.rings, put, go_long).publish_nowait
        return gate

    def publish_nowait(event: Any, **options: Any) -> None:
        ring = find(type(event), CLOSED)
        position = ring.value
        if position < ring.open_to and get_ident() == ring.thread and not options:
            # What the ring does itself, without a call; nobody parks at a ring of a bus.
            ring._slots[position - ring._base] = event
            ring.value = position + 1
        elif options or not put(event):
            go_long(event, options)

    return publish_nowait


def make_publish(
    way: ShortWay, go_long: Callable[[Any, Options], Awaitable[None]]
) -> Callable[..., Awaitable[None]]:
    """``publish`` of a bus; ``go_long`` takes what cannot go the short way."""
    put, find = way.put, way.rings.get

    async def publish(event: Any, **options: Any) -> None:
        ring = find(type(event), CLOSED)
        position = ring.value
        if position < ring.open_to and get_ident() == ring.thread and not options:
            ring._slots[position - ring._base] = event  # as in publish_nowait
            ring.value = position + 1
        elif options or not put(event):
            await go_long(event, options)

    return publish
