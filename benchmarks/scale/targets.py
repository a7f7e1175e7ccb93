"""The targets of scale, as ratios within one run where they are about others."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.targets import Target


def _hot() -> Iterator[Target]:
    for kind, goal in (("sync", 1_000_000), ("async", 500_000)):
        for bus in ("resilient", "plain"):
            yield Target(f"hot topic, {kind} handler, {bus} bus", f"hot/{kind}-handler/{bus}", goal)


def _sustained() -> Iterator[Target]:
    for kind, goal in (("sync", 1_000_000), ("async", 500_000)):
        name = f"hot_sustained/{kind}-handler/resilient"
        yield Target(f"hot topic for long, {kind} handler", name, goal)


def _shared() -> Iterator[Target]:
    for batch in ("batch-1000", "batch-100"):
        group = f"shared/100/{batch}"
        size = batch.partition("-")[2]
        yield Target(
            f"shared memory, batches of {size}: times `multiprocessing.Queue`, each record",
            f"{group}/penstock",
            20,
            f"{group}/mp-queue",
        )
        yield Target(f"shared memory, batches of {size}: times ZeroMQ ipc",
                     f"{group}/penstock", 1, f"{group}/zmq-ipc")  # fmt: skip


TARGETS: tuple[Target, ...] = (
    *_hot(),
    *_sustained(),
    Target("ring alone, one by one: times a deque", "ring/one-thread/ring", 0.3,
           "ring/one-thread/deque"),
    Target("ring alone, one by one, with the compiled twin: times a deque", "ring/one-thread/ring", 0.7,
           "ring/one-thread/deque"),
    Target("hot topic, sync handler, with the compiled twin", "hot/sync-handler/resilient", 3e6),
    Target("ring between threads, batches of 1,000: times `SimpleQueue`",
           "ring/two-threads/ring-1000", 1, "ring/two-threads/simple-queue"),
    Target("ring between threads, batches of 100: times `SimpleQueue`",
           "ring/two-threads/ring-100", 1, "ring/two-threads/simple-queue"),
    *_shared(),
    Target("8 partitions: times one", "scale_partitions/slow-handler/partitions-8", 5,
           "scale_partitions/slow-handler/partitions-1"),
    Target("watching the pressure, plain bus", "tracking/watched/monitor", 5, at_most=True),
    Target("watching the pressure, hot topic", "tracking/watched/hot", 5, at_most=True),
)  # fmt: skip
