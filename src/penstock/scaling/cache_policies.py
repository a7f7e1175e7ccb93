"""Who leaves a full cache: the entry that was used longest ago, or the one that expires first.

A policy holds the entries and keeps them in its order. It counts entries and knows neither bytes
nor time nor a store. Every step takes the same time, however many entries there are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

NEVER = float("inf")


class Entry(Generic[Value]):
    """A value with what the cache must know about it."""

    __slots__ = ("expires", "size", "value")

    def __init__(self, value: Value, size: int, expires: float = NEVER) -> None:
        self.value = value
        self.size = size
        self.expires = expires
        """When its time is over, on the monotonic clock."""


class Policy(Protocol[Key, Value]):
    """What a cache asks of each policy."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Key]:
        """The keys of the entries."""
        ...

    def find(self, key: Key) -> Entry[Value] | None:
        """The entry of a key, which is in use now."""
        ...

    def peek(self, key: Key) -> Entry[Value] | None:
        """The entry of a key; does not count as a use."""
        ...

    def put(self, key: Key, entry: Entry[Value]) -> Entry[Value] | None:
        """Set the entry of a key; returns the one that had to leave for it."""
        ...

    def evict(self) -> Entry[Value] | None:
        """Let the next entry leave; None when there is none."""
        ...

    def remove(self, key: Key) -> Entry[Value] | None:
        """Forget a key; returns the entry that it had."""
        ...

    def resize(self, entries_max: int) -> list[Entry[Value]]:
        """Hold at most so many entries from now on; returns those that had to leave."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...

    def first(self) -> tuple[Key, Entry[Value]] | None:
        """The entry that leaves next, where the policy can tell."""
        ...


class LeastRecentlyUsed(Generic[Key, Value]):
    """The entry leaves that was used longest ago."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: OrderedDict[Key, Entry[Value]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def find(self, key: Key) -> Entry[Value] | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def peek(self, key: Key) -> Entry[Value] | None:
        return self._entries.get(key)

    def put(self, key: Key, entry: Entry[Value]) -> Entry[Value] | None:
        is_full = key not in self._entries and len(self._entries) >= self._entries_max
        victim = self.evict() if is_full else None
        self._entries[key] = entry
        self._entries.move_to_end(key)
        return victim

    def evict(self) -> Entry[Value] | None:
        return self._entries.popitem(last=False)[1] if self._entries else None

    def remove(self, key: Key) -> Entry[Value] | None:
        return self._entries.pop(key, None)

    def resize(self, entries_max: int) -> list[Entry[Value]]:
        self._entries_max = entries_max
        over = max(0, len(self._entries) - entries_max)
        return [self._entries.popitem(last=False)[1] for _ in range(over)]

    def clear(self) -> None:
        self._entries.clear()

    def first(self) -> tuple[Key, Entry[Value]] | None:
        return next(iter(self._entries.items()), None)


class FirstToExpire(LeastRecentlyUsed[Key, Value]):
    """The entry leaves that was written longest ago: as all live equally long, it expires first."""

    def find(self, key: Key) -> Entry[Value] | None:
        return self._entries.get(key)
