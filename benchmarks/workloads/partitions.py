"""One partition and four, under each policy: records spread in turn."""

from __future__ import annotations

import msgspec

from benchmarks.model import Case, Load, Scale, Workload
from benchmarks.peers import raw
from benchmarks.publishers import EVERY_100, EVERY_MESSAGE, NO_SYNC, TIMED, publish_many
from penstock import TopicConfig

COUNTS = (1, 4)
POLICIES = (
    (EVERY_MESSAGE, "sync-1000", "every-message"),
    (EVERY_100, "sync-1000", "every-100"),
    (TIMED, "timed", "timed"),
    (NO_SYNC, "no-sync", "never"),
)


def cases(scale: Scale) -> list[Case]:
    """Every policy with one and four partitions, and as many raw files."""
    found = []
    for size in scale.side_payloads:
        load = Load.of(scale, size)
        for count in COUNTS:
            found += [_raw(load, count, sync=True), _raw(load, count, sync=False)]
            found += [_penstock(load, count, *policy) for policy in POLICIES]
    return found


def _penstock(load: Load, count: int, config: TopicConfig, point: str, name: str) -> Case:
    spread = msgspec.structs.replace(config, partitions=count)
    return Case(
        "partitions",
        load.payload_bytes,
        point,
        f"penstock-{name}-{count}",
        f"{config.fsync.name}, {_counted(count, 'partition')}",
        lambda at: publish_many(at, load, spread, flush=name in {"every-100", "timed"}),
    )


def _raw(load: Load, count: int, *, sync: bool) -> Case:
    return Case(
        "partitions",
        load.payload_bytes,
        "sync-1000" if sync else "no-sync",
        f"raw-{count}",
        f"{_counted(count, 'file')}, written{' and synced' if sync else ''} side by side",
        lambda at: raw.append_files(at, load, files=count, sync=sync),
        bound=count == 1,
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


WORKLOAD = Workload(
    "partitions",
    "Partitions",
    "`publish_many` of 1,000, one call at a time, to a topic with one partition and with four. "
    "With N = 100 every call of 1,000 reaches N, so it syncs once per call, too.",
    cases,
)
