"""Durations in fixed memory: counts by powers of two of a nanosecond."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

BUCKETS = 64
"""The last one begins at 146 years, and nothing is longer than that."""
NANOSECONDS = 1_000_000_000
SECONDS_MAX = 2**62 / NANOSECONDS


@dataclass(frozen=True, slots=True)
class Durations:
    """How long things took, at one moment. A quantile is off by less than a factor of two."""

    count: int
    total_seconds: float
    longest_seconds: float
    buckets: tuple[int, ...]
    """Bucket ``n`` counts durations of ``2 ** (n - 1)`` up to ``2 ** n`` nanoseconds."""

    def quantile(self, share: float) -> float:
        """About how many seconds this share of the durations stayed below; 0 when there are none."""
        return quantile(self.buckets, self.count, self.longest_seconds, share)

    def __add__(self, other: Durations) -> Durations:
        return Durations(
            self.count + other.count,
            self.total_seconds + other.total_seconds,
            max(self.longest_seconds, other.longest_seconds),
            tuple(map(operator.add, self.buckets, other.buckets)),
        )


NO_DURATIONS = Durations(0, 0.0, 0.0, (0,) * BUCKETS)


class Histogram:
    """How long things took. Adding costs no memory; a quantile is off by less than a factor of two.

    Used by one thread. Bucket ``n`` counts durations of ``2 ** (n - 1)`` up to ``2 ** n``
    nanoseconds.
    """

    __slots__ = ("buckets", "count", "longest", "total")

    def __init__(self) -> None:
        self.buckets = [0] * BUCKETS
        self.count = 0
        self.total = 0.0
        """Seconds, of all together."""
        self.longest = 0.0
        """Seconds."""

    def add(self, seconds: float, weight: int = 1) -> None:
        """Count a duration, so many times; what is below zero counts as zero, should a clock go back."""
        if not 0.0 <= seconds <= SECONDS_MAX:
            seconds = min(max(0.0, seconds), SECONDS_MAX)
        self.buckets[int(seconds * NANOSECONDS).bit_length()] += weight
        self.count += weight
        self.total += seconds * weight
        if seconds > self.longest:
            self.longest = seconds

    def quantile(self, share: float) -> float:
        """About how many seconds this share of the durations stayed below; 0 when there are none."""
        return quantile(self.buckets, self.count, self.longest, share)

    def durations(self) -> Durations:
        """What was counted so far, as a value."""
        return Durations(self.count, self.total, self.longest, tuple(self.buckets))


def quantile(buckets: Sequence[int], count: int, longest: float, share: float) -> float:
    """The quantile of what these buckets hold."""
    wanted = share * count
    for bucket, until in enumerate(accumulate(buckets)):
        if until >= wanted and buckets[bucket]:
            return min(_within(bucket, buckets[bucket], until - wanted), longest)
    return longest


def _within(bucket: int, inside: int, beyond: float) -> float:
    """As if the durations of a bucket were spread evenly over it."""
    low, high = (1 << bucket) >> 1, 1 << bucket
    return (low + (high - low) * (1 - beyond / inside)) / NANOSECONDS
