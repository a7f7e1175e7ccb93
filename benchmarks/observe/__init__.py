"""What it costs to see what happens."""

from benchmarks.model import Workload
from benchmarks.observe import metrics
from benchmarks.targets import Target

WORKLOADS: tuple[Workload, ...] = (metrics.WORKLOAD,)

TARGETS: tuple[Target, ...] = tuple(
    Target(f"metrics on, {title}", f"metrics/watched/{contender}", 5, at_most=True)
    for title, contender in (
        ("`await publish`", "queued"),
        ("bursts", "burst"),
        ("`publish_and_wait`", "waited"),
        ("commands", "commands"),
        ("hot path", "hot"),
    )
)
