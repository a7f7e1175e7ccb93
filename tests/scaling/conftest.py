"""What the tests of the cache share: a store, a clock, a slow disk."""

import pytest

from penstock.scaling import BoundedCache, CacheBacking, ScalingLimits
from penstock.system import System
from penstock.testing import VirtualClock
from tests.scaling.cache_world import TTL, FailingStore, HeldRunner, inline

# Before the suite is imported: its assertions then explain themselves as those of tests do.
pytest.register_assert_rewrite("penstock.testing.subsystem_suite")


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def store():
    return FailingStore()


@pytest.fixture
def runner():
    return HeldRunner()


@pytest.fixture
def make_cache(store, clock):
    """Makes caches on one store and one clock; sizes are the lengths of the values."""

    def made(policy="lru", *, memory_only=False, runner=inline, sizer=None, **limits):
        backing = CacheBacking[str, str](
            store=store, prefix="c/", encode=str.encode, decode=bytes.decode
        )
        return BoundedCache[str, str](
            ScalingLimits(**limits),
            policy=policy,
            ttl_seconds=TTL if policy == "ttl" else None,
            backing=None if memory_only else backing,
            sizer=sizer or (lambda key, value: len(value)),
            runner=runner,
            system=System(clock=clock),
        )

    return made
