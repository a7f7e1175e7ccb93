"""Which record may begin: of each key one at a time, in order; keys do not wait for each other."""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, Protocol, TypeVar

from penstock.streaming.progress import PartitionProgress


class KeyedRecord(Protocol):
    """What a record of any transport has."""

    @property
    def partition(self) -> int:
        """Its partition."""
        ...

    @property
    def offset(self) -> int:
        """Its offset, larger than those that came before in its partition."""
        ...

    @property
    def key(self) -> Any:
        """What order is kept by; None for a record that may be handled in any order."""
        ...

    @property
    def value(self) -> Any:
        """What the handler is after."""
        ...


Taken = TypeVar("Taken", bound=KeyedRecord)
LaneName = tuple[int, Any]
"""A partition and a key."""


class Work(Generic[Taken]):
    """A record that was taken, until it is handled."""

    __slots__ = ("attempts", "began", "error", "lane", "progress", "record", "settled")

    def __init__(self, record: Taken, progress: PartitionProgress) -> None:
        self.record = record
        self.lane: LaneName = (record.partition, record.key)
        self.progress = progress
        self.attempts = 0
        self.began = 0.0
        self.error: Exception | None = None
        """Why it is parked."""
        self.settled = False
        """Parked as a dead letter: it is done with, and those behind it wait."""


class KeyLanes(Generic[Taken]):
    """Records by key. The first of each lane is ready, running, or waits to be tried again."""

    def __init__(self) -> None:
        self.ready: deque[Work[Taken]] = deque()
        """Those that may begin, in order."""
        self.parked: dict[LaneName, list[Work[Taken]]] = {}
        """Those that failed for good, by key."""
        self._lanes: dict[LaneName, deque[Work[Taken]]] = {}

    def add(self, work: Work[Taken]) -> None:
        """A record has come; it is ready when none of its key is before it."""
        name = work.lane
        lane = self._lanes.get(name)
        if lane is not None:
            lane.append(work)
            return
        if name[1] is not None:
            self._lanes[name] = deque([work])
        self.ready.append(work)

    def again(self, work: Work[Taken]) -> None:
        """The first of a lane is to be tried again, before others begin."""
        self.ready.appendleft(work)

    def leave(self, work: Work[Taken]) -> None:
        """The first of a lane is done with: the next one is ready."""
        name = work.lane
        lane = self._lanes.get(name)
        if lane is None or lane[0] is not work:
            return
        if len(lane) == 1:
            del self._lanes[name]
            return
        lane.popleft()
        self.ready.append(lane[0])

    def park(self, work: Work[Taken], *, others_follow: bool) -> None:
        """Set a record aside. Those of its key that come later follow, or wait behind it."""
        self.parked.setdefault(work.lane, []).append(work)
        if others_follow:
            self.leave(work)

    def release(self, name: LaneName) -> list[Work[Taken]]:
        """Take what is parked of a key out again; who calls says what becomes of each."""
        return self.parked.pop(name, [])

    def resume(self, work: Work[Taken]) -> None:
        """A record that was parked is tried again: at once, or behind those of its key."""
        lane = self._lanes.get(work.lane)
        if lane is not None and lane[0] is work:
            self.again(work)
        else:
            self.add(work)

    def waiting_behind(self, work: Work[Taken]) -> int:
        """How many records wait until the first one of their key is done with."""
        lane = self._lanes.get(work.lane)
        return len(lane) - 1 if lane is not None and lane[0] is work else 0

    def drop(self, partition: int) -> None:
        """Forget all records of a partition."""
        self.ready = deque(one for one in self.ready if one.record.partition != partition)
        for lanes in (self._lanes, self.parked):
            for name in [name for name in lanes if name[0] == partition]:
                del lanes[name]
