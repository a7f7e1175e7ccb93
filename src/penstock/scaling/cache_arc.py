"""The adaptive replacement cache: learns whether what is recent or what is frequent pays.

From "ARC: A Self-Tuning, Low Overhead Replacement Cache" by Nimrod Megiddo and Dharmendra Modha
(FAST 2003). The names of the paper stand beside ours. For a cache of ``c`` entries it holds two
lists of entries, and two of *ghosts*, which are keys whose entries have left:

- ``recent`` (T1): entries that were used once lately; ``recent_ghosts`` (B1): those that left it;
- ``frequent`` (T2): entries that were used twice or more; ``frequent_ghosts`` (B2): those that
  left it;
- ``target`` (p): how many of the ``c`` entries the recent ones should be.

A key that comes back while it is a ghost shows that its list was too short, and moves the target. So
a scan over many keys passes through ``recent`` and leaves ``frequent`` alone.

Beyond the paper, entries can be removed, and can leave because of their bytes, so the cache may
have room though there are ghosts: then nobody has to leave.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import Generic

from penstock.scaling.cache_policies import Entry, Key, Value


class AdaptiveReplacement(Generic[Key, Value]):
    """Entries and ghosts in four lists, each with the one that was used longest ago in front."""

    def __init__(self, entries_max: int) -> None:
        self.entries_max = entries_max
        self.target = 0.0
        self.recent: OrderedDict[Key, Entry[Value]] = OrderedDict()
        self.frequent: OrderedDict[Key, Entry[Value]] = OrderedDict()
        self.recent_ghosts: OrderedDict[Key, None] = OrderedDict()
        self.frequent_ghosts: OrderedDict[Key, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.recent) + len(self.frequent)

    def __iter__(self) -> Iterator[Key]:
        return chain(self.recent, self.frequent)

    def find(self, key: Key) -> Entry[Value] | None:
        entry = self.frequent.get(key)
        if entry is not None:
            self.frequent.move_to_end(key)
            return entry
        entry = self.recent.pop(key, None)
        if entry is not None:
            self.frequent[key] = entry
        return entry

    def peek(self, key: Key) -> Entry[Value] | None:
        return self.frequent.get(key) or self.recent.get(key)

    def put(self, key: Key, entry: Entry[Value]) -> Entry[Value] | None:
        if self.find(key) is not None:
            self.frequent[key] = entry
            return None
        if key in self.recent_ghosts:
            return self._recent_came_back(key, entry)
        if key in self.frequent_ghosts:
            return self._frequent_came_back(key, entry)
        return self._newcomer(key, entry)

    def evict(self) -> Entry[Value] | None:
        return self._replace() if len(self) else None

    def remove(self, key: Key) -> Entry[Value] | None:
        self.recent_ghosts.pop(key, None)
        self.frequent_ghosts.pop(key, None)
        return self.frequent.pop(key, None) or self.recent.pop(key, None)

    def resize(self, entries_max: int) -> list[Entry[Value]]:
        self.entries_max = entries_max
        self.target = min(self.target, entries_max)
        gone = [self._replace() for _ in range(len(self) - entries_max)]
        _shorten(self.recent_ghosts, entries_max - len(self.recent))
        others = len(self) + len(self.recent_ghosts)
        _shorten(self.frequent_ghosts, 2 * entries_max - others)
        return gone

    def clear(self) -> None:
        for one in (self.recent, self.frequent, self.recent_ghosts, self.frequent_ghosts):
            one.clear()
        self.target = 0.0

    def first(self) -> tuple[Key, Entry[Value]] | None:
        return None  # who leaves next depends on who comes next

    # The four cases of the paper; the first, a hit, is find()

    def _recent_came_back(self, key: Key, entry: Entry[Value]) -> Entry[Value] | None:
        """Case II: the recent entries had too little room."""
        step = max(1.0, len(self.frequent_ghosts) / len(self.recent_ghosts))
        self.target = min(self.target + step, self.entries_max)
        victim = self._make_room()
        del self.recent_ghosts[key]
        self.frequent[key] = entry
        return victim

    def _frequent_came_back(self, key: Key, entry: Entry[Value]) -> Entry[Value] | None:
        """Case III: the frequent entries had too little room."""
        step = max(1.0, len(self.recent_ghosts) / len(self.frequent_ghosts))
        self.target = max(self.target - step, 0.0)
        victim = self._make_room(frequent_came_back=True)
        del self.frequent_ghosts[key]
        self.frequent[key] = entry
        return victim

    def _newcomer(self, key: Key, entry: Entry[Value]) -> Entry[Value] | None:
        """Case IV: a key that nothing is known about."""
        if len(self.recent) >= self.entries_max:
            # All entries are recent ones, and there is no room for a ghost.
            victim: Entry[Value] | None = self.recent.popitem(last=False)[1]
        else:
            self._forget_a_ghost()
            victim = self._make_room()
        self.recent[key] = entry
        return victim

    def _forget_a_ghost(self) -> None:
        """Keep room in the lists for one more key: c for the recent ones, 2c for all."""
        recent = len(self.recent) + len(self.recent_ghosts)
        if recent >= self.entries_max:
            self.recent_ghosts.popitem(last=False)
        elif recent + len(self.frequent) + len(self.frequent_ghosts) >= 2 * self.entries_max:
            self.frequent_ghosts.popitem(last=False)

    def _make_room(self, *, frequent_came_back: bool = False) -> Entry[Value] | None:
        is_full = len(self) >= self.entries_max
        return self._replace(frequent_came_back=frequent_came_back) if is_full else None

    def _replace(self, *, frequent_came_back: bool = False) -> Entry[Value]:
        """REPLACE of the paper: the oldest of the list that is over its target becomes a ghost."""
        over = len(self.recent) - self.target
        takes_recent = over > 0 or (frequent_came_back and over == 0)
        if self.recent and (takes_recent or not self.frequent):
            key, entry = self.recent.popitem(last=False)
            self.recent_ghosts[key] = None
        else:
            key, entry = self.frequent.popitem(last=False)
            self.frequent_ghosts[key] = None
        return entry


def _shorten(ghosts: OrderedDict[Key, None], length: int) -> None:
    while len(ghosts) > length:
        ghosts.popitem(last=False)
