"""The figures of one transport: how much, how fast, how long it took, what failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.scaling.rate import RateMeasure
from penstock.streaming.latency import LatencyHistogram
from penstock.system import System

KINDS_MAX = 64
"""Kinds of errors that are counted one by one."""
OTHERS = "others"


@dataclass(frozen=True, slots=True)
class TransportStatistics:
    """What went over one transport, since it was registered."""

    name: str
    published: int
    """Records that were acknowledged."""
    publish_rate: float
    """Records per second that were acknowledged, over the last 30 seconds."""
    batches: int
    """Calls to the transport; records per call tell how well publishers share."""
    delivered: int
    """Records that subscribers got."""
    latency_p50: float
    """Seconds from the call of ``publish`` to the acknowledgement; at most two percent off."""
    latency_p95: float
    latency_p99: float
    latency_max: float
    failed: int
    """Records whose publishers got an error."""
    errors: Mapping[str, int]
    """The same by the kind of the error."""


class TransportMeter:
    """Counts for one transport. It is written once for a call, however many records that has."""

    def __init__(self, name: str, system: System) -> None:
        self.name = name
        self.published = self.batches = self.delivered = self.failed = 0
        self._latency = LatencyHistogram()
        self._rate = RateMeasure(system=system)
        self._errors: dict[str, int] = {}

    def sent(self, count: int, seconds: float) -> None:
        """A call with so many records was acknowledged after so long."""
        self.published += count
        self._latency.add(seconds, count)

    def batch_sent(self) -> None:
        """All calls of one batch are told of: measure the rate."""
        self.batches += 1
        self._rate.observe(self.published)

    def not_sent(self, count: int, error: BaseException) -> None:
        """A call with so many records failed."""
        self.failed += count
        kind = type(error).__name__
        if kind not in self._errors and len(self._errors) >= KINDS_MAX:
            kind = OTHERS
        self._errors[kind] = self._errors.get(kind, 0) + count

    def statistics(self) -> TransportStatistics:
        """The figures of this moment."""
        latency = self._latency
        self._rate.observe(self.published)
        return TransportStatistics(
            name=self.name,
            published=self.published,
            publish_rate=self._rate.per_second(),
            batches=self.batches,
            delivered=self.delivered,
            latency_p50=latency.quantile(0.50),
            latency_p95=latency.quantile(0.95),
            latency_p99=latency.quantile(0.99),
            latency_max=latency.longest,
            failed=self.failed,
            errors=dict(self._errors),
        )
