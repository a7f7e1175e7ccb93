"""How the cost of the log grows with what is put into it: one workload for each dimension."""

from benchmarks.growth.workloads import TARGETS, WORKLOADS

__all__ = ["TARGETS", "WORKLOADS"]
