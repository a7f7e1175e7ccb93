"""Every workload of Spark, in the order of the report."""

from benchmarks.model import Workload
from benchmarks.spark import idle, latency, sink, source

WORKLOADS: tuple[Workload, ...] = (
    source.WORKLOAD,
    sink.WORKLOAD,
    latency.WORKLOAD,
    idle.WORKLOAD,
)
