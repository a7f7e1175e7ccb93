"""The targets of Spark, as ratios within one run."""

from __future__ import annotations

from benchmarks.targets import Target

_STREAM = "spark_source/100/micro-batches"

TARGETS: tuple[Target, ...] = (
    Target("stream of a topic: times the Parquet source", f"{_STREAM}/penstock", 1.0,
           f"{_STREAM}/parquet"),
)  # fmt: skip
