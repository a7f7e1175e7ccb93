"""Services on a broker: FastStream and Penstock, each on the same server."""

from benchmarks.frameworks.workloads import TARGETS, WORKLOADS

__all__ = ["TARGETS", "WORKLOADS"]
