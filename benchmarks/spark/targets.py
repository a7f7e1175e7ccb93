"""The targets of Spark: ratios within one run, a time and a share of a core."""

from __future__ import annotations

from benchmarks.targets import Target

_STREAM = "spark_source/100/micro-batches"
_SINK = "spark_sink/100/micro-batches"

TARGETS: tuple[Target, ...] = (
    Target("stream of a topic: times the Parquet source", f"{_STREAM}/penstock", 1.0,
           f"{_STREAM}/parquet"),
    Target("stream of a topic: times Spark's Kafka source", f"{_STREAM}/penstock", 2.0,
           f"{_STREAM}/kafka"),
    Target("sink to a topic: times the Parquet sink", f"{_SINK}/penstock", 1.0, f"{_SINK}/parquet"),
    Target("topic to topic, half of the records within", "spark_latency/100/topic-to-topic/penstock",
           250, at_most=True),
    Target("an idle query", "spark_idle/idle/penstock", 0.03, at_most=True),
)  # fmt: skip
