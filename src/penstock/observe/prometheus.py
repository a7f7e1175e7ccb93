"""Prometheus: one collector, which reads a snapshot when it is scraped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from penstock.bus.histogram import NANOSECONDS, Durations
from penstock.errors import MissingExtra
from penstock.observe.catalogue import METRICS
from penstock.observe.metric import PREFIX, Kind, Metric
from penstock.observe.observer import Observer
from penstock.observe.values import Snapshot

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

FIRST_BUCKET, LAST_BUCKET = 10, 36
"""From a microsecond to a minute, each bucket twice as long as the one before."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class PrometheusCollector:
    """All metrics of what an observer watches: ``registry.register(PrometheusCollector(observer))``.

    Needs ``penstock[prometheus]``. Nothing is counted twice or kept here: a scrape reads one
    snapshot. It may come from any thread.
    """

    def __init__(self, observer: Observer) -> None:
        _client()
        self._observer = observer

    def describe(self) -> Iterable[Family]:
        """The metrics without their values, so that registering does not read them."""
        return [_family(metric) for metric in METRICS]

    def collect(self) -> Iterator[Family]:
        """The metrics as they are now."""
        snapshot = self._observer.snapshot()
        for metric in METRICS:
            yield _filled(metric, snapshot)


def prometheus_text(observer: Observer) -> bytes:
    """What ``/metrics`` answers, with ``CONTENT_TYPE``; without a registry of the program."""
    client = _client()
    registry = client.CollectorRegistry(auto_describe=False)
    registry.register(PrometheusCollector(observer))
    text: bytes = client.generate_latest(registry)
    return text


def _client() -> Any:
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError as error:
        raise MissingExtra(
            "metrics for Prometheus need its client: pip install 'penstock[prometheus]'",
            extra="prometheus",
        ) from error
    return prometheus_client


def _family(metric: Metric) -> Any:
    core = _client().core
    kinds = {
        Kind.COUNTER: core.CounterMetricFamily,
        Kind.GAUGE: core.GaugeMetricFamily,
        Kind.HISTOGRAM: core.HistogramMetricFamily,
    }
    return kinds[metric.kind](PREFIX + metric.name, metric.help, labels=metric.labels)


def _filled(metric: Metric, snapshot: Snapshot) -> Any:
    family = _family(metric)
    if metric.read is not None:
        for labels, value in metric.read(snapshot):
            family.add_metric(labels, value)
    if metric.durations is not None:
        for labels, durations in metric.durations(snapshot):
            family.add_metric(labels, _buckets(durations), durations.total_seconds)
    return family


def _buckets(durations: Durations) -> list[tuple[str, int]]:
    """How many durations were at most so long, for each bucket."""
    until = list(accumulate(durations.buckets))
    limits = range(FIRST_BUCKET, LAST_BUCKET + 1)
    counts = [(str(2**limit / NANOSECONDS), until[limit]) for limit in limits]
    return [*counts, ("+Inf", durations.count)]
