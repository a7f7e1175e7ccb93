"""Every workload, in the order of the report."""

from benchmarks.model import Workload
from benchmarks.workloads import (
    awaited,
    checksums,
    memory,
    one_by_one,
    partitions,
    processes,
    publish_many,
    read,
    recovery,
    tail,
)

WORKLOADS: tuple[Workload, ...] = (
    publish_many.WORKLOAD,
    one_by_one.WORKLOAD,
    awaited.WORKLOAD,
    partitions.WORKLOAD,
    processes.WORKLOAD,
    read.WORKLOAD,
    tail.WORKLOAD,
    recovery.WORKLOAD,
    memory.WORKLOAD,
    checksums.WORKLOAD,
)
