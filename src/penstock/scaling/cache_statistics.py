"""The figures of a cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Counts since the cache was made, and what it holds now."""

    hits: int
    """Gets that found the value in memory."""
    misses: int
    """Gets that did not."""
    loads: int
    """Values that were read from the store, by a get or a warm start."""
    writes: int
    """Puts that ended well."""
    deletes: int
    """Deletes that ended well."""
    failures: int
    """Operations on the store that raised, and values of a warm start that did not decode."""
    evictions: int
    """Entries that left memory because of a bound."""
    expirations: int
    """Entries that left memory because their time was over."""
    oversized: int
    """Values that are larger than all the memory of the cache, so that only the store has them."""
    entries: int
    """Entries in memory; with TTL, those count that are over and not cleared away yet."""
    bytes: int
    """Their bytes."""
    operations: int
    """Operations on the store that wait or run."""
    operations_running: int
    """Operations on the store that run."""

    @property
    def hit_rate(self) -> float:
        """The share of gets that found the value in memory; 0 before the first."""
        return self.hits / max(1, self.hits + self.misses)
