"""The targets against every durable peer, as ratios within one run."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.durable.servers import SERVERS
from benchmarks.durable.stores import STORES
from benchmarks.targets import Target

LIBRARY_GOAL, SERVER_GOAL = 1.5, 10
_WRITES = (
    ("1,000 in a call", "durable_batches/100/sync-1000", "penstock"),
    ("1,000 in a call, on the loop", "durable_batches/100/sync-1000", "penstock-on-loop"),
    ("1,000 in a call, calls in flight", "durable_batches/100/sync-1000", "penstock-pipelined"),
    ("one in a call, 64 tasks", "durable_singles/100/sync-each", "penstock"),
    ("one in a call, 64 tasks, on the loop", "durable_singles/100/sync-each", "penstock-on-loop"),
)
_READ = "durable_read/100/read"


def _ahead(title: str, group: str, contender: str) -> Iterator[Target]:
    goals = {**dict.fromkeys(STORES, LIBRARY_GOAL), **dict.fromkeys(SERVERS, SERVER_GOAL)}
    for peer, goal in goals.items():
        yield Target(f"{title}: times {peer}", f"{group}/{contender}", goal, f"{group}/{peer}")


TARGETS: tuple[Target, ...] = (
    *(target for one in _WRITES for target in _ahead(*one)),
    *(target for target in _ahead("read as objects", _READ, "penstock") if target.to != f"{_READ}/lmdb"),
    Target("read as objects: times lmdb", f"{_READ}/penstock", 1, f"{_READ}/lmdb"),
)  # fmt: skip
