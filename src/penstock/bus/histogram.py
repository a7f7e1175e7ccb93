"""Durations in fixed memory: counts by powers of two of a nanosecond."""

from __future__ import annotations

from itertools import accumulate

BUCKETS = 64
"""The last one begins at 146 years, and nothing is longer than that."""
NANOSECONDS = 1_000_000_000
SECONDS_MAX = 2**62 / NANOSECONDS


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

    def add(self, seconds: float) -> None:
        """Count a duration; what is below zero counts as zero, should a clock go back."""
        seconds = min(max(0.0, seconds), SECONDS_MAX)
        self.buckets[int(seconds * NANOSECONDS).bit_length()] += 1
        self.count += 1
        self.total += seconds
        self.longest = max(self.longest, seconds)

    def quantile(self, share: float) -> float:
        """About how many seconds this share of the durations stayed below; 0 when there are none."""
        wanted = share * self.count
        for bucket, until in enumerate(accumulate(self.buckets)):
            if until >= wanted and self.buckets[bucket]:
                return min(self._within(bucket, until, wanted), self.longest)
        return self.longest

    def _within(self, bucket: int, until: int, wanted: float) -> float:
        """As if the durations of a bucket were spread evenly over it."""
        low, high = (1 << bucket) >> 1, 1 << bucket
        inside = 1 - (until - wanted) / self.buckets[bucket]
        return (low + (high - low) * inside) / NANOSECONDS
