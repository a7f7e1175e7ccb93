"""Whatever is done to a cache, it holds, stores and counts what a plain model says."""

import asyncio

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.errors import StoreFailed
from penstock.scaling import BoundedCache, CacheBacking, ScalingLimits
from penstock.system import System
from penstock.testing import VirtualClock
from tests.scaling.cache_models import CacheModel
from tests.scaling.cache_world import FailingStore, inline

KEYS = st.sampled_from([f"k{number}" for number in range(9)])
VALUES = st.binary(max_size=12)
ENTRIES = st.integers(1, 5)
BYTES = st.sampled_from([8, 20, 1_000])
TTL = 10.0
COUNTS = ["hits", "misses", "loads", "writes", "deletes", "failures", "evictions", "expirations"]


class CacheMachine(RuleBasedStateMachine):
    """One cache in front of a store that fails when it is told to, on virtual time."""

    policy = "lru"

    @initialize(entries=ENTRIES, size=BYTES)
    def start(self, entries, size):
        ttl = TTL if self.policy == "ttl" else None
        self.runner = asyncio.Runner()
        self.clock = VirtualClock()
        self.store = FailingStore()
        self.model = CacheModel(self.policy, entries, size, ttl)
        self.limits = ScalingLimits(cache_entries_max=entries, memory_bytes_max=size)
        self.cache = BoundedCache[str, bytes](
            self.limits,
            policy=self.policy,
            ttl_seconds=ttl,
            backing=CacheBacking(store=self.store, prefix="c/", encode=bytes, decode=bytes),
            sizer=lambda key, value: len(value),
            runner=inline,
            system=System(clock=self.clock),
        )

    def run(self, awaitable):
        return self.runner.run(awaitable)

    @rule(key=KEYS, value=VALUES)
    def put(self, key, value):
        self.run(self.cache.put(key, value))
        self.model.put(key, value)

    @rule(key=KEYS)
    def get(self, key):
        assert self.run(self.cache.get(key)) == self.model.get(key)

    @rule(key=KEYS)
    def get_nowait(self, key):
        assert self.cache.get_nowait(key) == self.model.get_nowait(key)

    @rule(key=KEYS)
    def delete(self, key):
        self.run(self.cache.delete(key))
        self.model.delete(key)

    @rule(key=KEYS, value=VALUES, too_late=st.booleans())
    def put_that_fails(self, key, value, too_late):
        """The store raises, before or after it took the value."""
        self.store.fail_next(too_late=too_late)
        with pytest.raises(StoreFailed):
            self.run(self.cache.put(key, value))
        if too_late:
            self.model.store[key] = value
        self.model.fail(key)

    @rule(key=KEYS, too_late=st.booleans())
    def delete_that_fails(self, key, too_late):
        self.store.fail_next(too_late=too_late)
        with pytest.raises(StoreFailed):
            self.run(self.cache.delete(key))
        if too_late:
            self.model.store.pop(key, None)
        self.model.fail(key)

    @rule(key=KEYS)
    def get_that_fails(self, key):
        self.model.drop_expired(key)
        if key in self.model.memory:
            self.get(key)
            return
        self.store.fail_next()
        with pytest.raises(StoreFailed):
            self.run(self.cache.get(key))
        self.model.counts["misses"] += 1
        self.model.counts["failures"] += 1

    @rule(entries=ENTRIES, size=BYTES)
    def resize(self, entries, size):
        self.limits = self.limits.with_(cache_entries_max=entries, memory_bytes_max=size)
        self.cache.reconfigure_limits(self.limits)
        self.model.resize(entries, size)

    @rule(seconds=st.sampled_from([1.0, 4.0, 10.0]))
    def wait(self, seconds):
        self.clock.advance(seconds)
        self.model.now += seconds

    @rule()
    def sweep(self):
        self.cache.sweep()
        for key in list(self.model.memory):
            self.model.drop_expired(key)

    @rule()
    def clear(self):
        self.run(self.cache.clear())
        self.model.clear()

    @invariant()
    def is_like_the_model(self):
        if not hasattr(self, "cache"):
            return
        statistics = self.cache.statistics()
        assert set(self.cache.keys()) == set(self.model.memory) == self.model.order.resident()
        assert {f"c/{key}": value for key, value in self.model.store.items()} == self.store.values
        assert {name: getattr(statistics, name) for name in COUNTS} == {
            name: self.model.counts[name] for name in COUNTS
        }
        assert statistics.bytes == self.model.bytes <= self.limits.memory_bytes_max
        assert statistics.entries == len(self.model.memory) <= self.limits.cache_entries_max
        assert statistics.operations == 0

    def teardown(self):
        if hasattr(self, "runner"):
            self.runner.close()


class TtlMachine(CacheMachine):
    policy = "ttl"


class ArcMachine(CacheMachine):
    policy = "arc"


TestLru = pytest.mark.acceptance(106)(CacheMachine.TestCase)
TestTtl = pytest.mark.acceptance(106)(TtlMachine.TestCase)
TestArc = pytest.mark.acceptance(106)(ArcMachine.TestCase)
