"""Seeing what a program does: one observer, one snapshot, metrics, traces, logs and health.

``Observer`` watches buses, logs, streaming managers, transports and pipelines. Its ``snapshot()``
is a value that everything else reads.
"""

from penstock.bus.histogram import Durations
from penstock.observe.catalogue import METRICS
from penstock.observe.logs import JsonFormatter, MessageFields
from penstock.observe.metric import Kind, Metric
from penstock.observe.observer import Observer
from penstock.observe.otel import OpenTelemetryMetrics
from penstock.observe.prometheus import CONTENT_TYPE, PrometheusCollector, prometheus_text
from penstock.observe.values import (
    BusSnapshot,
    Cause,
    GroupActivity,
    GroupKind,
    GroupPartition,
    GroupSnapshot,
    Health,
    LogPartition,
    LogSnapshot,
    QuerySnapshot,
    Snapshot,
    Stall,
    StreamsSnapshot,
    TopicSnapshot,
    TransportSnapshot,
)

__all__ = [  # noqa: RUF022 - in the order of the alphabet, constants too
    "BusSnapshot",
    "CONTENT_TYPE",
    "Cause",
    "Durations",
    "GroupKind",
    "GroupPartition",
    "GroupSnapshot",
    "GroupActivity",
    "Health",
    "JsonFormatter",
    "Kind",
    "LogPartition",
    "LogSnapshot",
    "METRICS",
    "MessageFields",
    "Metric",
    "Observer",
    "OpenTelemetryMetrics",
    "PrometheusCollector",
    "QuerySnapshot",
    "Snapshot",
    "Stall",
    "StreamsSnapshot",
    "TopicSnapshot",
    "TransportSnapshot",
    "prometheus_text",
]
