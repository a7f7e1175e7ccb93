"""What a metric is: its name, its kind, its labels, and where in a snapshot it comes from."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.bus.histogram import Durations
from penstock.observe.values import Snapshot

PREFIX = "penstock_"

Sample = tuple[tuple[str, ...], float]
"""The values of the labels, in their order, and the number."""
Reader = Callable[[Snapshot], Iterable[Sample]]
DurationReader = Callable[[Snapshot], Iterable[tuple[tuple[str, ...], Durations]]]


class Kind(enum.StrEnum):
    """What a metric is."""

    COUNTER = "counter"
    """Only goes up. Prometheus adds ``_total`` to its name."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. The name is without the prefix ``penstock_``."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    read: Reader | None = None
    durations: DurationReader | None = None


COUNTER, GAUGE, HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
