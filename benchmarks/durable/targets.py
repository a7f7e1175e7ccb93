"""The targets against every durable peer, as ratios within one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.durable.servers import SERVERS
from benchmarks.durable.stores import STORES
from benchmarks.targets import Target

LIBRARIES = dict.fromkeys(STORES, 1.5)
ALL = {**LIBRARIES, **dict.fromkeys(SERVERS, 10.0)}
_BATCHES, _SINGLES = "durable_batches/100/sync-1000", "durable_singles/100/sync-each"
# A call at a time is beside the libraries, which have one writer; servers have calls in flight.
_WRITES = (
    ("1,000 in a call", _BATCHES, "penstock", LIBRARIES),
    ("1,000 in a call, on the loop", _BATCHES, "penstock-on-loop", LIBRARIES),
    ("1,000 in a call, calls in flight", _BATCHES, "penstock-pipelined", ALL),
    ("1,000 in a call, calls in flight, on the loop", _BATCHES, "penstock-pipelined-on-loop", ALL),
    ("one in a call, 64 tasks", _SINGLES, "penstock", ALL),
    ("one in a call, 64 tasks, on the loop", _SINGLES, "penstock-on-loop", ALL),
)
_READ = "durable_read/100/read"


def _ahead(
    title: str, group: str, contender: str, goals: Mapping[str, float] = ALL
) -> Iterator[Target]:
    for peer, goal in goals.items():
        yield Target(f"{title}: times {peer}", f"{group}/{contender}", goal, f"{group}/{peer}")


TARGETS: tuple[Target, ...] = (
    *(target for one in _WRITES for target in _ahead(*one)),
    *(target for target in _ahead("read as objects", _READ, "penstock") if target.to != f"{_READ}/lmdb"),
    Target("read as objects: times lmdb", f"{_READ}/penstock", 1, f"{_READ}/lmdb"),
)  # fmt: skip
