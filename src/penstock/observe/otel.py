"""OpenTelemetry metrics: the same snapshot, through observable instruments of its API."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.errors import MissingExtra
from penstock.observe.catalogue import METRICS
from penstock.observe.metric import Kind, Metric
from penstock.observe.observer import Observer
from penstock.observe.values import Snapshot

FRESH_MILLISECONDS = 500
"""All instruments of one collection read the same snapshot."""


class OpenTelemetryMetrics:
    """Tells OpenTelemetry what an observer sees: ``OpenTelemetryMetrics(observer)``.

    Needs ``penstock[otel]``. Names begin with ``penstock.`` instead of ``penstock_``, and have no
    ``_total``. The API has no observable histograms, so a histogram comes as its count and its sum,
    ``….count`` and ``….sum``. ``meter_provider`` is the
    application's own by default. What goes wrong in an exporter stays there.
    """

    def __init__(self, observer: Observer, meter_provider: Any = None) -> None:
        try:
            from opentelemetry import metrics
        except ImportError as error:
            raise MissingExtra(
                "metrics for OpenTelemetry need its API: pip install 'penstock[otel]'", extra="otel"
            ) from error
        self._api = metrics
        self._observer = observer
        self._latest: Snapshot | None = None
        meter = metrics.get_meter("penstock", meter_provider=meter_provider)
        for metric in METRICS:
            self._register(meter, metric)

    def _register(self, meter: Any, metric: Metric) -> None:
        name = f"penstock.{metric.name}"
        if metric.kind is Kind.GAUGE:
            meter.create_observable_gauge(
                name, [self._values(metric)], unit=_unit(metric), description=metric.help
            )
        elif metric.kind is Kind.COUNTER:
            meter.create_observable_counter(
                name, [self._values(metric)], unit=_unit(metric), description=metric.help
            )
        else:
            for part, unit in (("count", "1"), ("sum", "s")):
                meter.create_observable_counter(
                    f"{name}.{part}",
                    [self._parts(metric, part)],
                    unit=unit,
                    description=f"{metric.help} ({part})",
                )

    def _values(self, metric: Metric) -> Callable[[Any], Iterable[Any]]:
        def observe(_: Any) -> Iterable[Any]:
            assert metric.read is not None
            return [
                self._api.Observation(value, dict(zip(metric.labels, labels, strict=True)))
                for labels, value in metric.read(self._snapshot())
            ]

        return observe

    def _parts(self, metric: Metric, part: str) -> Callable[[Any], Iterable[Any]]:
        def observe(_: Any) -> Iterable[Any]:
            assert metric.durations is not None
            return [
                self._api.Observation(
                    one.count if part == "count" else one.total_seconds,
                    dict(zip(metric.labels, labels, strict=True)),
                )
                for labels, one in metric.durations(self._snapshot())
            ]

        return observe

    def _snapshot(self) -> Snapshot:
        now = self._observer.now_ms()
        if self._latest is None or now - self._latest.time_ms > FRESH_MILLISECONDS:
            self._latest = self._observer.snapshot()
        return self._latest


def _unit(metric: Metric) -> str:
    for ending, unit in (("_seconds", "s"), ("_bytes", "By"), ("_per_second", "1/s")):
        if metric.name.endswith(ending):
            return unit
    return "1"
