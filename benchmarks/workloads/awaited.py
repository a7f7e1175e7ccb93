"""Awaiting each ``publish``: what a request handler sees, alone and among 64."""

from __future__ import annotations

from functools import partial

from benchmarks.model import Case, Load, Scale, Workload
from benchmarks.peers import lmdb, raw, sqlite
from benchmarks.publishers import EVERY_100, EVERY_MESSAGE, TIMED, CommitOn, publish
from penstock import TopicConfig

PUBLISHERS = (1, 64)
POLICIES = ((EVERY_MESSAGE, "sync-each"), (EVERY_100, "sync-100"), (TIMED, "timed"))


def cases(scale: Scale) -> list[Case]:
    """Every policy for each payload; peers where each record is durable."""
    found = []
    for size in scale.side_payloads:
        load = Load.of(scale, size, 1)
        found += _peers(load)
        for config, point in POLICIES:
            found += [_penstock(load, config, point, count) for count in PUBLISHERS]
        found += [
            _penstock(load, EVERY_MESSAGE, "sync-each", count, "loop") for count in PUBLISHERS
        ]
    return found


def _penstock(
    load: Load, config: TopicConfig, point: str, publishers: int, commit_on: CommitOn = "thread"
) -> Case:
    tasks = f"{publishers} awaiting {'task' if publishers == 1 else 'tasks'}"
    on_loop = commit_on == "loop"
    return Case(
        "awaited",
        load.payload_bytes,
        point,
        f"penstock-{'on-loop-' if on_loop else ''}{publishers}",
        f"{config.fsync.name}, {tasks}{', committed on the event loop' if on_loop else ''}",
        lambda at: publish(at, load, config, publishers=publishers, commit_on=commit_on),
    )


def _peers(load: Load) -> list[Case]:
    case = partial(Case, "awaited", load.payload_bytes, "sync-each")
    return [
        case("raw", "write + fdatasync per record",
             lambda at: raw.append(at, load, sync=True), bound=True),
        case("raw-64", "64 awaiting tasks, write + fdatasync for all of them",
             lambda at: raw.append_awaited(at, load, tasks=64)),
        case("sqlite", "a commit per record, synchronous=FULL",
             lambda at: sqlite.insert_each(at, load, sync=True)),
        case("lmdb", "a transaction per record, sync",
             lambda at: lmdb.put_each(at, load, sync=True)),
    ]  # fmt: skip


WORKLOAD = Workload(
    "awaited",
    "Await each record",
    "`await queue.publish(…)` by one task and by 64. SQLite and LMDB let one writer commit at a "
    "time, so more publishers do not help them. “raw-64” is the least that 64 tasks cost which wait for the disk: "
    "futures of asyncio, a write and a sync in the loop's own thread, and nothing of a log.",
    cases,
)
