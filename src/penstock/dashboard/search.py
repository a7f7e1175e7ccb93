"""Looking for records in a topic of any size: newest first, in steps of bounded work and memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock import Record, errors
from penstock.dashboard.matching import Wanted
from penstock.dashboard.sources import Bounds, Source

STEP_RECORDS = 20_000
"""So many offsets are read at a time."""
FOUND_MAX = 200
"""So many records are kept; then the search waits to be told to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to look: in a partition or all, from an offset or a time on."""

    partition: int | None = None
    first: int | None = None
    """The first offset that counts."""
    stop: int | None = None
    """The offset after the last one that counts."""
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(slots=True)
class Stretch:
    """What is left of a partition; it gets shorter from its end."""

    partition: int
    first: int
    stop: int

    @property
    def left(self) -> int:
        """Offsets that were not looked at."""
        return max(0, self.stop - self.first)


@dataclass(slots=True)
class Search:
    """One search. Call :meth:`step` until it says that there is no more; stop calling to cancel it."""

    source: Source
    topic: str
    wanted: Wanted
    place: Place = field(default_factory=Place)
    step_records: int = STEP_RECORDS
    found_max: int = FOUND_MAX
    found: list[Record] = field(default_factory=list)
    total: int = 0
    _left: deque[Stretch] | None = None

    @property
    def looked_at(self) -> int:
        """Offsets that were looked at."""
        return self.total - sum(one.left for one in self._left or ())

    @property
    def done(self) -> bool:
        """Whether everything was looked at."""
        return self._left is not None and not self._left

    @property
    def full(self) -> bool:
        """Whether enough was found for now."""
        return len(self.found) >= self.found_max

    @property
    def progress(self) -> float:
        """The share that was looked at."""
        return self.looked_at / self.total if self.total else float(self.done)

    async def step(self) -> bool:
        """Look at the next records, and say whether there are more to look at."""
        if self._left is None:
            stretches = await self._stretches()
            self.total = sum(one.left for one in stretches)
            self._left = deque(one for one in stretches if one.left)
        if not self._left:
            return False
        stretch = self._left[0]
        first = max(stretch.first, stretch.stop - self.step_records)
        records = await self.source.read(
            self.topic, stretch.partition, first, stretch.stop, self.wanted
        )
        self._keep(records, stretch, first)
        self._left.rotate(-1)  # partition by partition in turn, the newest of each first
        self._left = deque(one for one in self._left if one.left)
        return bool(self._left)

    def _keep(self, records: Sequence[Record], stretch: Stretch, first: int) -> None:
        """Take the newest that there is room for; what is cut off is looked at again later."""
        room = max(1, self.found_max - len(self.found))
        taken = records[-room:]
        self.found += reversed(taken)
        stretch.stop = taken[0].offset if len(taken) < len(records) else first

    def more(self) -> None:
        """Make room for as many records again: those that were found go."""
        self.found.clear()

    async def _stretches(self) -> list[Stretch]:
        bounds = await self.source.bounds(self.topic)
        wanted = self.place.partition
        if wanted is not None and wanted not in {one.partition for one in bounds}:
            raise errors.UnknownPartition(
                f"topic {self.topic!r} has {len(bounds)} partitions: use 0 to {len(bounds) - 1}",
                topic=self.topic,
                partition=wanted,
            )
        chosen = [one for one in bounds if wanted is None or one.partition == wanted]
        return [await self._stretch(one) for one in chosen]

    async def _stretch(self, bounds: Bounds) -> Stretch:
        place = self.place
        first = max(bounds.first, place.first or 0)
        stop = bounds.end if place.stop is None else min(bounds.end, place.stop)
        if place.since_ms is not None:
            first = max(first, await self._at(bounds, place.since_ms))
        if place.until_ms is not None:
            stop = min(stop, await self._at(bounds, place.until_ms))
        return Stretch(bounds.partition, first, max(first, stop))

    async def _at(self, bounds: Bounds, time_ms: int) -> int:
        found = await self.source.offset_at(self.topic, bounds.partition, time_ms)
        if found is None:
            raise errors.InvalidOption(
                "records of this source cannot be found by time", option="since"
            )
        return found


class Tail:
    """The newest records of a topic as they come. Keeps a bounded number."""

    def __init__(self, source: Source, topic: str, records_max: int = 100) -> None:
        self._source = source
        self._topic = topic
        self._reached: dict[int, int] | None = None
        self.records: deque[Record] = deque(maxlen=records_max)
        """The newest first."""

    async def look(self) -> int:
        """Read what came since the last look, but no more than is kept; how many these are."""
        bounds = await self._source.bounds(self._topic)
        most = self.records.maxlen or 1
        share = max(1, most // max(1, len(bounds)))
        found: list[Record] = []
        for one in bounds:
            size = share if self._reached is None else most
            first = max(one.first, one.end - size, (self._reached or {}).get(one.partition, 0))
            if first < one.end:
                found += await self._source.read(
                    self._topic, one.partition, first, one.end, Wanted()
                )
        self._reached = {one.partition: one.end for one in bounds}
        for record in sorted(found, key=lambda each: each.timestamp):
            self.records.appendleft(record)
        return len(found)
