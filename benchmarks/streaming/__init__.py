"""Every workload of streaming, in the order of the report."""

from benchmarks.model import Workload
from benchmarks.streaming import end_to_end, parallel, rebalance, transform

WORKLOADS: tuple[Workload, ...] = (
    end_to_end.WORKLOAD,
    rebalance.WORKLOAD,
    parallel.WORKLOAD,
    transform.WORKLOAD,
)
