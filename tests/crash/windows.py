"""What each policy may lose in a power cut, and what was lost."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.crash.ledger import Promise
from tests.crash.rigs import Child
from tests.crash.said import Kind

MACHINE_SECONDS = 0.1
"""What timers and threads may add; what was measured of a busy machine is not counted at all."""

SILENCE_SECONDS = 0.02


@dataclass
class Policy:
    """A policy as a topic has it, and the window of loss that the documentation states for it."""

    config: dict[str, Any]
    records: int | None = None
    """So many records of a partition, at most."""
    seconds: float | None = None
    """Records of so long before the cut, and of the time that syncs take."""

    @property
    def exact(self) -> bool:
        """Whether nothing may be lost at all."""
        return self.records == 0


class Window:
    """The greatest loss of one policy over all cuts."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.records = 0
        self.seconds = 0.0
        self.own_seconds = 0.0
        """Without the time that syncs took, and that the machine kept the process waiting."""
        self.cuts = self.over = 0

    def note(self, lost: Sequence[Promise], child: Child, cut_at: float) -> None:
        """One cut; ``lost`` has what was acknowledged before it and is gone."""
        self.cuts += 1
        reached = max((cut_at - promise.time for promise in lost), default=0.0)
        begin = cut_at - reached
        own = reached - syncing(child, begin, cut_at) - held_up(child, begin, cut_at)
        self.records = max(self.records, len(lost))
        self.seconds = max(self.seconds, reached)
        self.own_seconds = max(self.own_seconds, own)
        stated = self.policy
        too_many = stated.records is not None and len(lost) > stated.records
        too_old = stated.seconds is not None and own > stated.seconds + MACHINE_SECONDS
        self.over += too_many or too_old


def syncing(child: Child, begin: float, end: float) -> float:
    """How long syncs ran in a stretch of time; one that was not done runs until its end."""
    open_since: dict[int, float] = {}
    total = 0.0
    for frame in child.said(Kind.SYNCING, Kind.SYNCED):
        if frame.kind is Kind.SYNCING:
            open_since[frame.a] = frame.time
        elif (since := open_since.pop(frame.a, None)) is not None:
            total += max(0.0, min(frame.time, end) - max(since, begin))
    return total + sum(max(0.0, end - max(since, begin)) for since in open_since.values())


def held_up(child: Child, begin: float, end: float) -> float:
    """How long the machine kept the process waiting: sleeps that took too long, and silence.

    A writer says something all the time. The silence before the cut has no end of its own.
    """
    late = sum(frame.a / 1e6 for frame in child.said(Kind.LATE) if begin <= frame.time <= end)
    times = [begin, *(one.time for one in child.frames if begin < one.time < end), end]
    gaps = (after - before for before, after in itertools.pairwise(sorted(times)))
    return max(late, sum(gap for gap in gaps if gap > SILENCE_SECONDS))
