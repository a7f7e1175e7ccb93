"""Every workload of Spark, in the order of the report."""

from benchmarks.model import Workload
from benchmarks.spark import source

WORKLOADS: tuple[Workload, ...] = (source.WORKLOAD,)
