"""The targets of streaming, as ratios within one run where they are about others."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.targets import Target


def _end_to_end() -> Iterator[Target]:
    for commit in ("manual", "auto"):
        group = f"end_to_end/100/{commit}-commit"
        alone = f"{group}/partitions-4-processes-1"
        yield Target(f"published, consumed, committed ({commit}), 1 partition",
                     f"{group}/partitions-1-processes-1", 300_000)  # fmt: skip
        yield Target(f"published, consumed, committed ({commit}), 4 partitions", alone, 300_000)
        yield Target(f"two processes ({commit}): times one",
                     f"{group}/partitions-4-processes-2", 1.6, alone)  # fmt: skip


def _transform() -> Iterator[Target]:
    for batch in (1_000, 10_000):
        for partitions in (1, 4):
            case = f"transform/100/batch-{batch}/partitions-{partitions}"
            yield Target(f"exactly once, {batch:,} a batch, partitions {partitions}: times without",
                         f"{case}-transaction", 1 / 1.3, f"{case}-plain")  # fmt: skip


TARGETS: tuple[Target, ...] = (
    *_end_to_end(),
    Target("100 partitions shared anew, a member comes", "rebalance/hand-over/join", 1_000, at_most=True),
    Target("100 partitions shared anew, a member goes", "rebalance/hand-over/leave", 1_000, at_most=True),
    Target("parallel consumer, 400 in flight: times serial", "parallel/slow-handler/in-flight-400", 50,
           "parallel/slow-handler/serial"),
    *_transform(),
)  # fmt: skip
