"""Every workload of scale, in the order of the report."""

from benchmarks.model import Workload
from benchmarks.scale import durable, hot, partitions, rings, shared, sustained, tracking

WORKLOADS: tuple[Workload, ...] = (
    hot.WORKLOAD,
    sustained.WORKLOAD,
    rings.WORKLOAD,
    shared.WORKLOAD,
    partitions.WORKLOAD,
    durable.WORKLOAD,
    tracking.WORKLOAD,
)
