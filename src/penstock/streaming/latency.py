"""How long things took, in fixed memory: a quantile is at most two percent off."""

from __future__ import annotations

import math
from itertools import accumulate

GROWTH = 1.04
"""Each bucket is so much wider than the one before; its middle is two percent from its ends."""
SHORTEST_SECONDS = 1e-6
BUCKETS = 640
"""The last one begins at 19 hours."""
_LOG_GROWTH = math.log(GROWTH)


class LatencyHistogram:
    """Durations, each with a weight: that of a batch counts for every record in it.

    What is shorter than a microsecond counts as one. Used by one thread.
    """

    __slots__ = ("_buckets", "count", "longest", "total")

    def __init__(self) -> None:
        self._buckets = [0] * BUCKETS
        self.count = 0
        self.total = 0.0
        """Seconds, of all together."""
        self.longest = 0.0
        """Seconds."""

    def add(self, seconds: float, weight: int = 1) -> None:
        """Count a duration so many times."""
        seconds = max(seconds, SHORTEST_SECONDS)
        place = int(math.log(seconds / SHORTEST_SECONDS) / _LOG_GROWTH)
        self._buckets[min(place, BUCKETS - 1)] += weight
        self.count += weight
        self.total += seconds * weight
        self.longest = max(self.longest, seconds)

    def quantile(self, share: float) -> float:
        """Seconds that this share of the durations did not exceed; 0 when there are none."""
        wanted = max(1, math.ceil(share * self.count))
        for place, until in enumerate(accumulate(self._buckets)):
            if until >= wanted:
                middle: float = SHORTEST_SECONDS * GROWTH ** (place + 0.5)
                return min(middle, self.longest)
        return 0.0
