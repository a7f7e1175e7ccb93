"""The log beside everything durable that a Python program would pick instead: databases, queues, servers."""

from benchmarks.durable import workloads
from benchmarks.durable.servers import versions
from benchmarks.durable.targets import TARGETS

WORKLOADS = workloads.WORKLOADS

__all__ = ["TARGETS", "WORKLOADS", "versions"]
