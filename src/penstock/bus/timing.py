"""How long messages take, by topic and by how they ended."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from typing import Any

from penstock.bus.histogram import Histogram
from penstock.bus.middleware import Next
from penstock.messages import Envelope
from penstock.system import Clock, OsClock

TOPICS_MAX = 10_000
OTHER_TOPICS = "(others)"


class Ending(enum.StrEnum):
    """How the way of a message through the handlers ended."""

    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class TimingStatistics:
    """How long messages of one topic took that ended in one way."""

    topic: str
    ending: Ending
    count: int
    total_seconds: float
    p50_seconds: float
    """Quantiles are estimates, off by less than a factor of two."""
    p95_seconds: float
    p99_seconds: float
    longest_seconds: float


class Timing:
    """Measures how long messages take, in fixed memory for each topic and ending."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._now = (clock or OsClock()).monotonic
        self._histograms: dict[tuple[str, Ending], Histogram] = {}

    async def __call__(self, envelope: Envelope, following: Next) -> Any:
        begin = self._now()
        ending = Ending.FAILED
        try:
            result = await following(envelope)
            ending = Ending.OK
        except asyncio.CancelledError:
            ending = Ending.CANCELLED
            raise
        finally:
            self._histogram(envelope.topic, ending).add(self._now() - begin)
        return result

    def statistics(self) -> tuple[TimingStatistics, ...]:
        """The figures of this moment, by topic and ending."""
        return tuple(_timing(*place, self._histograms[place]) for place in sorted(self._histograms))

    def _histogram(self, topic: str, ending: Ending) -> Histogram:
        found = self._histograms.get((topic, ending))
        if found is None:
            if len(self._histograms) >= TOPICS_MAX * len(Ending):
                topic = OTHER_TOPICS
            found = self._histograms.setdefault((topic, ending), Histogram())
        return found


def _timing(topic: str, ending: Ending, histogram: Histogram) -> TimingStatistics:
    return TimingStatistics(
        topic=topic,
        ending=ending,
        count=histogram.count,
        total_seconds=histogram.total,
        p50_seconds=histogram.quantile(0.50),
        p95_seconds=histogram.quantile(0.95),
        p99_seconds=histogram.quantile(0.99),
        longest_seconds=histogram.longest,
    )
