"""Every workload of the bus, in the order of the report."""

from benchmarks.bus import chaos, growth, paced, processor, rates, schedule, wake_up
from benchmarks.model import Workload

WORKLOADS: tuple[Workload, ...] = (
    rates.EVENTS,
    rates.BURSTS,
    rates.COMMANDS,
    paced.PACED,
    paced.SUSTAINED,
    wake_up.WORKLOAD,
    growth.WORKLOAD,
    processor.WORKLOAD,
    chaos.WORKLOAD,
    schedule.WORKLOAD,
)
