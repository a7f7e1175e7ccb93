"""Plain models of a cache, written with lists: slow, and easy to believe."""

from collections import Counter
from typing import Any


class LruModel:
    """Keys from the one that was used longest ago to the one that was used last."""

    def __init__(self, size):
        self.size = size
        self.keys: list[str] = []

    def resident(self):
        return set(self.keys)

    def use(self, key):
        self.keys.remove(key)
        self.keys.append(key)

    def put(self, key):
        """Returns the keys that left."""
        gone = []
        if key in self.keys:
            self.keys.remove(key)
        elif len(self.keys) == self.size:
            gone = self.evict()
        self.keys.append(key)
        return gone

    def evict(self):
        return [self.keys.pop(0)]

    def remove(self, key):
        if key in self.keys:
            self.keys.remove(key)

    def resize(self, size):
        self.size = size
        gone = []
        while len(self.keys) > size:
            gone += self.evict()
        return gone

    def clear(self):
        self.keys.clear()


class TtlModel(LruModel):
    """Keys in the order in which they were put; a use changes nothing."""

    def use(self, key):
        pass


class ArcModel:
    """The algorithm of the paper, line by line, with its names. Removal and room are our own."""

    def __init__(self, size):
        self.c = size
        self.p = 0.0
        self.t1: list[str] = []
        self.t2: list[str] = []
        self.b1: list[str] = []
        self.b2: list[str] = []

    def resident(self):
        return {*self.t1, *self.t2}

    def use(self, key):
        (self.t1 if key in self.t1 else self.t2).remove(key)
        self.t2.append(key)

    def put(self, x):
        if x in self.t1 or x in self.t2:
            self.use(x)
            return []
        gone = []
        if x in self.b1:
            delta = 1 if len(self.b1) >= len(self.b2) else len(self.b2) / len(self.b1)
            self.p = min(self.p + delta, self.c)
            gone = self.replace(x)
            self.b1.remove(x)
            self.t2.append(x)
        elif x in self.b2:
            delta = 1 if len(self.b2) >= len(self.b1) else len(self.b1) / len(self.b2)
            self.p = max(self.p - delta, 0)
            gone = self.replace(x)
            self.b2.remove(x)
            self.t2.append(x)
        else:
            l1 = len(self.t1) + len(self.b1)
            total = l1 + len(self.t2) + len(self.b2)
            if l1 == self.c:
                if len(self.t1) < self.c:
                    self.b1.pop(0)
                    gone = self.replace(x)
                else:
                    gone = [self.t1.pop(0)]
            elif total >= self.c:
                if total == 2 * self.c:
                    self.b2.pop(0)
                gone = self.replace(x)
            self.t1.append(x)
        return gone

    def replace(self, x):
        return [] if len(self.t1) + len(self.t2) < self.c else self.evict(x)

    def evict(self, x=None):
        too_many = len(self.t1) > self.p or (x in self.b2 and len(self.t1) == self.p)
        if self.t1 and (too_many or not self.t2):
            self.b1.append(self.t1.pop(0))
            return [self.b1[-1]]
        self.b2.append(self.t2.pop(0))
        return [self.b2[-1]]

    def remove(self, key):
        for one in (self.t1, self.t2, self.b1, self.b2):
            if key in one:
                one.remove(key)

    def resize(self, size):
        self.c = size
        self.p = min(self.p, size)
        gone = []
        while len(self.t1) + len(self.t2) > size:
            gone += self.evict()
        while len(self.t1) + len(self.b1) > size:
            self.b1.pop(0)
        while len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2) > 2 * size:
            self.b2.pop(0)
        return gone

    def clear(self):
        self.__init__(self.c)  # type: ignore[misc]


MODELS: dict[str, Any] = {"lru": LruModel, "ttl": TtlModel, "arc": ArcModel}


class CacheModel:
    """A cache in front of a dictionary: what it holds, what the store holds, what is counted."""

    def __init__(self, policy, entries, size, ttl=None):
        self.order = MODELS[policy](entries)
        self.size = size
        self.ttl = ttl
        self.now = 0.0
        self.memory: dict[str, tuple[bytes, float]] = {}
        self.store: dict[str, bytes] = {}
        self.counts: Counter[str] = Counter()

    def get(self, key):
        value = self.get_nowait(key)
        if value is None and key in self.store:
            value = self.store[key]
            self.counts["loads"] += 1
            self.keep(key, value)
        return value

    def get_nowait(self, key):
        self.drop_expired(key)
        if key not in self.memory:
            self.counts["misses"] += 1
            return None
        self.counts["hits"] += 1
        self.order.use(key)
        return self.memory[key][0]

    def put(self, key, value):
        self.store[key] = value
        self.counts["writes"] += 1
        self.keep(key, value)

    def delete(self, key):
        self.store.pop(key, None)
        self.counts["deletes"] += 1
        self.drop(key)

    def fail(self, key):
        self.counts["failures"] += 1
        self.drop(key)

    def clear(self):
        self.store.clear()
        self.memory.clear()
        self.order.clear()

    def resize(self, entries, size):
        self.size = size
        self.gone(self.order.resize(entries))
        while self.bytes > size:
            self.gone(self.order.evict())

    def keep(self, key, value):
        for one in list(self.memory):
            self.drop_expired(one)
        if len(value) > self.size:
            self.counts["oversized"] += 1
            self.drop(key)
            return
        while self.bytes - len(self.memory.get(key, (b"",))[0]) + len(value) > self.size:
            self.gone(self.order.evict())
        self.gone(self.order.put(key))
        self.memory[key] = (value, self.now + (self.ttl or float("inf")))

    def gone(self, keys):
        for key in keys:
            over = self.memory.pop(key)[1] <= self.now
            self.counts["expirations" if over else "evictions"] += 1

    def drop(self, key):
        self.memory.pop(key, None)
        self.order.remove(key)

    def drop_expired(self, key):
        if key in self.memory and self.memory[key][1] <= self.now:
            self.drop(key)
            self.counts["expirations"] += 1

    @property
    def bytes(self):
        return sum(len(value) for value, _ in self.memory.values())
