"""One process and two that append to the same log at the same time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.child import Child, gate
from benchmarks.model import Case, Load, Sample, Scale, Workload
from benchmarks.peers import lmdb, raw, sqlite
from benchmarks.publishers import EVERY_MESSAGE, NO_SYNC, publish_many

COUNTS = (1, 2)


def _penstock(folder: Path, load: Load, *, sync: bool) -> Sample:
    return publish_many(folder, load, EVERY_MESSAGE if sync else NO_SYNC)


CONTENDERS: dict[str, tuple[Callable[..., Sample], str]] = {
    "raw": (raw.append_locked, "packed blocks, one file, turns by flock"),
    "penstock": (_penstock, "publish_many, one call at a time in each"),
    "sqlite": (sqlite.insert_many, "executemany"),
    "lmdb": (lmdb.put_many, "putmulti"),
}


def cases(scale: Scale) -> list[Case]:
    """Every contender with one and two processes, synced and not."""
    found = []
    for size in scale.side_payloads:
        load = Load.of(scale, size)
        for point in ("sync-1000", "no-sync"):
            for count in COUNTS:
                found += [_case(load, point, name, count) for name in CONTENDERS]
    return found


def _case(load: Load, point: str, name: str, count: int) -> Case:
    return Case(
        "processes",
        load.payload_bytes,
        point,
        f"{name}-{count}",
        f"{CONTENDERS[name][1]}, {count} process{'' if count == 1 else 'es'}",
        partial(_run, load=load, name=name, count=count, sync=point == "sync-1000"),
        bound=name == "raw" and count == 1,
    )


def _run(folder: Path, load: Load, name: str, count: int, sync: bool) -> Sample:
    arguments = {"folder": str(folder), "name": name, "sync": sync, "seconds": load.seconds}
    sizes = {"payload_bytes": load.payload_bytes, "bytes_max": load.bytes_max // count}
    children = []
    for _ in range(count):
        # One after the other: the first one makes the files.
        children.append(Child(job, **arguments, **sizes))
        children[-1].wait_ready()
    for child in children:
        child.go()
    rates = [float(child.result()) for child in children]
    return Sample(sum(rates), {"slower process": min(rates)} if count > 1 else {})


def job(
    folder: str, name: str, sync: bool, seconds: float, payload_bytes: int, bytes_max: int
) -> float:
    """In the child: append until the time is over; records per second."""
    load = dataclasses.replace(Load(payload_bytes, seconds, bytes_max), gate=gate)
    return CONTENDERS[name][0](Path(folder), load, sync=sync).value


WORKLOAD = Workload(
    "processes",
    "Processes",
    "Processes that append to one log, 1,000 records per call. The rate is that of all together; "
    "“slower process” tells how evenly they share.",
    cases,
)
