"""What the tests share: of the cache a store, a clock, a slow disk; a ring in shared memory; a log for durable topics."""

import os
import random

import pytest

from penstock import WalMessageQueue
from penstock.scaling import BoundedCache, CacheBacking, ScalingLimits, SharedRing
from penstock.scaling.shared_segment import path_of
from penstock.system import System
from penstock.testing import VirtualClock
from tests.scaling.cache_world import TTL, FailingStore, HeldRunner, inline
from tests.scaling.ring_programs import SMALL

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


@pytest.fixture
def ring():
    with SharedRing.create(capacity_bytes=SMALL, timeout=20) as one:
        yield one
        for place in one._segment.places.consumers:
            place.own((0, 0))
    one._segment.unlink_if_unused()
    assert not os.path.exists(path_of(one.name))


@pytest.fixture
def system(clock):
    return System(clock=clock, random=random.Random(7))


@pytest.fixture
async def queue(tmp_path):
    async with WalMessageQueue(tmp_path) as queue:
        yield queue
