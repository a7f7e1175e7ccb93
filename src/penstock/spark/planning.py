"""Which records go into a micro-batch, and into which task. No store, no clock, no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

PACK_RECORDS = 10_000
PACK_BYTES = 4 * 1024 * 1024
"""Ranges go into one task while they are together no larger than these: a task has a price of its own."""

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class Range:
    """The records of a partition from ``start`` to before ``end``, with about how many bytes."""

    topic: str
    partition: int
    start: int
    end: int
    bytes: int = 0

    @property
    def records(self) -> int:
        """How many offsets; those that compaction took count too."""
        return self.end - self.start

    def cut(self, pieces: int) -> Iterator[Range]:
        """The range in pieces of nearly the same size, none of them empty."""
        pieces = max(1, min(pieces, self.records))
        marks = [self.start + self.records * number // pieces for number in range(pieces + 1)]
        for start, end in pairwise(marks):
            yield replace(self, start=start, end=end, bytes=self.bytes // pieces)


def share(waiting: Mapping[Place, int], limit: int) -> dict[Place, int]:
    """How many of the waiting records of each partition fit into the limit, in proportion.

    What is left by rounding goes to those that lost most by it, so that the limit is used up.
    """
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    shares = {place: count * limit // total for place, count in waiting.items()}
    left = limit - sum(shares.values())
    by_loss = sorted(waiting, key=lambda place: (-(waiting[place] * limit % total), place))
    for place in by_loss[:left]:
        shares[place] += 1
    return shares


def plan_tasks(
    ranges: Iterable[Range], tasks_min: int | None = None, task_records_max: int | None = None
) -> list[tuple[Range, ...]]:
    """The ranges of each task: large ones are split, small ones share a task.

    With ``tasks_min`` nothing shares a task that would not have to.
    """
    wanted = [one for one in ranges if one.records > 0]
    if task_records_max is not None:
        wanted = [piece for one in wanted for piece in one.cut(-(-one.records // task_records_max))]
    if tasks_min is None:
        return _packed(wanted, task_records_max or PACK_RECORDS)
    return [(one,) for one in _split(wanted, tasks_min)]


def _split(ranges: Sequence[Range], tasks_min: int) -> list[Range]:
    """The ranges in at least so many pieces, the larger the range the more of them."""
    if len(ranges) >= tasks_min:
        return list(ranges)
    total = sum(one.records for one in ranges)
    found = [
        piece for one in ranges for piece in one.cut(max(1, round(one.records * tasks_min / total)))
    ]
    while 0 < len(found) < min(tasks_min, total):
        # Rounding may have left some out.
        found.sort(key=lambda one: -one.records)
        found[:1] = found[0].cut(2)
    return sorted(found, key=lambda one: (one.topic, one.partition, one.start))


def _packed(ranges: Sequence[Range], records_max: int) -> list[tuple[Range, ...]]:
    """Neighbours together, while they are small."""
    records_max = min(records_max, PACK_RECORDS)
    tasks: list[list[Range]] = []
    for one in ranges:
        if tasks and _fits([*tasks[-1], one], records_max):
            tasks[-1].append(one)
        else:
            tasks.append([one])
    return [tuple(task) for task in tasks]


def _fits(task: Sequence[Range], records_max: int) -> bool:
    records = sum(one.records for one in task)
    return records <= records_max and sum(one.bytes for one in task) <= PACK_BYTES
