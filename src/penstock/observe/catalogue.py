"""Every metric, in the order of the documents.

Prometheus, OpenTelemetry, the table in the documents and the dashboards go by this list.
"""

from __future__ import annotations

from penstock.observe.metric import Metric
from penstock.observe.metrics_bus import BUS_METRICS
from penstock.observe.metrics_log import LOG_METRICS
from penstock.observe.metrics_streams import STREAM_METRICS

METRICS: tuple[Metric, ...] = (*BUS_METRICS, *LOG_METRICS, *STREAM_METRICS)
