"""The brokers: each module has the workload of one, and its targets. A new one is added to the list."""

from benchmarks.brokers import kafka, nats, pulsar, rabbitmq, redis
from benchmarks.model import Workload
from benchmarks.targets import Target

BROKERS = (kafka, nats, pulsar, rabbitmq, redis)

WORKLOADS: tuple[Workload, ...] = tuple(one.WORKLOAD for one in BROKERS)
TARGETS: tuple[Target, ...] = tuple(target for one in BROKERS for target in one.TARGETS)
