"""The targets of scale, as ratios within one run where they are about others."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.targets import Target

IPC_PEERS = {
    "mp-queue-lists": "`multiprocessing.Queue`, lists",
    "faster-fifo": "faster-fifo",
    "zmq-ipc": "ZeroMQ ipc",
    "zmq-ipc-multipart": "ZeroMQ ipc, many parts",
}
"""Contender → its name in the title."""


def _hot() -> Iterator[Target]:
    for kind, goal in (("sync", 1_000_000), ("async", 500_000)):
        for bus in ("resilient", "plain"):
            yield Target(f"hot topic, {kind} handler, {bus} bus", f"hot/{kind}-handler/{bus}", goal)


def _ahead() -> Iterator[Target]:
    """Of everybody who passes events on inside a process."""
    for kind in ("sync", "async"):
        group = f"hot/{kind}-handler"
        for peer in ("queue", "pyee", "blinker", "hand-rolled"):
            yield Target(f"hot topic, {kind} handler: times {peer}",
                         f"{group}/resilient", 1, f"{group}/{peer}")  # fmt: skip


def _between_threads() -> Iterator[Target]:
    for batch, title in (
        ("-1000", "batches of 1,000"),
        ("-100", "batches of 100"),
        ("", "one by one"),
    ):
        for peer, name in (("simple-queue", "`SimpleQueue`"), ("zmq-inproc", "ZeroMQ inproc")):
            yield Target(f"ring between threads, {title}: times {name}",
                         f"ring/two-threads/ring{batch}", 1, f"ring/two-threads/{peer}")  # fmt: skip


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
        for peer, name in IPC_PEERS.items():
            yield Target(f"shared memory, batches of {size}: times {name}",
                         f"{group}/penstock", 1, f"{group}/{peer}")  # fmt: skip


TARGETS: tuple[Target, ...] = (
    *_hot(),
    *_ahead(),
    *_sustained(),
    Target("ring alone, one by one: times a deque", "ring/one-thread/ring", 0.3,
           "ring/one-thread/deque"),
    Target("ring alone, one by one, with the compiled twin: times a deque", "ring/one-thread/ring", 0.7,
           "ring/one-thread/deque"),
    Target("hot topic, sync handler, with the compiled twin", "hot/sync-handler/resilient", 3e6),
    *_between_threads(),
    *_shared(),
    Target("8 partitions: times one", "scale_partitions/slow-handler/partitions-8", 5,
           "scale_partitions/slow-handler/partitions-1"),
    Target("watching the pressure, plain bus", "tracking/watched/monitor", 5, at_most=True),
    Target("watching the pressure, hot topic", "tracking/watched/hot", 5, at_most=True),
)  # fmt: skip
