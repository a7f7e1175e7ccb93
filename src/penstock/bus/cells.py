"""What the bus looks at for every event: numbers and marks, in a place where its compiled twin finds them.

In Python these are plain attributes. The twin has them as numbers, and with them the usual way of an
event, from ``publish`` to the return of its handler, as long as nobody looks at it on its way.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

from penstock.messages import Envelope
from penstock.speedups import compiled

COUNTED = ("published", "processed", "failed", "filtered", "unhandled", "dropped")
"""Events by what became of them."""


class PythonCounters:
    """Events by what became of them, and those of which that is not known yet."""

    __slots__ = (*COUNTED, "unsettled")

    def __init__(self) -> None:
        self.published = self.processed = self.failed = 0
        self.filtered = self.unhandled = self.dropped = 0
        self.unsettled = 0


class PythonQueueCells:
    """How full a queue is."""

    __slots__ = (
        "_append",
        "_high",
        "_low",
        "_normal",
        "_popleft",
        "bound",
        "capacity",
        "depth",
        "held",
        "peak_depth",
        "under_pressure",
    )

    bound: int
    capacity: int
    depth: int
    held: int
    peak_depth: int
    under_pressure: bool
    _high: int
    _low: int
    _normal: deque[Any]


class PythonMeterCells:
    """How many messages that come one by one need not be timed, and how many of those have come."""

    __slots__ = ("skip", "skipped")

    def __init__(self) -> None:
        self.skip = self.skipped = 0


class PythonLaneCells:
    """Whether somebody is at work in a lane, and how far the twin has come.

    ``handled``, ``good`` and ``taken`` belong to the :class:`Turns` that run at the moment.
    """

    pumps: int
    suspended: int
    running: bool
    held_back: bool
    _ready: deque[Envelope]
    _room: OrderedDict[Any, None]
    handled: int
    """Events that the twin has handled in this run of the pump."""
    good: int
    """Those of them that went well since that was noted."""
    taken: Any
    """The event that it began and that is not settled."""

    def handle_next(self, stop: int) -> tuple[Any, ...] | None:
        """Handle events to this number, as :class:`Turns` asks; of a handler that waits, what is left."""
        raise NotImplementedError


class PythonIntakeCells:
    """Who wants to know of an event before it is queued, and its number."""

    filters: list[Any]
    done: Any
    """The outcome of an event whose one handler was done at once."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def next_number(self) -> int:
        """A number for a message that has none yet, from any thread; it is younger than all that have one."""
        return next(self._numbers)


class NoSlip:
    """Stands for the slips of the twin, where there is none."""

    message: Any

    def envelope(self) -> Envelope:
        """The envelope of the event that it stands for, always the same one."""
        raise NotImplementedError


if TYPE_CHECKING or compiled is None:
    Slip = NoSlip
    Counters = PythonCounters
    MeterCells = PythonMeterCells
    QueueCells = PythonQueueCells
    LaneCells = PythonLaneCells
    IntakeCells = PythonIntakeCells
else:
    Slip = compiled.Slip
    Counters = compiled.Counters
    MeterCells = compiled.MeterCells
    QueueCells = compiled.QueueCells
    LaneCells = compiled.LaneCells
    IntakeCells = compiled.IntakeCells


def opened(waiting: Any) -> Envelope:
    """The envelope of what waits or is handled: itself, or the one that its slip stands for."""
    envelope: Envelope = waiting.envelope() if waiting.__class__ is Slip else waiting
    return envelope
