"""The dimensions: their sizes, what one unit of each is, and how much its cost may grow."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.child import Child
from benchmarks.growth import jobs
from benchmarks.model import BATCH, Case, Missing, Sample, Scale, Workload
from benchmarks.targets import Target

LONG = 10_000_000
"""More records than this are measured once."""
DISK_SHARE = 3
"""A size is left out when the disk has not so many times its bytes."""
WORSE = 1.5
"""How much more than linear is still noise."""
HANDLES_EACH = 6
"""File handles of an open topic or partition, and some room."""
CALLS = 50
BOUND = "bare"
"""The step that is the limit of another one."""
PATIENCE_SECONDS = 3_600
FIGURES = {"memory": ("MiB", 1.0), "handles": ("handles", 1.0), "recovery": ("ms", 1e3)}
"""Of every dimension: their unit, and how many of it are in what a job tells."""

Figures = dict[str, float]


@dataclass(frozen=True)
class Dimension:
    """Something that there may be much of."""

    name: str
    sizes: tuple[int, ...]
    steps: tuple[str, ...]
    """What is timed: publishing, reading, and the bytes alone, which is a bound and no target."""
    per: str
    """The unit of a timed step, for each of ``units``."""
    scale: float
    units: Callable[[int], float]
    about: str
    judged: tuple[tuple[int, int], ...] = ()
    """From which size to which; else from the third, or of few the second, to the last."""

    def of(self, scale: Scale) -> tuple[int, ...]:
        """The sizes of a scale."""
        return self.sizes[: scale.long.growth_steps]


DIMENSIONS = (
    Dimension("records", (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000),
              ("publish", "read", BOUND), "µs/record", 1e6, lambda size: size,
              "Records of 100 bytes in one partition: published 1,000 a call, four calls in flight, "
              "flushed; read in batches. Then the same values without a log, into files as large as "
              "segments, each synced: what the disk itself takes for so much.",
              judged=((1_000_000, LONG), (LONG, 100_000_000))),
    Dimension("partitions", (1, 8, 32, 128, 512), ("publish", "read"), "µs/record", 1e6,
              lambda size: size * jobs.PER_PARTITION,
              "A topic of so many partitions with 200 records in each, flushed, then read."),
    Dimension("topics", (1, 10, 100, 1_000, 10_000), ("publish",), "ms/topic", 1e3,
              lambda size: size,
              "So many topics are created, and get ten records each; 2,000 of them "
              "are open at the same time."),
    Dimension("groups", (1, 10, 100, 300, 1_000), ("read",), "ms/group", 1e3, lambda size: size,
              "So many groups read the same 1,000 records and commit, durably. All stay open."),
    Dimension("sizes", (16, 256, 4_096, 65_536, 1 << 20), ("publish", "read"), "ns/byte", 1e9,
              lambda size: max(4, jobs.SIZED_BYTES // size) * size,
              "16 MiB in records of so many bytes: published, flushed, read.",
              judged=((256, 4_096), (4_096, 1 << 20))),
    Dimension("tasks", (1, 4, 16, 32, 64), ("publish",), "µs/record", 1e6,
              lambda size: size * jobs.PER_TASK,
              "So many tasks await each of their 50 records, every one durable."),
    Dimension("processes", (1, 2, 3, 4), ("publish",), "µs/record", 1e6,
              lambda size: size * CALLS * BATCH,
              "So many processes publish 50 calls of 1,000 records each to one log, every call durable. "
              "Memory and handles are those of all."),
)  # fmt: skip


class Shared:
    """One run gives all figures of a size: the first case of a round makes it, the others take theirs."""

    def __init__(self, run: Callable[[Path], Figures]) -> None:
        self._run = run
        self._left: Figures = {}

    def take(self, folder: Path, figure: str) -> Sample:
        """A figure that nobody has taken yet."""
        if figure not in self._left:
            self._left = dict(self._run(folder))
        return Sample(self._left.pop(figure))


def cases(scale: Scale, dimension: Dimension) -> list[Case]:
    """Every figure at every size."""
    found = []
    for size in dimension.of(scale):
        shared = Shared(partial(_measure, dimension=dimension, size=size))
        for figure, unit in _figures(dimension):
            run = partial(shared.take, figure=figure)
            found.append(
                Case(f"grow_{dimension.name}", 0, f"grow-{figure}", str(size),
                     f"{size:,} {dimension.name}" if dimension.name != "sizes" else f"{size:,} bytes",
                     run, unit=unit, once=dimension.name == "records" and size > LONG)
            )  # fmt: skip
    return found


def _figures(dimension: Dimension) -> Iterator[tuple[str, str]]:
    yield from ((step, dimension.per) for step in dimension.steps)
    yield from ((name, unit) for name, (unit, _) in FIGURES.items())


def _measure(folder: Path, dimension: Dimension, size: int) -> Figures:
    if dimension.name == "records":
        _check_room(folder, size * jobs.PAYLOAD_BYTES * DISK_SHARE)
    if dimension.name in ("topics", "partitions"):
        _check_handles(min(size, jobs.OPEN_TOPICS) * HANDLES_EACH)
    if dimension.name == "processes":
        found = _processes(folder, size)
    else:
        child = Child(jobs.job, folder=str(folder), dimension=dimension.name, size=size)
        found = _result(child)
    for step in dimension.steps:
        found[step] *= dimension.scale / dimension.units(size)
    for name, (_, factor) in FIGURES.items():
        found[name] *= factor
    return found


def _check_room(folder: Path, wanted: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise Missing(f"the disk has {free >> 30} GiB left, and {wanted >> 30} GiB are wanted")


def _check_handles(wanted: int) -> None:
    allowed = jobs.allow_handles()
    if allowed < wanted:
        raise Missing(f"{allowed:,} files may be open here, and {wanted:,} are wanted (ulimit -Hn)")


def _result(child: Child) -> Figures:
    child.seconds_max = PATIENCE_SECONDS
    child.wait_ready()
    child.go()
    found: Figures = child.result()
    return found


def _processes(folder: Path, size: int) -> Figures:
    """All at the same time. They share one log; each one's recovery is measured when all have ended."""
    arguments = {"folder": str(folder), "dimension": "processes", "size": CALLS, "recover": False}
    children = [Child(jobs.job, **arguments) for _ in range(size)]
    for child in children:
        child.seconds_max = PATIENCE_SECONDS
        child.wait_ready()
    for child in children:
        child.go()
    found: list[Figures] = [child.result() for child in children]
    return {
        "publish": max(one["publish"] for one in found),
        "memory": sum(one["memory"] for one in found),
        "handles": sum(one["handles"] for one in found),
        "recovery": jobs.recovery_seconds(folder),
    }


def _targets(dimension: Dimension) -> Iterator[Target]:
    """Nothing grows faster than what there is of it; small sizes are mostly fixed costs."""
    sizes = dimension.sizes
    for low, high in dimension.judged or ((sizes[2 if len(sizes) > 4 else 1], sizes[-1]),):
        yield from _between(dimension, low, high)


def _between(dimension: Dimension, low: int, high: int) -> Iterator[Target]:
    name = f"grow_{dimension.name}/grow"
    judged = ((figure, unit) for figure, unit in _figures(dimension) if figure != BOUND)
    for figure, unit in judged:
        more = 1 if figure in dimension.steps else dimension.units(high) / dimension.units(low)
        shown = f"{dimension.name} {low:,} to {high:,}: {figure}, {unit.partition('/')[0]}"
        yield Target(
            f"{shown}{' each' if figure in dimension.steps else ''}",
            f"{name}-{figure}/{high}", round(more * WORSE, 1), f"{name}-{figure}/{low}", at_most=True,
        )  # fmt: skip


TARGETS = tuple(target for dimension in DIMENSIONS for target in _targets(dimension))
WORKLOADS = tuple(
    Workload(f"grow_{one.name}", one.name.capitalize(), one.about, partial(cases, dimension=one))
    for one in DIMENSIONS
)
