"""What a group has read of one partition of a durable topic, and how far it is with it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass

from penstock.bus.delivery import Outcome
from penstock.messages import Envelope
from penstock.scaling.log_records import LogRecord


class Work:
    """A record that was read, and the event that was made of it."""

    __slots__ = ("done", "envelope", "record")

    def __init__(self, record: LogRecord) -> None:
        self.record = record
        self.envelope: Envelope | None = None
        self.done = False


@dataclass(slots=True, eq=False)
class Here:
    """An event that is handled by the task that publishes it, before its record is read."""

    envelope: Envelope
    begun: bool = False
    """Whether handlers are being called."""
    outcome: Outcome | None = None
    work: Work | None = None
    """Its record, when that was read meanwhile."""


class PartitionWork:
    """The records of one partition that are not done with, in order."""

    def __init__(self) -> None:
        self.open: OrderedDict[int, Work] = OrderedDict()
        self.waiting: deque[Work] = deque()
        """Those that are not handed to their lanes yet."""
        self.feeding: asyncio.Task[None] | None = None
        """Hands them over, while there are any."""
        self.handled: LogRecord | None = None
        """The last record before which nothing is open, if it is not committed."""

    def begin(self, record: LogRecord) -> Work:
        """A record is going to be handled."""
        work = self.open[record.offset] = Work(record)
        return work

    def end(self, work: Work) -> None:
        """A record is handled."""
        work.done = True
        while self.open:
            offset, first = next(iter(self.open.items()))
            if not first.done:
                return
            self.handled = first.record
            del self.open[offset]
