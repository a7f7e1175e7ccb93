"""The part of a cache that is in memory: entries, their bytes and their time, and the counts."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Generic

from penstock.errors import InvalidOption
from penstock.scaling.cache_arc import AdaptiveReplacement
from penstock.scaling.cache_policies import (
    NEVER,
    Entry,
    FirstToExpire,
    Key,
    LeastRecentlyUsed,
    Policy,
    Value,
)
from penstock.scaling.limits import ScalingLimits

SWEPT_AT_A_PUT = 16
"""Expired entries that one put clears away, so that none stays for ever and no put takes long."""


class EvictionPolicy(enum.StrEnum):
    """Who leaves when the cache is full."""

    LRU = "lru"
    """The entry that was used longest ago."""
    TTL = "ttl"
    """The entry that expires first; each expires a fixed time after it was put or loaded."""
    ARC = "arc"
    """Adapts to what pays: keeping what is recent, or what is frequent. A scan does no harm."""


class CacheMemory(Generic[Key, Value]):
    """Entries within two bounds, of their number and of their bytes."""

    def __init__(
        self,
        limits: ScalingLimits,
        policy: EvictionPolicy,
        ttl_seconds: float | None,
        now: Callable[[], float],
    ) -> None:
        self._policy: Policy[Key, Value] = _policy_for(policy, limits.cache_entries_max)
        self._ttl_seconds = _checked_ttl(policy, ttl_seconds)
        self._bytes_max = limits.memory_bytes_max
        self._now = now
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self.expirations = 0
        self.oversized = 0

    def __len__(self) -> int:
        return len(self._policy)

    def keys(self) -> tuple[Key, ...]:
        """The keys of all entries."""
        return tuple(self._policy)

    def find(self, key: Key) -> Entry[Value] | None:
        """The entry of a key, counted as a hit or a miss."""
        entry = self._policy.find(key)
        if entry is None or (self._ttl_seconds is not None and self._expire(key, entry)):
            self.misses += 1
            return None
        self.hits += 1
        return entry

    def peek(self, key: Key) -> Entry[Value] | None:
        """The entry of a key; nothing is counted, and it was not used."""
        entry = self._policy.peek(key)
        return None if entry is None or self._is_over(entry) else entry

    def fits(self, size: int) -> bool:
        """Whether an entry of this size may be held at all."""
        return size <= self._bytes_max

    def keep(self, key: Key, value: Value, size: int) -> None:
        """Hold a value. One that is larger than all the memory is not held, nor the one before."""
        self.sweep(SWEPT_AT_A_PUT)
        if not self.fits(size):
            self.drop(key)
            self.oversized += 1
            return
        self._make_room(key, size)
        self.bytes += size - self._size_of(key)
        self._left(self._policy.put(key, Entry(value, size, self._expiry())))

    def drop(self, key: Key) -> bool:
        """Forget a key; whether it had an entry."""
        entry = self._policy.remove(key)
        if entry is not None:
            self.bytes -= entry.size
        return entry is not None

    def sweep(self, entries_max: int) -> int:
        """Clear away expired entries, at most so many; returns how many."""
        if self._ttl_seconds is None:
            return 0
        for count in range(entries_max):
            first = self._policy.first()
            if first is None or not self._expire(*first):
                return count
        return entries_max

    def resize(self, limits: ScalingLimits) -> None:
        """Hold at most that much from now on."""
        self._bytes_max = limits.memory_bytes_max
        for entry in self._policy.resize(limits.cache_entries_max):
            self._left(entry)
        while self.bytes > self._bytes_max:
            self._left(self._policy.evict())

    def clear(self) -> None:
        """Forget everything but the counts."""
        self._policy.clear()
        self.bytes = 0

    def _make_room(self, key: Key, size: int) -> None:
        # The entry that the key has goes with the new one, so its bytes count as free.
        while self.bytes - self._size_of(key) + size > self._bytes_max:
            self._left(self._policy.evict())

    def _size_of(self, key: Key) -> int:
        entry = self._policy.peek(key)
        return 0 if entry is None else entry.size

    def _left(self, entry: Entry[Value] | None) -> None:
        if entry is None:
            return
        self.bytes -= entry.size
        if self._is_over(entry):
            self.expirations += 1
        else:
            self.evictions += 1

    def _expire(self, key: Key, entry: Entry[Value]) -> bool:
        if not self._is_over(entry):
            return False
        self.drop(key)
        self.expirations += 1
        return True

    def _is_over(self, entry: Entry[Value]) -> bool:
        return self._ttl_seconds is not None and entry.expires <= self._now()

    def _expiry(self) -> float:
        return NEVER if self._ttl_seconds is None else self._now() + self._ttl_seconds


def _policy_for(policy: EvictionPolicy, entries_max: int) -> Policy[Key, Value]:
    match policy:
        case EvictionPolicy.LRU:
            return LeastRecentlyUsed(entries_max)
        case EvictionPolicy.TTL:
            return FirstToExpire(entries_max)
        case EvictionPolicy.ARC:
            return AdaptiveReplacement(entries_max)


def _checked_ttl(policy: EvictionPolicy, seconds: float | None) -> float | None:
    if (seconds is not None) != (policy is EvictionPolicy.TTL):
        raise InvalidOption(
            "ttl_seconds belongs to the policy TTL, which needs it", option="ttl_seconds"
        )
    if seconds is not None and not 0 < seconds < math.inf:
        raise InvalidOption(
            f"ttl_seconds is {seconds}; it must be more than 0, and finite", option="ttl_seconds"
        )
    return seconds
